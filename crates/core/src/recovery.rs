//! What an interruption was, and what follows from it: one decision, one table.

use crate::policy::{AutoContinue, AutoContinueWhen};
use crate::run::{Cause, Evidence};

/// Decides the cause from the evidence, in the order that promise P5 names.
///
/// | holder gone | newer process of its home | rebooted | cause |
/// | --- | --- | --- | --- |
/// | yes, or rebooted | yes | any | process restart |
/// | no | any | no | split brain |
/// | yes, or rebooted | no | any | lost worker |
/// | cannot be told | any | no | unknown |
#[must_use]
pub fn cause(evidence: &Evidence) -> Cause {
    let gone = if evidence.rebooted { Some(true) } else { evidence.holder_gone };
    match (gone, evidence.newer_process) {
        (Some(true), true) => Cause::ProcessRestart,
        (Some(false), _) => Cause::SplitBrain,
        (Some(true), false) => Cause::LostWorker,
        (None, _) => Cause::Unknown,
    }
}

/// Everything that the decision about an interrupted run looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// A person's stop was recorded on the run.
    pub stopped: bool,
    /// The run's place in its chain, from 0.
    pub attempt: u32,
    /// Milliseconds since the run's last committed record.
    pub age_ms: u64,
    /// The session's policy.
    pub policy: AutoContinue,
    /// The home's loop breaker is open: too many interrupted starts, too close together.
    pub loop_broken: bool,
    /// The session was closed meanwhile.
    pub ended: bool,
    /// A viewer who may submit is attached.
    pub viewed: bool,
    /// The node that decides may continue turns (a server, on the host, with the model and tools
    /// that the session is bound to).
    pub may_continue: bool,
}

/// Why an interrupted turn is not continued by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parked {
    /// The session's policy forbids it.
    Disabled,
    /// As many continuations as the policy allows were interrupted as well.
    Exhausted,
    /// The last record is older than the window.
    Stale,
    /// The home restarts in a loop.
    LoopBreaker,
    /// The session was closed.
    Ended,
    /// Policy waits for a viewer.
    WaitsForViewer,
    /// This node may not.
    NotHere,
}

/// What happens to an interrupted run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The stop wins: it ends cancelled, as it would have without the interruption.
    Cancel,
    /// A continuation is admitted ahead of the queue, with this attempt number.
    Continue {
        /// The new run's place in the chain, from 1.
        attempt: u32,
    },
    /// It ends interrupted and waits for a person; the queue goes on.
    Park(Parked),
}

/// Decides what follows from an interruption. The first row that applies wins.
///
/// | fact | decision |
/// | --- | --- |
/// | a stop was recorded | cancel |
/// | the session was closed | park |
/// | policy: off | park |
/// | attempts used up | park |
/// | older than the window | park |
/// | loop breaker open | park |
/// | policy: on view, nobody views | park |
/// | this node may not continue | park |
/// | otherwise | continue, attempt + 1 |
#[must_use]
pub fn decide(facts: &Facts) -> Decision {
    if facts.stopped {
        return Decision::Cancel;
    }
    let policy = &facts.policy;
    let parked = if facts.ended {
        Parked::Ended
    } else if !policy.enabled {
        Parked::Disabled
    } else if facts.attempt >= policy.max_attempts {
        Parked::Exhausted
    } else if facts.age_ms > policy.window_s.saturating_mul(1_000) {
        Parked::Stale
    } else if facts.loop_broken {
        Parked::LoopBreaker
    } else if policy.when == AutoContinueWhen::OnView && !facts.viewed {
        Parked::WaitsForViewer
    } else if !facts.may_continue {
        Parked::NotHere
    } else {
        return Decision::Continue { attempt: facts.attempt + 1 };
    };
    Decision::Park(parked)
}

/// Whether a home restarts in a loop: the newest start and those before it, newest first, each
/// `(milliseconds since the epoch, whether it found interrupted turns)`. From the third interrupted
/// start on, each within `gap_ms` of the last, nothing is continued by itself.
#[must_use]
pub fn loop_broken(starts_newest_first: &[(i64, bool)], starts: usize, gap_ms: i64) -> bool {
    let mut chain = 0_usize;
    let mut previous: Option<i64> = None;
    for &(at, interrupted) in starts_newest_first {
        if !interrupted || previous.is_some_and(|later| later.saturating_sub(at) > gap_ms) {
            break;
        }
        chain += 1;
        previous = Some(at);
    }
    chain >= starts
}

/// How every continuation's text begins; clients of earlier systems recognise it.
pub const CONTINUATION_PREFIX: &str = "[System note: Your previous turn was interrupted";

/// The text of a continuation. `original` is what the person asked, never an earlier note.
#[must_use]
pub fn continuation_note(original: &str, observed: &str, unknown_calls: &[String]) -> String {
    let mut note = format!(
        "{CONTINUATION_PREFIX} before it was finished. {observed} What you had written and every finished tool result stand above. "
    );
    if unknown_calls.is_empty() {
        note.push_str("No tool call is of unknown outcome. ");
    } else {
        note.push_str("Nobody knows whether these tool calls took effect; check before you repeat any of them: ");
        note.push_str(&unknown_calls.join("; "));
        note.push_str(". ");
    }
    note.push_str("Go on from where it stopped and finish the request, without repeating what is already said or done.]\n\nThe request was:\n\n");
    note.push_str(original);
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            stopped: false,
            attempt: 0,
            age_ms: 0,
            policy: AutoContinue::default(),
            loop_broken: false,
            ended: false,
            viewed: false,
            may_continue: true,
        }
    }

    /// Enumerates the product of the switches and compares with the table written the slow way.
    #[test]
    fn the_table_holds_for_every_combination() {
        for bits in 0..512_u32 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let facts = Facts {
                stopped: bit(0),
                ended: bit(1),
                attempt: if bit(2) { 2 } else { 1 },
                age_ms: if bit(3) { 900_001 } else { 900_000 },
                loop_broken: bit(4),
                viewed: bit(5),
                may_continue: bit(6),
                policy: AutoContinue {
                    enabled: bit(7),
                    when: if bit(8) { AutoContinueWhen::OnView } else { AutoContinueWhen::OnStart },
                    ..AutoContinue::default()
                },
            };
            let goes_on = !bit(0)
                && !bit(1)
                && !bit(2)
                && !bit(3)
                && !bit(4)
                && bit(6)
                && bit(7)
                && (!bit(8) || bit(5));
            match decide(&facts) {
                Decision::Cancel => assert!(bit(0)),
                Decision::Continue { attempt } => {
                    assert!(goes_on, "{facts:?}");
                    assert_eq!(attempt, 2);
                }
                Decision::Park(_) => assert!(!goes_on && !bit(0), "{facts:?}"),
            }
        }
    }

    #[test]
    fn attempts_count_up_to_the_limit() {
        assert_eq!(decide(&facts()), Decision::Continue { attempt: 1 });
        assert_eq!(decide(&Facts { attempt: 1, ..facts() }), Decision::Continue { attempt: 2 });
        assert_eq!(decide(&Facts { attempt: 2, ..facts() }), Decision::Park(Parked::Exhausted));
    }

    #[test]
    fn the_third_interrupted_start_in_a_row_opens_the_breaker() {
        let minute = 60_000;
        assert!(!loop_broken(&[(10 * minute, true), (8 * minute, true)], 3, 5 * minute));
        assert!(loop_broken(
            &[(10 * minute, true), (8 * minute, true), (4 * minute, true)],
            3,
            5 * minute
        ));
        assert!(!loop_broken(
            &[(10 * minute, true), (8 * minute, true), (2 * minute, true)],
            3,
            5 * minute
        ));
        assert!(!loop_broken(
            &[(10 * minute, true), (8 * minute, false), (7 * minute, true), (6 * minute, true)],
            3,
            5 * minute
        ));
    }
}
