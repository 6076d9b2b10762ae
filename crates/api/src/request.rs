//! Request bodies. Unknown fields are refused, so that a misspelt one is never ignored in silence.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::content::ContentPart;
use crate::object;
use crate::policy::PolicyPatch;

/// `POST /v1/sessions`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CreateSession {
    /// The id it shall have; made by the server otherwise.
    pub id: Option<String>,
    /// For people, at most 500 characters.
    pub title: Option<String>,
    /// `provider/name`.
    pub model: Option<String>,
    /// System text, at most 256 KiB.
    pub system: Option<String>,
    /// Departures from the default policy.
    #[serde(deserialize_with = "object::one")]
    pub policy: Option<PolicyPatch>,
    /// An object, at most 64 KiB.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A field of a PATCH: absent (unchanged), `null` (cleared) or a value.
fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// `PATCH /v1/sessions/{id}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PatchSession {
    /// `null` clears.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub title: Option<Option<String>>,
    /// `null` means the server's default.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub model: Option<Option<String>>,
    /// `null` clears.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub system: Option<Option<String>>,
    /// Merged key by key.
    #[serde(deserialize_with = "object::one")]
    pub policy: Option<PolicyPatch>,
    /// Merged key by key; a key set to `null` goes.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The revision that the change was made for. Needed: a change without it would overwrite what
    /// its sender never saw.
    #[cfg_attr(feature = "schema", schema(required = true, nullable = false))]
    pub expected_revision: Option<u64>,
}

/// `POST /v1/sessions/{id}/end`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct EndSession {
    /// Why, at most 500 characters; `closed` if absent.
    pub reason: Option<String>,
}

/// `POST /v1/sessions/{id}/inputs`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SubmitInput {
    /// What to say; exactly one of `text` and `content`.
    pub text: Option<String>,
    /// What to say, in parts.
    #[serde(deserialize_with = "object::list")]
    pub content: Option<Vec<ContentPart>>,
    /// `queue` (default), `steer`, `interrupt`, `redirect`, `reject`.
    pub mode: Option<String>,
    /// Your name for it: the same one again gives the same receipt.
    pub request_id: Option<String>,
    /// An object, at most 64 KiB, kept with the input byte for byte.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Box<RawValue>>,
}

/// `POST /v1/sessions/{id}/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct StopSession {
    /// The turn that is meant; the running one if absent.
    pub generation: Option<u64>,
    /// `cancel` (default) or `keep` what people queued.
    pub queue: Option<String>,
}

/// `POST /v1/sessions/{id}/resolve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResolveInterruption {
    /// The interrupted turn.
    pub generation: u64,
    /// `continue`, `discard` or `resend`.
    pub decision: String,
    /// With `resend`: the edited text.
    #[serde(default)]
    pub text: Option<String>,
}

/// `POST /v1/prompts/{id}/answer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerPrompt {
    /// Number of the turn that asks.
    pub generation: u64,
    /// `once`, `session`, `always`, `deny`.
    #[serde(default)]
    pub choice: Option<String>,
    /// The answer to a clarification, at most 1 MiB.
    #[serde(default)]
    pub text: Option<String>,
}
