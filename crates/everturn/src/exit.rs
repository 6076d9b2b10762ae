//! What the process ends with. The numbers are part of the interface.

use std::process::ExitCode;

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything that was asked is done.
    Completed = 0,
    /// It failed.
    Failed = 1,
    /// It was asked in a way that cannot be understood.
    Usage = 2,
    /// A person stopped it.
    Cancelled = 3,
    /// Its executor went away, and it was not continued.
    Interrupted = 4,
    /// The server was out of reach for too long; the input is safe.
    LostContact = 5,
    /// The input still waits; it is safe.
    StillQueued = 6,
}

impl Exit {
    /// The exit code of an input's outcome, by its word on the wire.
    pub(crate) fn of_outcome(outcome: &str) -> Self {
        match outcome {
            "completed" => Self::Completed,
            "cancelled" => Self::Cancelled,
            "interrupted" => Self::Interrupted,
            _ => Self::Failed,
        }
    }

    /// The number.
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}
