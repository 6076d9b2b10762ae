//! The picture of a turn under way, on the wire.

use serde::{Deserialize, Serialize};

use crate::message::ToolCall;
use crate::prompt::Prompt;

/// What a turn under way has said and done that is no row of the transcript yet. It is of one moment:
/// a reader that has it and reads the run's events from `after=seq` misses nothing and sees nothing
/// twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InFlight {
    /// Seq of the run's last event that is in here.
    pub seq: u64,
    /// The inputs that the turn answers.
    pub inputs: Vec<InFlightInput>,
    /// What the step under way has said.
    pub text: String,
    /// Its reasoning.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reasoning: String,
    /// The message that the text goes on, in the middle of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resumes: Option<u64>,
    /// Present and true where more had been said than is in here: `seq` is where this ends, and the
    /// events behind it bring the rest.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub truncated: bool,
    /// The tool calls of the turn's last step that made any, without their results, which are rows
    /// of the transcript.
    pub calls: Vec<ToolCall>,
    /// What calls under way have said.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub outputs: Vec<InFlightOutput>,
    /// Its open prompts.
    pub prompts: Vec<Prompt>,
}

/// An input that a turn answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InFlightInput {
    /// Its id.
    pub id: String,
    /// `message`, `continuation`, `completion`, `steer`.
    pub kind: String,
    /// Its text.
    pub text: String,
}

/// What one call has said so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InFlightOutput {
    /// The call.
    pub call_id: String,
    /// What it said.
    pub text: String,
}
