//! The transcript: messages, and the tool calls inside them.

use crate::content::Content;
use crate::id::{CallId, InputId, RunId};
use crate::session::SessionKey;
use crate::time::Timestamp;

words! {
    /// Who a message is from.
    Role {
        /// A person (or something that speaks in a person's place).
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// A tool's result.
        Tool = "tool",
        /// Everturn itself.
        System = "system",
    }
}

words! {
    /// What a message is.
    MessageKind {
        /// An ordinary one.
        Message = "message",
        /// Written without calling a model.
        Note = "note",
        /// The request to finish an interrupted turn; an event, not something a person said.
        Continuation = "continuation",
        /// The record that a run was interrupted.
        Interruption = "interruption",
        /// Stands for a compacted range.
        Summary = "summary",
        /// More of the model's message above it that broke off: it went on writing in the middle.
        Resumed = "resumed",
    }
}

words! {
    /// What running a tool call a second time would do (promise P9).
    Effect {
        /// Changes nothing: may be run again.
        Read = "read",
        /// Changes something, but twice is the same as once: may be run again.
        Idempotent = "idempotent",
        /// Changes something: at most once, ever.
        Write = "write",
    }
}

impl Effect {
    /// Whether a call whose result was lost may be run again.
    #[must_use]
    pub const fn repeatable(self) -> bool {
        matches!(self, Self::Read | Self::Idempotent)
    }
}

words! {
    /// Where a tool call is in its life.
    CallState {
        /// Recorded; not begun.
        Intended = "intended",
        /// Begun; its result is not recorded.
        Running = "running",
        /// Ended well.
        Succeeded = "succeeded",
        /// Ended badly, with a result that says how.
        Failed = "failed",
        /// A person or the policy said no.
        Denied = "denied",
        /// Known to have done nothing: interrupted or stopped before it began, or its approval ran out.
        NotRun = "not_run",
        /// Begun, and nobody knows how far it got.
        Unknown = "unknown",
    }
}

impl CallState {
    /// Whether the state is final in its run.
    #[must_use]
    pub const fn settled(self) -> bool {
        !matches!(self, Self::Intended | Self::Running)
    }
}

/// A tool call that the model asked for, before it has a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCall {
    /// Its id in this store.
    pub id: CallId,
    /// The id that the provider gave it; the provider is told this one again.
    pub provider_id: String,
    /// Tool name.
    pub name: String,
    /// JSON text exactly as the model wrote it; may be malformed.
    pub arguments: String,
    /// What the tool declares about repetition.
    pub effect: Effect,
    /// Fingerprint of the tool's schema that the model saw (SHA-256, hex); empty for an unknown tool.
    pub schema: String,
}

/// One tool call and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: CallId,
    /// The session that it belongs to.
    pub session: SessionKey,
    /// The run that owns it now (a continuation may take an unfinished call over).
    pub run_id: RunId,
    /// Id of the assistant message that contains it.
    pub message_id: u64,
    /// Place among the calls of that message, from 0.
    pub index: u32,
    /// The id that the provider gave it.
    pub provider_id: String,
    /// Tool name.
    pub name: String,
    /// JSON text exactly as the model wrote it.
    pub arguments: String,
    /// What the tool declares about repetition.
    pub effect: Effect,
    /// Fingerprint of the tool's schema that the model saw.
    pub schema: String,
    /// Where it is.
    pub state: CallState,
    /// What the model is told it returned.
    pub result: Option<String>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When its result was recorded.
    pub ended_at: Option<Timestamp>,
}

/// One row of the transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Grows within its session; identity only.
    pub id: u64,
    /// Text that sorts: the order of the transcript.
    pub position: String,
    /// Who it is from.
    pub role: Role,
    /// What it is.
    pub kind: MessageKind,
    /// What it says.
    pub content: Content,
    /// The model's reasoning, where the provider shows it.
    pub reasoning: Option<String>,
    /// Tool calls of an assistant message, in the model's order.
    pub tool_calls: Vec<ToolCall>,
    /// For a tool's result: the call that it answers.
    pub tool_call_id: Option<CallId>,
    /// Generation of the turn that wrote it.
    pub generation: Option<u64>,
    /// The run that wrote it.
    pub run_id: Option<RunId>,
    /// The input that it came from.
    pub input_id: Option<InputId>,
    /// Whether it was rebuilt from the journal of an interrupted run.
    pub recovered: bool,
    /// When it was written.
    pub created_at: Timestamp,
}

/// The position of a message that is simply appended: its id, as text that sorts.
#[must_use]
pub fn appended_position(id: u64) -> String {
    format!("{id:016x}")
}

/// The position of a message that is put directly behind another one, in front of whatever was
/// appended behind that: used again and again it keeps the order in which it was used.
#[must_use]
pub fn position_behind(before: &str) -> String {
    // A point sorts before every digit.
    let (base, count) = before.split_once('.').unwrap_or((before, ""));
    let next = u32::from_str_radix(count, 16).unwrap_or(0).saturating_add(1);
    format!("{base}.{next:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_put_behind_one_stay_in_front_of_the_next() {
        for id in [0, 1, 15, 16, u64::MAX - 1] {
            let (mut last, next) = (appended_position(id), appended_position(id + 1));
            for _ in 0..300 {
                let behind = position_behind(&last);
                assert!(last < behind && behind < next, "{last} {behind} {next}");
                last = behind;
            }
        }
    }
}
