//! Admission: an input becomes durable, once (promises P1 and P2).

use everturn_core::admission::{self, Decision, Facts};
use everturn_core::{
    Event, Input, InputId, InputKind, InputStatus, Outcome, Policy, RunId, Session, Stop, limits,
};
use everturn_crash::Point;

use super::claim::claim_admitted;
use super::journal::Journal;
use super::{running, session_now, sessions};
use crate::error::{OpError, Refusal, StorageError};
use crate::op::{Admit, Admitted, Signal};
use crate::tx::Tx;

/// Room between two neighbours in a queue, so that an input can be moved between them.
pub(super) const QUEUE_STEP: i64 = 1_024;

pub(super) fn admit(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: Admit,
) -> Result<Admitted, OpError> {
    let _records = everturn_crash::within(Point::AdmitRecord);
    let known = tx.input_by_identity(&op.key, &op.request_id)?;
    let session = session_now(tx, journal.ctx, &op.key)?;
    let deleted = session.is_none() && tx.tombstone(&op.key)?.is_some();
    let run = match &session {
        Some(session) => running(tx, session)?,
        None => None,
    };
    let queue_length = session.as_ref().map_or(0, |session| session.queue_length);
    let facts = Facts {
        known: known.as_ref().map(|input| input.digest),
        deleted,
        busy: run.is_some() || queue_length > 0,
        running: run.is_some(),
        stopping: run.as_ref().is_some_and(|run| run.stop.is_some()),
        queue_length,
    };
    let (delivery, first, stop) = match admission::decide(op.mode, op.digest, &facts, op.queue_max)
    {
        Decision::Duplicate => return duplicate(tx, session, known),
        Decision::Conflict => return Err(Refusal::InputConflict.into()),
        Decision::Deleted => return Err(Refusal::SessionDeleted.into()),
        Decision::Busy => return Err(Refusal::SessionBusy.into()),
        Decision::NotRunning => return Err(Refusal::NotRunning.into()),
        Decision::QueueFull => return Err(Refusal::QueueFull { max: op.queue_max }.into()),
        Decision::Accept { delivery, first, stop } => (delivery, first, stop),
    };
    let mut session = match session {
        Some(session) => session,
        None => {
            let policy = Policy { auto_continue: op.auto_continue, ..Policy::default() };
            sessions::fresh(tx, journal.now(), op.key.clone(), policy, op.sessions_max)?
        }
    };

    supersede(tx, journal, &mut session)?;
    let queue_key = if first {
        let head = tx.queued(&op.key, 1)?.first().map(|head| head.queue_key);
        head.unwrap_or(session.last_queue_key + QUEUE_STEP) - QUEUE_STEP
    } else {
        session.last_queue_key += QUEUE_STEP;
        session.last_queue_key
    };
    let input = Input {
        id: InputId::from_uuid(journal.ctx.uuid()),
        session_id: op.key.id.clone(),
        principal: op.key.principal.clone(),
        request_id: op.request_id,
        digest: op.digest,
        kind: InputKind::Message,
        mode: op.mode,
        content: op.content,
        metadata: op.metadata,
        queue_key,
        status: InputStatus::Queued,
        delivery,
        outcome: None,
        generation: None,
        run_id: None,
        attempt: 0,
        continues: None,
        decides: None,
        accepted_at: journal.now(),
        ended_at: None,
    };
    tx.put_input(&input)?;
    session.queue_length += 1;
    session.quiet = false;
    session.updated_at = journal.now();
    if session.title.is_none() {
        session.title = title_of(&input.content.plain());
    }
    let reopened = session.ended_at.take().is_some();
    if reopened {
        session.end_reason = None;
        session.revision += 1;
    }
    announce(tx, journal, &mut session, &input)?;
    if let (true, Some(mut run)) = (stop, run) {
        if run.stop.is_none() {
            run.stop = Some(Stop { by: op.key.principal.clone(), at: journal.now() });
            tx.put_run(&run)?;
        }
        journal.signal(Signal::Stop(op.key.clone(), run.id));
    }
    if reopened {
        journal.emit_session(tx, &mut session)?;
    }
    tx.put_session(&session)?;
    let holder = session.lease.clone();
    if let Some(claimer) = &op.claimer
        && let Some(turn) = claim_admitted(tx, journal, session, claimer)?
    {
        let input = tx.input(&input.id)?.unwrap_or(input);
        journal.signal(Signal::Claimed(Box::new(turn)));
        return Ok(Admitted { input, position: None, replayed: false, holder });
    }
    journal.signal(Signal::Queued(op.key.clone()));
    let position = tx.queue_position(&op.key, queue_key)?;
    Ok(Admitted { input, position: Some(position), replayed: false, holder })
}

/// The receipt of an identity that is known: whatever became of the input, and nothing changes.
fn duplicate(
    tx: &mut dyn Tx,
    session: Option<Session>,
    known: Option<Input>,
) -> Result<Admitted, OpError> {
    let Some(input) = known else { return Err(Refusal::InputNotFound.into()) };
    let position = match input.status {
        InputStatus::Queued => Some(tx.queue_position(&input.session_key(), input.queue_key)?),
        _ => None,
    };
    let holder = session.and_then(|session| session.lease);
    Ok(Admitted { input, position, replayed: true, holder })
}

/// A person's input that is accepted after an interruption was recorded, and before its
/// continuation is claimed, takes the continuation's place (DESIGN §5).
fn supersede(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
) -> Result<(), StorageError> {
    let Some(mut head) = tx.queued(&session.key(), 1)?.pop() else { return Ok(()) };
    // One that a person asked for (which counts no attempt) stays.
    if head.kind != InputKind::Continuation || head.attempt == 0 {
        return Ok(());
    }
    withdraw(tx, journal, session, &mut head, "superseded")
}

/// Ends an input that still waits. A continuation that policy admitted takes the outcome of its
/// root with it: what was interrupted stays interrupted.
pub(super) fn withdraw(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    input: &mut Input,
    reason: &'static str,
) -> Result<(), StorageError> {
    for mut decided in decided_inputs(tx, input)? {
        settle_input(tx, journal, &mut decided, Outcome::Interrupted)?;
    }
    settle_input(tx, journal, input, Outcome::Cancelled)?;
    session.queue_length = session.queue_length.saturating_sub(1);
    let event = Event::InputCancelled { input_id: input.id.clone(), reason };
    journal.emit(tx, session, &event)
}

/// Gives an input its outcome, once.
pub(super) fn settle_input(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    input: &mut Input,
    outcome: Outcome,
) -> Result<(), StorageError> {
    if input.status == InputStatus::Terminal {
        return Ok(());
    }
    input.status = InputStatus::Terminal;
    input.outcome = Some(outcome);
    input.ended_at = Some(journal.now());
    tx.put_input(input)?;
    journal.signal(Signal::InputEnded(input.id.clone()));
    Ok(())
}

/// The unfinished inputs whose outcome a continuation decides: all inputs of the run that it goes on
/// from, and, where that was a continuation itself, of the run before. Nearest first.
pub(super) fn decided_inputs(tx: &mut dyn Tx, input: &Input) -> Result<Vec<Input>, StorageError> {
    fn before(input: &Input) -> Option<RunId> {
        input.decides.as_ref().and(input.continues.clone())
    }
    let mut decided = Vec::new();
    let mut next = before(input);
    while let Some(id) = next.take() {
        let Some(run) = tx.run(&id)? else { break };
        for id in &run.input_ids {
            let Some(input) = tx.input(id)? else { continue };
            next = next.or_else(|| before(&input));
            if input.status != InputStatus::Terminal {
                decided.push(input);
            }
        }
    }
    Ok(decided)
}

/// Tells the feed that an input was accepted.
pub(super) fn announce(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    input: &Input,
) -> Result<(), StorageError> {
    let event = Event::InputAccepted {
        input_id: input.id.clone(),
        request_id: input.request_id.to_string(),
        kind: input.kind.as_str(),
        content: input.content.clone(),
        delivery: input.delivery.as_str(),
    };
    journal.emit(tx, session, &event)
}

/// A title from the first words that a person said: one line, at most 80 characters.
fn title_of(text: &str) -> Option<String> {
    const TITLE_CHARS: usize = 80;
    const _: () = assert!(TITLE_CHARS <= limits::TITLE_CHARS_MAX);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let clean: String = line.chars().filter(|c| !c.is_control()).collect();
    let mut title: String = clean.chars().take(TITLE_CHARS).collect();
    if clean.chars().count() > TITLE_CHARS {
        title.pop();
        title.push('…');
    }
    (!title.is_empty()).then_some(title)
}
