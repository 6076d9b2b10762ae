//! Errors on the wire: `application/problem+json` (RFC 9457) with a stable code.

use serde::{Deserialize, Serialize};

use crate::codes::Code;

/// A refusal or a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Address of the page that explains the code; every server serves these pages itself.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened this time.
    pub detail: String,
    /// Stable code.
    pub code: String,
    /// `false`: the same request may succeed later.
    pub permanent: bool,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// A problem of this code; `detail` says what happened this time.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/docs/errors/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code: code.as_str().to_owned(),
            permanent: code.permanent(),
            hint: code.hint().map(str::to_owned),
        }
    }
}
