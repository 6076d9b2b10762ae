//! Ctrl-C and its relatives.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, Fault, Result};

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
    hangup: Signal,
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
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// The next one. A terminal that goes away asks for an orderly end.
    pub(crate) async fn next(&mut self) -> Ask {
        tokio::select! {
            _ = self.interrupt.recv() => Ask::Interrupt,
            _ = self.terminate.recv() => Ask::Terminate,
            _ = self.hangup.recv() => Ask::Terminate,
        }
    }
}
