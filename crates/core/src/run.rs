//! Runs: the journal of one turn, how it ended, and the evidence when its executor went away.

use crate::id::{InputId, NodeId, Principal, RunId, SessionId};
use crate::input::Outcome;
use crate::late;
use crate::recovery::Parked;
use crate::time::Timestamp;

words! {
    /// Where a run is in its life.
    RunState {
        /// A node works on it.
        Running = "running",
        /// It waits for a person's answer.
        Waiting = "waiting",
        /// A leaving node let go of it at a step boundary; the next holder goes on.
        HandedOver = "handed_over",
        /// It has its terminal record.
        Ended = "ended",
    }
}

words! {
    /// How a run ended.
    TerminalState {
        /// The model gave its answer.
        Completed = "completed",
        /// A handled error ended it.
        Failed = "failed",
        /// A person stopped it.
        Cancelled = "cancelled-by-user",
        /// Its executor went away.
        Interrupted = "interrupted",
    }
}

impl TerminalState {
    /// The outcome that an input has when its last run ends so.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Completed => Outcome::Completed,
            Self::Failed => Outcome::Failed,
            Self::Cancelled => Outcome::Cancelled,
            Self::Interrupted => Outcome::Interrupted,
        }
    }
}

words! {
    /// Why a run was interrupted, decided from evidence in this order.
    Cause {
        /// A newer process of the same home runs.
        ProcessRestart = "process_restart",
        /// The holder lost the lease while it still ran.
        SplitBrain = "split_brain",
        /// The holder ended and its home has no newer process.
        LostWorker = "lost_worker",
        /// The holder gave its lease up itself, and said so.
        LeaseLost = "lease_lost",
        /// Nothing tells.
        Unknown = "unknown",
    }
}

/// What was observed when an interruption was recorded. Facts only; the wording is made from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The node that held the session.
    pub holder: NodeId,
    /// When that node started.
    pub holder_started_at: Option<Timestamp>,
    /// Whether the kernel says that it is gone; `None` where it cannot be told.
    pub holder_gone: Option<bool>,
    /// Whether the machine was booted again meanwhile.
    pub rebooted: bool,
    /// The node that recorded the interruption.
    pub observer: NodeId,
    /// When that node started.
    pub observer_started_at: Timestamp,
    /// Whether a newer process of the holder's home runs.
    pub newer_process: bool,
    /// Seconds for which the holder, which was leaving, waited for the step under way in vain.
    pub drain_timeout_s: Option<u64>,
    /// Seconds for which the holder's store took no record, after which it let go of the turn.
    pub store_silent_s: Option<u64>,
    /// Seq of the last committed event.
    pub last_seq: u64,
    /// Name of the last committed event.
    pub last_event: String,
    /// When it was committed.
    pub last_event_at: Timestamp,
}

impl Evidence {
    /// What is said of it to people: see [`Evidence::observed`].
    #[must_use]
    pub fn sentence(&self, cause: Cause) -> String {
        format!("This turn was interrupted: {}", self.observed(cause))
    }

    /// What was observed, for people and for the model, as the rest of a sentence. It claims nothing
    /// else.
    #[must_use]
    pub fn observed(&self, cause: Cause) -> String {
        let seen = match (cause, self.drain_timeout_s) {
            (Cause::LeaseLost, _) if self.store_silent_s.is_some() => format!(
                "its store took no record for {} s, and the process that ran it let go",
                self.store_silent_s.unwrap_or_default()
            ),
            (Cause::ProcessRestart, _) => {
                "the process that ran it is gone and a newer process of the same home is running"
                    .to_owned()
            }
            (Cause::SplitBrain, _) => {
                "the process that ran it still exists but its lease ran out and was taken over"
                    .to_owned()
            }
            (Cause::LostWorker, _) => {
                "the process that ran it is gone and its home has no newer process".to_owned()
            }
            (Cause::LeaseLost, Some(waited)) => format!(
                "the process that ran it was leaving, and the step under way did not end within {waited} s"
            ),
            (Cause::LeaseLost, None) => {
                "the process that ran it had to let go of it before it was finished".to_owned()
            }
            (Cause::Unknown, _) if self.holder_gone == Some(false) => {
                "the process that ran it stopped renewing its lease, although it still exists"
                    .to_owned()
            }
            (Cause::Unknown, _) => {
                "the process that ran it stopped renewing its lease; whether it still exists is not known"
                    .to_owned()
            }
        };
        let boot = if self.rebooted { ", and the machine was started again meanwhile" } else { "" };
        format!(
            "{seen}{boot}. Its last recorded event is {} (number {}) of {}.",
            self.last_event,
            self.last_seq,
            self.last_event_at.rfc3339()
        )
    }
}

/// A handled error, as people and clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable code, for example `model_unauthorized`.
    pub code: String,
    /// What happened, without secrets.
    pub message: String,
    /// Whether the same request would fail again.
    pub permanent: bool,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Tokens that a run used, summed over its model requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Usage {
    /// Tokens of the prompts.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Of the prompts: read from the provider's cache.
    pub cached_input_tokens: Option<u64>,
    /// Of the answers: reasoning.
    pub reasoning_tokens: Option<u64>,
    /// What the provider says it costs.
    pub cost: Option<Cost>,
}

/// An amount of money. Text, because it is not ours to round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// Decimal number.
    pub amount: String,
    /// ISO 4217 code.
    pub currency: String,
}

impl Usage {
    /// Adds another request's figures.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens = sum(self.cached_input_tokens, other.cached_input_tokens);
        self.reasoning_tokens = sum(self.reasoning_tokens, other.reasoning_tokens);
        if other.cost.is_some() {
            self.cost.clone_from(&other.cost);
        }
    }
}

/// A person's stop: a synced mark on the run that every append reads (promise P4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Who asked.
    pub by: Principal,
    /// When.
    pub at: Timestamp,
}

/// One turn's journal, in summary.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// Whose session.
    pub principal: Principal,
    /// The inputs that it answers, in order; the first is the one that named it.
    pub input_ids: Vec<InputId>,
    /// Number of the turn in its session.
    pub generation: u64,
    /// Place in its chain of continuations, from 0.
    pub attempt: u32,
    /// Where it is.
    pub state: RunState,
    /// How it ended.
    pub terminal_state: Option<TerminalState>,
    /// Seq of its last event.
    pub last_seq: u64,
    /// Name of its last event.
    pub last_event: String,
    /// When its last event was committed.
    pub last_event_at: Timestamp,
    /// Session offset of its first event.
    pub first_offset: u64,
    /// Session offset of its last event.
    pub last_offset: u64,
    /// Seq of the last event that a finished step left; what came after belongs to no message yet.
    pub step_seq: u64,
    /// Writes of its owner that are committed, counted anew under each epoch: a write whose answer
    /// was lost is repeated with its number, and known again.
    pub writes: u64,
    /// The epoch under which they were made.
    pub writes_epoch: u64,
    /// Why it was interrupted.
    pub cause: Option<Cause>,
    /// What was observed then.
    pub evidence: Option<Evidence>,
    /// Id of the transcript row that stands for its interruption.
    pub marker_id: Option<u64>,
    /// Why it was not continued by itself.
    pub parked: Option<Parked>,
    /// While what its executor still held may arrive.
    pub late: Option<late::Pending>,
    /// The run that it goes on from.
    pub continues: Option<RunId>,
    /// When that run was interrupted.
    pub interrupted_at: Option<Timestamp>,
    /// Tokens used.
    pub usage: Option<Usage>,
    /// The error that ended it.
    pub error: Option<Failure>,
    /// A person's stop.
    pub stop: Option<Stop>,
    /// The node that runs or ran it.
    pub node: NodeId,
    /// Provider and model that it is bound to, `provider/name`.
    pub model: String,
    /// Where its tools work: host and folder. Empty: not known.
    pub workspace: String,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl Run {
    /// The session that it belongs to.
    #[must_use]
    pub fn session_key(&self) -> crate::session::SessionKey {
        crate::session::SessionKey {
            principal: self.principal.clone(),
            id: self.session_id.clone(),
        }
    }
}
