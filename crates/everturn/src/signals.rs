//! Ctrl-C and its relatives.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, Fault, Result};

/// Lets a write beyond the limit on file sizes (`ulimit -f`) fail like one to a full disk, instead of
/// ending the process.
pub(crate) fn survive_size_limit() {
    let number = rustix::process::Signal::XFSZ.as_raw();
    // Once taken, the signal never ends the process again, whether anybody listens or not.
    if let Err(error) = signal(SignalKind::from_raw(number)) {
        tracing::debug!(%error, "a limit on file sizes would end this process");
    }
}

/// What somebody asks of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Ctrl-C.
    Interrupt,
    /// An orderly end.
    Terminate,
}

/// Both signals, from now on.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where the process was started to outlive its terminal (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes over from the system's own reaction.
    pub(crate) fn new() -> Result<Self> {
        let take = |kind| {
            signal(kind).map_err(|error| {
                CliError::new(Fault::Io, format!("cannot listen for signals: {error}"))
            })
        };
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: if hangup_is_ignored() { None } else { Some(take(SignalKind::hangup())?) },
        })
    }

    /// The next one. A terminal that goes away asks for an orderly end.
    pub(crate) async fn next(&mut self) -> Ask {
        tokio::select! {
            _ = self.interrupt.recv() => Ask::Interrupt,
            _ = self.terminate.recv() => Ask::Terminate,
            () = hangup(&mut self.hangup) => Ask::Terminate,
        }
    }
}

async fn hangup(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process had it ignore SIGHUP.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores_hangup(&status)
}

/// Reads the mask of ignored signals; SIGHUP is the first.
fn ignores_hangup(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen_in_the_mask_of_ignored_signals() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup("nothing of it"));
    }
}
