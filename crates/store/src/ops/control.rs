//! Controls of people: stop, cancel, decide. Each names what it aims at.

use everturn_core::recovery::Parked;
use everturn_core::{
    Content, Delivery, Input, InputId, InputKind, InputStatus, Mode, RequestId, Run, RunState,
    Session, Stop as StopMark, digest, limits,
};

use super::admit::{QUEUE_STEP, announce, withdraw};
use super::interrupt::{admit_continuation, original_text};
use super::journal::Journal;
use super::late::park;
use super::{existing, running};
use crate::error::{OpError, Refusal};
use crate::op::{CancelInput, Decide, Decided, Decision, Signal, Stop};
use crate::tx::Tx;

/// Withdraws an input that still waits.
pub(super) fn cancel(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &CancelInput,
) -> Result<Input, OpError> {
    let Some(mut input) = tx.input(&op.input_id)?.filter(|input| input.principal == op.principal)
    else {
        return Err(Refusal::InputNotFound.into());
    };
    let mut session = existing(tx, journal.ctx, &input.session_key())?;
    if input.status != InputStatus::Queued || input.kind == InputKind::Completion {
        return Err(Refusal::InputNotQueued.into());
    }
    withdraw(tx, journal, &mut session, &mut input, "withdrawn")?;
    if input.kind == InputKind::Continuation {
        // The interruption is there again for a person to decide about, and for nobody else.
        if let Some(id) = &input.continues
            && let Some(mut run) = tx.run(id)?
        {
            park(tx, journal, &mut session, &mut run, Some(Parked::Withdrawn))?;
        }
        session.interrupted.clone_from(&input.continues);
        journal.emit_session(tx, &mut session)?;
    }
    session.updated_at = journal.now();
    tx.put_session(&session)?;
    Ok(input)
}

/// Records a person's stop on the running turn; its owner, or whoever recovers it, obeys.
pub(super) fn stop(tx: &mut dyn Tx, journal: &mut Journal<'_>, op: &Stop) -> Result<Run, OpError> {
    let mut session = existing(tx, journal.ctx, &op.key)?;
    let Some(mut run) = running(tx, &session)? else {
        return Err(Refusal::NotRunning.into());
    };
    if op.generation.is_some_and(|generation| generation != run.generation) {
        return Err(Refusal::StaleGeneration { current: run.generation }.into());
    }
    if op.run_id.as_ref().is_some_and(|id| *id != run.id) {
        return Err(Refusal::NotRunning.into());
    }
    if run.stop.is_none() {
        run.stop = Some(StopMark { by: op.by.clone(), at: journal.now() });
        tx.put_run(&run)?;
    }
    if !op.keep_queue {
        for mut input in tx.queued(&op.key, limits::QUEUE_INPUTS_MAX)? {
            if matches!(input.kind, InputKind::Message | InputKind::Steer) {
                withdraw(tx, journal, &mut session, &mut input, "stopped")?;
            }
        }
    }
    session.quiet = true;
    session.updated_at = journal.now();
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    journal.signal(Signal::Stop(op.key.clone(), run.id.clone()));
    if run.state == RunState::HandedOver {
        // Nobody works on it: whoever claims it next reads the stop.
        journal.signal(Signal::Queued(op.key.clone()));
    }
    Ok(run)
}

/// Carries out a person's decision about an interrupted turn.
pub(super) fn decide(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &Decide,
) -> Result<Decided, OpError> {
    let mut session = existing(tx, journal.ctx, &op.key)?;
    let run = match &session.interrupted {
        Some(id) => tx.run(id)?,
        None => None,
    };
    let Some(mut run) = run.filter(|run| run.generation == op.generation) else {
        let refusal = if session.generation > op.generation {
            Refusal::Superseded
        } else {
            Refusal::NotInterrupted
        };
        return Err(refusal.into());
    };
    session.interrupted = None;
    session.revision += 1;
    session.updated_at = journal.now();
    let input = match &op.decision {
        Decision::Continue => {
            session.ended_at = None;
            session.end_reason = None;
            // A person's word: the count of automatic attempts begins anew, and the outcome is the
            // continuation's own (the interrupted input has had its one outcome).
            park(tx, journal, &mut session, &mut run, None)?;
            Some(admit_continuation(tx, journal, &mut session, &run, 0, None)?)
        }
        Decision::Discard => {
            park(tx, journal, &mut session, &mut run, Some(Parked::Discarded))?;
            None
        }
        Decision::Resend(text) => {
            session.ended_at = None;
            session.end_reason = None;
            park(tx, journal, &mut session, &mut run, Some(Parked::Resent))?;
            let text = match text {
                Some(text) => text.clone(),
                None => original_text(tx, &run)?,
            };
            Some(resend(tx, journal, &mut session, &run, Content::text(text))?)
        }
    };
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(Decided { session, input })
}

/// Accepts a person's request anew, behind what waits.
fn resend(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    content: Content,
) -> Result<Input, OpError> {
    let max = limits::QUEUE_INPUTS_MAX;
    if session.queue_length >= max {
        return Err(Refusal::QueueFull { max }.into());
    }
    let request_id = RequestId::new(format!("resend:{}", run.id))
        .map_err(|_| Refusal::BadRecord("a run id is too long for a request id"))?;
    let key = session.key();
    if tx.input_by_identity(&key, &request_id)?.is_some() {
        return Err(Refusal::Superseded.into());
    }
    session.last_queue_key += QUEUE_STEP;
    let input = Input {
        id: InputId::from_uuid(journal.ctx.uuid()),
        session_id: key.id.clone(),
        principal: key.principal.clone(),
        request_id,
        digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
        kind: InputKind::Message,
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_key: session.last_queue_key,
        status: InputStatus::Queued,
        delivery: Delivery::Queued,
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
    announce(tx, journal, session, &input)?;
    journal.signal(Signal::Queued(key));
    Ok(input)
}
