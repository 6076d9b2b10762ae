//! The crash harness and the history checker; end-to-end tests of the real binary.
//!
//! The pieces, in the order in which a test uses them:
//!
//! - [`process`]: a child process whose output can be waited for, and which never outlives the test.
//! - [`server`]: the real binary as a server on a home of its own, killed and started again.
//! - [`client`]: an HTTP client that goes on after a restart.
//! - [`follow`]: a reader of a stream that keeps its cursor and attaches again after a cut.
//! - [`openai`]: the model, where a test wants to see what the model is told.
//! - [`load`]: many clients at once, each input sent twice.
//! - [`crowd`]: many viewers at once.
//! - [`history`] and [`check`]: what the store says afterwards, and whether the promises were kept.
//! - [`disk`]: a file system that is full when the test says so.
//! - [`torture`]: deaths at every named place, in homes of their own: the crash harness itself.
//! - [`shim`]: a machine that loses its power, whose disk fails and whose clock jumps.
//! - [`tier`]: how much of it all, by default and in a long run.

pub mod check;
pub mod client;
pub mod crowd;
pub mod disk;
pub mod follow;
pub mod history;
pub mod load;
pub mod openai;
pub mod process;
pub mod server;
pub mod shim;
pub mod tier;
pub mod torture;
pub mod wait;
