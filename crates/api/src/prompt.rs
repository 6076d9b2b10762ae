//! Prompts on the wire.

use everturn_core as core;
use serde::{Deserialize, Serialize};

use crate::message::ToolCall;

/// A question to people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Prompt {
    /// Its id.
    pub id: String,
    /// Its session.
    pub session_id: String,
    /// The run that asks.
    pub run_id: String,
    /// Number of the turn that asks; an answer names it.
    pub generation: u64,
    /// `approval` or `clarification`.
    pub kind: String,
    /// `open`, `settled`, `expired`, `withdrawn`.
    pub state: String,
    /// The question in words.
    pub question: String,
    /// The call that wants approval, or that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// The answers that it takes; empty for a free text.
    pub choices: Vec<String>,
    /// Answers that the model proposes to its question; any other text is as good.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub suggestions: Vec<String>,
    /// The answer given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// The text given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// When it was asked.
    pub opened_at: String,
    /// When it runs out.
    pub expires_at: String,
    /// When it was settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<String>,
}

impl Prompt {
    /// The wire form of a prompt and the call that it is about.
    #[must_use]
    pub fn new(from: &core::Prompt, call: Option<&core::ToolCall>) -> Self {
        let choices = match from.kind {
            core::PromptKind::Approval => {
                core::Choice::ALL.iter().map(|choice| choice.to_string()).collect()
            }
            core::PromptKind::Clarification => Vec::new(),
        };
        Self {
            id: from.id.to_string(),
            session_id: from.session_id.to_string(),
            run_id: from.run_id.to_string(),
            generation: from.generation,
            kind: from.kind.to_string(),
            state: from.state.to_string(),
            question: from.question.clone(),
            call: call.map(ToolCall::from),
            choices,
            suggestions: match from.kind {
                core::PromptKind::Clarification => call.map(suggestions).unwrap_or_default(),
                core::PromptKind::Approval => Vec::new(),
            },
            choice: from.choice.map(|choice| choice.to_string()),
            text: from.text.clone(),
            answered_by: from.answered_by.as_ref().map(ToString::to_string),
            opened_at: from.opened_at.rfc3339(),
            expires_at: from.expires_at.rfc3339(),
            settled_at: from.settled_at.map(core::Timestamp::rfc3339),
        }
    }
}

/// What the call that asks proposes: the texts in its argument `choices`.
fn suggestions(call: &core::ToolCall) -> Vec<String> {
    #[derive(Deserialize)]
    struct Asks {
        #[serde(default)]
        choices: Vec<String>,
    }
    serde_json::from_str::<Asks>(&call.arguments).map(|asks| asks.choices).unwrap_or_default()
}
