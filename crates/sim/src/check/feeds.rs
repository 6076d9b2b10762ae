//! Feeds and journals: gapless, the same bytes everywhere, and what was seen is kept (P6, P7).

use std::collections::HashMap;

use super::{Findings, text};
use crate::follow::Record;
use crate::history::SessionHistory;

/// The feed is gapless, and the events of runs in it are those of their journals.
pub(super) fn check(history: &SessionHistory, findings: &mut Findings<'_>) {
    for fault in &history.faults {
        findings.add("P7", format!("the stream of the feed: {fault}"));
    }
    let mut of_run: HashMap<String, Vec<&str>> = HashMap::new();
    for (index, seen) in history.feed.iter().enumerate() {
        if seen.number != index as u64 + 1 {
            findings.add("P7", format!("offset {} in place {}", seen.number, index + 1));
        }
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

/// What a client saw is still there, byte for byte, and it was told everything once.
pub(super) fn check_seen(history: &SessionHistory, record: &Record, findings: &mut Findings<'_>) {
    for fault in &record.faults {
        findings.add("P7", format!("a client's stream: {fault}"));
    }
    for reset in &record.resets {
        findings.add("P7", format!("a client was sent back: {reset}"));
    }
    let mut expected = record.began_after;
    for seen in &record.events {
        expected += 1;
        if seen.number != expected {
            findings.add("P7", format!("a client saw {} in place of {expected}", seen.number));
            expected = seen.number;
        }
        let index = usize::try_from(seen.number.saturating_sub(1)).unwrap_or(usize::MAX);
        match history.feed.get(index) {
            Some(stored) if stored == seen => {}
            Some(stored) => findings
                .add("P6", format!("a client saw {} and the store has {}", seen.data, stored.data)),
            None => findings.add("P6", format!("a client saw what is gone: {}", seen.data)),
        }
    }
}
