//! Messages and tool calls on the wire.

use everturn_core as core;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::content::ContentPart;

/// A tool call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// Tool name.
    pub name: String,
    /// What the model wrote: an object, or a string where it was not valid JSON.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub arguments: Box<RawValue>,
    /// `intended`, `running`, `succeeded`, `failed`, `denied`, `not_run`, `unknown`.
    pub state: String,
    /// What the model is told it returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// `read`, `idempotent`, `write`.
    pub effect: String,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When its result was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// Arguments are the same if their text is.
impl PartialEq for ToolCall {
    fn eq(&self, other: &Self) -> bool {
        let texts =
            |call: &Self| [&call.id, &call.name, &call.state, &call.effect].map(Clone::clone);
        let times =
            |call: &Self| [&call.result, &call.started_at, &call.ended_at].map(Clone::clone);
        texts(self) == texts(other)
            && times(self) == times(other)
            && self.arguments.get() == other.arguments.get()
    }
}

/// JSON text as it is if it is an object, else as a JSON string.
fn raw_arguments(text: &str) -> Box<RawValue> {
    if text.trim_start().starts_with('{')
        && let Ok(raw) = serde_json::from_str::<Box<RawValue>>(text)
    {
        return raw;
    }
    let quoted = serde_json::Value::String(text.to_owned()).to_string();
    RawValue::from_string(quoted).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl From<&core::ToolCall> for ToolCall {
    fn from(from: &core::ToolCall) -> Self {
        Self {
            id: from.id.to_string(),
            name: from.name.clone(),
            arguments: raw_arguments(&from.arguments),
            state: from.state.to_string(),
            result: from.result.clone(),
            effect: from.effect.to_string(),
            started_at: from.started_at.map(core::Timestamp::rfc3339),
            ended_at: from.ended_at.map(core::Timestamp::rfc3339),
        }
    }
}

/// A row of the transcript.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Message {
    /// Grows within its session; never renumbered.
    pub id: u64,
    /// Text that sorts: the order of the transcript.
    pub position: String,
    /// `user`, `assistant`, `tool`, `system`.
    pub role: String,
    /// `message`, `note`, `continuation`, `interruption`, `summary`.
    pub kind: String,
    /// All its text.
    pub text: String,
    /// The content list, where it is more than one text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<ContentPart>>,
    /// The model's reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls, in the model's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that this row answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Number of the turn that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The run that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The input that it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_id: Option<String>,
    /// Whether it was rebuilt from the journal of an interrupted run.
    pub recovered: bool,
    /// Present and true where it is more of the model's message above it, which an interruption cut
    /// off: the model went on in the middle of it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub resumed: bool,
    /// When it was written.
    pub created_at: String,
}

impl From<&core::Message> for Message {
    fn from(from: &core::Message) -> Self {
        let calls: Vec<ToolCall> = from.tool_calls.iter().map(ToolCall::from).collect();
        Self {
            id: from.id,
            position: from.position.clone(),
            role: from.role.to_string(),
            kind: match from.kind {
                // To whoever only shows it, a message like any other.
                core::MessageKind::Resumed => core::MessageKind::Message,
                kind => kind,
            }
            .to_string(),
            text: from.content.plain(),
            content: (!from.content.is_plain() && !from.content.0.is_empty())
                .then(|| crate::content::list(&from.content)),
            reasoning: from.reasoning.clone(),
            tool_calls: (!calls.is_empty()).then_some(calls),
            tool_call_id: from.tool_call_id.as_ref().map(ToString::to_string),
            generation: from.generation,
            run_id: from.run_id.as_ref().map(ToString::to_string),
            input_id: from.input_id.as_ref().map(ToString::to_string),
            recovered: from.recovered,
            resumed: from.kind == core::MessageKind::Resumed,
            created_at: from.created_at.rfc3339(),
        }
    }
}
