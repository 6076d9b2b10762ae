//! Inputs: none lost, none twice, each with one outcome, in order (P1 to P4).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Findings, text};
use crate::client::Accepted;
use crate::history::{RunHistory, SessionHistory};

pub(super) fn check(
    history: &SessionHistory,
    accepted: &[&Accepted],
    all: bool,
    findings: &mut Findings<'_>,
) {
    receipts(history, accepted, all, findings);
    for input in &history.inputs {
        outcome(history, input, findings);
    }
    order(history, accepted, findings);
}

/// What clients have receipts for exists, as they sent it, once.
fn receipts(
    history: &SessionHistory,
    accepted: &[&Accepted],
    all: bool,
    findings: &mut Findings<'_>,
) {
    let mut by_request: HashMap<&str, &str> = HashMap::new();
    for one in accepted {
        let id = &one.input_id;
        let Some(input) = history.inputs.iter().find(|input| text(input, "input_id") == id) else {
            findings.add("P1", format!("input {id} was accepted and is not there"));
            continue;
        };
        if input["request_id"] != one.request_id.as_str() || input["text"] != one.text.as_str() {
            findings.add("P2", format!("input {id} was sent as {one:?} and is {input}"));
        }
        if by_request.insert(&one.request_id, id).is_some_and(|before| before != id) {
            findings.add("P2", format!("{} was accepted twice, as {id} too", one.request_id));
        }
    }
    let mut requests = HashSet::new();
    for input in history.inputs.iter().filter(|input| input["kind"] != "continuation") {
        let request = text(input, "request_id");
        if !requests.insert(request) {
            findings.add("P2", format!("{request} is stored twice"));
        }
        if all && !by_request.contains_key(request) {
            findings.add("P2", format!("nobody has a receipt for {input}"));
        }
    }
    let announced = history.feed.iter().filter(|seen| seen.event == "input.accepted");
    let mut known = HashSet::new();
    for seen in announced {
        if !known.insert(text(&seen.json(), "input_id").to_owned()) {
            findings.add("P2", format!("an input is announced twice: {}", seen.data));
        }
    }
}

/// An input has its outcome, which is that of the last run of its chain, and no more than one turn.
fn outcome(history: &SessionHistory, input: &Value, findings: &mut Findings<'_>) {
    let id = text(input, "input_id");
    let outcome = text(input, "outcome");
    let known = ["completed", "failed", "cancelled", "interrupted", "rejected"].contains(&outcome);
    if input["status"] != "terminal" || !known {
        findings.add("P4", format!("an input without an outcome: {input}"));
        return;
    }
    if input["delivery"] == "steered" {
        return;
    }
    let names_it = |run: &&RunHistory| {
        run.run["input_ids"].as_array().is_some_and(|ids| ids.iter().any(|one| one == id))
    };
    let turns: Vec<&RunHistory> = history.runs.iter().filter(names_it).collect();
    match turns.as_slice() {
        [] if matches!(outcome, "cancelled" | "rejected") => {}
        [first] => {
            let last = last_of_chain(history, first, text(input, "ended_at"));
            let ended = match text(&last.run, "terminal_state") {
                "cancelled-by-user" => "cancelled",
                other => other,
            };
            if ended != outcome {
                findings.add("P4", format!("input {id} is {outcome}, its last run {ended}"));
            }
        }
        _ => findings.add("P3", format!("input {id} is {outcome} and has {} turns", turns.len())),
    }
}

/// The last run that policy continued from this one, before its input had its outcome: what is
/// continued later, when a reason against it has passed, is a chain of its own.
fn last_of_chain<'h>(
    history: &'h SessionHistory,
    first: &'h RunHistory,
    ended_at: &str,
) -> &'h RunHistory {
    let mut last = first;
    // A chain is never longer than the list; a circle would be a bug and must not hang the check.
    for _ in 0..history.runs.len() {
        let by_policy = |run: &&RunHistory| {
            run.run["continues"] == last.id()
                && run.run["attempt"].as_u64() > Some(0)
                && text(&run.run, "started_at") <= ended_at
        };
        match history.runs.iter().find(by_policy) {
            Some(next) => last = next,
            None => break,
        }
    }
    last
}

/// Turns come in the order of acceptance, and that is the order that clients could observe.
fn order(history: &SessionHistory, accepted: &[&Accepted], findings: &mut Findings<'_>) {
    let mut place: HashMap<String, u64> = HashMap::new();
    for seen in history.feed.iter().filter(|seen| seen.event == "input.accepted") {
        place.insert(text(&seen.json(), "input_id").to_owned(), seen.number);
    }
    // A receipt that came before another input was sent stands for an earlier place.
    let mut sent: Vec<&&Accepted> = accepted.iter().collect();
    sent.sort_by_key(|one| one.sent_at);
    let mut received: Vec<&&Accepted> = accepted.iter().collect();
    received.sort_by_key(|one| one.received_at);
    let mut received = received.into_iter().peekable();
    let mut latest: Option<(u64, &str)> = None;
    for one in sent {
        while let Some(earlier) = received.next_if(|other| other.received_at < one.sent_at) {
            let at = place.get(&earlier.input_id).copied().unwrap_or_default();
            if latest.is_none_or(|(before, _)| before < at) {
                latest = Some((at, &earlier.input_id));
            }
        }
        let own = place.get(&one.input_id).copied().unwrap_or(u64::MAX);
        if let Some((at, before)) = latest.filter(|(at, _)| *at >= own) {
            findings.add(
                "P3",
                format!(
                    "input {} was sent after the receipt of {before} and stands at {own}, before {at}",
                    one.input_id
                ),
            );
        }
    }
    // Rows of people's messages stand in the order of acceptance.
    let mut before = (0, "");
    for message in history.messages.iter().filter(|message| message["role"] == "user") {
        let input = text(message, "input_id");
        let Some(at) = place.get(input) else { continue };
        // A second row of one input is a matter of P8.
        if *at < before.0 {
            findings.add("P3", format!("input {input} ran after {}, which came later", before.1));
        }
        before = (*at, input);
    }
}
