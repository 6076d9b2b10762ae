//! Receipts and inputs on the wire.

use everturn_core as core;
use serde::{Deserialize, Serialize};

use crate::content::ContentPart;

/// The process that an input waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WaitingFor {
    /// Its node.
    pub node: String,
    /// Since when it holds the session.
    pub since: String,
}

/// Proof that an input is durable, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Receipt {
    /// The input.
    pub input_id: String,
    /// Its session.
    pub session_id: String,
    /// The sender's name for it.
    pub request_id: String,
    /// `queued`, `started`, `terminal`.
    pub status: String,
    /// `queued`, `steered`, `interrupted`, `duplicate`.
    pub delivery: String,
    /// `completed`, `failed`, `cancelled`, `interrupted`, `rejected`; once `terminal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Place in the queue, from 1; while `queued`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Another process that runs this conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Number of its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Its last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Whether this identity was known already.
    pub replayed: bool,
}

impl Receipt {
    /// The receipt of an input.
    #[must_use]
    pub fn new(from: &core::Input, position: Option<u32>, replayed: bool) -> Self {
        let delivery = if replayed { core::Delivery::Duplicate } else { from.delivery };
        Self {
            input_id: from.id.to_string(),
            session_id: from.session_id.to_string(),
            request_id: from.request_id.to_string(),
            status: from.status.to_string(),
            delivery: delivery.to_string(),
            outcome: from.outcome.map(|outcome| outcome.to_string()),
            position,
            waiting_for: None,
            generation: from.generation,
            run_id: from.run_id.as_ref().map(ToString::to_string),
            replayed,
        }
    }
}

/// One input with what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Input {
    /// Its receipt.
    #[serde(flatten)]
    pub receipt: Receipt,
    /// `message`, `steer`, `completion`, `continuation`.
    pub kind: String,
    /// All its text.
    pub text: String,
    /// The content list, where it is more than one text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<ContentPart>>,
    /// For a continuation: the run that it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<String>,
    /// When it was accepted.
    pub accepted_at: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

impl Input {
    /// The wire form of an input.
    #[must_use]
    pub fn new(from: &core::Input, position: Option<u32>) -> Self {
        Self {
            receipt: Receipt::new(from, position, false),
            kind: from.kind.to_string(),
            text: from.content.plain(),
            content: (!from.content.is_plain()).then(|| crate::content::list(&from.content)),
            continues: from.continues.as_ref().map(ToString::to_string),
            accepted_at: from.accepted_at.rfc3339(),
            ended_at: from.ended_at.map(core::Timestamp::rfc3339),
        }
    }
}
