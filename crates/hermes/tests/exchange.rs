//! The table of docs/journal.md, row by row: what our events are for the earlier tools, and what
//! theirs are for us.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use everturn_core::{Principal, RunId, SessionId, Timestamp};
use everturn_hermes::journal::{Identity, LINE_BYTES_MAX, Record, Window, Writer, read};
use everturn_hermes::run::FILL_MAX;
use everturn_hermes::{Exporter, Importer, RunEvent, RunItem};
use serde_json::value::RawValue;
use serde_json::{Value, json};

const AT: Timestamp = Timestamp(1_796_018_324_123);

fn identity() -> Identity {
    Identity { session_id: SessionId::new("s").unwrap(), run_id: RunId::new("r").unwrap() }
}

fn event(seq: u64, name: &str, body: &Value) -> RunItem {
    RunItem::Event(RunEvent::new(seq, name, AT, &body.to_string()).unwrap())
}

fn export(items: &[RunItem]) -> Vec<Record> {
    let mut exporter = Exporter::new(Vec::new(), identity());
    for item in items {
        exporter.item(item).unwrap();
    }
    read(&exporter.into_inner()[..], Window::default()).unwrap().events
}

/// Exports one event; answers the record and its payload without the mark.
fn exported(name: &str, body: &Value) -> (Record, Value) {
    let record = export(&[event(1, name, body)]).remove(0);
    let mut payload: Value = serde_json::from_str(record.payload.get()).unwrap();
    payload.as_object_mut().unwrap().remove("everturn");
    (record, payload)
}

/// Imports records of the earlier tools: names, and bodies.
fn imported(records: &[(&str, Value)]) -> Vec<(String, Value)> {
    let mut writer = Writer::new(Vec::new(), identity());
    for (event, payload) in records {
        let payload = RawValue::from_string(payload.to_string()).unwrap();
        writer.append(event, &payload, AT).unwrap();
    }
    let journal = read(&writer.into_inner()[..], Window::default()).unwrap();
    let mut importer = Importer::new(&journal.summary, Principal::new("alice").unwrap());
    let items = journal.events.iter().filter_map(|record| importer.record(record));
    items
        .map(|item| match item {
            RunItem::Event(event) => {
                assert_eq!(event.at, AT);
                (event.name, serde_json::from_str(event.body.get()).unwrap())
            }
            RunItem::Malformed { error, .. } => ("malformed".to_owned(), error.into()),
        })
        .collect()
}

#[test]
fn text_is_tokens_and_nothing_else() {
    for (name, their) in [("text.delta", "token"), ("reasoning.delta", "reasoning")] {
        let record = export(&[event(1, name, &json!({ "text": "é\n" }))]).remove(0);
        assert_eq!((record.event.as_str(), record.payload.get()), (their, "{\"text\":\"é\\n\"}"));
        assert_eq!((record.at(), record.terminal()), (AT, false));
    }
    let (record, payload) =
        exported("text.snapshot", &json!({ "from": 1, "to": 9, "text": "abc" }));
    assert_eq!((record.event.as_str(), payload), ("token", json!({ "text": "abc" })));
    let reasoning = json!({ "from": 1, "to": 9, "text": "", "reasoning": "hm" });
    let (record, payload) = exported("text.snapshot", &reasoning);
    assert_eq!((record.event.as_str(), payload), ("reasoning", json!({ "text": "hm" })));
    let output = json!({ "from": 1, "to": 9, "text": "", "call_id": "c", "output": "x" });
    let (record, payload) = exported("text.snapshot", &output);
    let expected = ("tool.output", json!({ "call_id": "c", "text": "x" }));
    assert_eq!((record.event.as_str(), payload), expected);
}

#[test]
fn a_call_is_a_tool_that_starts_and_completes() {
    let mut call = json!({
        "id": "call_1", "name": "shell", "effect": "write", "state": "intended",
        "arguments": { "a": "x".repeat(200), "b": 1, "c": [1, 2], "d": null, "e": "left out" },
    });
    let (record, payload) = exported("tool.intended", &json!({ "call": call }));
    assert_eq!(record.event, "tool");
    assert_eq!(payload["event_type"], "tool.started");
    assert_eq!((&payload["name"], &payload["tid"]), (&json!("shell"), &json!("call_1")));
    let args = payload["args"].as_object().unwrap();
    assert_eq!(args.len(), 4);
    assert_eq!(args["a"], format!("{}…", "x".repeat(120)));
    assert_eq!((&args["b"], &args["c"]), (&json!(1), &json!("[1,2]")));
    call["state"] = "succeeded".into();
    call["result"] = "y".repeat(5_000).into();
    call["started_at"] = "2026-11-30T05:58:44.123Z".into();
    call["ended_at"] = "2026-11-30T05:58:45.623Z".into();
    let (record, payload) = exported("tool.finished", &json!({ "call": call }));
    assert_eq!(record.event, "tool_complete");
    assert_eq!(payload["event_type"], "tool.completed");
    assert_eq!(payload["preview"], format!("{}…", "y".repeat(4_000)));
    assert_eq!((&payload["duration"], &payload["is_error"]), (&json!(1.5), &json!(false)));
    for state in ["failed", "denied", "not_run", "unknown"] {
        call["state"] = state.into();
        let (_, payload) = exported("tool.finished", &json!({ "call": call }));
        assert_eq!(payload["is_error"], true, "{state}");
    }
    // Arguments that the model wrote badly.
    call["arguments"] = "{\"command\":".into();
    let (_, payload) = exported("tool.intended", &json!({ "call": call }));
    assert_eq!((&payload["args"], &payload["preview"]), (&json!({}), &json!("{\"command\":")));
}

#[test]
fn a_prompt_is_an_approval_or_a_question() {
    let prompt = json!({ "prompt": {
        "id": "prm_1", "kind": "approval", "question": "May it?", "choices": ["once", "deny"],
        "call": { "id": "call_1", "name": "shell", "arguments": { "command": "ls" } },
    } });
    let (record, payload) = exported("prompt.opened", &prompt);
    assert_eq!(record.event, "approval");
    let wanted = json!({
        "approval_id": "prm_1", "command": "shell {\"command\":\"ls\"}", "description": "May it?",
        "pattern_keys": [], "choices": ["once", "deny"], "pending_count": 1, "run_id": "r",
    });
    assert_eq!(payload, wanted);
    let question = json!({ "prompt": {
        "id": "prm_2", "kind": "clarification", "question": "Which?", "choices": [],
        "suggestions": ["a", "b"],
        "opened_at": "2026-11-30T05:58:44.000Z", "expires_at": "2026-11-30T06:03:44.000Z",
    } });
    let (record, payload) = exported("prompt.opened", &question);
    assert_eq!(record.event, "clarify");
    let wanted = json!({
        "clarify_id": "prm_2", "question": "Which?", "choices_offered": ["a", "b"], "session_id": "s",
        "kind": "clarify", "requested_at": 1_796_018_324.0, "timeout_seconds": 300.0,
        "expires_at": 1_796_018_624.0,
    });
    assert_eq!(payload, wanted);
}

#[test]
fn what_has_no_earlier_name_keeps_its_own() {
    for name in [
        "run.started",
        "tool.output",
        "prompt.settled",
        "steer.taken",
        "run.handed_over",
        "text.resumed",
    ] {
        let body = json!({ "a": 1 });
        let record = export(&[event(1, name, &body)]).remove(0);
        assert_eq!((record.event.as_str(), record.payload.get()), (name, "{\"a\":1}"));
        assert!(!record.terminal());
    }
}

#[test]
fn every_ending_has_its_earlier_name() {
    let interrupted = |cause| json!({ "cause": cause, "evidence": { "text": "It stopped." } });
    let failed = |code| json!({ "error": { "code": code, "message": "no", "permanent": true, "hint": "h" } });
    let rows = [
        ("run.completed", json!({ "message_id": 4 }), "done", "completed"),
        ("run.cancelled", json!({ "by": "local" }), "cancel", "interrupted-by-user"),
        ("run.failed", failed("model_unauthorized"), "apperror", "errored"),
        ("run.failed", failed("too_many_steps"), "apperror", "errored"),
        ("run.failed", failed("interrupted"), "apperror", "errored"),
        ("run.failed", failed("cancelled"), "apperror", "errored"),
        ("run.interrupted", interrupted("process_restart"), "apperror", "interrupted-by-crash"),
        ("run.interrupted", interrupted("split_brain"), "apperror", "lost-worker-bookkeeping"),
        ("run.interrupted", interrupted("lost_worker"), "apperror", "lost-worker-bookkeeping"),
        ("run.interrupted", interrupted("lease_lost"), "apperror", "lost-worker-bookkeeping"),
        ("run.interrupted", interrupted("unknown"), "apperror", "lost-worker-bookkeeping"),
    ];
    for (name, body, their, state) in rows {
        let (record, payload) = exported(name, &body);
        assert_eq!(record.event, their, "{name} {body}");
        assert_eq!(record.terminal_state.unwrap().as_str(), state, "{name} {body}");
        assert!(payload.to_string().len() < 1_000, "an end is small: {payload}");
        if name == "run.interrupted" {
            assert_eq!(
                (&payload["type"], &payload["message"]),
                (&json!("interrupted"), &json!("It stopped."))
            );
        }
    }
    let (_, payload) = exported("run.failed", &failed("model_unauthorized"));
    let wanted = json!({
        "type": "auth_mismatch", "message": "no", "hint": "h", "details": "model_unauthorized",
        "session_id": "s",
    });
    assert_eq!(payload, wanted);
    let (_, payload) = exported("run.cancelled", &json!({ "by": "local" }));
    assert_eq!(payload["message"], "Cancelled by user");
}

#[test]
fn usage_is_summed_as_the_earlier_tools_show_it() {
    let used =
        |input: u64| json!({ "input_tokens": input, "output_tokens": 2, "cached_input_tokens": 1 });
    let records = export(&[
        event(1, "usage", &used(10)),
        event(2, "usage", &used(5)),
        event(3, "run.completed", &json!({ "message_id": 1 })),
    ]);
    let names: Vec<_> = records.iter().map(|record| record.event.as_str()).collect();
    assert_eq!(names, ["metering", "metering", "done"]);
    let usage = |record: &Record| {
        let payload: Value = serde_json::from_str(record.payload.get()).unwrap();
        payload["usage"].clone()
    };
    let sum = |input, output, cached| json!({ "input_tokens": input, "output_tokens": output, "cache_read_tokens": cached });
    assert_eq!(usage(&records[0]), sum(10, 2, 1));
    assert_eq!(usage(&records[1]), sum(15, 4, 2));
    assert_eq!(usage(&records[2]), sum(15, 4, 2));
}

#[test]
fn a_number_without_an_event_has_a_record_too() {
    let delta = |seq| event(seq, "text.delta", &json!({ "text": "x" }));
    let unreadable = RunItem::Malformed { seq: 5, error: "the body is not JSON".to_owned() };
    let records = export(&[delta(1), delta(4), unreadable, delta(6)]);
    let names: Vec<_> = records.iter().map(|record| (record.seq, record.event.as_str())).collect();
    assert_eq!(
        names,
        [
            (1, "token"),
            (2, "everturn.missing"),
            (3, "everturn.missing"),
            (4, "token"),
            (5, "everturn.malformed"),
            (6, "token"),
        ]
    );
    assert_eq!(records[4].payload_text("error").unwrap(), "the body is not JSON");
    // A greater hole is left as it is: no reader that demands every number takes so many anyway.
    let far = FILL_MAX + 3;
    let records = export(&[delta(1), delta(far)]);
    assert_eq!(records.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, far]);
    // Numbers only grow.
    let mut exporter = Exporter::new(Vec::new(), identity());
    exporter.item(&delta(2)).unwrap();
    for seq in [0, 1, 2] {
        assert_eq!(exporter.item(&delta(seq)).unwrap_err().code(), "journal_record_invalid");
    }
    exporter.item(&delta(3)).unwrap();
}

#[test]
fn an_event_that_no_line_can_hold_is_told_of_in_its_place() {
    let long = event(1, "tool.output", &json!({ "text": "x".repeat(LINE_BYTES_MAX) }));
    let records = export(&[long, event(2, "run.completed", &json!({ "message_id": 1 }))]);
    assert_eq!(records[0].event, "everturn.malformed");
    assert!(records[0].payload_text("error").unwrap().contains("too large"));
    assert_eq!(records[1].event, "done");
}

#[test]
fn a_conversation_of_theirs_becomes_ours() {
    let tool =
        json!({ "name": "terminal", "args": { "command": "ls" }, "tid": "t1", "preview": "ls" });
    let ended = json!({ "name": "terminal", "args": { "command": "ls" }, "tid": "t1", "preview": "a b", "is_error": false });
    let got = imported(&[
        ("token", json!({ "text": "I look." })),
        ("interim_assistant", json!({ "text": "I look.", "already_streamed": true })),
        ("tool", tool),
        ("tool_complete", ended),
        ("interim_assistant", json!({ "text": "Two files." })),
        ("metering", json!({ "tps": 1.5 })),
        ("done", json!({ "session": { "session_id": "s" } })),
        ("title", json!({ "title": "Files" })),
        ("stream_end", json!({})),
    ]);
    let names: Vec<_> = got.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "text.delta",
            "hermes.interim_assistant",
            "tool.intended",
            "tool.finished",
            "text.delta",
            "hermes.metering",
            "run.completed",
            "hermes.title",
            "hermes.stream_end",
        ]
    );
    assert_eq!(got[0].1, json!({ "text": "I look." }));
    let call = &got[3].1["call"];
    assert_eq!(
        (&call["id"], &call["state"], &call["result"]),
        (&json!("t1"), &json!("succeeded"), &json!("a b"))
    );
    assert_eq!(
        (&call["arguments"], &call["effect"]),
        (&json!({ "command": "ls" }), &json!("write"))
    );
    assert_eq!(got[4].1, json!({ "text": "\n\nTwo files." }), "a paragraph of its own");
    assert_eq!(got[7].1, json!({ "payload": { "title": "Files" } }));
}

#[test]
fn calls_are_matched_by_id_and_else_by_name() {
    let call = |name: &str, id: Option<&str>| json!({ "name": name, "tid": id });
    let got = imported(&[
        ("tool", call("a", Some("t1"))),
        ("tool", call("a", Some("t2"))),
        ("tool", call("b", None)),
        ("tool", call("b", Some("../evil"))),
        ("tool_complete", call("a", Some("t1"))),
        ("tool_complete", call("b", None)),
        ("tool_complete", call("b", None)),
        ("tool_complete", call("", None)),
        ("tool_complete", call("a", None)),
    ]);
    let ids: Vec<_> = got.iter().map(|(_, body)| body["call"]["id"].as_str().unwrap()).collect();
    let begun = ["t1", "t2", "journal-3", "journal-4"];
    assert_eq!(ids[..4], begun, "what is no id is not taken for one");
    assert_eq!(ids[4..], ["t1", "journal-4", "journal-3", "t2", "journal-9"]);
}

#[test]
fn every_ending_of_theirs_is_one_of_ours() {
    let end = |event: &str, payload: Value| {
        imported(&[("token", json!({ "text": "x" })), (event, payload)]).remove(1)
    };
    assert_eq!(end("done", json!({})), ("run.completed".to_owned(), json!({})));
    assert_eq!(end("stream_end", json!({})).0, "run.completed");
    assert_eq!(end("cancel", json!({})), ("run.cancelled".to_owned(), json!({ "by": "alice" })));
    assert_eq!(end("error", json!({ "type": "canceled" })).0, "run.cancelled");
    let failed = |code: &str, permanent: bool, message: &str| {
        let error = json!({ "code": code, "message": message, "permanent": permanent });
        ("run.failed".to_owned(), json!({ "error": error }))
    };
    let auth = json!({ "type": "auth_mismatch", "message": "401" });
    assert_eq!(end("apperror", auth), failed("model_unauthorized", true, "401"));
    assert_eq!(end("apperror", json!({ "message": "m" })), failed("imported_error", false, "m"));
    let limit = json!({ "terminal_state": "tool_limit_reached" });
    assert_eq!(end("done", limit), failed("too_many_steps", false, ""));
    // The word says that it was interrupted, not that anything was started again.
    let (name, body) = end("apperror", json!({ "type": "interrupted", "message": "m" }));
    let evidence = json!({
        "text": "m", "holder": "unknown", "rebooted": false, "observer": "unknown",
        "observer_started_at": AT.rfc3339(), "newer_process": false,
        "last_seq": 1, "last_event": "text.delta", "last_event_at": AT.rfc3339(),
    });
    assert_eq!(
        (name.as_str(), body),
        ("run.interrupted", json!({ "cause": "unknown", "evidence": evidence }))
    );
}

#[test]
fn a_run_ends_once_whatever_its_journal_claims() {
    let claim = |name: &str| json!({ "text": "x", "everturn": { "event": name, "body": {} } });
    let got = imported(&[
        ("token", claim("run.completed")),
        ("run.completed", json!({})),
        ("cancel", json!({ "everturn": { "event": "text.delta", "body": {} } })),
        ("apperror", claim("run.cancelled")),
        ("stream_end", claim("run.completed")),
    ]);
    let names: Vec<_> = got.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["text.delta", "hermes.run.completed", "text.delta", "run.cancelled", "hermes.stream_end"]
    );
}
