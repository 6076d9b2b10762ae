//! Whether the promises were kept: a judge of histories that knows nothing of how they came about.
//!
//! Each check looks at what clients were told and at what the store says afterwards, and names every
//! place where the two, or the store and itself, do not agree. That it would notice is proved by the
//! tests below, which plant one violation for each check.

mod effects;
mod feeds;
mod inputs;
mod runs;
#[cfg(test)]
mod tests;
mod transcript;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::client::Accepted;
use crate::follow::Record;
use crate::history::SessionHistory;

pub use effects::{Effects, lines};

/// Violations that an error shows.
const SHOWN: usize = 20;

/// What is known, and what is to be true.
#[derive(Debug, Default)]
pub struct Checker<'a> {
    /// What the store says.
    pub sessions: Vec<SessionHistory>,
    /// Every input that a client has a receipt for.
    pub accepted: Vec<Accepted>,
    /// No other inputs of people exist than those of which a client has a receipt.
    pub accepted_all: bool,
    /// What clients saw of sessions' feeds.
    pub seen: Vec<(String, Record)>,
    /// Side effects that were observed, if they were.
    pub effects: Option<&'a Effects>,
    /// The whole answer to a text, where that is known.
    pub answer: Option<fn(&str) -> String>,
    /// Whether the machine had its power all the time.
    pub power: Power,
}

/// Whether the machine had its power all the time, and what was on the disk when it had not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Power {
    /// It had.
    #[default]
    Stayed,
    /// It had not, and everything that anybody had seen was synced: nothing is gone, but numbers
    /// that were reserved are passed over.
    LostSynced,
    /// It had not, and pieces of text were not synced: they may be gone, with their numbers, and
    /// whoever had seen them is told. Everything else is as if nothing had been.
    LostUnsynced,
}

impl Power {
    /// Numbers may be passed over.
    const fn has_jumps(self) -> bool {
        !matches!(self, Self::Stayed)
    }

    /// Pieces of text may be gone.
    const fn has_losses(self) -> bool {
        matches!(self, Self::LostUnsynced)
    }
}

/// A promise that was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which: `P1` to `P14`.
    pub promise: &'static str,
    /// Where.
    pub session: String,
    /// What.
    pub what: String,
}

/// Takes violations of one session.
struct Findings<'f> {
    session: &'f str,
    found: &'f mut Vec<Violation>,
}

impl Findings<'_> {
    fn add(&mut self, promise: &'static str, what: impl Into<String>) {
        let session = self.session.to_owned();
        self.found.push(Violation { promise, session, what: what.into() });
    }
}

impl Checker<'_> {
    /// Every violation.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for history in &self.sessions {
            let mut findings = Findings { session: &history.id, found: &mut found };
            settled(history, &mut findings);
            feeds::check(history, self.power, &mut findings);
            runs::check(history, self.power, &mut findings);
            transcript::check(history, &mut findings);
            let accepted: Vec<&Accepted> =
                self.accepted.iter().filter(|one| one.session == history.id).collect();
            inputs::check(history, &accepted, self.accepted_all, &mut findings);
            if let Some(answer) = self.answer {
                transcript::check_answers(history, answer, &mut findings);
            }
            if let Some(effects) = self.effects {
                effects.check(history, &mut findings);
            }
        }
        for (session, record) in &self.seen {
            let mut findings = Findings { session, found: &mut found };
            match self.sessions.iter().find(|history| history.id == *session) {
                Some(history) => {
                    feeds::check_seen(history, record, self.power, &mut findings);
                }
                None => findings.add("P6", "a client saw this session and it does not exist"),
            }
        }
        for accepted in &self.accepted {
            if !self.sessions.iter().any(|history| history.id == accepted.session) {
                let mut findings = Findings { session: &accepted.session, found: &mut found };
                findings.add("P1", format!("input {} is lost with it", accepted.input_id));
            }
        }
        found
    }

    /// Fails if there is a violation.
    ///
    /// # Errors
    /// There is; the error lists the first ones.
    pub fn verify(&self) -> Result<()> {
        let violations = self.violations();
        if violations.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = violations
            .iter()
            .take(SHOWN)
            .map(|one| format!("{} {}: {}", one.promise, one.session, one.what))
            .collect();
        bail!("{} violations:\n{}", violations.len(), lines.join("\n"));
    }
}

/// Nothing is left to do in a session.
fn settled(history: &SessionHistory, findings: &mut Findings<'_>) {
    let session = &history.session;
    if session["queue_length"] != 0 || !session["running"].is_null() {
        findings.add("P4", format!("something is left to do: {session}"));
    }
    let last = history.feed.last().map_or(0, |seen| seen.number);
    if session["offset"].as_u64() != Some(last) {
        findings.add("P7", format!("offset {} and the last event is {last}", session["offset"]));
    }
}

/// A text in JSON; empty if there is none.
fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}
