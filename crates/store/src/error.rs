//! What can go wrong: a refusal (the caller's business) or a storage failure (the operator's).

use everturn_core::{NodeId, Timestamp};

/// What kind of storage failure it is (promise P13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageErrorKind {
    /// No space, or a quota.
    Full,
    /// The file or database cannot be written now: read-only, locked for too long, I/O error.
    Unavailable,
    /// What is stored is not what was written.
    Corrupt,
    /// The store was made by a newer version.
    TooNew,
    /// The file that was opened is not the file at its path any more.
    Replaced,
    /// The store was closed, or its writer ended.
    Closed,
}

/// A storage failure. Nothing that it concerns was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StorageError {
    /// What kind.
    pub kind: StorageErrorKind,
    /// What happened, for an operator; holds no content.
    pub message: String,
}

impl StorageError {
    /// A failure of this kind.
    pub fn new(kind: StorageErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Why an operation was refused. It left nothing behind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such session (of this principal).
    #[error("there is no such session")]
    SessionNotFound,
    /// It was deleted; its tombstone says so.
    #[error("the session was deleted")]
    SessionDeleted,
    /// The id is taken.
    #[error("a session with this id exists")]
    SessionExists,
    /// The principal has as many sessions as the limit allows.
    #[error("the limit of {max} sessions is reached")]
    TooManySessions {
        /// The limit.
        max: u64,
    },
    /// The session changed meanwhile.
    #[error("the session is at revision {current}")]
    RevisionConflict {
        /// Its revision.
        current: u64,
    },
    /// A turn runs or an input waits.
    #[error("the session is busy")]
    SessionBusy,
    /// The identity was used for something else.
    #[error("this request id was used for another payload")]
    InputConflict,
    /// The queue is at its limit.
    #[error("the queue holds {max} inputs already")]
    QueueFull {
        /// The limit.
        max: u32,
    },
    /// No turn runs.
    #[error("no turn is running")]
    NotRunning,
    /// Another turn was meant.
    #[error("the session is at generation {current}")]
    StaleGeneration {
        /// Its generation.
        current: u64,
    },
    /// There is no such input.
    #[error("there is no such input")]
    InputNotFound,
    /// The input no longer waits.
    #[error("the input no longer waits")]
    InputNotQueued,
    /// There is no such run.
    #[error("there is no such run")]
    RunNotFound,
    /// There is no such prompt.
    #[error("there is no such prompt")]
    PromptNotFound,
    /// The prompt was settled.
    #[error("the prompt was settled already")]
    AlreadyResolved,
    /// The prompt ran out, or its run ended.
    #[error("the prompt is no longer open")]
    Expired,
    /// The answer is not one that the prompt takes.
    #[error("{0}")]
    BadAnswer(&'static str),
    /// A later turn has begun.
    #[error("a later turn has begun")]
    Superseded,
    /// The turn does not wait for a decision.
    #[error("the turn is not waiting for a decision")]
    NotInterrupted,
    /// The writer lost its lease, or its turn is over. Nothing of it was written (promise P11).
    #[error("the lease on this session is no longer held, or the turn is over")]
    Fenced,
    /// A person's stop is recorded on the turn: only its end can still be written.
    #[error("the turn was stopped")]
    Stopped,
    /// Another living node holds the session.
    #[error("node {node} holds the session")]
    Held {
        /// The node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// What was to be imported is not a run as one is kept here, or cannot be read to its end.
    #[error("the run cannot be imported: {0}")]
    BadImport(String),
    /// A record that the turn may not write in its state: a bug of the caller, named.
    #[error("a record does not fit the turn's state: {0}")]
    BadRecord(&'static str),
}

/// Why an operation did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Refused; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed; nothing was acknowledged. The same call may be made again.
    #[error(transparent)]
    Storage(#[from] StorageError),
}
