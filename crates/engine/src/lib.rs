//! The loop: admit, claim, run, journal, publish, settle, recover.
//!
//! Start with [`turn`], which reads as the story of a turn. [`wake`] has the closed enum of
//! everything that can wake a session and the one loop that reacts to it. [`journal`] is the one
//! place where a turn's records are written. [`recover`] is what opening the engine does first.
//! [`late`] is what it may still learn afterwards. [`live`] is how anybody reads while it happens. [`retain`] prunes what nobody needs one by one any
//! more.

mod asks;
mod calls;
mod config;
mod control;
pub mod engine;
mod journal;
mod late;
mod lease;
pub mod live;
mod patience;
mod recover;
mod retain;
mod step;
mod turn;
mod wake;

pub use config::{Asking, Config, Models, Scope, Watchdog};
pub use engine::{Engine, EngineError, NewSession, OpenError, Submission};
