//! Names on both sides, and the mark that tells which of ours a record is.

use serde_json::value::RawValue;

use crate::journal::is_terminal;
use crate::object::{members, text, with_first, without_first};

/// The member of a payload that says which event of ours the record is.
pub const MARK: &str = "everturn";

/// Records in the place of an event that cannot be read. Ignored by the earlier tools.
pub const MALFORMED: &str = "everturn.malformed";

/// Records in the place of a number that no event has: of a pruned range, or lost with the power.
/// Ignored by the earlier tools.
pub const MISSING: &str = "everturn.missing";

/// What the names of events begin with that only the earlier tools know. Their bodies have the field
/// `payload`.
pub const FOREIGN: &str = "hermes.";

/// A foreign event whose name could not be one of ours, with that name and its payload in its body.
pub(crate) const FOREIGN_OTHER: &str = "hermes.other";

/// Events of ours that are exported under an earlier name. A record is never one of them by its own
/// name: it would be taken for what nobody recorded, an end for example.
const TRANSLATED: &[&str] = &[
    "text.delta",
    "reasoning.delta",
    "text.snapshot",
    "tool.intended",
    "tool.finished",
    "prompt.opened",
    "usage",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.interrupted",
];

/// Our name for a record without a mark that does not end its run; `None` where more than the name
/// decides.
pub(crate) fn ours(event: &str) -> Option<String> {
    match event {
        "token" => Some("text.delta".to_owned()),
        "reasoning" => Some("reasoning.delta".to_owned()),
        "tool" | "tool_complete" | "interim_assistant" | "other" | MALFORMED | MISSING => None,
        _ if is_terminal(event) || !is_plain(event) => None,
        // Ours have a dot in them, theirs have none.
        _ if event.contains('.') && !event.starts_with(FOREIGN) && !TRANSLATED.contains(&event) => {
            Some(event.to_owned())
        }
        _ => Some(format!("{FOREIGN}{event}")),
    }
}

/// Whether a name is made as ours are.
pub(crate) fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte))
}

/// The mark of a payload: our name, and our body where the payload is not that itself.
pub(crate) fn marked(payload: &RawValue) -> Option<(String, Box<RawValue>)> {
    let [mark] = members(payload.get(), [MARK])?;
    let [event, body] = members(mark?.get(), ["event", "body"])?;
    let event = text(event).filter(|event| !event.is_empty())?;
    let body = match body {
        Some(body) => body.get().to_owned(),
        None => match without_first(MARK, mark?.get(), payload.get()) {
            Some(rest) => rest,
            // Somebody wrote it anew on the way.
            None => {
                let mut all: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(payload.get()).ok()?;
                all.remove(MARK);
                serde_json::Value::Object(all).to_string()
            }
        },
    };
    let body = RawValue::from_string(body).ok()?;
    body.get().starts_with('{').then_some((event, body))
}

/// The body with a mark in front: it is the payload.
pub(crate) fn mark(name: &str, body: &str) -> String {
    let name = serde_json::Value::from(name).to_string();
    with_first(MARK, &format!("{{\"event\":{name}}}"), body)
}

/// A payload of theirs, with a mark that holds our body whole.
pub(crate) fn mark_whole(name: &str, body: &str, theirs: &str) -> String {
    let name = serde_json::Value::from(name).to_string();
    with_first(MARK, &format!("{{\"event\":{name},\"body\":{body}}}"), theirs)
}

/// The earlier `type` of a failure with this code of ours.
pub(crate) fn failure_type(code: &str) -> &'static str {
    match code {
        "model_unauthorized" | "model_key_missing" => "auth_mismatch",
        "model_rate_limited" => "rate_limit",
        "model_misconfigured" | "model_name_invalid" | "model_provider_unknown" => {
            "model_not_found"
        }
        "model_unavailable" | "model_stream_broken" | "model_stalled" | "model_malformed" => {
            "gateway_error"
        }
        "context_too_long" => "compression_exhausted",
        _ => "error",
    }
}

/// A failure of theirs as one of ours.
pub(crate) struct OurFailure {
    /// Stable code.
    pub(crate) code: &'static str,
    /// Whether the same request would fail again.
    pub(crate) permanent: bool,
}

/// Our failure for an earlier `type`.
pub(crate) fn our_failure(kind: &str) -> OurFailure {
    match kind.trim().to_ascii_lowercase().as_str() {
        "auth_mismatch" | "gateway_auth_error" | "credential_pool_empty" => {
            OurFailure { code: "model_unauthorized", permanent: true }
        }
        "rate_limit" | "quota_exhausted" => {
            OurFailure { code: "model_rate_limited", permanent: false }
        }
        "model_not_found" => OurFailure { code: "model_misconfigured", permanent: true },
        "gateway_error" | "gateway_empty_response" | "no_response" | "silent_failure" => {
            OurFailure { code: "model_unavailable", permanent: false }
        }
        "compression_exhausted" | "compression_snapshot_stale" => {
            OurFailure { code: "context_too_long", permanent: true }
        }
        "tool_limit_reached" => OurFailure { code: "too_many_steps", permanent: false },
        _ => OurFailure { code: "imported_error", permanent: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::State;

    #[test]
    fn a_failure_of_ours_reads_as_an_error_and_comes_back_as_its_kind() {
        for (code, kind, back) in [
            ("model_unauthorized", "auth_mismatch", "model_unauthorized"),
            ("model_key_missing", "auth_mismatch", "model_unauthorized"),
            ("model_rate_limited", "rate_limit", "model_rate_limited"),
            ("model_misconfigured", "model_not_found", "model_misconfigured"),
            ("model_stalled", "gateway_error", "model_unavailable"),
            ("context_too_long", "compression_exhausted", "context_too_long"),
            ("too_many_steps", "error", "imported_error"),
            ("whatever", "error", "imported_error"),
            ("interrupted", "error", "imported_error"),
        ] {
            assert_eq!(failure_type(code), kind);
            assert_eq!(our_failure(kind).code, back);
            assert_eq!(State::of_event("apperror", Some(kind), None, None), Some(State::Errored));
        }
        assert_eq!(our_failure(" Rate_Limit ").code, "model_rate_limited");
        assert_eq!(our_failure("tool_limit_reached").code, "too_many_steps");
    }

    #[test]
    fn no_record_is_a_translated_event_by_its_own_name() {
        for name in TRANSLATED {
            let found = ours(name);
            assert!(found.is_none_or(|found| found == format!("hermes.{name}")), "{name}");
        }
        assert_eq!(ours("run.started").as_deref(), Some("run.started"));
        assert_eq!(ours("title").as_deref(), Some("hermes.title"));
        assert_eq!(ours("hermes.title").as_deref(), Some("hermes.hermes.title"));
        for undecided in ["done", "stream_end", "tool", "other", "Title", "session-updated"] {
            assert_eq!(ours(undecided), None);
        }
    }
}
