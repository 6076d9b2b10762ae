//! Runs: one ending each, gapless, and never two at once (P3, P4).

use serde_json::Value;

use super::{Findings, Power, text};
use crate::follow::{is_terminal, span};
use crate::history::{RunHistory, SessionHistory};

pub(super) fn check(history: &SessionHistory, power: Power, findings: &mut Findings<'_>) {
    let mut generation = 0;
    for run in &history.runs {
        endings(run, power, findings);
        // Runs are in the order in which they began.
        let next = run.run["generation"].as_u64().unwrap_or_default();
        if next != generation + 1 {
            findings.add("P3", format!("generation {next} follows {generation}"));
        }
        generation = next;
    }
    overlap(history, findings);
}

/// A run has one terminal event, its last, and says the same of itself.
fn endings(run: &RunHistory, power: Power, findings: &mut Findings<'_>) {
    let id = run.id();
    let mut terminals = Vec::new();
    let mut next = 1;
    for (index, event) in run.events.iter().enumerate() {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        let seq = event["seq"].as_u64().unwrap_or_default();
        let first = (seq + 1).saturating_sub(span(&event));
        if first < next || (first > next && !power.has_jumps()) {
            findings.add("P7", format!("run {id} has seq {seq} in place {next}"));
        }
        next = seq + 1;
        if event["run_id"] != id {
            findings.add("P7", format!("run {id} has an event of {}", event["run_id"]));
        }
        let name = text(&event, "event").to_owned();
        if is_terminal(&name) {
            terminals.push((index, name));
        }
    }
    let [(place, name)] = terminals.as_slice() else {
        findings.add("P4", format!("run {id} has these ends: {terminals:?}"));
        return;
    };
    if *place + 1 != run.events.len() {
        findings.add("P4", format!("run {id} goes on after its end, at {place}"));
    }
    let told = match text(&run.run, "terminal_state") {
        "completed" => "run.completed",
        "failed" => "run.failed",
        "cancelled-by-user" => "run.cancelled",
        "interrupted" => "run.interrupted",
        other => other,
    };
    if told != name || run.run["state"] != "ended" || run.run["terminal"] != true {
        findings.add("P4", format!("run {id} ended with {name} and says {}", run.run));
    }
    if run.run["last_seq"].as_u64() != Some(next - 1) {
        findings.add("P7", format!("run {id} has {} events: {}", run.events.len(), run.run));
    }
    if name == "run.interrupted" && text(&run.run["evidence"], "text").is_empty() {
        findings.add("P5", format!("run {id} was interrupted without evidence"));
    }
}

/// In the feed, one run ends before the next one begins.
fn overlap(history: &SessionHistory, findings: &mut Findings<'_>) {
    let mut open: Option<String> = None;
    for seen in &history.feed {
        let body = seen.json();
        if !body["seq"].is_u64() {
            continue;
        }
        let run = text(&body, "run_id");
        match &open {
            None if seen.event == "run.started" => open = Some(run.to_owned()),
            Some(one) if one == run => {}
            _ => findings.add(
                "P3",
                format!("{} of run {run} at {} while {open:?} is open", seen.event, seen.number),
            ),
        }
        if is_terminal(&seen.event) && open.as_deref() == Some(run) {
            open = None;
        }
    }
}
