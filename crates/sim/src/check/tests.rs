//! A good history passes; each planted violation is found, and by the check that it is planted for.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Checker, Effects, Power};
use crate::client::Accepted;
use crate::follow::{Record, Seen};
use crate::history::{RunHistory, SessionHistory};

/// Builds a session's history event by event, as a store would.
struct Builder {
    feed: Vec<Seen>,
    runs: Vec<RunHistory>,
    messages: Vec<Value>,
    inputs: Vec<Value>,
}

impl Builder {
    fn event(&mut self, event: &str, run: Option<&str>, mut body: Value) {
        let offset = self.feed.len() as u64 + 1;
        body["session_id"] = json!("s");
        body["offset"] = json!(offset);
        body["event"] = json!(event);
        body["at"] = json!("2026-01-01T00:00:00.000Z");
        let mut of_run = None;
        if let Some(id) = run {
            of_run = self.runs.iter_mut().find(|run| run.id() == id);
            let run = of_run.as_mut().unwrap();
            body["run_id"] = json!(id);
            body["seq"] = json!(run.events.len() + 1);
        }
        let data = body.to_string();
        if let Some(run) = of_run {
            run.events.push(data.clone());
        }
        self.feed.push(Seen { number: offset, event: event.to_owned(), data });
    }

    fn accept(&mut self, input: &str, kind: &str, text: &str) {
        self.inputs.push(json!({
            "input_id": input, "session_id": "s", "request_id": format!("r-{input}"), "kind": kind,
            "text": text, "status": "terminal", "outcome": "completed", "delivery": "queued",
        }));
        self.event("input.accepted", None, json!({ "input_id": input }));
    }

    fn row(&mut self, role: &str, kind: &str, mut message: Value) {
        let id = self.messages.len() + 1;
        message["id"] = json!(id);
        message["position"] = json!(format!("{id:04}"));
        message["role"] = json!(role);
        message["kind"] = json!(kind);
        self.event("message.added", None, json!({ "message": message }));
        self.messages.push(message);
    }

    fn begin(&mut self, run: &str, input: &str, continues: Option<&str>) {
        let generation = self.runs.len() + 1;
        self.runs.push(RunHistory {
            run: json!({
                "run_id": run, "input_ids": [input], "generation": generation,
                "attempt": u8::from(continues.is_some()), "continues": continues,
                "state": "running", "terminal": false,
            }),
            events: Vec::new(),
        });
        self.event("turn.started", None, json!({ "run_id": run }));
        let (role, kind) =
            if continues.is_some() { ("system", "continuation") } else { ("user", "message") };
        self.row(role, kind, json!({ "input_id": input, "run_id": run, "text": "…" }));
        self.event("run.started", Some(run), json!({}));
    }

    fn say(&mut self, run: &str, text: &str) {
        for piece in text.split_inclusive(' ') {
            self.event("text.delta", Some(run), json!({ "text": piece }));
        }
    }

    fn end(&mut self, run: &str, state: &str, text: &str, calls: Value) {
        self.row(
            "assistant",
            "message",
            json!({ "run_id": run, "text": text, "tool_calls": calls }),
        );
        self.event(&format!("run.{state}"), Some(run), json!({}));
        let of_run = self.runs.iter_mut().find(|one| one.id() == run).unwrap();
        of_run.run["state"] = json!("ended");
        of_run.run["terminal"] = json!(true);
        of_run.run["terminal_state"] = json!(state);
        of_run.run["last_seq"] = json!(of_run.events.len());
        of_run.run["evidence"] = json!({ "text": "it went away" });
    }
}

/// Two inputs; the first one's turn is interrupted and continued, the second one calls a tool.
fn good() -> SessionHistory {
    let mut b = Builder { feed: vec![], runs: vec![], messages: vec![], inputs: vec![] };
    b.accept("i1", "message", "first");
    b.begin("q1", "i1", None);
    b.say("q1", "one two ");
    b.accept("i2", "message", "second");
    b.end("q1", "interrupted", "one two ", Value::Null);
    b.accept("c1", "continuation", "note");
    b.begin("q2", "c1", Some("q1"));
    b.say("q2", "three");
    b.end("q2", "completed", "three", Value::Null);
    b.begin("q3", "i2", None);
    b.say("q3", "done");
    let call = json!({ "id": "t1", "arguments": { "command": "x" }, "state": "succeeded" });
    b.end("q3", "completed", "done", json!([call]));
    let session = json!({ "queue_length": 0, "running": null, "offset": b.feed.len() });
    SessionHistory {
        id: "s".to_owned(),
        session,
        messages: b.messages,
        inputs: b.inputs,
        runs: b.runs,
        feed: b.feed,
        faults: Vec::new(),
        jumps: Vec::new(),
    }
}

fn answer(text: &str) -> String {
    if text == "first" { "one two three".to_owned() } else { "done".to_owned() }
}

fn line_of(arguments: &Value) -> Option<String> {
    arguments["command"].as_str().map(str::to_owned)
}

fn effects(times: usize) -> Effects {
    Effects { lines: BTreeMap::from([("x".to_owned(), times)]), line_of }
}

fn accepted(input: &str, text: &str, sent_ms: u64) -> Accepted {
    // All of them lie behind one moment, which only needs to be the same for all.
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let at = |ms: u64| *START.get_or_init(Instant::now) + Duration::from_millis(ms);
    Accepted {
        session: "s".to_owned(),
        request_id: format!("r-{input}"),
        text: text.to_owned(),
        input_id: input.to_owned(),
        sent_at: at(sent_ms),
        received_at: at(sent_ms + 5),
    }
}

fn checker<'a>(history: SessionHistory, effects: &'a Effects) -> Checker<'a> {
    let record = Record { events: history.feed.clone(), ..Record::default() };
    Checker {
        sessions: vec![history],
        accepted: vec![accepted("i1", "first", 0), accepted("i2", "second", 10)],
        accepted_all: true,
        seen: vec![("s".to_owned(), record)],
        effects: Some(effects),
        answer: Some(answer),
        power: Power::Stayed,
    }
}

#[test]
fn a_good_history_has_no_violation() {
    let effects = effects(1);
    assert_eq!(checker(good(), &effects).violations(), vec![]);
}

/// Plants something into a good history and gives back what is found.
fn planted(plant: impl FnOnce(&mut Checker<'_>)) -> Vec<String> {
    let effects = effects(1);
    let mut checker = checker(good(), &effects);
    plant(&mut checker);
    checker.violations().iter().map(|one| format!("{} {}", one.promise, one.what)).collect()
}

#[track_caller]
fn finds(told: &str, plant: impl FnOnce(&mut Checker<'_>)) {
    let found = planted(plant);
    assert!(found.iter().any(|one| one.contains(told)), "{told:?} is not in {found:#?}");
}

fn history<'c>(checker: &'c mut Checker<'_>) -> &'c mut SessionHistory {
    &mut checker.sessions[0]
}

/// Changes a stored event, in the feed and in its run.
fn rewrite(history: &mut SessionHistory, offset: usize, change: impl Fn(&mut Value)) {
    let seen = &mut history.feed[offset - 1];
    let before = seen.data.clone();
    let mut body = seen.json();
    change(&mut body);
    seen.data = body.to_string();
    seen.event = body["event"].as_str().unwrap().to_owned();
    for event in history.runs.iter_mut().flat_map(|run| &mut run.events) {
        if *event == before {
            event.clone_from(&seen.data);
        }
    }
}

fn offset_of(history: &SessionHistory, event: &str) -> usize {
    history.feed.iter().position(|seen| seen.event == event).unwrap() + 1
}

#[test]
fn a_lost_input_is_found() {
    finds("P1 input i2 was accepted and is not there", |c| {
        history(c).inputs.retain(|input| input["input_id"] != "i2");
    });
    finds("P1 input i2 is lost with it", |c| c.accepted[1].session = "gone".to_owned());
}

#[test]
fn an_input_accepted_twice_is_found() {
    finds("P2 r-i1 was accepted twice", |c| {
        c.accepted[1].request_id = "r-i1".to_owned();
    });
    finds("P2 r-i1 is stored twice", |c| history(c).inputs[1]["request_id"] = json!("r-i1"));
    finds("P2 nobody has a receipt", |c| {
        c.accepted.pop();
    });
    finds("P2 input i1 was sent as", |c| history(c).inputs[0]["text"] = json!("other"));
    finds("P2 an input is announced twice", |c| {
        rewrite(history(c), 5, |body| {
            body["event"] = json!("input.accepted");
            body["input_id"] = json!("i1");
        });
    });
}

#[test]
fn an_input_without_its_one_outcome_is_found() {
    finds("P4 an input without an outcome", |c| {
        history(c).inputs[0]["status"] = json!("started");
    });
    finds("P4 an input without an outcome", |c| history(c).inputs[0]["outcome"] = json!("perhaps"));
    finds("P4 input i1 is failed, its last run completed", |c| {
        history(c).inputs[0]["outcome"] = json!("failed");
    });
    finds("P4 something is left to do", |c| history(c).session["queue_length"] = json!(1));
    finds("P4 something is left to do", |c| history(c).session["running"] = json!({}));
}

#[test]
fn an_input_with_two_turns_or_none_is_found() {
    finds("P3 input i1 is completed and has 2 turns", |c| {
        history(c).runs[2].run["input_ids"] = json!(["i1"]);
    });
    finds("P3 input i2 is completed and has 0 turns", |c| {
        history(c).runs[2].run["input_ids"] = json!([]);
    });
}

#[test]
fn a_wrong_order_is_found() {
    finds("P3 input i1 ran after i2", |c| {
        let history = history(c);
        let (a, b) =
            (history.messages[0]["input_id"].take(), history.messages[4]["input_id"].take());
        (history.messages[0]["input_id"], history.messages[4]["input_id"]) = (b, a);
    });
    finds("P3 input i1 was sent after the receipt of i2", |c| {
        c.accepted = vec![accepted("i2", "second", 0), accepted("i1", "first", 10)];
    });
    finds("P3 generation 4 follows 2", |c| history(c).runs[2].run["generation"] = json!(4));
}

#[test]
fn turns_that_overlap_are_found() {
    finds("P3 run.started of run q3", |c| {
        // The third run begins before the second one's end.
        let history = history(c);
        let from = history.feed.iter().position(|seen| seen.event == "run.completed").unwrap();
        let started = history.feed.iter().rposition(|seen| seen.event == "run.started").unwrap();
        history.feed.swap(from, started);
    });
}

#[test]
fn a_run_without_its_one_end_is_found() {
    let interrupted = |c: &mut Checker<'_>| offset_of(history(c), "run.interrupted");
    finds("P4 run q1 has these ends: []", |c| {
        let at = interrupted(c);
        rewrite(history(c), at, |body| body["event"] = json!("usage"));
    });
    finds("P4 run q1 has these ends: [(1, ", |c| {
        let at = offset_of(history(c), "text.delta");
        rewrite(history(c), at, |body| body["event"] = json!("run.failed"));
    });
    finds("P4 run q1 goes on after its end", |c| {
        let run = &mut history(c).runs[0];
        let last = run.events.len() - 1;
        run.events.swap(last, last - 1);
    });
    finds("P4 run q1 ended with run.interrupted and says", |c| {
        history(c).runs[0].run["terminal_state"] = json!("completed");
    });
    finds("P4 run q1 ended with run.interrupted and says", |c| {
        history(c).runs[0].run["state"] = json!("running");
    });
    finds("P7 run q1 has 4 events", |c| history(c).runs[0].run["last_seq"] = json!(9));
    finds("P5 run q1 was interrupted without evidence", |c| {
        history(c).runs[0].run["evidence"] = Value::Null;
    });
}

#[test]
fn a_gap_or_a_double_in_a_journal_is_found() {
    finds("P7 run q1 has seq 3 in place 2", |c| {
        history(c).runs[0].events.remove(1);
    });
    finds("P7 run q1 has an event of", |c| {
        let at = offset_of(history(c), "text.delta");
        rewrite(history(c), at, |body| body["run_id"] = json!("q3"));
    });
    finds("P7 offset 4 in place 3", |c| {
        history(c).feed.remove(2);
    });
    finds("P7 offset 99", |c| history(c).session["offset"] = json!(99));
    finds("P7 the stream of the feed: late", |c| history(c).faults.push("late".to_owned()));
}

#[test]
fn a_journal_that_differs_from_the_feed_is_found() {
    finds("P6 run q1 has 4 events, 4 in the feed; they differ at Some(1)", |c| {
        let event = &mut history(c).runs[0].events[1];
        *event = event.replace("one", "One");
    });
    finds("P6 events of a run in the feed that never began: q3", |c| {
        history(c).runs.pop();
    });
}

#[test]
fn what_a_client_saw_and_is_gone_or_different_is_found() {
    finds("P6 a client saw what is gone", |c| {
        history(c).feed.pop();
    });
    finds("P6 a client saw ", |c| {
        let seen = &mut c.seen[0].1.events[3];
        seen.data = seen.data.replace('}', " }");
    });
    finds("P6 a client saw this session and it does not exist", |c| c.seen[0].0 = "x".to_owned());
}

#[test]
fn a_gap_a_double_or_a_reset_that_a_client_saw_is_found() {
    finds("P7 a client saw 3 in place of 2", |c| {
        c.seen[0].1.events.remove(1);
    });
    finds("P7 a client saw 2 in place of 3", |c| {
        let again = c.seen[0].1.events[1].clone();
        c.seen[0].1.events.insert(2, again);
    });
    finds("P7 a client was sent back", |c| c.seen[0].1.resets.push("lost".to_owned()));
    finds("P7 a client's stream: odd", |c| c.seen[0].1.faults.push("odd".to_owned()));
}

/// A power loss excuses lost pieces of text and passed-over numbers, and nothing else.
#[test]
fn what_a_power_loss_does_not_excuse_is_found() {
    fn lose(c: &mut Checker<'_>, event: &str) {
        // The last of its name is gone from the store, with its number; the client had seen it.
        let history = history(c);
        let at = history.feed.iter().rposition(|seen| seen.event == event).unwrap();
        let lost = history.feed.remove(at);
        let run = history.runs.iter_mut().find(|run| run.events.contains(&lost.data)).unwrap();
        run.events.retain(|event| *event != lost.data);
        let text = lost.json()["text"].as_str().unwrap_or_default().to_owned();
        for message in &mut history.messages {
            if message["run_id"] == lost.json()["run_id"] && message["role"] == "assistant" {
                let kept = message["text"].as_str().unwrap().replacen(&text, "", 1);
                message["text"] = json!(kept);
            }
        }
        c.answer = None;
    }
    let effects = effects(1);
    let found = |event: &str, power| {
        let mut checker = checker(good(), &effects);
        lose(&mut checker, event);
        checker.power = power;
        checker.violations()
    };
    assert_eq!(found("text.delta", Power::LostUnsynced), vec![]);
    for (event, power, told) in [
        ("text.delta", Power::LostSynced, "a client saw what is gone"),
        ("text.delta", Power::Stayed, "in place"),
        ("run.completed", Power::LostUnsynced, "a client saw what is gone"),
        ("run.started", Power::LostUnsynced, "a client saw what is gone"),
    ] {
        let all = found(event, power);
        assert!(all.iter().any(|one| one.what.contains(told)), "{event} {power:?}: {all:?}");
    }
    // A number that somebody saw is somebody else's.
    let mut checker = checker(good(), &effects);
    checker.power = Power::LostUnsynced;
    let seen = &mut checker.seen[0].1.events;
    let at = seen.iter().position(|seen| seen.event == "text.delta").unwrap();
    seen[at].data = seen[at].data.replace("one", "uno");
    assert!(checker.violations().iter().any(|one| one.promise == "P6"));
}

/// What a client saw piece by piece stands in a snapshot, in the same words, or it is found.
#[test]
fn a_snapshot_that_says_something_else_is_found() {
    let effects = effects(1);
    let pruned = |text: &str| {
        let mut checker = checker(good(), &effects);
        let history = history(&mut checker);
        let first = history.feed.iter().position(|seen| seen.event == "text.delta").unwrap();
        let run = history.runs.iter_mut().find(|run| run.id() == "q1").unwrap();
        let mut body: Value = history.feed[first + 1].json();
        body["event"] = json!("text.snapshot");
        body["text"] = json!(text);
        body["from"] = json!(body["seq"].as_u64().unwrap() - 1);
        body["to"] = body["seq"].clone();
        let seq = usize::try_from(body["seq"].as_u64().unwrap()).unwrap();
        let data = body.to_string();
        run.events.splice(seq - 2..seq, [data.clone()]);
        let number = history.feed[first + 1].number;
        let snapshot = Seen { number, event: "text.snapshot".to_owned(), data };
        history.feed.splice(first..first + 2, [snapshot]);
        checker.violations()
    };
    assert_eq!(pruned("one two "), vec![]);
    let found = pruned("one two, ");
    assert!(found.iter().any(|one| one.promise == "P6" && one.what.contains("the snapshot says")));
}

#[test]
fn a_row_twice_or_lost_or_out_of_place_is_found() {
    finds("P8 two rows have the id 1", |c| history(c).messages[1]["id"] = json!(1));
    finds("P8 position 0001 stands after 0002", |c| {
        history(c).messages[2]["position"] = json!("0001");
    });
    finds("P8 input i1 stands in the transcript twice", |c| {
        let mut again = history(c).messages[0].clone();
        again["id"] = json!(77);
        again["position"] = json!("9999");
        history(c).messages.push(again);
    });
    finds("P8 row 77 was announced 0 times", |c| {
        history(c).messages[1]["id"] = json!(77);
    });
    finds("P8 row 1 was announced and is not there", |c| {
        history(c).messages.remove(0);
    });
    finds("P8 input i1 had a turn and has no row", |c| {
        history(c).messages.remove(0);
    });
    finds("P8 a call stands in the transcript twice", |c| {
        let calls = history(c).messages[5]["tool_calls"].clone();
        history(c).messages[3]["tool_calls"] = calls;
    });
}

#[test]
fn text_that_was_lost_or_said_twice_is_found() {
    finds("P8 run q1 streamed \"one two \" and kept \"one \"", |c| {
        history(c).messages[1]["text"] = json!("one ");
    });
    finds("P8 input i1 got \"one two one two three\"", |c| {
        let at = history(c).feed.iter().position(|seen| seen.data.contains("three")).unwrap() + 1;
        rewrite(history(c), at, |body| body["text"] = json!("one two three"));
    });
}

#[test]
fn an_effect_that_happened_twice_or_unrecorded_is_found() {
    for (times, state, kept) in [
        (1, "succeeded", true),
        (0, "succeeded", false),
        (2, "succeeded", false),
        (0, "unknown", true),
        (1, "unknown", true),
        (2, "unknown", false),
        (0, "not_run", true),
        (1, "not_run", false),
        (1, "denied", false),
        (1, "running", false),
    ] {
        let effects = effects(times);
        let mut checker = checker(good(), &effects);
        let call = &mut history(&mut checker).messages[5]["tool_calls"][0];
        call["state"] = json!(state);
        let found = checker.violations();
        assert_eq!(found.is_empty(), kept, "{times} {state}: {found:?}");
        assert!(found.iter().all(|one| one.promise == "P9"));
    }
}

#[test]
fn the_error_names_what_was_found() {
    let effects = effects(1);
    let mut checker = checker(good(), &effects);
    assert!(checker.verify().is_ok());
    history(&mut checker).inputs[0]["status"] = json!("queued");
    let error = checker.verify().unwrap_err().to_string();
    assert!(error.contains("violations") && error.contains("P4 s: an input without"), "{error}");
}
