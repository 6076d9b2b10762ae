//! The list of crash points: where each is, and which row of the recovery table a death there leads to.

/// What whoever starts next finds of a turn that died at a point. The decisions are the rows of the
/// table at `everturn_core::recovery::decide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    /// Nothing of it: the transaction is not there. What was there before is as it was; a client that
    /// has no receipt sends its input again.
    Nothing,
    /// Something that waits in the queue, or was handed over: it is claimed as if nothing had been.
    Waits,
    /// A run without an end. Row "otherwise": its interruption is recorded and it is continued.
    Continue,
    /// A run without an end on which a stop is recorded. Row "a stop was recorded": it ends cancelled.
    Cancel,
    /// Its end: nothing is left to decide, and nothing is run again.
    Ended,
}

impl Row {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Waits => "waits",
            Self::Continue => "continue",
            Self::Cancel => "cancel",
            Self::Ended => "ended",
        }
    }
}

macro_rules! points {
    ($($variant:ident = $name:literal, $row:ident, $place:literal;)*) => {
        /// A place at which the process can be made to die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Point {
            $(#[doc = $place] $variant,)*
        }

        impl Point {
            /// All of them, in the order of a turn's life.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in `EVERTURN_CRASH`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Where it is.
            #[must_use]
            pub const fn place(self) -> &'static str {
                match self {
                    $(Self::$variant => $place,)*
                }
            }

            /// What the next start finds of the turn that passed it.
            #[must_use]
            pub const fn row(self) -> Row {
                match self {
                    $(Self::$variant => Row::$row,)*
                }
            }

            /// The point of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|point| point.name() == name)
            }
        }
    };
}

points! {
    MigrateApplied = "migrate.applied", Nothing, "the schema is brought up to date, before the commit";
    MigrateCommitted = "migrate.committed", Nothing, "the schema is up to date, and nothing was done with it yet";
    CreateLinked = "create.linked", Nothing, "a new database has its name, and its first name as well";
    AdmitRecord = "admit.record", Nothing, "before each record of an admission";
    AdmitApplied = "admit.applied", Nothing, "an input is written, before the commit";
    AdmitCommitted = "admit.committed", Continue, "an input is durable and nobody was told";
    AdmitPublished = "admit.published", Continue, "viewers may know of an input, before its receipt";
    ClaimRecord = "claim.record", Nothing, "before each record of a claim";
    ClaimApplied = "claim.applied", Nothing, "a turn is claimed, before the commit";
    ClaimCommitted = "claim.committed", Continue, "a turn is claimed and nobody was told";
    ClaimPublished = "claim.published", Continue, "viewers may know of a claimed turn";
    TurnBegun = "turn.begun", Continue, "a worker has its turn, before anything is prepared";
    TurnPrepared = "turn.prepared", Continue, "the model's view is built, before the model is asked";
    DeltaApplied = "delta.applied", Continue, "pieces of text are written, before the commit";
    DeltaCommitted = "delta.committed", Continue, "pieces of text are committed and nobody saw them";
    DeltaPublished = "delta.published", Continue, "pieces of text may have been seen";
    StepRecord = "step.record", Continue, "before each record of a step's end, the intents of its calls among them";
    StepApplied = "step.applied", Continue, "a step's end and the intents of its calls are written, before the commit";
    StepCommitted = "step.committed", Continue, "a step's end and the intents of its calls are durable and nobody was told";
    StepPublished = "step.published", Continue, "viewers may know of a call that did not begin";
    AskedApplied = "approval.opened.applied", Continue, "a question is written, before the commit";
    AskedCommitted = "approval.opened.committed", Continue, "a question is durable and nobody was asked";
    AskedPublished = "approval.opened.published", Continue, "a person may have seen the question";
    AnsweredApplied = "approval.answered.applied", Continue, "an answer is written, before the commit";
    AnsweredCommitted = "approval.answered.committed", Continue, "an answer is durable and nobody was told";
    AnsweredPublished = "approval.answered.published", Continue, "viewers may know of the answer, before the one who gave it";
    CallAllowed = "call.allowed", Continue, "a call may begin, before its start is recorded";
    CallStarted = "call.started", Continue, "a call's start is durable, before its tool is asked";
    CallSpawned = "call.spawned", Continue, "a call's process is there and may be at work";
    OutputCommitted = "call.output.committed", Continue, "a call's output is committed and nobody saw it";
    OutputPublished = "call.output.published", Continue, "a call's output may have been seen";
    CallReturned = "call.returned", Continue, "a tool has done its work, before its result is recorded";
    CallFinishedApplied = "call.finished.applied", Continue, "a call's result is written, before the commit";
    CallFinishedCommitted = "call.finished.committed", Continue, "a call's result is durable and nobody was told";
    CallFinishedPublished = "call.finished.published", Continue, "viewers may know a call's result";
    StopApplied = "stop.applied", Continue, "a stop is written, before the commit";
    StopCommitted = "stop.committed", Cancel, "a stop is durable and the turn goes on";
    StopPublished = "stop.published", Cancel, "a stop's turn was told, before the one who stopped it";
    HandOverApplied = "handover.applied", Continue, "a leaving process has written that it lets go of a turn, before the commit";
    HandOverCommitted = "handover.committed", Waits, "a turn is handed over and nobody was told";
    HandOverPublished = "handover.published", Waits, "viewers may know that a turn is handed over";
    SettleRecord = "settle.record", Continue, "before each record of a turn's end";
    SettleApplied = "settle.applied", Continue, "a turn's end is written, before the commit";
    SettleCommitted = "settle.committed", Ended, "a turn's end is durable and nobody saw it";
    SettlePublished = "settle.published", Ended, "a turn's end may have been seen, and its worker does not know";
    InterruptionRecord = "interruption.record", Continue, "before each record of an interruption and of what follows from it";
    InterruptionApplied = "interruption.applied", Continue, "an interruption is written, before the commit";
    InterruptionCommitted = "interruption.committed", Waits, "an interruption and its continuation are durable and nobody was told";
    InterruptionPublished = "interruption.published", Waits, "viewers may know of an interruption";
    ContinuationRecord = "continuation.record", Waits, "before each record of a continuation's claim";
    ContinuationApplied = "continuation.applied", Waits, "a continuation is claimed, before the commit";
    ContinuationBegun = "continuation.begun", Continue, "a worker has its continuation, before it takes over what was left";
    PruneRecord = "prune.record", Ended, "before each record of one step of pruning";
    PruneApplied = "prune.applied", Ended, "one step of pruning is written, before the commit";
    PruneCommitted = "prune.committed", Ended, "one step of pruning is done, and the next one not begun";
    CheckpointBegin = "checkpoint.begin", Ended, "before SQLite's log is moved into the database";
    CheckpointDone = "checkpoint.done", Ended, "SQLite's log is moved into the database, before anything else is written";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let names: HashSet<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        assert!(Point::ALL.iter().all(|point| Point::named(point.name()) == Some(*point)));
        assert!(names.iter().all(|name| !name.is_empty() && !name.contains([':', ',', ' '])));
        assert_eq!(Point::named(""), None);
    }

    /// The list that people read is this one.
    #[test]
    fn the_guide_lists_every_point() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/torture.md");
        let guide = std::fs::read_to_string(path).unwrap();
        let listed: Vec<&str> = guide
            .lines()
            .filter(|line| line.starts_with("| `") && !line.starts_with("| `--"))
            .collect();
        let expected: Vec<String> = Point::ALL
            .iter()
            .map(|point| {
                format!("| `{}` | {} | {} |", point.name(), point.row().name(), point.place())
            })
            .collect();
        assert_eq!(listed, expected, "docs/torture.md and the list of points differ");
    }
}
