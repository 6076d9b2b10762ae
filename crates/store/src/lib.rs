//! The Store contract, and every operation behind it, written once.
//!
//! A backend knows how to keep rows ([`tx::Tx`]), how to commit a batch durably, and how to read
//! ([`read::Read`]). What an operation *does* — which rows change, which events are emitted, what is
//! refused — is in [`ops`], shared by all backends, so that there is one place where records are
//! written. The conformance suite (feature `conformance`) proves that a backend adds nothing of its
//! own.

pub mod clock;
pub mod columns;
pub mod error;
pub mod in_flight;
pub mod op;
pub mod ops;
pub mod read;
pub mod rows;
pub mod search;
pub mod store;
pub mod tx;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "conformance")]
pub mod memory;

pub use clock::{Clock, SystemClock};
pub use error::{OpError, Refusal, StorageError, StorageErrorKind};
pub use op::{Committed, Fence, Frame, Op, Reply, Signal};
pub use read::Read;
pub use store::{Store, TurnLease, execute};
