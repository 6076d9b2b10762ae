//! Controls of people: stop, cancel, decide. Each names what it aims at.

use everturn_core::recovery::Parked;
use everturn_core::{InputKind, InputStatus, Run, RunState, Stop as StopMark};

use super::admit::withdraw;
use super::interrupt::admit_continuation;
use super::journal::Journal;
use super::{existing, running};
use crate::error::{OpError, Refusal};
use crate::op::{CancelInput, Decide, Decided, Decision, Signal, Stop};
use crate::tx::Tx;
use everturn_core::{Input, limits};

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
            run.parked = Some(Parked::Withdrawn);
            tx.put_run(&run)?;
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
    let input = match op.decision {
        Decision::Continue => {
            session.ended_at = None;
            session.end_reason = None;
            // A person's word: the count of automatic attempts begins anew, and the outcome is the
            // continuation's own (the interrupted input has had its one outcome).
            run.parked = None;
            tx.put_run(&run)?;
            Some(admit_continuation(tx, journal, &mut session, &run, 0, None)?)
        }
        Decision::Discard => None,
    };
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(Decided { session, input })
}
