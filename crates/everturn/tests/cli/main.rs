//! The real binary, from the outside: what is typed, what is printed, what it ends with.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests say what they expect by failing"
)]

mod chat;
mod config;
mod doctor;
mod grant;
mod help;
mod journal;
mod run;
mod serve;
mod sessions;
mod support;
mod terminal;
mod token;
mod torture;
