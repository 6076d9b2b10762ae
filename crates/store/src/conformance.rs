//! The suite that every backend runs: what a store promises, observed from outside.
//!
//! A backend's test lists [`cases`] and runs each on a fresh store of its own (`libtest-mimic` shows
//! them one by one). Cases speak only the contract: [`crate::Store`] and [`crate::Read`]. Names of
//! promises are those of DESIGN §2.

// A failed expectation is how a case fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

mod admission;
mod world;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Clock;
use crate::store::Store;

pub use world::{ManualClock, World};

/// Makes stores to be tested.
#[async_trait]
pub trait Factory: Send + Sync {
    /// A fresh, empty store that takes time and ids from this clock. What it needs on disk lives as
    /// long as the factory.
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store>;
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One thing that a store promises.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: `area::what_holds`.
    pub name: &'static str,
    run: fn(World) -> Running,
}

impl Case {
    /// Runs the case on a fresh store.
    ///
    /// # Panics
    /// Where the promise does not hold.
    pub async fn run(&self, factory: &dyn Factory) {
        let world = World::open(factory).await;
        (self.run)(world).await;
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! cases {
    ($($area:ident { $($case:ident,)* })*) => {
        /// Every case.
        #[must_use]
        pub fn cases() -> Vec<Case> {
            vec![$($(Case {
                name: concat!(stringify!($area), "::", stringify!($case)),
                run: |world| Box::pin($area::$case(world)),
            },)*)*]
        }
    };
}

cases! {
    admission {
        an_accepted_input_is_read_back_whole,
        the_same_identity_gets_the_same_receipt,
        another_payload_is_a_conflict,
        identity_outlives_the_session,
        the_queue_is_in_order_of_acceptance,
        an_interrupt_goes_first_and_stops_the_turn,
        modes_are_refused_where_they_make_no_sense,
        a_full_queue_refuses_and_keeps_nothing,
    }
}
