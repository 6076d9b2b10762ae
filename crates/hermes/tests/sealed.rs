//! A journal as a store takes it in.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use everturn_core::event::is_terminal;
use everturn_core::{Principal, Timestamp};
use everturn_hermes::journal::{Window, read};
use everturn_hermes::{RunEvent, Sealed};
use serde_json::{Value, json};

fn line(seq: u64, event: &str, payload: &Value) -> String {
    json!({ "seq": seq, "run_id": "r", "session_id": "s", "event": event,
            "created_at": seq as f64, "payload": payload })
    .to_string()
}

fn sealed_checking(lines: &[String], fits: fn(&str, &str) -> bool) -> Vec<(String, Value)> {
    let bytes: Vec<u8> = lines.join("\n").into_bytes();
    let journal = read(&bytes[..], Window { limit: 0, ..Window::default() }).unwrap();
    let open = move || Ok(std::io::Cursor::new(bytes.clone()));
    let events = Sealed::new(&journal, Principal::local(), fits, open);
    let events: Vec<RunEvent> = events.into_iter().flatten().map(|event| event.unwrap()).collect();
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>(), "no holes");
    let ends = events.iter().filter(|event| is_terminal(&event.name)).count();
    assert_eq!(ends, usize::from(!events.is_empty()), "one end");
    if let Some(last) = events.last() {
        assert!(is_terminal(&last.name), "which is the last");
    }
    events
        .into_iter()
        .map(|event| (event.name, serde_json::from_str(event.body.get()).unwrap()))
        .collect()
}

fn sealed(lines: &[String]) -> Vec<(String, Value)> {
    sealed_checking(lines, |_, _| true)
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

fn token(seq: u64) -> String {
    line(seq, "token", &json!({ "text": seq.to_string() }))
}

#[test]
fn lines_in_any_order_give_the_same_events() {
    let mut lines: Vec<String> = (1..=40).map(token).collect();
    lines.push(line(41, "done", &json!({})));
    let in_order = sealed(&lines);
    lines.push(token(7));
    assert_eq!(sealed(&lines), in_order, "a line that stands there twice");
    lines.reverse();
    assert_eq!(sealed(&lines), in_order);
    lines.rotate_left(13);
    assert_eq!(sealed(&lines), in_order);
}

#[test]
fn what_stands_behind_the_end_comes_before_it() {
    let events = sealed(&[
        token(1),
        line(2, "apperror", &json!({ "type": "auth_mismatch", "message": "401" })),
        line(3, "title", &json!({ "title": "t" })),
        line(4, "stream_end", &json!({})),
    ]);
    assert_eq!(names(&events), ["text.delta", "hermes.title", "hermes.stream_end", "run.failed"]);
    assert_eq!(events[3].1["error"]["code"], "model_unauthorized");
}

#[test]
fn a_journal_without_an_end_gets_an_interruption_with_its_evidence() {
    let events = sealed(&[token(1), token(2)]);
    assert_eq!(names(&events), ["text.delta", "text.delta", "run.interrupted"]);
    let body = &events[2].1;
    assert_eq!(body["cause"], "unknown");
    assert_eq!(
        (&body["evidence"]["last_seq"], &body["evidence"]["last_event"]),
        (&json!(2), &json!("token"))
    );
    assert!(body["evidence"]["text"].as_str().unwrap().contains("last journaled event is token"));
    assert_eq!(body["evidence"]["last_event_at"], Timestamp(2_000).rfc3339());
    assert!(sealed(&[]).is_empty());
    assert!(sealed(&["{not json}".to_owned()]).is_empty());
}

#[test]
fn holes_are_told_of_and_take_one_number() {
    let huge = i64::MAX as u64;
    let events = sealed(&[token(3), token(4), line(huge, "done", &json!({}))]);
    assert_eq!(
        names(&events),
        ["hermes.missing", "text.delta", "text.delta", "hermes.missing", "run.completed"]
    );
    assert_eq!(events[0].1, json!({ "from": 1, "to": 2 }));
    assert_eq!(events[3].1, json!({ "from": 5, "to": huge - 1 }));
    // The marks that an export leaves in a hole are the hole.
    let events = sealed(&[
        token(1),
        line(2, "everturn.missing", &json!({})),
        line(3, "everturn.malformed", &json!({ "error": "bad row" })),
        line(4, "done", &json!({})),
    ]);
    assert_eq!(
        names(&events),
        ["text.delta", "hermes.missing", "hermes.malformed", "run.completed"]
    );
    assert_eq!(events[2].1, json!({ "reason": "bad row" }));
}

#[test]
fn a_snapshot_stands_for_the_numbers_before_it() {
    let snapshot = json!({
        "everturn": { "event": "text.snapshot", "body": { "from": 2, "to": 5, "text": "abcd" } },
        "text": "abcd",
    });
    let mut lines = vec![token(1)];
    lines.extend((2..=4).map(|seq| line(seq, "everturn.missing", &json!({}))));
    lines.extend([line(5, "token", &snapshot), line(6, "done", &json!({}))]);
    let events = sealed(&lines);
    assert_eq!(names(&events), ["text.delta", "text.snapshot", "run.completed"]);
    assert_eq!(events[1].1, json!({ "from": 2, "to": 2, "text": "abcd" }));
}

/// A mark that claims what no reader could take is not believed, and nothing of it is lost.
#[test]
fn what_does_not_fit_is_kept_as_what_only_the_earlier_tools_know() {
    fn fits(name: &str, body: &str) -> bool {
        name.starts_with("hermes.") || !body.contains("\"seq\"")
    }
    let marked = json!({ "text": "x", "everturn": { "event": "a.b", "body": { "seq": 9 } } });
    let events = sealed_checking(
        &[
            line(1, "token", &marked),
            line(2, "token", &json!({ "seq": 1, "text": "y" })),
            line(3, "title", &json!({ "seq": 1 })),
            line(
                4,
                "done",
                &json!({ "everturn": { "event": "run.completed", "body": { "seq": 1 } } }),
            ),
        ],
        fits,
    );
    assert_eq!(names(&events), ["hermes.other", "hermes.other", "hermes.title", "run.completed"]);
    assert_eq!(events[1].1, json!({ "name": "token", "payload": { "seq": 1, "text": "y" } }));
    assert_eq!(events[2].1, json!({ "payload": { "seq": 1 } }));
    assert_eq!(events[3].1, json!({}));
}
