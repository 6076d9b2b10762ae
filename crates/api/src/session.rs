//! Sessions on the wire.

use everturn_core as core;
use serde::{Deserialize, Serialize};

use crate::in_flight::InFlight;
use crate::policy::Policy;
use crate::run::Evidence;

/// The turn under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Running {
    /// Its run.
    pub run_id: String,
    /// Its number.
    pub generation: u64,
    /// The input that it answers.
    pub input_id: String,
    /// When it was claimed.
    pub started_at: String,
    /// Present when it goes on from an interrupted turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Continuation>,
    /// What it has said and done so far. Only where one session is asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_flight: Option<InFlight>,
}

/// What a continuation goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Continuation {
    /// Place in the chain, from 1.
    pub attempt: u32,
    /// When the run before it was interrupted.
    pub interrupted_at: String,
    /// The run before it.
    pub of_run: String,
    /// Number of the turn that the chain began with.
    pub of_generation: u64,
}

/// An interrupted turn that waits for a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Interrupted {
    /// Its run.
    pub run_id: String,
    /// Its number.
    pub generation: u64,
    /// Why.
    pub cause: String,
    /// What was observed.
    pub evidence: Option<Evidence>,
    /// Why it was not continued by itself: `disabled`, `exhausted`, `stale`, `loop_breaker`, `ended`,
    /// `waits_for_viewer`, `not_here`, `model_missing`, `tool_missing`, `other_workspace`,
    /// `unprepared`, `withdrawn`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Present and true while more of its output may still arrive.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub pending: bool,
    /// What it had said and done, while its interruption is not recorded. Only where one session is
    /// asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_flight: Option<InFlight>,
}

/// Who may write the session now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Holder {
    /// The node.
    pub node: String,
    /// Since when.
    pub since: String,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// Its id.
    pub id: String,
    /// For people.
    pub title: Option<String>,
    /// `idle`, `running`, `waiting`, `interrupted`, `ended`.
    pub state: String,
    /// Number of its last turn.
    pub generation: u64,
    /// Count of settled changes; a change of yours names it.
    pub revision: u64,
    /// `provider/name`; `null` means the server's default.
    pub model: Option<String>,
    /// The session's own system text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Its policy.
    pub policy: Policy,
    /// Inputs that wait.
    pub queue_length: u32,
    /// Viewers attached.
    pub viewers: u32,
    /// The turn under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Running>,
    /// An interrupted turn that waits for a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
    /// The process that may write it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// When it was created.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// When it was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Why it was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
    /// The feed position that this state reflects.
    pub offset: u64,
    /// The sender's own object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: serde_json::Value,
}

impl Session {
    /// The wire form of a session, its unfinished run and its interrupted run.
    ///
    /// `chain_generation` is the number of the turn that the running continuation's chain began
    /// with.
    #[must_use]
    pub fn new(
        from: &core::Session,
        running: Option<&core::Run>,
        interrupted: Option<&core::Run>,
        chain_generation: Option<u64>,
        viewers: u32,
    ) -> Self {
        let state = if let Some(run) = running {
            match run.state {
                core::RunState::Waiting => core::SessionState::Waiting,
                _ => core::SessionState::Running,
            }
        } else if from.ended_at.is_some() {
            core::SessionState::Ended
        } else if interrupted.is_some() {
            core::SessionState::Interrupted
        } else {
            core::SessionState::Idle
        };
        Self {
            id: from.id.to_string(),
            title: from.title.clone(),
            state: state.to_string(),
            generation: from.generation,
            revision: from.revision,
            model: from.model.clone(),
            system: from.system.clone(),
            policy: (&from.policy).into(),
            queue_length: from.queue_length,
            viewers,
            running: running.map(|run| Running {
                run_id: run.id.to_string(),
                generation: run.generation,
                input_id: run.input_ids.first().map(ToString::to_string).unwrap_or_default(),
                started_at: run.started_at.rfc3339(),
                continuation: run.continues.as_ref().map(|of| Continuation {
                    attempt: run.attempt,
                    interrupted_at: run.interrupted_at.unwrap_or(run.started_at).rfc3339(),
                    of_run: of.to_string(),
                    of_generation: chain_generation.unwrap_or(run.generation),
                }),
                in_flight: None,
            }),
            interrupted: interrupted.map(|run| Interrupted {
                run_id: run.id.to_string(),
                generation: run.generation,
                cause: run.cause.unwrap_or(core::Cause::Unknown).to_string(),
                evidence: run
                    .evidence
                    .as_ref()
                    .map(|seen| Evidence::new(seen, run.cause.unwrap_or(core::Cause::Unknown))),
                reason: run.parked.map(|parked| parked.to_string()),
                pending: run.late.is_some(),
                in_flight: None,
            }),
            holder: from.lease.as_ref().map(|lease| Holder {
                node: lease.holder.to_string(),
                since: lease.since.rfc3339(),
            }),
            created_at: from.created_at.rfc3339(),
            updated_at: from.updated_at.rfc3339(),
            ended_at: from.ended_at.map(core::Timestamp::rfc3339),
            end_reason: from.end_reason.clone(),
            offset: from.last_offset,
            metadata: from
                .metadata
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_else(|| serde_json::json!({})),
        }
    }
}
