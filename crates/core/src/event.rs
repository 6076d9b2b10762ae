//! Events: what a run's journal and a session's feed are made of.

use crate::content::Content;
use crate::id::{CallId, InputId, Principal, PromptId, RunId, SessionId};
use crate::message::{CallState, Message, NewCall, ToolCall};
use crate::prompt::Prompt;
use crate::run::{Cause, Evidence, Failure, Usage};
use crate::time::Timestamp;

/// What a token event tells a piece of: `text.delta`, `reasoning.delta`, `tool.output`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The model's answer.
    Text,
    /// Its reasoning.
    Reasoning,
    /// A call's output.
    Output(CallId),
}

/// The body of one event. `S` is whatever the store shows of a session (a snapshot is taken inside
/// the transaction that commits the event).
#[derive(Debug, Clone, PartialEq)]
pub enum Event<S> {
    /// The run exists.
    RunStarted {
        /// Number of the turn.
        generation: u64,
        /// The inputs that it answers.
        input_ids: Vec<InputId>,
        /// Place in the chain of continuations.
        attempt: u32,
        /// The run that it goes on from.
        continues: Option<RunId>,
        /// Provider and model.
        model: String,
    },
    /// What the model says from here on goes on a message that broke off, in the middle of it.
    TextResumed {
        /// The message: one of the transcript, of a run that this one goes on from.
        message_id: u64,
    },
    /// Some of the model's text.
    TextDelta(String),
    /// Some of the model's reasoning.
    ReasoningDelta(String),
    /// The model asked for a tool; recorded before anything happens.
    ToolIntended(ToolCall),
    /// Some of a tool's output.
    ToolOutput {
        /// Whose.
        call_id: CallId,
        /// The text.
        text: String,
    },
    /// A tool call has its result.
    ToolFinished(ToolCall),
    /// A question was put to people.
    PromptOpened(Prompt, Option<ToolCall>),
    /// A question is closed.
    PromptSettled(Prompt, Option<ToolCall>),
    /// A steer was taken in.
    SteerTaken(InputId),
    /// Tokens that one model request used.
    Usage(Usage),
    /// A leaving node let go at a step boundary; not terminal.
    RunHandedOver,
    /// Stands in the place of a pruned range of token events, at the range's last seq and offset.
    TextSnapshot {
        /// First seq of the range.
        from: u64,
        /// Last seq of the range: the snapshot's own.
        to: u64,
        /// What the events of the range told a piece of.
        of: Told,
        /// All of the range's text.
        text: String,
    },
    /// The model gave its answer.
    RunCompleted {
        /// The message that holds it.
        message_id: u64,
    },
    /// A handled error ended the run.
    RunFailed(Failure),
    /// A person stopped the run.
    RunCancelled {
        /// Who.
        by: Principal,
    },
    /// The executor went away.
    RunInterrupted {
        /// Why, as far as the evidence tells.
        cause: Cause,
        /// What was observed.
        evidence: Evidence,
    },
    /// An input is durable.
    InputAccepted {
        /// Its id.
        input_id: InputId,
        /// The sender's name for it.
        request_id: String,
        /// Its kind's word.
        kind: &'static str,
        /// What it says.
        content: Content,
        /// How it was delivered.
        delivery: &'static str,
    },
    /// An input was withdrawn before it ran.
    InputCancelled {
        /// Its id.
        input_id: InputId,
        /// Why, in a word: `withdrawn`, `stopped`, `superseded`.
        reason: &'static str,
    },
    /// A turn was claimed.
    TurnStarted {
        /// Its number.
        generation: u64,
        /// Its run.
        run_id: RunId,
        /// The inputs that it answers.
        input_ids: Vec<InputId>,
    },
    /// A row joined the transcript.
    MessageAdded(Message),
    /// A row of the transcript changed.
    MessageUpdated(Message),
    /// The session changed.
    SessionUpdated(S),
}

impl<S> Event<S> {
    /// The name on the wire; fixed for ever.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run.started",
            Self::TextResumed { .. } => "text.resumed",
            Self::TextDelta(_) => "text.delta",
            Self::ReasoningDelta(_) => "reasoning.delta",
            Self::ToolIntended(_) => "tool.intended",
            Self::ToolOutput { .. } => "tool.output",
            Self::ToolFinished(_) => "tool.finished",
            Self::PromptOpened(..) => "prompt.opened",
            Self::PromptSettled(..) => "prompt.settled",
            Self::SteerTaken(_) => "steer.taken",
            Self::Usage(_) => "usage",
            Self::RunHandedOver => "run.handed_over",
            Self::TextSnapshot { .. } => "text.snapshot",
            Self::RunCompleted { .. } => "run.completed",
            Self::RunFailed(_) => "run.failed",
            Self::RunCancelled { .. } => "run.cancelled",
            Self::RunInterrupted { .. } => "run.interrupted",
            Self::InputAccepted { .. } => "input.accepted",
            Self::InputCancelled { .. } => "input.cancelled",
            Self::TurnStarted { .. } => "turn.started",
            Self::MessageAdded(_) => "message.added",
            Self::MessageUpdated(_) => "message.updated",
            Self::SessionUpdated(_) => "session.updated",
        }
    }

    /// Whether the event belongs to a run's journal (and so has a seq); the others are in the
    /// session's feed only.
    #[must_use]
    pub const fn in_run(&self) -> bool {
        !matches!(
            self,
            Self::InputAccepted { .. }
                | Self::InputCancelled { .. }
                | Self::TurnStarted { .. }
                | Self::MessageAdded(_)
                | Self::MessageUpdated(_)
                | Self::SessionUpdated(_)
        )
    }
}

/// Whether an event of this name is the last one of its run.
#[must_use]
pub fn is_terminal(name: &str) -> bool {
    matches!(name, "run.completed" | "run.failed" | "run.cancelled" | "run.interrupted")
}

/// Where an event stands. Everything that its bytes hold besides its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    /// The session.
    pub session_id: SessionId,
    /// Place in the session's feed, from 1.
    pub offset: u64,
    /// Run and place in its journal, from 1.
    pub run: Option<(RunId, u64)>,
    /// Name.
    pub name: String,
    /// When it was committed.
    pub at: Timestamp,
}

/// What the owner of a turn may write. Everything that a turn does to the store is one of these.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// The model goes on writing the message that an interruption cut off: the first record of its
    /// step. What the step says becomes a row of the kind `resumed`.
    TextResumed {
        /// The message.
        message_id: u64,
    },
    /// Some of the model's text.
    TextDelta(String),
    /// Some of the model's reasoning.
    ReasoningDelta(String),
    /// A model request ended: its text becomes a message, each call gets its intent record.
    Step {
        /// All of its text.
        text: String,
        /// All of its reasoning.
        reasoning: Option<String>,
        /// The calls that it asks for, in order; empty when text was cut off.
        calls: Vec<NewCall>,
        /// Tokens that it used.
        usage: Option<Usage>,
    },
    /// An unfinished call of the interrupted run is taken over by this run, its continuation.
    CallAdopted(CallId),
    /// A call begins. Synced before the effect.
    CallStarted(CallId),
    /// Some of its output.
    CallOutput {
        /// Whose.
        call_id: CallId,
        /// The text.
        text: String,
    },
    /// A call has its result.
    CallFinished {
        /// Whose.
        call_id: CallId,
        /// A settled state.
        state: CallState,
        /// What the model is told.
        result: String,
    },
    /// A question is put to people; the run waits.
    PromptOpened(Prompt),
    /// Nobody answered in time. A prompt that was answered meanwhile stays answered.
    PromptExpired(PromptId),
    /// The node lets go at a step boundary.
    HandedOver,
    /// The run ends.
    End(End),
}

impl Record {
    /// Whether the record must survive power loss before anyone is told (DESIGN §4).
    #[must_use]
    pub const fn synced(&self) -> bool {
        !matches!(self, Self::TextDelta(_) | Self::ReasoningDelta(_) | Self::CallOutput { .. })
    }
}

/// How a turn's owner ends it. (An interruption is recorded by whoever finds it.)
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The model gave its answer.
    Completed {
        /// All text of the last request.
        text: String,
        /// Its reasoning.
        reasoning: Option<String>,
        /// Tokens that it used.
        usage: Option<Usage>,
    },
    /// A handled error. Text that came before it is kept.
    Failed {
        /// The error.
        failure: Failure,
        /// Text of the request that broke.
        text: String,
        /// Its reasoning.
        reasoning: Option<String>,
    },
    /// A continuation failed before it had done anything. No attempt is spent, and what it was to
    /// finish can be continued still.
    Unprepared {
        /// The error.
        failure: Failure,
    },
    /// A person's stop was obeyed. Text that came before it is kept.
    Cancelled {
        /// Text of the request that was dropped.
        text: String,
        /// Its reasoning.
        reasoning: Option<String>,
    },
}
