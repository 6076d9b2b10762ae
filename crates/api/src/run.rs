//! Runs on the wire.

use everturn_core as core;
use serde::{Deserialize, Serialize};

/// What was observed when an interruption was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Evidence {
    /// One sentence for people.
    pub text: String,
    /// The node that held the session.
    pub holder: String,
    /// When that node started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_started_at: Option<String>,
    /// Whether the kernel says that it is gone; absent where it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_gone: Option<bool>,
    /// Whether the machine was booted again meanwhile.
    pub rebooted: bool,
    /// The node that observed it.
    pub observer: String,
    /// When that node started.
    pub observer_started_at: String,
    /// Whether a newer process of the holder's home runs.
    pub newer_process: bool,
    /// Seconds for which the holder, which was leaving, waited for the step under way in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout_s: Option<u64>,
    /// Seconds for which the holder's store took no record, after which it let go of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_silent_s: Option<u64>,
    /// Seq of the last committed event.
    pub last_seq: u64,
    /// Its name.
    pub last_event: String,
    /// When it was committed.
    pub last_event_at: String,
}

impl Evidence {
    /// The wire form; the sentence depends on the cause that was concluded.
    #[must_use]
    pub fn new(from: &core::Evidence, cause: core::Cause) -> Self {
        Self {
            text: from.sentence(cause),
            holder: from.holder.to_string(),
            holder_started_at: from.holder_started_at.map(core::Timestamp::rfc3339),
            holder_gone: from.holder_gone,
            rebooted: from.rebooted,
            observer: from.observer.to_string(),
            observer_started_at: from.observer_started_at.rfc3339(),
            newer_process: from.newer_process,
            drain_timeout_s: from.drain_timeout_s,
            store_silent_s: from.store_silent_s,
            last_seq: from.last_seq,
            last_event: from.last_event.clone(),
            last_event_at: from.last_event_at.rfc3339(),
        }
    }
}

/// A handled error. Also a stored column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Failure {
    /// Stable code.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Whether the same request would fail again.
    pub permanent: bool,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl From<&core::Failure> for Failure {
    fn from(from: &core::Failure) -> Self {
        Self {
            code: from.code.clone(),
            message: from.message.clone(),
            permanent: from.permanent,
            hint: from.hint.clone(),
        }
    }
}

impl From<Failure> for core::Failure {
    fn from(from: Failure) -> Self {
        Self { code: from.code, message: from.message, permanent: from.permanent, hint: from.hint }
    }
}

/// Tokens used. Also a stored column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Tokens of the prompts.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Of the prompts: read from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Of the answers: reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// What the provider says it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cost {
    /// Decimal number as text.
    pub amount: String,
    /// ISO 4217 code.
    pub currency: String,
}

impl From<&core::Usage> for Usage {
    fn from(from: &core::Usage) -> Self {
        Self {
            input_tokens: from.input_tokens,
            output_tokens: from.output_tokens,
            cached_input_tokens: from.cached_input_tokens,
            reasoning_tokens: from.reasoning_tokens,
            cost: from
                .cost
                .as_ref()
                .map(|cost| Cost { amount: cost.amount.clone(), currency: cost.currency.clone() }),
        }
    }
}

impl From<Usage> for core::Usage {
    fn from(from: Usage) -> Self {
        Self {
            input_tokens: from.input_tokens,
            output_tokens: from.output_tokens,
            cached_input_tokens: from.cached_input_tokens,
            reasoning_tokens: from.reasoning_tokens,
            cost: from
                .cost
                .map(|cost| core::run::Cost { amount: cost.amount, currency: cost.currency }),
        }
    }
}

/// One run, in summary.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Run {
    /// Its id.
    pub run_id: String,
    /// Its session.
    pub session_id: String,
    /// The input that it answers (the first of them).
    pub input_id: String,
    /// All inputs that it answers.
    pub input_ids: Vec<String>,
    /// Number of the turn.
    pub generation: u64,
    /// Place in its chain of continuations, from 0.
    pub attempt: u32,
    /// `running`, `waiting`, `handed_over`, `ended`.
    pub state: String,
    /// Whether it has its terminal record.
    pub terminal: bool,
    /// `completed`, `failed`, `cancelled-by-user`, `interrupted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal_state: Option<String>,
    /// Present and true while no terminal record exists and nobody works on the run.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub interrupted_virtually: bool,
    /// Seq of its last event.
    pub last_seq: u64,
    /// Name of its last event.
    pub last_event: String,
    /// Why it was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Why it was not continued by itself: the words of a session's `interrupted.reason`, or
    /// how the matter was closed: `discarded`, `resent`, `superseded`, `undecided`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parked: Option<String>,
    /// Present and true while more of its output may still arrive.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub pending: bool,
    /// The run that it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues: Option<String>,
    /// `provider/name`.
    pub model: String,
    /// The node that runs or ran it.
    pub node: String,
    /// Tokens used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When it was claimed.
    pub started_at: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

impl From<&core::Run> for Run {
    fn from(from: &core::Run) -> Self {
        let first = from.input_ids.first().map(ToString::to_string).unwrap_or_default();
        Self {
            run_id: from.id.to_string(),
            session_id: from.session_id.to_string(),
            input_id: first,
            input_ids: from.input_ids.iter().map(ToString::to_string).collect(),
            generation: from.generation,
            attempt: from.attempt,
            state: from.state.to_string(),
            terminal: from.terminal_state.is_some(),
            terminal_state: from.terminal_state.map(|state| state.to_string()),
            interrupted_virtually: false,
            last_seq: from.last_seq,
            last_event: from.last_event.clone(),
            cause: from.cause.map(|cause| cause.to_string()),
            evidence: from
                .evidence
                .as_ref()
                .map(|seen| Evidence::new(seen, from.cause.unwrap_or(core::Cause::Unknown))),
            parked: from.parked.map(|parked| parked.to_string()),
            pending: from.late.is_some(),
            continues: from.continues.as_ref().map(ToString::to_string),
            model: from.model.clone(),
            node: from.node.to_string(),
            usage: from.usage.as_ref().map(Usage::from),
            error: from.error.as_ref().map(Failure::from),
            started_at: from.started_at.rfc3339(),
            ended_at: from.ended_at.map(core::Timestamp::rfc3339),
        }
    }
}

/// A window of a run's journal in JSON form.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunEvents {
    /// The run.
    pub run_id: String,
    /// Events as their streams send them.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub events: Vec<Box<serde_json::value::RawValue>>,
    /// Stored records that cannot be read, with their seq.
    pub malformed: Vec<Malformed>,
    /// Seq of the run's last event (not of this window's).
    pub last_seq: u64,
    /// Whether the run has ended.
    pub terminal: bool,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal_state: Option<String>,
    /// Present and true while no terminal record exists and nobody works on the run.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub interrupted_virtually: bool,
    /// What speaks for that, with the last event of the journal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub evidence: Option<Evidence>,
}

/// A stored record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Malformed {
    /// Its place in the run's journal.
    pub seq: u64,
    /// What is wrong with it.
    pub error: String,
}
