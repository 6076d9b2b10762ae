//! The main job against the real binary: one program, so that it is linked once.
//!
//! Nothing here sleeps to wait for something: a test waits for an event of a stream, a line of a file,
//! a request at the model's gate. Each names the promise (ARCHITECTURE.md) that it proves.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod admission;
mod bad_input;
mod bench;
mod cli;
mod common;
mod control;
mod crash;
mod database;
mod disk;
mod drain;
mod fence;
mod load;
mod machine;
mod provider;
mod retention;
mod tools;
mod torture;
mod two;
mod viewers;
