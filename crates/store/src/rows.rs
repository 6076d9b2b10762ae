//! Rows that are not part of the vocabulary: nodes, events as stored, tokens, tombstones.

use everturn_core::event::EventHead;
use everturn_core::late::LateRecord;
use everturn_core::{NodeId, Principal, Timestamp, TokenId};

/// A process that has or had the store open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// The home that it was started for: processes of one home know of each other's deaths.
    pub home: String,
    /// The kernel's id of the boot that it started in.
    pub boot_id: String,
    /// What it is: `serve`, `run`, `chat`, `library`.
    pub role: String,
    /// When it started.
    pub started_at: Timestamp,
    /// Whether it found turns of a predecessor interrupted (the loop breaker counts these).
    pub interrupted_start: bool,
    /// When it left by its own will, or was found to be gone.
    pub ended_at: Option<Timestamp>,
}

/// One stored event: its head, and its body as JSON text. [`everturn_api::event::render`] makes the
/// bytes of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Where it stands.
    pub head: EventHead,
    /// Everything else, a JSON object.
    pub body: String,
}

/// What remains of a deleted session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// When it was deleted.
    pub deleted_at: Timestamp,
    /// Its generation then.
    pub generation: u64,
}

/// An access token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its name.
    pub id: TokenId,
    /// SHA-256 of its secret.
    pub hash: [u8; 32],
    /// Who it speaks for.
    pub principal: Principal,
    /// What it may do: words of `read`, `submit`, `control`, `approve`, `admin`.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it runs out.
    pub expires_at: Option<Timestamp>,
    /// When it was last used; updated at most once a minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// One record that arrived late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateRow {
    /// Its number among those of its run, from 1.
    pub number: u64,
    /// When it arrived.
    pub at: Timestamp,
    /// The write of its owner that it belonged to.
    pub write: u64,
    /// What it says.
    pub record: LateRecord,
}

/// Numbers that were reserved and then lost with unsynced events in a power loss (promise P7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// First lost offset.
    pub from_offset: u64,
    /// Last lost offset.
    pub to_offset: u64,
    /// First lost seq of the run that was under way.
    pub from_seq: u64,
    /// Last lost seq.
    pub to_seq: u64,
}
