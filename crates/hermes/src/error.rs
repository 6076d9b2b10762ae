//! What can go wrong with a journal as a whole. A bad line in it is no error, see
//! [`Malformed`](crate::journal::Malformed).

use std::io;

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, pipe or connection failed.
    #[error("cannot {doing} the journal: {source}")]
    Io {
        /// What was being done: `open`, `read`, `write`.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Another process writes to this journal.
    #[error("another process writes to the journal of run {run_id}")]
    InUse {
        /// The run.
        run_id: String,
    },
    /// The record is not one that a reader would take.
    #[error("the record cannot be written: {0}")]
    Record(String),
}

impl Error {
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "journal_io",
            Self::InUse { .. } => "journal_in_use",
            Self::Record(_) => "journal_record_invalid",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check that the file is there, may be read and has room on its disk",
            Self::InUse { .. } => "wait until the other process is done; a journal has one writer",
            Self::Record(_) => {
                "a record has a name, a JSON object as payload, the next number and at most 10 MiB"
            }
        }
    }
}

/// Ends in `Ok` or in an [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;
