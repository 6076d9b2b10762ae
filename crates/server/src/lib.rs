//! HTTP, SSE, access, limits, metrics and the embedded web page.
//!
//! [`serve`] answers on a listener; [`Server::router`] is what it answers with. Every request passes
//! one gate (`access::guard`) and then one handler of [`routes`]; every refusal is a `problem`.
//! Streams are in `sse`, what the store's rows look like to clients in `wire`.

mod access;
mod config;
mod connection;
mod cursor;
mod disk;
mod extract;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod health;
mod metrics;
mod problem;
mod routes;
mod serve;
mod sse;
mod state;
mod streams;
mod wire;

pub use access::{
    BindError, NoRandomness, Scope, check_bind, fresh_secret, hash_secret, new_token,
};
pub use config::{HEADER_BYTES_MAX, ServerConfig};
pub use metrics::install_metrics;
pub use serve::{ServeError, serve};
pub use state::Server;
