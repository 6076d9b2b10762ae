//! Emitting events: numbering them, encoding them once, keeping them for publication.

use std::sync::Arc;

use bytes::Bytes;
use everturn_core::event::EventHead;
use everturn_core::{Event, Run, Session, Timestamp, limits};

use super::{Ctx, running};
use crate::error::StorageError;
use crate::op::{Committed, ForeignEvent, Frame, Signal};
use crate::rows::EventRow;
use crate::tx::Tx;

type Wire = everturn_api::session::Session;

/// The events of one operation.
pub(super) struct Journal<'a> {
    pub(super) ctx: &'a Ctx<'a>,
    committed: Committed,
    must_sync: bool,
}

impl<'a> Journal<'a> {
    pub(super) fn new(ctx: &'a Ctx<'a>) -> Self {
        Self { ctx, committed: Committed::default(), must_sync: false }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.ctx.now
    }

    pub(super) fn finish(self) -> (Committed, bool) {
        (self.committed, self.must_sync)
    }

    /// The commit must be synced: it tells readers something of a session in which nothing runs, whose
    /// numbers nobody has reserved (promise P7).
    pub(super) fn sync(&mut self) {
        self.must_sync = true;
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.committed.signals.push(signal);
    }

    /// Emits an event of the session's feed that is in no run's journal.
    pub(super) fn emit(
        &mut self,
        tx: &mut dyn Tx,
        session: &mut Session,
        event: &Event<Wire>,
    ) -> Result<(), StorageError> {
        debug_assert!(!event.in_run(), "{} needs its run", event.name());
        self.push(tx, session, None, event)
    }

    /// Emits an event of a run's journal (and so of its session's feed).
    pub(super) fn emit_run(
        &mut self,
        tx: &mut dyn Tx,
        session: &mut Session,
        run: &mut Run,
        event: &Event<Wire>,
    ) -> Result<(), StorageError> {
        debug_assert!(event.in_run(), "{} is in no run", event.name());
        self.push(tx, session, Some(run), event)
    }

    /// Takes an event in that was recorded elsewhere, with its own time and body. Numbered like any
    /// other; not kept for publication, since there may be very many: readers are told by what is
    /// emitted behind them, and read the store.
    pub(super) fn take_in(
        &mut self,
        tx: &mut dyn Tx,
        session: &mut Session,
        run: &mut Run,
        event: ForeignEvent,
    ) -> Result<(), StorageError> {
        session.last_offset += 1;
        run.last_seq += 1;
        run.last_offset = session.last_offset;
        if run.last_seq == 1 {
            run.first_offset = session.last_offset;
        }
        run.last_event.clone_from(&event.name);
        run.last_event_at = event.at;
        let head = EventHead {
            session_id: session.id.clone(),
            offset: session.last_offset,
            run: Some((run.id.clone(), run.last_seq)),
            name: event.name,
            at: event.at,
        };
        tx.push_event(&session.key(), &EventRow { head, body: event.body })
    }

    /// Emits the session itself, as it is after everything that the operation did so far.
    pub(super) fn emit_session(
        &mut self,
        tx: &mut dyn Tx,
        session: &mut Session,
    ) -> Result<(), StorageError> {
        // The snapshot names its own offset: what it reflects includes itself.
        let mut seen = session.clone();
        seen.last_offset += 1;
        let wire = snapshot(tx, &seen)?;
        self.push(tx, session, None, &Event::SessionUpdated(wire))
    }

    fn push(
        &mut self,
        tx: &mut dyn Tx,
        session: &mut Session,
        run: Option<&mut Run>,
        event: &Event<Wire>,
    ) -> Result<(), StorageError> {
        session.last_offset += 1;
        // Numbers beyond what a synced commit reserved must not be seen before another one
        // reserves more: after a power loss numbering goes on above the ceiling (promise P7).
        if session.last_offset > session.offset_ceiling {
            session.offset_ceiling = session.last_offset + limits::OFFSET_RESERVE;
            self.must_sync = true;
        }
        let place = run.map(|run| {
            run.last_seq += 1;
            run.last_offset = session.last_offset;
            if run.last_seq == 1 {
                run.first_offset = session.last_offset;
            }
            event.name().clone_into(&mut run.last_event);
            run.last_event_at = self.ctx.now;
            (run.id.clone(), run.last_seq)
        });
        let head = EventHead {
            session_id: session.id.clone(),
            offset: session.last_offset,
            run: place,
            name: event.name().to_owned(),
            at: self.ctx.now,
        };
        let row = EventRow { body: everturn_api::event::body(event), head };
        let key = session.key();
        tx.push_event(&key, &row)?;
        let bytes = Bytes::from(everturn_api::event::render(&row.head, &row.body));
        self.committed.frames.push(Arc::new(Frame { session: key, head: row.head, bytes }));
        Ok(())
    }
}

/// A session as the wire shows it, from the rows of the transaction.
fn snapshot(tx: &mut dyn Tx, session: &Session) -> Result<Wire, StorageError> {
    let run = running(tx, session)?;
    let interrupted = match &session.interrupted {
        Some(id) => tx.run(id)?,
        None => None,
    };
    let chain_generation = match &run {
        Some(run) => Some(chain_start(tx, run)?),
        None => None,
    };
    let present = tx.presence(&session.key())?;
    let viewers = u32::try_from(present.len()).unwrap_or(u32::MAX);
    Ok(Wire::new(session, run.as_ref(), interrupted.as_ref(), chain_generation, viewers))
}

/// Number of the turn that a chain of continuations began with. Chains are short: policy bounds
/// them, and people add one link at a time.
fn chain_start(tx: &mut dyn Tx, run: &Run) -> Result<u64, StorageError> {
    let mut generation = run.generation;
    let mut before = run.continues.clone();
    let mut links = 0;
    while let Some(id) = before {
        let Some(run) = tx.run(&id)? else { break };
        generation = run.generation;
        before = run.continues;
        links += 1;
        if links >= 100 {
            break;
        }
    }
    Ok(generation)
}
