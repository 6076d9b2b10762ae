//! The turn itself, seen from the model's side: providers, tools and the supervisor of commands.
//!
//! The engine decides when a model is asked and a tool is run, and records both; this crate knows
//! how. Nothing here touches a store.

pub mod models;
pub mod provider;
pub mod retry;
pub mod script;
pub mod supervisor;
pub mod tool;
pub mod workspace;
