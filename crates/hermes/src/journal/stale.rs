//! What is told of a run that has events, no end, and nobody who works on it.
//!
//! It is derived whenever somebody asks, stored nowhere, and has no seq and no id: so it can collide
//! with no record, and nobody can take it for a cursor. It says what was observed, which is the last
//! record, and claims nothing else: why the worker stopped is not known here.

use everturn_core::{RunId, SessionId};
use serde::Serialize;

use super::record::EventId;
use super::terminal::State;
use super::window::Summary;

/// The report, with the fields of a record but for those that name its place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StaleReport {
    /// `apperror`.
    pub event: &'static str,
    /// Always true: no record says this.
    pub synthetic: bool,
    /// Always true.
    pub terminal: bool,
    /// [`State::LostWorkerBookkeeping`].
    pub terminal_state: State,
    /// The run.
    #[serde(serialize_with = "as_text")]
    pub run_id: RunId,
    /// The session.
    #[serde(serialize_with = "as_text")]
    pub session_id: SessionId,
    /// What is told.
    pub payload: StalePayload,
}

/// What a [`StaleReport`] tells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StalePayload {
    /// `interrupted`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Always true: for programs, not a message of the conversation.
    pub recovery_control: bool,
    /// What happened, for people.
    pub message: String,
    /// What that is concluded from.
    pub hint: String,
    /// The session.
    #[serde(serialize_with = "as_text")]
    pub session_id: SessionId,
    /// The run.
    #[serde(serialize_with = "as_text")]
    pub stream_id: RunId,
    /// Seq of the last record.
    pub journal_last_seq: u64,
    /// Its id.
    #[serde(serialize_with = "as_text")]
    pub journal_last_event_id: EventId,
    /// Its name.
    pub journal_last_event: String,
    /// When it was written, in seconds since the Unix epoch.
    pub journal_last_at: f64,
}

fn as_text<S: serde::Serializer>(id: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

/// What is told of a run that nobody works on, by its journal; `None` if it has ended or has no
/// record. Whether somebody still works on it is for the caller to know.
#[must_use]
pub fn stale_report(summary: &Summary) -> Option<StaleReport> {
    if summary.terminal() {
        return None;
    }
    let (identity, last_event) = (summary.identity.clone()?, summary.last_event.clone()?);
    let last = summary.last_event_id()?;
    let payload = StalePayload {
        kind: "interrupted",
        recovery_control: true,
        message: "This run has no recorded end: its live worker stopped before it wrote one. \
                  Whatever it had written until then is kept."
            .to_owned(),
        hint: format!(
            "The last journaled event is {last_event} (number {}); nothing after it is known.",
            last.seq
        ),
        session_id: identity.session_id.clone(),
        stream_id: identity.run_id.clone(),
        journal_last_seq: last.seq,
        journal_last_event_id: last,
        journal_last_event: last_event,
        journal_last_at: summary.last_at,
    };
    Some(StaleReport {
        event: "apperror",
        synthetic: true,
        terminal: true,
        terminal_state: State::LostWorkerBookkeeping,
        run_id: identity.run_id,
        session_id: identity.session_id,
        payload,
    })
}
