//! The suite of the store's contract, on SQLite.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use everturn_sqlite::{Fsync, OpenOptions, SqliteStore};
use everturn_store::conformance::{Factory, cases};
use everturn_store::{Clock, Store};
use libtest_mimic::{Arguments, Trial};

/// Stores in temporary folders.
#[derive(Default)]
struct Folders {
    fsync: Fsync,
    kept: Mutex<Vec<tempfile::TempDir>>,
}

#[async_trait]
impl Factory for Folders {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options =
            OpenOptions { fsync: self.fsync, ..OpenOptions::new(folder.path(), "library", clock) };
        let store = SqliteStore::open(options).expect("a fresh store opens");
        self.kept.lock().expect("no case panicked here").push(folder);
        Arc::new(store)
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let trials = cases()
        .into_iter()
        .map(|case| {
            Trial::test(case.name, move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(case.run(&Folders::default()));
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
