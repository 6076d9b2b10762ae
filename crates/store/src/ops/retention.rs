//! Pruning the token events of runs that ended long ago: one snapshot for each range of them.
//!
//! A range is as long as it can be: events of one kind (the answer's text, reasoning, one call's
//! output) that follow each other in the run *and* in the session's feed. Its snapshot stands at the
//! range's last seq and offset and says where the range began. So a reader from any cursor within
//! the range is told the whole of it, once, and for a reader of the feed as well the numbers that
//! are gone are those directly before the snapshot: as many offsets as seqs. Nothing is renumbered,
//! and everything else stays in its place.
//!
//! Each call is one transaction over a bounded number of rows. How far a run has got is noted in the
//! same transaction, so that whoever prunes next, on whatever node, goes on from there. A range that
//! is longer than what one call reads grows: its snapshot is read again and replaced by a longer
//! one, until it holds `limits::SNAPSHOT_BYTES_MAX`.

use everturn_api::event::{Piece, piece};
use everturn_core::event::EventHead;
use everturn_core::{Event, InputStatus, Run, SessionKey, limits};
use everturn_crash::Point;

use crate::error::StorageError;
use crate::op::{EndedRun, PruneEvents, Pruned};
use crate::read::StoredEvent;
use crate::rows::EventRow;
use crate::tx::Tx;

type Result<T> = std::result::Result<T, StorageError>;
type Wire = everturn_api::session::Session;

/// Events read at a time.
const PAGE: u64 = 128;

pub(super) fn prune(tx: &mut dyn Tx, op: PruneEvents) -> Result<Pruned> {
    let _records = everturn_crash::within(Point::PruneRecord);
    let runs = tx.prunable(op.before, op.after.as_ref(), limits::PRUNE_RUNS)?;
    let more = runs.len() >= limits::PRUNE_RUNS as usize;
    let out = Pruned { after: op.after, more, ..Pruned::default() };
    let mut work = Work { tx, bytes: 0, out };
    for (run, pruned_to) in runs {
        match needed(work.tx, &run)? {
            Needed::Yes => {}
            Needed::Gone => work.tx.put_pruned(&run.id, None)?,
            Needed::No => {
                let left = work.run(&run, pruned_to)?;
                work.tx.put_pruned(&run.id, left)?;
                if left.is_some() {
                    // The next call begins with this run.
                    work.out.more = true;
                    break;
                }
            }
        }
        work.out.after = run.ended_at.map(|ended_at| EndedRun { ended_at, id: run.id });
    }
    if work.out.events > 0 {
        everturn_crash::pass(Point::PruneApplied);
    }
    Ok(work.out)
}

/// Whether somebody may still need a run's events one by one.
enum Needed {
    /// It waits for a person's decision, or its continuation is not over: looked at again later.
    Yes,
    /// No: what it came to is settled.
    No,
    /// Its session was deleted, and its events with it.
    Gone,
}

fn needed(tx: &mut dyn Tx, run: &Run) -> Result<Needed> {
    let Some(session) = tx.session(&run.session_key())? else { return Ok(Needed::Gone) };
    if session.interrupted.as_ref() == Some(&run.id) {
        return Ok(Needed::Yes);
    }
    let running = match &session.running {
        Some(id) => tx.run(id)?,
        None => None,
    };
    if running.is_some_and(|now| now.id == run.id || now.continues.as_ref() == Some(&run.id)) {
        return Ok(Needed::Yes);
    }
    for id in &run.input_ids {
        // An input is open as long as a continuation of it waits or runs.
        if tx.input(id)?.is_some_and(|input| input.status != InputStatus::Terminal) {
            return Ok(Needed::Yes);
        }
    }
    Ok(Needed::No)
}

struct Work<'t> {
    tx: &'t mut dyn Tx,
    bytes: usize,
    out: Pruned,
}

impl Work<'_> {
    /// Goes on with a run. Answers up to which seq it has got, or `None` when nothing is left.
    fn run(&mut self, run: &Run, pruned_to: u64) -> Result<Option<u64>> {
        let key = run.session_key();
        let mut after = pruned_to;
        let mut open: Option<Range> = None;
        loop {
            let room = limits::PRUNE_ROWS.saturating_sub(self.out.rows);
            if room == 0 || self.bytes >= limits::PRUNE_BYTES {
                // What lies behind may belong to the range: it is read again with its snapshot,
                // unless nothing more goes into that.
                let grows = open.as_ref().filter(|range| !range.full());
                let to = grows.map_or(after, |range| range.piece.to - 1);
                self.replace(&key, open)?;
                return Ok(Some(to));
            }
            let limit = u32::try_from(room.min(PAGE)).unwrap_or(u32::MAX);
            let page = self.tx.run_events(run, after, limit)?;
            let Some(last) = page.last().and_then(StoredEvent::seq) else {
                self.replace(&key, open)?;
                return Ok(None);
            };
            after = last;
            self.out.rows += page.len() as u64;
            for event in page {
                let next = match event {
                    StoredEvent::Good(row) => {
                        self.bytes += row.body.len();
                        piece(&row.head, &row.body).map(|piece| Range::new(row.head, piece))
                    }
                    // It stays as it is, and is shown to whoever reads there.
                    StoredEvent::Malformed { .. } => None,
                };
                open = match (open, next) {
                    (Some(mut range), Some(next)) if range.takes(&next) => {
                        range.take(next);
                        Some(range)
                    }
                    (before, next) => {
                        self.replace(&key, before)?;
                        next
                    }
                };
            }
        }
    }

    /// Puts a range's snapshot in its place.
    fn replace(&mut self, key: &SessionKey, range: Option<Range>) -> Result<()> {
        // A snapshot that nothing was added to is there already.
        let Some(range) = range.filter(|range| range.events > 0) else { return Ok(()) };
        self.tx.remove_events(key, range.first_row, range.head.offset)?;
        let Piece { from, to, of, text, .. } = range.piece;
        let event = Event::<Wire>::TextSnapshot { from, to, of, text };
        let head = EventHead { name: event.name().to_owned(), ..range.head };
        self.tx.push_event(key, &EventRow { head, body: everturn_api::event::body(&event) })?;
        self.out.events += range.events;
        self.out.snapshots += 1;
        Ok(())
    }
}

/// Consecutive events that become one snapshot.
struct Range {
    /// The head of the last one.
    head: EventHead,
    /// All of them together.
    piece: Piece,
    /// Offset of the first row.
    first_row: u64,
    /// Token events among the rows; the first row may be a snapshot.
    events: u64,
}

impl Range {
    fn new(head: EventHead, piece: Piece) -> Self {
        let events = u64::from(!piece.is_snapshot);
        Self { first_row: head.offset, head, piece, events }
    }

    /// Whether nothing more goes into the snapshot.
    fn full(&self) -> bool {
        self.piece.text.len() >= limits::SNAPSHOT_BYTES_MAX
    }

    /// Whether a token event belongs to the range: directly behind it in the run and in the feed, of
    /// the same kind, and there is room.
    fn takes(&self, next: &Self) -> bool {
        next.events > 0
            && next.piece.from == self.piece.to + 1
            && next.head.offset == self.head.offset + 1
            && next.piece.of == self.piece.of
            && next.piece.text.len() + self.piece.text.len() <= limits::SNAPSHOT_BYTES_MAX
    }

    fn take(&mut self, next: Self) {
        self.piece.to = next.piece.to;
        self.piece.text.push_str(&next.piece.text);
        self.head = next.head;
        self.events += next.events;
    }
}
