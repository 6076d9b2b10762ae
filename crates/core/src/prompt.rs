//! Prompts: questions that a turn puts to people, durable like everything else.

use crate::id::{CallId, Principal, PromptId, RunId, SessionId};
use crate::time::Timestamp;

words! {
    /// What is asked.
    PromptKind {
        /// May this tool call run?
        Approval = "approval",
        /// A question with a free answer.
        Clarification = "clarification",
    }
}

words! {
    /// Where a prompt is in its life. The first settlement wins.
    PromptState {
        /// Waits for an answer.
        Open = "open",
        /// Answered.
        Settled = "settled",
        /// Nobody answered in time: neither consent nor denial.
        Expired = "expired",
        /// Its run ended before anybody answered.
        Withdrawn = "withdrawn",
    }
}

words! {
    /// The answers that an approval takes.
    Choice {
        /// This call.
        Once = "once",
        /// This tool, for the rest of the session.
        Session = "session",
        /// This tool, in every session of the principal.
        Always = "always",
        /// No.
        Deny = "deny",
    }
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its id.
    pub id: PromptId,
    /// Whose session.
    pub principal: Principal,
    /// Where it is asked.
    pub session_id: SessionId,
    /// The run that asks.
    pub run_id: RunId,
    /// Generation of the turn that asks.
    pub generation: u64,
    /// What is asked.
    pub kind: PromptKind,
    /// Where it is.
    pub state: PromptState,
    /// The question in words.
    pub question: String,
    /// The call that wants approval.
    pub call_id: Option<CallId>,
    /// The answer to an approval.
    pub choice: Option<Choice>,
    /// The answer to a clarification, or a word with an approval.
    pub text: Option<String>,
    /// Who answered.
    pub answered_by: Option<Principal>,
    /// When it was asked.
    pub opened_at: Timestamp,
    /// When it runs out.
    pub expires_at: Timestamp,
    /// When it was settled.
    pub settled_at: Option<Timestamp>,
}
