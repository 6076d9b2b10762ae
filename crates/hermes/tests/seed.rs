//! What the earlier web UI's tests of its run journal demand, test by test, of this crate. The two
//! about syncing are in the engine's tests, on the real store, as are the same demands on our own
//! journals.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{File, OpenOptions};
use std::io::Write as _;

use everturn_core::{RunId, SessionId, Timestamp};
use everturn_hermes::journal::{
    Folder, Identity, Journal, Reason, Record, Window, Writer, stale_report,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A sessions' folder as the earlier web UI has it.
struct Sessions {
    home: tempfile::TempDir,
}

impl Sessions {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> Folder {
        Folder::new(self.home.path())
    }

    fn writer(&self, run: &str) -> Writer<File> {
        self.folder().writer(identity(run)).unwrap()
    }

    /// Opens the journal anew, appends, and lets go of it.
    fn append(&self, run: &str, event: &str, payload: Value) -> Record {
        append(&mut self.writer(run), event, payload)
    }

    fn read(&self, run: &str, window: Window) -> Journal {
        self.folder().read(&identity(run), window).unwrap()
    }

    fn state(&self, run: &str) -> &'static str {
        self.folder().summary(&identity(run)).unwrap().state()
    }
}

fn identity(run: &str) -> Identity {
    Identity { session_id: SessionId::new("session_1").unwrap(), run_id: RunId::new(run).unwrap() }
}

fn append(writer: &mut Writer<File>, event: &str, payload: Value) -> Record {
    let payload = RawValue::from_string(payload.to_string()).unwrap();
    writer.append(event, &payload, Timestamp(1_796_018_324_123)).unwrap()
}

fn text(record: &Record) -> String {
    record.payload_text("text").unwrap()
}

/// `test_run_journal_appends_monotonic_seq_and_reads_after_cursor`
#[test]
fn run_journal_appends_monotonic_seq_and_reads_after_cursor() {
    let sessions = Sessions::new();
    let mut writer = sessions.writer("run_1");
    let first = append(&mut writer, "token", json!({ "text": "hello" }));
    let second = append(&mut writer, "done", json!({ "session": { "session_id": "session_1" } }));
    let (first, second) = (json!(first), json!(second));
    assert_eq!(first["seq"], 1);
    assert_eq!(first["event_id"], "run_1:1");
    assert_eq!(first["terminal"], false);
    assert_eq!(first["terminal_state"], Value::Null);
    assert_eq!(second["seq"], 2);
    assert_eq!(second["terminal"], true);
    assert_eq!(second["terminal_state"], "completed");
    let journal = sessions.read("run_1", Window::after(1));
    let names: Vec<_> = journal.events.iter().map(|record| record.event.as_str()).collect();
    assert_eq!(names, ["done"]);
    assert_eq!(json!(journal.events[0]), second);
}

/// `test_run_journal_reads_bounded_replay_window`
#[test]
fn run_journal_reads_bounded_replay_window() {
    let sessions = Sessions::new();
    let mut writer = sessions.writer("run_1");
    for word in ["one", "two", "three", "four"] {
        append(&mut writer, "token", json!({ "text": word }));
    }
    let journal = sessions.read("run_1", Window { after: 1, max: Some(3), limit: 10 });
    let seqs: Vec<_> = journal.events.iter().map(|record| record.seq).collect();
    let texts: Vec<_> = journal.events.iter().map(text).collect();
    assert_eq!(seqs, [2, 3]);
    assert_eq!(texts, ["two", "three"]);
    assert!(!journal.more);
    // What the window holds and the limit does not let through is told of.
    let part = sessions.read("run_1", Window { after: 1, max: Some(3), limit: 1 });
    assert_eq!((part.events.len(), part.events[0].seq, part.more), (1, 2, true));
}

/// `test_run_journal_tolerates_malformed_lines`
#[test]
fn run_journal_tolerates_malformed_lines() {
    let sessions = Sessions::new();
    sessions.append("run_1", "token", json!({ "text": "ok" }));
    let path = sessions.folder().path(&identity("run_1"));
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(b"{not json}\n[\"wrong-shape\"]\n").unwrap();
    let journal = sessions.read("run_1", Window::default());
    assert_eq!(journal.events.len(), 1);
    let malformed: Vec<_> =
        journal.malformed.iter().map(|found| (found.line, found.reason, &*found.text)).collect();
    assert_eq!(
        malformed,
        [(2, Reason::NotJson, "{not json}"), (3, Reason::NotAnObject, "[\"wrong-shape\"]")]
    );
    // Whatever the window, and it does not stand in the way of going on.
    assert_eq!(sessions.read("run_1", Window::after(9)).malformed.len(), 2);
    assert_eq!(sessions.append("run_1", "token", json!({})).seq, 2);
}

/// `test_latest_summary_and_find_run_summary_classify_terminal_state`
#[test]
fn latest_summary_and_find_run_summary_classify_terminal_state() {
    let sessions = Sessions::new();
    sessions.append("run_1", "token", json!({ "text": "ok" }));
    sessions.append("run_1", "cancel", json!({ "message": "Cancelled by user" }));
    let summary = json!(sessions.folder().summary(&identity("run_1")).unwrap());
    assert_eq!(summary["terminal"], true);
    assert_eq!(summary["terminal_state"], "interrupted-by-user");
    assert_eq!(summary["last_seq"], 2);
    assert_eq!(summary["last_event_id"], "run_1:2");
    let found = sessions.folder().find(&RunId::new("run_1").unwrap()).unwrap().unwrap();
    assert_eq!(found.identity.session_id.as_str(), "session_1");
    assert_eq!(found.summary.state(), "interrupted-by-user");
    assert!(found.path.ends_with("_run_journal/session_1/run_1.jsonl"));
    assert_eq!(sessions.folder().find(&RunId::new("run_2").unwrap()).unwrap(), None);
}

/// `test_terminal_state_classification_distinguishes_crash_from_user_cancel`
#[test]
fn terminal_state_classification_distinguishes_crash_from_user_cancel() {
    let sessions = Sessions::new();
    sessions.append("run_cancelled", "cancel", json!({ "message": "Cancelled by user" }));
    sessions.append("run_crashed", "apperror", json!({ "type": "interrupted" }));
    sessions.append("run_failed", "apperror", json!({ "type": "auth_mismatch" }));
    sessions.append("run_done", "done", json!({ "session": {} }));
    sessions.append("run_goes_on", "token", json!({ "text": "ok" }));
    assert_eq!(sessions.state("run_cancelled"), "interrupted-by-user");
    assert_eq!(sessions.state("run_crashed"), "interrupted-by-crash");
    assert_eq!(sessions.state("run_failed"), "errored");
    assert_eq!(sessions.state("run_done"), "completed");
    assert_eq!(sessions.state("run_goes_on"), "running");
    assert_eq!(sessions.state("run_nobody_knows"), "unknown");
}

/// `test_summary_keeps_logical_terminal_state_when_stream_end_follows`
#[test]
fn summary_keeps_logical_terminal_state_when_stream_end_follows() {
    let sessions = Sessions::new();
    sessions.append("run_1", "apperror", json!({ "type": "auth_mismatch" }));
    sessions.append("run_1", "stream_end", json!({ "session_id": "session_1" }));
    let summary = sessions.folder().summary(&identity("run_1")).unwrap();
    assert!(summary.terminal());
    assert_eq!(summary.last_event.as_deref(), Some("stream_end"));
    assert_eq!(summary.state(), "errored");
    assert_eq!(summary.terminal_seq, Some(1));
}

/// `test_stale_interrupted_event_reports_non_terminal_journal`
///
/// The earlier report had a seq, which a later record could get as well. Ours has none, and names
/// the last record's instead.
#[test]
fn stale_interrupted_event_reports_non_terminal_journal() {
    let sessions = Sessions::new();
    sessions.append("run_1", "token", json!({ "text": "partial" }));
    let summary = sessions.folder().summary(&identity("run_1")).unwrap();
    let report = json!(stale_report(&summary).unwrap());
    assert_eq!(report["event"], "apperror");
    assert_eq!(report["terminal"], true);
    assert_eq!(report["terminal_state"], "lost-worker-bookkeeping");
    assert_eq!(report["payload"]["type"], "interrupted");
    assert_eq!(report["payload"]["recovery_control"], true);
    assert_eq!(report["payload"]["journal_last_seq"], 1);
    assert_eq!(report["payload"]["journal_last_event"], "token");
    let hint = report["payload"]["hint"].as_str().unwrap();
    assert!(hint.contains("last journaled event"), "{hint}");
    assert!(hint.contains("token"), "{hint}");
    let message = report["payload"]["message"].as_str().unwrap();
    assert!(message.contains("live worker stopped"), "{message}");
    for claim in ["process restarted", "lost the live worker", "restart"] {
        assert!(!report.to_string().contains(claim), "{claim}: {report}");
    }
    // It has no place of its own, and asking for it changes nothing.
    assert_eq!((report.get("seq"), report.get("event_id")), (None, None));
    assert_eq!(sessions.folder().summary(&identity("run_1")).unwrap(), summary);
    assert_eq!(sessions.append("run_1", "done", json!({})).seq, 2);
}

/// `test_stale_interrupted_event_skips_terminal_journal`
#[test]
fn stale_interrupted_event_skips_terminal_journal() {
    let sessions = Sessions::new();
    sessions.append("run_1", "done", json!({ "session": {} }));
    let summary = |run| sessions.folder().summary(&identity(run)).unwrap();
    assert_eq!(stale_report(&summary("run_1")), None);
    // Nor is anything told of a run that nobody knows.
    assert_eq!(stale_report(&summary("run_2")), None);
}
