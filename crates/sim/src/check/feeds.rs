//! Feeds and journals: gapless, the same bytes everywhere, and what was seen is kept (P6, P7).

use std::collections::HashMap;

use super::{Findings, Power, text};
use crate::follow::{Record, Seen};
use crate::history::SessionHistory;

/// Events that are not synced by themselves: pieces of what somebody said.
const PIECES: &[&str] = &["text.delta", "reasoning.delta", "tool.output"];

/// The feed is gapless, and the events of runs in it are those of their journals.
pub(super) fn check(history: &SessionHistory, power: Power, findings: &mut Findings<'_>) {
    for fault in &history.faults {
        if !(power.has_jumps() && history.jumps.contains(fault)) {
            findings.add("P7", format!("the stream of the feed: {fault}"));
        }
    }
    let mut of_run: HashMap<String, Vec<&str>> = HashMap::new();
    let mut next = 1;
    for seen in &history.feed {
        let first = (seen.number + 1).saturating_sub(seen.span());
        if first < next || (first > next && !power.has_jumps()) {
            findings.add("P7", format!("offset {} in place {next}", seen.number));
        }
        next = seen.number + 1;
        let body = seen.json();
        if body["seq"].is_u64() {
            of_run.entry(text(&body, "run_id").to_owned()).or_default().push(&seen.data);
        }
    }
    for run in &history.runs {
        let in_feed = of_run.remove(run.id()).unwrap_or_default();
        if in_feed.iter().ne(run.events.iter()) {
            let place = in_feed.iter().zip(&run.events).position(|(feed, own)| feed != own);
            findings.add(
                "P6",
                format!(
                    "run {} has {} events, {} in the feed; they differ at {place:?}",
                    run.id(),
                    run.events.len(),
                    in_feed.len()
                ),
            );
        }
    }
    for run in of_run.keys() {
        findings.add("P6", format!("events of a run in the feed that never began: {run}"));
    }
}

/// What a client saw is still there, byte for byte (or, once it is old, as a part of a snapshot), and
/// it was told everything once.
pub(super) fn check_seen(
    history: &SessionHistory,
    record: &Record,
    power: Power,
    findings: &mut Findings<'_>,
) {
    for fault in &record.faults {
        if !(power.has_jumps() && record.jumps.contains(fault)) {
            findings.add("P7", format!("a client's stream: {fault}"));
        }
    }
    for reset in &record.resets {
        // Whoever is behind the end, or in the middle of what is gone, is told so.
        if !power.has_losses() {
            findings.add("P7", format!("a client was sent back: {reset}"));
        }
    }
    let stored: HashMap<u64, &Seen> = history.feed.iter().map(|one| (one.number, one)).collect();
    for (began_after, events) in &record.earlier {
        check_events(history, &stored, *began_after, events, power, findings);
    }
    check_events(history, &stored, record.began_after, &record.events, power, findings);
}

/// What a client saw from one place on.
fn check_events(
    history: &SessionHistory,
    stored: &HashMap<u64, &Seen>,
    began_after: u64,
    events: &[Seen],
    power: Power,
    findings: &mut Findings<'_>,
) {
    let mut before = began_after;
    for seen in events {
        let first = (seen.number + 1).saturating_sub(seen.span());
        if seen.number <= before || (first > before + 1 && !power.has_jumps()) {
            findings.add("P7", format!("a client saw {} in place of {}", seen.number, before + 1));
        }
        before = seen.number;
        let found = stored.get(&seen.number);
        if found.is_some_and(|stored| *stored == seen) {
            continue;
        }
        if let Some(snapshot) = covering(history, seen) {
            check_covered(snapshot, events, seen, findings);
            continue;
        }
        match found {
            Some(stored) => findings
                .add("P6", format!("a client saw {} and the store has {}", seen.data, stored.data)),
            None if power.has_losses() && PIECES.contains(&seen.event.as_str()) => {}
            None => findings.add("P6", format!("a client saw what is gone: {}", seen.data)),
        }
    }
}

/// The snapshot that stands for a piece which a client saw, if one does.
fn covering<'h>(history: &'h SessionHistory, seen: &Seen) -> Option<&'h Seen> {
    if !PIECES.contains(&seen.event.as_str()) {
        return None;
    }
    let snapshots = history.feed.iter().filter(|one| one.event == "text.snapshot");
    let mut ranges = snapshots.map(|one| (one.number + 1 - one.span(), one));
    ranges.find(|(first, last)| (*first..=last.number).contains(&seen.number)).map(|(_, one)| one)
}

/// A snapshot says what its pieces said, in their order.
fn check_covered(snapshot: &Seen, events: &[Seen], seen: &Seen, findings: &mut Findings<'_>) {
    let first = snapshot.number + 1 - snapshot.span();
    if seen.number != snapshot.number {
        // Looked at once, with the last piece.
        return;
    }
    let pieces: Vec<&Seen> =
        events.iter().filter(|one| (first..=snapshot.number).contains(&one.number)).collect();
    let said: String = pieces.iter().map(|one| text(&one.json(), "text").to_owned()).collect();
    let body = snapshot.json();
    let kept = ["text", "reasoning", "output"].into_iter().map(|field| text(&body, field));
    let kept = kept.collect::<Vec<_>>().concat();
    if pieces.len() as u64 == snapshot.span() && said != kept {
        findings.add("P6", format!("a client saw {said:?} and the snapshot says {kept:?}"));
    }
}
