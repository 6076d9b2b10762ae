//! The server from outside: a real engine behind real sockets, with a store in memory and a model
//! that does as it is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access;
mod bad_input;
mod connection;
mod events;
mod inputs;
mod later;
mod limits;
mod many;
mod operation;
mod page;
mod prompts;
mod puppet;
mod sessions;
mod sse;
mod virtually;
mod world;
