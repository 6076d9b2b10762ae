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

/// Whether what the executor of an interrupted run still held may yet arrive: not if it is gone, or
/// let go of the run itself.
#[must_use]
pub const fn may_be_late(cause: Cause) -> bool {
    match cause {
        Cause::SplitBrain | Cause::Unknown => true,
        Cause::ProcessRestart | Cause::LostWorker | Cause::LeaseLost => false,
    }
}

/// Everything that the decision about an interrupted run looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// A person's stop was recorded on the run.
    pub stopped: bool,
    /// The run's place in its chain, from 0.
    pub attempt: u32,
    /// Continuations of its chain that a death made necessary.
    pub spent: u32,
    /// Its executor did not die but let go for a reason that spends no attempt: its store was away.
    pub spared: bool,
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
    /// The node that decides may continue turns: a server may, another process only those that it
    /// was asked for itself.
    pub may_continue: bool,
    /// The model that the continuation would run on (the interrupted run's own, or the one that
    /// people gave the session since) can be used on the node that decides. A turn never goes on
    /// with another model without a word. (A tool is bound as well: a call whose tool has changed
    /// since is not run.)
    pub model_here: bool,
    /// Every tool that the run called is there on the node that decides.
    pub tools_here: bool,
    /// The tools of the node that decides work where those of the run did.
    pub workspace_here: bool,
}

words! {
    /// Why an interrupted turn is not continued by itself.
    Parked {
        /// The session's policy forbids it.
        Disabled = "disabled",
        /// As many continuations as the policy allows were interrupted as well.
        Exhausted = "exhausted",
        /// The last record is older than the window.
        Stale = "stale",
        /// The home restarts in a loop.
        LoopBreaker = "loop_breaker",
        /// The session was closed.
        Ended = "ended",
        /// Policy waits for a viewer.
        WaitsForViewer = "waits_for_viewer",
        /// This node may not.
        NotHere = "not_here",
        /// The model that the turn is bound to cannot be used here.
        ModelMissing = "model_missing",
        /// A tool that it called is not there.
        ToolMissing = "tool_missing",
        /// The tools here work in another folder than its own did.
        OtherWorkspace = "other_workspace",
        /// Its continuation could not begin: it failed before it had done anything.
        Unprepared = "unprepared",
        /// A person withdrew its continuation.
        Withdrawn = "withdrawn",
        /// A person left it as it is.
        Discarded = "discarded",
        /// A person sent its request again.
        Resent = "resent",
        /// A later turn began before anybody had decided.
        Superseded = "superseded",
        /// Nobody decided in time.
        Undecided = "undecided",
    }
}

impl Parked {
    /// What people are told, as the rest of a sentence.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Disabled => "the session's policy leaves that to people",
            Self::Exhausted => {
                "as many continuations as the policy allows were interrupted as well"
            }
            Self::Stale => "its last record is older than the policy's window",
            Self::LoopBreaker => "this home was interrupted again and again",
            Self::Ended => "the session was closed",
            Self::WaitsForViewer => "it waits until somebody views the session",
            Self::NotHere => "the process that found it does not continue turns of others",
            Self::ModelMissing => "the model that it is bound to cannot be used here",
            Self::ToolMissing => "a tool that it called is not there",
            Self::OtherWorkspace => "the tools here work in another folder than its own did",
            Self::Unprepared => "its continuation failed before it had done anything",
            Self::Withdrawn => "a person withdrew its continuation",
            Self::Discarded => "a person left it as it is",
            Self::Resent => "a person sent its request again",
            Self::Superseded => "a later turn began before anybody had decided",
            Self::Undecided => "nobody decided about it in time",
        }
    }

    /// Whether it says how the matter was closed; why it was not continued by itself stays true then.
    #[must_use]
    pub const fn closes(self) -> bool {
        matches!(self, Self::Discarded | Self::Resent | Self::Superseded | Self::Undecided)
    }

    /// Whether the reason may pass without a person's word: then it is looked at again when a server
    /// starts and when a viewer comes. (The others are decisions, or can only get worse.)
    #[must_use]
    pub const fn may_pass(self) -> bool {
        match self {
            Self::WaitsForViewer
            | Self::NotHere
            | Self::ModelMissing
            | Self::ToolMissing
            | Self::OtherWorkspace
            | Self::Unprepared => true,
            Self::Disabled
            | Self::Exhausted
            | Self::Stale
            | Self::LoopBreaker
            | Self::Ended
            | Self::Withdrawn
            | Self::Discarded
            | Self::Resent
            | Self::Superseded
            | Self::Undecided => false,
        }
    }
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
/// | attempts used up (a turn whose executor did not die spends none) | park |
/// | older than the window | park |
/// | loop breaker open | park |
/// | policy: on view, nobody views | park |
/// | this node may not continue | park |
/// | its model cannot be used here | park |
/// | a tool that it called is not here | park |
/// | the tools here work in another folder | park |
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
    } else if facts.spent >= policy.max_attempts && !facts.spared {
        Parked::Exhausted
    } else if facts.age_ms > policy.window_s.saturating_mul(1_000) {
        Parked::Stale
    } else if facts.loop_broken {
        Parked::LoopBreaker
    } else if policy.when == AutoContinueWhen::OnView && !facts.viewed {
        Parked::WaitsForViewer
    } else if !facts.may_continue {
        Parked::NotHere
    } else if !facts.model_here {
        Parked::ModelMissing
    } else if !facts.tools_here {
        Parked::ToolMissing
    } else if !facts.workspace_here {
        Parked::OtherWorkspace
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

/// What became of the output that an interrupted turn had not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// It stands above the marker.
    Recovered,
    /// There was none.
    Nothing,
    /// More than is recorded may still arrive.
    Pending,
    /// More than is recorded may have been said; it did not arrive.
    Lost,
}

/// The text of the marker that stands for an interruption: what was observed, what became of the
/// unfinished output, and why nothing goes on by itself. It claims nothing else.
#[must_use]
pub fn marker(evidence: &Evidence, cause: Cause, output: Output, parked: Option<Parked>) -> String {
    let mut text = evidence.sentence(cause);
    text.push_str(match output {
        Output::Recovered => " What it had said until then was recovered and stands above.",
        Output::Nothing => " No answer was being written.",
        Output::Pending => {
            " More than is recorded may have been said; it is added above if it still arrives."
        }
        Output::Lost => " More than is recorded may have been said; it did not arrive.",
    });
    if let Some(parked) = parked {
        text.push_str(&format!(" It was not continued by itself: {}.", parked.reason()));
    }
    text
}

/// How every continuation's text begins; clients of earlier systems recognise it.
pub const CONTINUATION_PREFIX: &str = "[System note: Your previous turn was interrupted";

/// The text of a continuation. `original` is what the person asked, never an earlier note;
/// `observed` is what [`Evidence::observed`] says, or empty where nothing was.
#[must_use]
pub fn continuation_note(original: &str, observed: &str, unknown_calls: &[String]) -> String {
    let seen = if observed.is_empty() { "." } else { ": " };
    let mut note = format!(
        "{CONTINUATION_PREFIX} before it was finished{seen}{observed} What you had written and every finished tool result stand above. "
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
            spent: 0,
            spared: false,
            age_ms: 0,
            policy: AutoContinue::default(),
            loop_broken: false,
            ended: false,
            viewed: false,
            may_continue: true,
            model_here: true,
            tools_here: true,
            workspace_here: true,
        }
    }

    /// Enumerates the product of the switches and compares with the table, row by row: the first one
    /// that applies wins, and says why (promise P5).
    #[test]
    fn the_table_holds_for_every_combination() {
        let mut seen = std::collections::HashSet::new();
        for bits in 0..8_192_u32 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let facts = Facts {
                stopped: bit(0),
                ended: bit(1),
                attempt: 1,
                spent: if bit(2) { 2 } else { 1 },
                spared: bit(10),
                age_ms: if bit(3) { 900_001 } else { 900_000 },
                loop_broken: bit(4),
                viewed: bit(5),
                may_continue: bit(6),
                model_here: bit(9),
                tools_here: bit(11),
                workspace_here: bit(12),
                policy: AutoContinue {
                    enabled: bit(7),
                    when: if bit(8) { AutoContinueWhen::OnView } else { AutoContinueWhen::OnStart },
                    ..AutoContinue::default()
                },
            };
            let table = [
                (bit(0), Decision::Cancel),
                (bit(1), Decision::Park(Parked::Ended)),
                (!bit(7), Decision::Park(Parked::Disabled)),
                (bit(2) && !bit(10), Decision::Park(Parked::Exhausted)),
                (bit(3), Decision::Park(Parked::Stale)),
                (bit(4), Decision::Park(Parked::LoopBreaker)),
                (bit(8) && !bit(5), Decision::Park(Parked::WaitsForViewer)),
                (!bit(6), Decision::Park(Parked::NotHere)),
                (!bit(9), Decision::Park(Parked::ModelMissing)),
                (!bit(11), Decision::Park(Parked::ToolMissing)),
                (!bit(12), Decision::Park(Parked::OtherWorkspace)),
                (true, Decision::Continue { attempt: 2 }),
            ];
            let (_, expected) = table.iter().find(|(applies, _)| *applies).unwrap();
            assert_eq!(decide(&facts), *expected, "{facts:?}");
            seen.insert(format!("{expected:?}"));
        }
        assert_eq!(seen.len(), 12, "a row of the table was never reached: {seen:?}");
    }

    #[test]
    fn a_note_says_once_that_the_turn_was_interrupted() {
        for observed in ["the process that ran it is gone. Its last event is x.", ""] {
            let note = continuation_note("do it", observed, &[]);
            assert!(note.starts_with(CONTINUATION_PREFIX), "{note}");
            assert_eq!(note.matches("interrupted").count(), 1, "{note}");
            assert!(note.contains(observed) && note.ends_with("do it"), "{note}");
            assert!(
                !note.contains(". .") && !note.contains("..") && !note.contains(":."),
                "{note}"
            );
        }
    }

    fn evidence(holder_gone: Option<bool>, newer_process: bool) -> Evidence {
        Evidence {
            holder: crate::id::NodeId::new("node_a").unwrap(),
            holder_started_at: None,
            holder_gone,
            rebooted: false,
            observer: crate::id::NodeId::new("node_b").unwrap(),
            observer_started_at: crate::time::Timestamp(2_000),
            newer_process,
            drain_timeout_s: None,
            store_silent_s: None,
            last_seq: 3,
            last_event: "text.delta".to_owned(),
            last_event_at: crate::time::Timestamp(1_000),
        }
    }

    /// Counterpart of `test_interrupted_recovery_markers_do_not_claim_restart_as_fact` of seed 000:
    /// whatever was observed, and whatever became of the output, the marker says that the turn was
    /// interrupted before it was finished and never that anything was restarted.
    #[test]
    fn interrupted_recovery_markers_do_not_claim_restart_as_fact() {
        let mut texts = std::collections::HashSet::new();
        for gone in [None, Some(false), Some(true)] {
            for newer in [false, true] {
                for output in [Output::Recovered, Output::Nothing, Output::Pending, Output::Lost] {
                    let seen = evidence(gone, newer);
                    for cause in [cause(&seen), Cause::LeaseLost] {
                        let text = marker(&seen, cause, output, Some(Parked::Stale));
                        assert!(text.starts_with("This turn was interrupted: "), "{text}");
                        assert!(!text.to_lowercase().contains("restart"), "{text}");
                        assert!(text.contains("text.delta (number 3)"), "{text}");
                        assert!(text.ends_with(&format!("{}.", Parked::Stale.reason())), "{text}");
                        texts.insert(text);
                    }
                }
            }
        }
        // Four wordings of the output for each of five observations.
        assert_eq!(texts.len(), 4 * 5, "{texts:#?}");
    }

    /// Counterpart of `test_interrupted_marker_distinguishes_real_process_restart`.
    #[test]
    fn interrupted_marker_distinguishes_real_process_restart() {
        let seen = evidence(Some(true), true);
        assert_eq!(cause(&seen), Cause::ProcessRestart);
        let text = marker(&seen, cause(&seen), Output::Nothing, None);
        assert!(text.contains("a newer process of the same home is running"), "{text}");
        assert!(!text.contains("restarted"), "{text}");
    }

    /// Counterpart of `test_interrupted_marker_distinguishes_stream_run_split_brain`.
    #[test]
    fn interrupted_marker_distinguishes_stream_run_split_brain() {
        let seen = evidence(Some(false), true);
        assert_eq!(cause(&seen), Cause::SplitBrain);
        let text = marker(&seen, cause(&seen), Output::Nothing, None);
        assert!(text.contains("still exists but its lease ran out and was taken over"), "{text}");
    }

    /// Counterpart of `test_interrupted_marker_distinguishes_lost_worker_bookkeeping`.
    #[test]
    fn interrupted_marker_distinguishes_lost_worker_bookkeeping() {
        let seen = evidence(Some(true), false);
        assert_eq!(cause(&seen), Cause::LostWorker);
        let text = marker(&seen, cause(&seen), Output::Nothing, None);
        assert!(text.contains("is gone and its home has no newer process"), "{text}");
    }

    #[test]
    fn attempts_count_up_to_the_limit() {
        assert_eq!(decide(&facts()), Decision::Continue { attempt: 1 });
        let nth = |n: u32| Facts { attempt: n, spent: n, ..facts() };
        assert_eq!(decide(&nth(1)), Decision::Continue { attempt: 2 });
        assert_eq!(decide(&nth(2)), Decision::Park(Parked::Exhausted));
        // One that a store's silence ended spends none: the chain grows and the budget stays.
        assert_eq!(decide(&Facts { spared: true, ..nth(2) }), Decision::Continue { attempt: 3 });
        let later = Facts { attempt: 7, spent: 1, ..facts() };
        assert_eq!(decide(&later), Decision::Continue { attempt: 8 });
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
