//! The suite of the store's contract, on the store in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use async_trait::async_trait;
use everturn_store::conformance::{Factory, cases};
use everturn_store::memory::MemoryStore;
use everturn_store::{Clock, Store};
use libtest_mimic::{Arguments, Trial};

struct Memory;

#[async_trait]
impl Factory for Memory {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock))
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let trials = cases()
        .into_iter()
        .map(|case| {
            Trial::test(case.name, move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(case.run(&Memory));
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
