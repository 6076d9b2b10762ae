//! What the writer did, for metrics and for tests of what is synced when.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the store was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StoreStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> StoreStats {
                StoreStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

stats! {
    /// Operations that were committed.
    ops,
    /// Operations that were refused.
    refused,
    /// Operations that a storage failure hit.
    failed,
    /// Commits that changed something.
    commits,
    /// Of these: synced to the disk before anybody was told.
    synced_commits,
    /// Events that were committed.
    events,
    /// Times that a commit waited for another process.
    busy,
    /// Checkpoints that moved the whole write-ahead log into the database.
    checkpoints,
    /// Times that the connection was opened anew after a failure.
    reopened,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}
