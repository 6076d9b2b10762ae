//! Recovery that can be late: what a cut-off executor still held when its turn was taken from it.
//!
//! A node whose lease was taken over may hold records that it could not write any more. They have no
//! place in the run (which has its one ending), but what they say was really said and done. The node
//! deposits them beside the run, and whoever owns the session puts them into the transcript, above
//! the marker of the interruption. Until that is settled the marker is *pending*.

use crate::id::CallId;
use crate::limits;
use crate::message::CallState;
use crate::time::Timestamp;

/// What is known about the late records of a run whose marker is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// When the interruption was recorded.
    pub since: Timestamp,
    /// Looks that found a late journal which is whole and holds nothing.
    pub attempts: u32,
}

/// Something that a cut-off executor held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateRecord {
    /// Text of the model.
    Text(String),
    /// Reasoning of the model.
    Reasoning(String),
    /// What became of a call.
    CallFinished {
        /// Which.
        call_id: CallId,
        /// Succeeded or failed.
        state: CallState,
        /// What it returned.
        result: String,
    },
    /// Nothing more will come.
    Sealed,
}

impl LateRecord {
    /// Bytes of its text.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Reasoning(text) => text.len(),
            Self::CallFinished { result, .. } => result.len(),
            Self::Sealed => 0,
        }
    }
}

/// What a look at a late journal finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// It holds something that people would see.
    pub visible: bool,
    /// Nothing more will come: its executor said so, or is provably gone.
    pub sealed: bool,
    /// When the last record came; `None` while there is none.
    pub last_at: Option<Timestamp>,
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Still arriving: nothing changes, and it costs nothing.
    Wait,
    /// What arrived goes into the transcript, above the marker.
    Promote,
    /// It is whole and empty: one attempt is spent.
    Spend,
    /// It is given up: the marker says that more may have been said than is known.
    GiveUp,
}

/// Whether the matter is too old, or was looked at too often, to be looked at again.
#[must_use]
pub fn out_of_budget(pending: &Pending, now: Timestamp) -> bool {
    pending.attempts >= limits::LATE_ATTEMPTS_MAX
        || now.since_ms(pending.since) > limits::LATE_AGE_S * 1_000
}

/// Decides what a look means. The first row that applies wins.
///
/// | budget | arrived | decision |
/// | --- | --- | --- |
/// | spent, or too old | not looked at | give up |
/// | left | something visible, and sealed or silent for the grace | promote |
/// | left | something visible, more is coming | wait |
/// | left | nothing at all, not sealed | wait |
/// | left | nothing visible, not sealed, within the grace | wait |
/// | one look | whole, nothing visible | give up |
/// | more | whole, nothing visible | spend one |
#[must_use]
pub fn decide(pending: &Pending, arrived: &Arrived, now: Timestamp) -> Look {
    if out_of_budget(pending, now) {
        return Look::GiveUp;
    }
    let silent = arrived.last_at.is_some_and(|at| now.since_ms(at) >= limits::LATE_GRACE_S * 1_000);
    let whole = arrived.sealed || silent;
    match (whole, arrived.visible) {
        (true, true) => Look::Promote,
        (false, _) => Look::Wait,
        (true, false) if pending.attempts + 1 >= limits::LATE_ATTEMPTS_MAX => Look::GiveUp,
        (true, false) => Look::Spend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_796_000_000_000);

    fn pending(attempts: u32, age_ms: i64) -> Pending {
        Pending { since: Timestamp(NOW.0 - age_ms), attempts }
    }

    /// The product of every fact at both sides of each of its limits, against the table, row by row.
    /// Counterpart of `still_arriving_journal_does_not_consume_retry_budget`,
    /// `sealed_empty_journal_consumes_retry_budget_and_demotes_at_max`,
    /// `marker_demotes_after_max_attempts_with_sealed_empty_journal` and
    /// `marker_demotes_after_giveup_seconds` of seed 000, as decisions.
    #[test]
    fn the_table_holds_for_every_combination() {
        let mut seen = std::collections::HashSet::new();
        for attempts in [0, 10, 11, 12, 13] {
            for age_ms in [0, 86_400_000, 86_400_001] {
                for visible in [false, true] {
                    for sealed in [false, true] {
                        for silent_ms in [None, Some(0), Some(29_999), Some(30_000)] {
                            let pending = pending(attempts, age_ms);
                            let last_at = silent_ms.map(|ms| Timestamp(NOW.0 - ms));
                            let arrived = Arrived { visible, sealed, last_at };
                            let spent = attempts >= 12 || age_ms > 86_400_000;
                            let silent = silent_ms == Some(30_000);
                            let table = [
                                (spent, Look::GiveUp, "spent"),
                                (visible && (sealed || silent), Look::Promote, "whole"),
                                (visible, Look::Wait, "more is coming"),
                                (silent_ms.is_none() && !sealed, Look::Wait, "nothing"),
                                (!sealed && !silent, Look::Wait, "grace"),
                                (attempts == 11, Look::GiveUp, "last"),
                                (true, Look::Spend, "empty"),
                            ];
                            let (_, expected, row) =
                                table.iter().find(|(applies, ..)| *applies).unwrap();
                            assert_eq!(
                                decide(&pending, &arrived, NOW),
                                *expected,
                                "{pending:?} {arrived:?}"
                            );
                            assert_eq!(out_of_budget(&pending, NOW), spent);
                            seen.insert(*row);
                        }
                    }
                }
            }
        }
        assert_eq!(seen.len(), 7, "a row of the table was never reached: {seen:?}");
    }

    /// A clock that was set back makes nothing older than it is.
    #[test]
    fn a_clock_set_back_gives_nothing_up() {
        let arrived = Arrived { visible: true, ..Arrived::default() };
        assert_eq!(decide(&pending(0, -86_400_001), &arrived, NOW), Look::Wait);
    }
}
