//! The engine on the real store, with a model and tools that the tests drive by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]

mod approvals;
mod bench;
mod continuation;
mod controls;
mod interruptions;
mod journal;
mod kinds;
mod late;
mod limits;
mod nodes;
mod questions;
mod reading;
mod resume;
mod turns;
mod watchdog;
