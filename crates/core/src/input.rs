//! Inputs: what was accepted for a session, and how it ended.

use crate::content::Content;
use crate::digest::Digest;
use crate::id::{InputId, Principal, RequestId, RunId, SessionId};
use crate::time::Timestamp;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The word on disk and on the wire; fixed for ever.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
            /// The value of a word, if it is one.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Where an input comes from.
    InputKind {
        /// A person's message.
        Message = "message",
        /// A person's words for the turn under way.
        Steer = "steer",
        /// The result of background work.
        Completion = "completion",
        /// The wish to finish an interrupted turn.
        Continuation = "continuation",
        /// The import of a run that happened elsewhere. Ended with it; never in a queue.
        Import = "import",
    }
}

words! {
    /// How the sender wants an input delivered.
    Mode {
        /// Behind whatever waits.
        Queue = "queue",
        /// Into the running turn, after its current tool batch.
        Steer = "steer",
        /// Stop the running turn, then run this first.
        Interrupt = "interrupt",
        /// Drop only the model request under way, take this in and go on.
        Redirect = "redirect",
        /// Only if nothing runs.
        Reject = "reject",
    }
}

words! {
    /// Where an input is in its life.
    InputStatus {
        /// Waits for its turn.
        Queued = "queued",
        /// Its turn, or a continuation of it, is queued or running.
        Started = "started",
        /// Ended, with an [`Outcome`].
        Terminal = "terminal",
    }
}

words! {
    /// How an input ended: that of the last run of its chain.
    Outcome {
        /// The model gave its answer.
        Completed = "completed",
        /// A handled error ended it.
        Failed = "failed",
        /// A person stopped or withdrew it.
        Cancelled = "cancelled",
        /// Its executor went away and it was not continued.
        Interrupted = "interrupted",
        /// It was never taken in.
        Rejected = "rejected",
    }
}

words! {
    /// How an input reached the session.
    Delivery {
        /// Into the queue.
        Queued = "queued",
        /// Into the running turn.
        Steered = "steered",
        /// By stopping a turn.
        Interrupted = "interrupted",
        /// It was known already.
        Duplicate = "duplicate",
    }
}

/// One accepted input. The row is also its receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its id.
    pub id: InputId,
    /// The session that it belongs to.
    pub session_id: SessionId,
    /// Who sent it.
    pub principal: Principal,
    /// The sender's name for it; unique with principal and session.
    pub request_id: RequestId,
    /// Digest of the first payload under this identity; never changes.
    pub digest: Digest,
    /// Where it comes from.
    pub kind: InputKind,
    /// How it was to be delivered.
    pub mode: Mode,
    /// What it says.
    pub content: Content,
    /// JSON object text, as the sender gave it.
    pub metadata: Option<String>,
    /// Place in the session's queue; smaller runs first. Not shown to anyone.
    pub queue_key: i64,
    /// Where it is in its life.
    pub status: InputStatus,
    /// How it reached the session.
    pub delivery: Delivery,
    /// How it ended, once [`InputStatus::Terminal`].
    pub outcome: Option<Outcome>,
    /// Generation of its last turn.
    pub generation: Option<u64>,
    /// Its last run.
    pub run_id: Option<RunId>,
    /// For a continuation: which attempt of the chain it is, from 1.
    pub attempt: u32,
    /// For a continuation: the run that it goes on from.
    pub continues: Option<RunId>,
    /// For a continuation admitted by policy: the input whose outcome it decides with its own
    /// (itself a continuation, perhaps, that decides another's).
    pub decides: Option<InputId>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl Input {
    /// The session that it belongs to.
    #[must_use]
    pub fn session_key(&self) -> crate::session::SessionKey {
        crate::session::SessionKey {
            principal: self.principal.clone(),
            id: self.session_id.clone(),
        }
    }
}
