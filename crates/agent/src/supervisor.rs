//! The small process that stands over every shell command.
//!
//! The server cannot end a command reliably: it may be dead. So each command has a supervisor, the
//! server's own binary executed again, that shares nothing with the server but two pipes:
//!
//! ```text
//!   server ── stdin: one spec line, then control lines ──▶ supervisor ── process group ──▶ command
//!          ◀── stdout: started, output …, exit ──────────            ◀── one pipe: its output ──
//! ```
//!
//! - The end of stdin means that the server died: everything is killed at once.
//! - So it is when the server's lease runs out (`CLOCK_BOOTTIME`, moved by control lines): no
//!   command works beside its successor.
//! - On a stop, or when the command's time is up: `SIGTERM`, a short grace, `SIGKILL`.
//! - When the command itself ends, what it left behind gets a moment and is then ended as well.
//!
//! *Everything* is every descendant: the supervisor is a child subreaper, so that a process which
//! left the group and the session still comes back to it. What it cannot reach is work that the
//! command asked of somebody else, such as a service manager or a container daemon.
//!
//! The supervisor is one thread, one poll loop and a few fixed buffers: it starts in a few
//! milliseconds and holds no more of a command's output than the pipe, one chunk and the tail.
//! [`Supervised`] is the server's side.

mod child;
mod client;
mod environment;
mod output;
mod process;
mod protocol;
mod start;

use std::process::ExitCode;

pub use client::{Command, Event, Running, StartError, Supervised};
pub use protocol::{End, Report};

/// The first argument that makes a binary a supervisor.
pub const ARGUMENT: &str = "__supervise";

/// Milliseconds between `SIGTERM` and `SIGKILL` after a stop or when the time is up.
pub const GRACE_MS: u64 = 2_000;
/// Milliseconds that processes which outlive their command have to end by themselves.
pub const LEFTOVER_MS: u64 = 500;
/// Milliseconds that they then have between `SIGTERM` and `SIGKILL`.
pub const LEFTOVER_GRACE_MS: u64 = 500;
/// Milliseconds that output is still read for once every process has ended.
pub const DRAIN_MS: u64 = 500;
/// Milliseconds after which a process that `SIGKILL` does not end is reported as a survivor.
pub const SURVIVOR_MS: u64 = 5_000;
/// Milliseconds that the supervisor goes on trying to end survivors.
pub const LINGER_MS: u64 = 60_000;
/// Milliseconds beyond its own limits after which a silent supervisor is taken for stuck.
pub const STUCK_MS: u64 = 10_000;
/// Milliseconds past the lease deadline after which the server ends the command itself.
pub const STUCK_AFTER_DEADLINE_MS: u64 = 1_500;
/// Bytes of output that are passed on as they come; beyond it only the tail is kept.
pub const STREAM_BYTES_MAX: u64 = 1 << 20;
/// Bytes at the end of the output that are kept beyond [`STREAM_BYTES_MAX`].
pub const TAIL_BYTES: usize = 32 << 10;
/// Bytes of output in one frame.
pub const CHUNK_BYTES: usize = 4 << 10;
/// Bytes of one line on either pipe.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// What a binary does that was started with [`ARGUMENT`] as its first argument: supervises one
/// command, speaking on stdin and stdout. Call it before anything else, above all before any
/// thread or runtime is started.
#[must_use]
pub fn main() -> ExitCode {
    child::main()
}

/// Runs [`main`] if this process was started as a supervisor, else gives `None`.
#[must_use]
pub fn dispatch() -> Option<ExitCode> {
    (std::env::args_os().nth(1).as_deref() == Some(std::ffi::OsStr::new(ARGUMENT))).then(main)
}

/// Milliseconds since boot, time asleep included: the clock of leases on one machine.
#[must_use]
pub fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}
