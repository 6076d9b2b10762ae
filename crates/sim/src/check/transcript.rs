//! Transcripts: what the events say, nothing twice, nothing lost (P8).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Findings, text};
use crate::history::{RunHistory, SessionHistory};

pub(super) fn check(history: &SessionHistory, findings: &mut Findings<'_>) {
    rows(history, findings);
    for run in &history.runs {
        said(history, run, findings);
    }
}

/// Each row is there once, was announced once, and stands where its position says.
fn rows(history: &SessionHistory, findings: &mut Findings<'_>) {
    let mut ids = HashSet::new();
    let mut inputs = HashSet::new();
    let mut calls = HashSet::new();
    let mut before = "";
    for message in &history.messages {
        if !ids.insert(message["id"].as_u64().unwrap_or_default()) {
            findings.add("P8", format!("two rows have the id {}", message["id"]));
        }
        let position = text(message, "position");
        if position <= before {
            findings.add("P8", format!("position {position} stands after {before}"));
        }
        before = position;
        let asks = matches!(text(message, "kind"), "message" | "continuation")
            && message["role"] != "assistant";
        let input = text(message, "input_id");
        if asks && !input.is_empty() && !inputs.insert(input.to_owned()) {
            findings.add("P8", format!("input {input} stands in the transcript twice"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if !calls.insert(text(call, "id").to_owned()) {
                findings.add("P8", format!("a call stands in the transcript twice: {call}"));
            }
        }
    }
    for run in &history.runs {
        for id in run.run["input_ids"].as_array().into_iter().flatten() {
            let id = id.as_str().unwrap_or_default();
            if !inputs.contains(id) {
                findings.add("P8", format!("input {id} had a turn and has no row"));
            }
        }
    }
    let mut announced: HashMap<u64, usize> = HashMap::new();
    for seen in history.feed.iter().filter(|seen| seen.event == "message.added") {
        let id = seen.json()["message"]["id"].as_u64().unwrap_or_default();
        *announced.entry(id).or_default() += 1;
    }
    for id in &ids {
        match announced.remove(id) {
            Some(1) => {}
            times => {
                let times = times.unwrap_or(0);
                findings.add("P8", format!("row {id} was announced {times} times"));
            }
        }
    }
    for id in announced.keys() {
        findings.add("P8", format!("row {id} was announced and is not there"));
    }
}

/// What a run's rows say is what was streamed; and behind that, where its holder was cut off and not
/// dead, what that one still held.
fn said(history: &SessionHistory, run: &RunHistory, findings: &mut Findings<'_>) {
    let (streamed, kept) = (streamed(run), kept(history, run));
    let may_be_late = matches!(text(&run.run, "cause"), "split_brain" | "unknown" | "lease_lost");
    let agree = if may_be_late { kept.starts_with(&streamed) } else { kept == streamed };
    if !agree {
        findings.add("P8", format!("run {} streamed {streamed:?} and kept {kept:?}", run.id()));
    }
}

/// What a run's rows say.
fn kept(history: &SessionHistory, run: &RunHistory) -> String {
    history
        .messages
        .iter()
        .filter(|message| message["role"] == "assistant" && message["run_id"] == run.id())
        .map(|message| text(message, "text"))
        .collect()
}

fn streamed(run: &RunHistory) -> String {
    let mut all = String::new();
    for event in &run.events {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        // What is old is kept as one snapshot.
        if event["event"] == "text.delta" || event["event"] == "text.snapshot" {
            all.push_str(text(&event, "text"));
        }
    }
    all
}

/// An input that ended well has its whole answer, said once, however often it was interrupted.
pub(super) fn check_answers(
    history: &SessionHistory,
    answer: fn(&str) -> String,
    findings: &mut Findings<'_>,
) {
    for input in history.inputs.iter().filter(|input| input["kind"] == "message") {
        if input["outcome"] != "completed" || input["delivery"] == "steered" {
            continue;
        }
        let id = text(input, "input_id");
        let first = history.runs.iter().find(|run| {
            run.run["input_ids"].as_array().is_some_and(|ids| ids.iter().any(|one| one == id))
        });
        let expected = answer(text(input, "text"));
        let mut said = String::new();
        let mut next = first;
        for _ in 0..history.runs.len() {
            let Some(run) = next else { break };
            // Also with what came late it is the answer's beginning, said once.
            let so_far = format!("{said}{}", kept(history, run));
            if !expected.starts_with(&so_far) {
                findings.add("P8", format!("run {} kept {so_far:?} of {expected:?}", run.id()));
            }
            said.push_str(&streamed(run));
            next = history.runs.iter().find(|other| {
                other.run["continues"] == run.id() && other.run["attempt"].as_u64() > Some(0)
            });
        }
        if said != expected {
            findings.add("P8", format!("input {id} got {said:?} instead of {expected:?}"));
        }
    }
}
