//! Sessions and the lease that says who may write one.

use crate::id::{NodeId, Principal, RunId, SessionId};
use crate::policy::Policy;
use crate::time::Timestamp;

words! {
    /// What a session is doing, derived from its row, its run and its lease.
    SessionState {
        /// Nothing runs.
        Idle = "idle",
        /// A turn runs.
        Running = "running",
        /// A turn waits for a person's answer.
        Waiting = "waiting",
        /// Its last turn was interrupted and nobody decided what to do.
        Interrupted = "interrupted",
        /// Closed.
        Ended = "ended",
    }
}

/// When a lease runs out. On one machine that is a point of the boot clock, which no wall-clock
/// change moves; another boot id means that every holder of that boot is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseExpiry {
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// Milliseconds since that boot, suspended time included.
    pub boot_ms: u64,
}

impl LeaseExpiry {
    /// Whether it has passed, seen from `now` (same shape: this boot, this moment).
    #[must_use]
    pub fn passed(&self, now: &Self) -> bool {
        self.boot_id != now.boot_id || self.boot_ms <= now.boot_ms
    }
}

/// A node's right to write a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub holder: NodeId,
    /// When it runs out unless renewed.
    pub expiry: LeaseExpiry,
    /// Since when this holder has it.
    pub since: Timestamp,
}

/// What names a session in the store: ids belong to their principal, so that two principals may use
/// the same one and never meet (promise P14).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// Whose it is.
    pub principal: Principal,
    /// The id that the principal knows it by.
    pub id: SessionId,
}

impl std::fmt::Display for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.principal, self.id)
    }
}

/// One conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub principal: Principal,
    /// For people.
    pub title: Option<String>,
    /// `provider/name`; `None` means the server's default.
    pub model: Option<String>,
    /// The session's own system text.
    pub system: Option<String>,
    /// Its policy.
    pub policy: Policy,
    /// JSON object text.
    pub metadata: Option<String>,
    /// Number of its last turn.
    pub generation: u64,
    /// Count of settled changes.
    pub revision: u64,
    /// Who may write it now.
    pub lease: Option<Lease>,
    /// Grows whenever another holder takes the lease; every fenced write checks it.
    pub epoch: u64,
    /// Offset of the last event of its feed.
    pub last_offset: u64,
    /// Numbers up to here are reserved: after a power loss the feed goes on above it (promise P7).
    pub offset_ceiling: u64,
    /// Id of its last message.
    pub last_message_id: u64,
    /// Queue key of the last input accepted.
    pub last_queue_key: i64,
    /// Queued inputs.
    pub queue_length: u32,
    /// The run that is not ended.
    pub running: Option<RunId>,
    /// The interrupted run that waits for a decision.
    pub interrupted: Option<RunId>,
    /// Completions land as notes until a person's next input.
    pub quiet: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was closed.
    pub ended_at: Option<Timestamp>,
    /// Why it was closed.
    pub end_reason: Option<String>,
}

impl Session {
    /// What names it in the store.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        SessionKey { principal: self.principal.clone(), id: self.id.clone() }
    }
}
