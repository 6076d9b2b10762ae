//! Wire types of the native API: what JSON looks like, and nothing else.
//!
//! The bytes of an event are final when they are committed, so the store encodes events with the
//! types of this crate; that is why `everturn-store` depends on it. Every type here is written by
//! [`From`] a domain type and never leaks back into one, except where a request or a stored column
//! is read ([`policy`], [`content`]).

pub mod codes;
pub mod content;
pub mod event;
pub mod in_flight;
pub mod input;
pub mod known;
pub mod message;
mod object;
pub mod page;
pub mod policy;
pub mod problem;
pub mod prompt;
pub mod request;
pub mod run;
pub mod session;

pub use codes::Code;
pub use problem::Problem;
