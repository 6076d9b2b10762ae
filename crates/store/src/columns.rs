//! JSON columns: the stored forms of what is kept as one text, shared by all backends.
//!
//! These are stored types: a field may be added with a default, never renamed or removed. Policies,
//! contents, failures and usage are kept in their wire form, which has the same rule.

use everturn_api as api;
use everturn_core::late::LateRecord;
use everturn_core::{
    CallId, CallState, Content, Evidence, Failure, InputId, NodeId, Part, Policy, Timestamp, Usage,
};
use serde::{Deserialize, Serialize};

/// Why a column cannot be read.
pub type Fault = String;

fn write(value: &impl Serialize) -> String {
    // None of these types can fail: no maps with keys that are not text.
    serde_json::to_string(value).unwrap_or_else(|error| format!("\"{error}\""))
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// A policy, complete.
#[must_use]
pub fn write_policy(policy: &Policy) -> String {
    write(&api::policy::Policy::from(policy))
}

/// Reads what [`write_policy`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_policy(text: &str) -> Result<Policy, Fault> {
    read::<api::policy::Policy>(text).map(Into::into)
}

/// A content as `(text, parts)`: what a person would read, and the list of parts where it is more
/// than one text.
#[must_use]
pub fn write_content(content: &Content) -> (std::borrow::Cow<'_, str>, Option<String>) {
    match content.0.as_slice() {
        [Part::Text(text)] => (text.as_str().into(), None),
        _ => (content.plain().into(), Some(write(&api::content::list(content)))),
    }
}

/// Reads what [`write_content`] wrote.
///
/// # Errors
/// What is wrong with the list of parts.
pub fn read_content(text: String, parts: Option<&str>) -> Result<Content, Fault> {
    match parts {
        None => Ok(Content::text(text)),
        Some(parts) => read(parts).map(api::content::domain),
    }
}

/// A list of input ids.
#[must_use]
pub fn write_input_ids(ids: &[InputId]) -> String {
    write(&ids.iter().map(InputId::as_str).collect::<Vec<_>>())
}

/// Reads what [`write_input_ids`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_input_ids(text: &str) -> Result<Vec<InputId>, Fault> {
    let ids: Vec<String> = read(text)?;
    ids.iter().map(|id| InputId::new(id).map_err(|error| error.to_string())).collect()
}

/// Tokens used.
#[must_use]
pub fn write_usage(usage: &Usage) -> String {
    write(&api::run::Usage::from(usage))
}

/// Reads what [`write_usage`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_usage(text: &str) -> Result<Usage, Fault> {
    read::<api::run::Usage>(text).map(Into::into)
}

/// A handled error.
#[must_use]
pub fn write_failure(failure: &Failure) -> String {
    write(&api::run::Failure::from(failure))
}

/// Reads what [`write_failure`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_failure(text: &str) -> Result<Failure, Fault> {
    read::<api::run::Failure>(text).map(Into::into)
}

/// Evidence: unlike its wire form, with exact times.
#[derive(Serialize, Deserialize)]
struct StoredEvidence {
    holder: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder_started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder_gone: Option<bool>,
    rebooted: bool,
    observer: String,
    observer_started_at: i64,
    newer_process: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drain_timeout_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store_silent_s: Option<u64>,
    last_seq: u64,
    last_event: String,
    last_event_at: i64,
}

/// What was observed when an interruption was recorded.
#[must_use]
pub fn write_evidence(seen: &Evidence) -> String {
    write(&StoredEvidence {
        holder: seen.holder.to_string(),
        holder_started_at: seen.holder_started_at.map(|at| at.0),
        holder_gone: seen.holder_gone,
        rebooted: seen.rebooted,
        observer: seen.observer.to_string(),
        observer_started_at: seen.observer_started_at.0,
        newer_process: seen.newer_process,
        drain_timeout_s: seen.drain_timeout_s,
        store_silent_s: seen.store_silent_s,
        last_seq: seen.last_seq,
        last_event: seen.last_event.clone(),
        last_event_at: seen.last_event_at.0,
    })
}

/// Reads what [`write_evidence`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_evidence(text: &str) -> Result<Evidence, Fault> {
    let seen: StoredEvidence = read(text)?;
    let node = |id: &str| NodeId::new(id).map_err(|error| error.to_string());
    Ok(Evidence {
        holder: node(&seen.holder)?,
        holder_started_at: seen.holder_started_at.map(Timestamp),
        holder_gone: seen.holder_gone,
        rebooted: seen.rebooted,
        observer: node(&seen.observer)?,
        observer_started_at: Timestamp(seen.observer_started_at),
        newer_process: seen.newer_process,
        drain_timeout_s: seen.drain_timeout_s,
        store_silent_s: seen.store_silent_s,
        last_seq: seen.last_seq,
        last_event: seen.last_event,
        last_event_at: Timestamp(seen.last_event_at),
    })
}

/// A late record.
#[derive(Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum StoredLate {
    Text { text: String },
    Reasoning { text: String },
    CallFinished { call_id: String, state: String, result: String },
    Sealed,
}

/// What a cut-off executor held.
#[must_use]
pub fn write_late(record: &LateRecord) -> String {
    write(&match record {
        LateRecord::Text(text) => StoredLate::Text { text: text.clone() },
        LateRecord::Reasoning(text) => StoredLate::Reasoning { text: text.clone() },
        LateRecord::CallFinished { call_id, state, result } => StoredLate::CallFinished {
            call_id: call_id.to_string(),
            state: state.to_string(),
            result: result.clone(),
        },
        LateRecord::Sealed => StoredLate::Sealed,
    })
}

/// Reads what [`write_late`] wrote.
///
/// # Errors
/// What is wrong with the text.
pub fn read_late(text: &str) -> Result<LateRecord, Fault> {
    Ok(match read(text)? {
        StoredLate::Text { text } => LateRecord::Text(text),
        StoredLate::Reasoning { text } => LateRecord::Reasoning(text),
        StoredLate::CallFinished { call_id, state, result } => LateRecord::CallFinished {
            call_id: CallId::new(call_id).map_err(|error| error.to_string())?,
            state: CallState::parse(&state).ok_or("an unknown state of a call")?,
            result,
        },
        StoredLate::Sealed => LateRecord::Sealed,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn contents_come_back_as_they_went() {
        let image =
            Part::Image { media_type: "image/png".into(), data: Some("AAAA".into()), url: None };
        for content in [
            Content::default(),
            Content::text(""),
            Content::text("a\0b\u{202e}\u{1f9ff}"),
            Content(vec![Part::Text("a".into()), Part::Text("b".into())]),
            Content(vec![image.clone()]),
            Content(vec![Part::Text("\0".into()), image]),
        ] {
            let (text, parts) = write_content(&content);
            assert_eq!(text, content.plain());
            assert_eq!(read_content(text.into_owned(), parts.as_deref()).unwrap(), content);
        }
    }

    #[test]
    fn late_records_come_back_as_they_went() {
        for record in [
            LateRecord::Text("a\0\u{2028}\"".into()),
            LateRecord::Reasoning(String::new()),
            LateRecord::CallFinished {
                call_id: CallId::new("c").unwrap(),
                state: CallState::Failed,
                result: "r".into(),
            },
            LateRecord::Sealed,
        ] {
            assert_eq!(read_late(&write_late(&record)).unwrap(), record);
        }
        assert!(read_late("{}").is_err());
    }

    #[test]
    fn evidence_comes_back_as_it_went() {
        let seen = Evidence {
            holder: NodeId::new("a").unwrap(),
            holder_started_at: Some(Timestamp(-1)),
            holder_gone: Some(false),
            rebooted: true,
            observer: NodeId::new("b").unwrap(),
            observer_started_at: Timestamp(7),
            newer_process: true,
            drain_timeout_s: Some(30),
            store_silent_s: Some(600),
            last_seq: u64::from(u32::MAX) + 1,
            last_event: "text.delta".into(),
            last_event_at: Timestamp(3),
        };
        assert_eq!(read_evidence(&write_evidence(&seen)).unwrap(), seen);
        assert!(read_evidence("{}").is_err());
    }
}
