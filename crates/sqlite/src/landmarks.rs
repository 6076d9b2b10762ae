//! Which crash points a batch passes: told from the events and signals of what it did, so that the
//! operations need not know how and when a backend commits.

use everturn_crash::Point;
use everturn_store::op::{Committed, Signal};

use crate::writer::Outcome;

/// How far a batch has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its rows are written; the commit comes.
    Applied = 0,
    /// It is committed; nobody was told.
    Committed = 1,
    /// Viewers were told; the caller was not.
    Published = 2,
}

/// The points of one landmark, by stage.
type Mark = [Option<Point>; 3];

const fn all(applied: Point, committed: Point, published: Point) -> Mark {
    [Some(applied), Some(committed), Some(published)]
}

/// Passes the points of these landmarks.
pub(crate) fn pass(marks: &[Mark], stage: Stage) {
    for point in marks.iter().filter_map(|mark| mark[stage as usize]) {
        everturn_crash::pass(point);
    }
}

/// Passes the points of everything that a batch did.
pub(crate) fn pass_all(outcomes: &[Outcome], stage: Stage) {
    if !everturn_crash::is_armed() {
        return;
    }
    for applied in outcomes.iter().flatten() {
        pass(&of(&applied.committed), stage);
    }
}

/// The landmarks of one operation; none while no point is armed.
pub(crate) fn of(committed: &Committed) -> Vec<Mark> {
    if !everturn_crash::is_armed() {
        return Vec::new();
    }
    let has = |name: &str| committed.frames.iter().any(|frame| frame.head.name == name);
    let mut marks = Vec::new();
    // An interruption admits its continuation, ends its calls and withdraws its prompts in the same
    // transaction, and so does a turn's end: the greater thing names the whole.
    if has("run.interrupted") {
        marks.push(all(
            Point::InterruptionApplied,
            Point::InterruptionCommitted,
            Point::InterruptionPublished,
        ));
        return marks;
    }
    if ["run.completed", "run.failed", "run.cancelled"].into_iter().any(has) {
        marks.push(all(Point::SettleApplied, Point::SettleCommitted, Point::SettlePublished));
        return marks;
    }
    if has("input.accepted") {
        marks.push(all(Point::AdmitApplied, Point::AdmitCommitted, Point::AdmitPublished));
    }
    if has("turn.started") {
        marks.push(all(Point::ClaimApplied, Point::ClaimCommitted, Point::ClaimPublished));
    }
    if has("run.handed_over") {
        marks.push(all(Point::HandOverApplied, Point::HandOverCommitted, Point::HandOverPublished));
    }
    if has("tool.intended") && has("message.added") {
        marks.push(all(Point::StepApplied, Point::StepCommitted, Point::StepPublished));
    }
    if has("prompt.opened") {
        marks.push(all(Point::AskedApplied, Point::AskedCommitted, Point::AskedPublished));
    }
    if has("prompt.settled") {
        marks.push(all(Point::AnsweredApplied, Point::AnsweredCommitted, Point::AnsweredPublished));
    }
    if has("tool.output") {
        marks.push([None, Some(Point::OutputCommitted), Some(Point::OutputPublished)]);
    }
    if has("tool.finished") {
        marks.push(all(
            Point::CallFinishedApplied,
            Point::CallFinishedCommitted,
            Point::CallFinishedPublished,
        ));
    }
    if has("text.delta") {
        marks.push(all(Point::DeltaApplied, Point::DeltaCommitted, Point::DeltaPublished));
    }
    if committed.signals.iter().any(|signal| matches!(signal, Signal::Stop(..))) {
        marks.push(all(Point::StopApplied, Point::StopCommitted, Point::StopPublished));
    }
    marks
}
