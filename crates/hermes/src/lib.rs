//! Readers of other people's stores: run journals as JSON lines.
//!
//! [`journal`] is the format of the earlier web UI: one record a line, one run a file. It reads what
//! a crash, a power loss or another writer left there, and writes what the earlier tools read.
//! [`run`] is what our own events are in that format, and back. docs/journal.md has both tables.
//!
//! Nothing here knows a store of ours: callers hand events in and get events out.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod journal;
pub mod run;

mod error;
mod object;
mod time;

pub use error::Error;
pub use run::{Exporter, Importer, RunEvent, RunItem, Sealed};
