//! Claiming: the lease and the next input become one turn, in one transaction (promise P3).

use everturn_core::message::appended_position;
use everturn_core::recovery::Parked;
use everturn_core::{
    Content, Event, Input, InputKind, InputStatus, Lease, Message, MessageKind, QueuePolicy, Role,
    Run, RunId, RunState, Session, limits,
};
use everturn_crash::Point;

use super::admit::decided_inputs;
use super::interrupt::continuation_text;
use super::journal::Journal;
use super::late::park;
use super::{existing, running};
use crate::error::{OpError, StorageError};
use crate::op::{Claim, Claimed, ClaimedTurn, Claimer, Fence};
use crate::tx::Tx;

pub(super) fn claim(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: Claim,
) -> Result<Claimed, OpError> {
    let mut session = existing(tx, journal.ctx, &op.key)?;
    if let Some(lease) = &session.lease
        && lease.holder != op.claimer.node
        && op.gone.as_ref() != Some(&lease.holder)
        && !lease.expiry.passed(&journal.ctx.boot)
    {
        return Ok(Claimed::Held { holder: lease.clone() });
    }
    let unfinished = running(tx, &session)?;
    match unfinished {
        Some(run) if run.state == RunState::HandedOver => {
            take_lease(journal, &mut session, &op.claimer);
            let turn = resume(tx, journal, session, run, &op.claimer)?;
            return Ok(Claimed::Turn(Box::new(turn)));
        }
        Some(run) => return Ok(Claimed::Unfinished { session, run }),
        None => {}
    }
    let inputs = next_inputs(tx, &session)?;
    if inputs.is_empty() {
        if session.lease.take().is_some() {
            tx.put_session(&session)?;
        }
        return Ok(Claimed::Nothing);
    }
    take_lease(journal, &mut session, &op.claimer);
    let turn = begin(tx, journal, session, inputs, &op.claimer)?;
    Ok(Claimed::Turn(Box::new(turn)))
}

/// Claims the turn of an input that was accepted just now, if it may begin at once.
pub(super) fn claim_admitted(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    mut session: Session,
    claimer: &Claimer,
) -> Result<Option<ClaimedTurn>, OpError> {
    let held_elsewhere = session.lease.as_ref().is_some_and(|lease| {
        lease.holder != claimer.node && !lease.expiry.passed(&journal.ctx.boot)
    });
    if held_elsewhere || session.running.is_some() || session.queue_length != 1 {
        return Ok(None);
    }
    let inputs = next_inputs(tx, &session)?;
    take_lease(journal, &mut session, claimer);
    begin(tx, journal, session, inputs, claimer).map(Some)
}

/// Takes the lease for the claiming node. The epoch grows whenever the holder changes.
fn take_lease(journal: &Journal<'_>, session: &mut Session, claimer: &Claimer) {
    match &mut session.lease {
        Some(lease) if lease.holder == claimer.node => lease.expiry = claimer.expiry.clone(),
        lease => {
            session.epoch += 1;
            *lease = Some(Lease {
                holder: claimer.node.clone(),
                expiry: claimer.expiry.clone(),
                since: journal.now(),
            });
        }
    }
}

/// The input at the head; under the policy `batch`, with all messages of people directly behind it.
fn next_inputs(tx: &mut dyn Tx, session: &Session) -> Result<Vec<Input>, StorageError> {
    let limit = match session.policy.queue {
        QueuePolicy::One => 1,
        QueuePolicy::Batch => limits::QUEUE_INPUTS_MAX,
    };
    let mut inputs = tx.queued(&session.key(), limit)?;
    let head_is_message = inputs.first().is_some_and(|head| head.kind == InputKind::Message);
    if head_is_message {
        let messages = inputs.iter().take_while(|input| input.kind == InputKind::Message).count();
        inputs.truncate(messages);
    } else {
        inputs.truncate(1);
    }
    Ok(inputs)
}

fn fence(session: &Session, run: &Run, claimer: &Claimer) -> Fence {
    Fence {
        session: session.key(),
        node: claimer.node.clone(),
        epoch: session.epoch,
        generation: run.generation,
        run_id: run.id.clone(),
    }
}

/// Goes on with a run that a leaving node let go of: same run, same generation, next epoch.
fn resume(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    mut session: Session,
    mut run: Run,
    claimer: &Claimer,
) -> Result<ClaimedTurn, OpError> {
    let waits = !tx.open_prompts(&run.id)?.is_empty();
    run.state = if waits { RunState::Waiting } else { RunState::Running };
    run.node = claimer.node.clone();
    (run.writes, run.writes_epoch) = (0, session.epoch);
    tx.put_run(&run)?;
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(ClaimedTurn { fence: fence(&session, &run, claimer), session, run })
}

/// Begins a turn: generation + 1, a run, and the inputs enter the transcript.
fn begin(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    mut session: Session,
    mut inputs: Vec<Input>,
    claimer: &Claimer,
) -> Result<ClaimedTurn, OpError> {
    session.generation += 1;
    if let Some(id) = session.interrupted.take()
        && let Some(mut left) = tx.run(&id)?
    {
        // The matter is closed, and that is said of it.
        park(tx, journal, &mut session, &mut left, Some(Parked::Superseded))?;
    }
    session.updated_at = journal.now();
    let before = match inputs.first().and_then(|input| input.continues.as_ref()) {
        Some(id) => tx.run(id)?,
        None => None,
    };
    let point = if before.is_some() { Point::ContinuationRecord } else { Point::ClaimRecord };
    let _records = everturn_crash::within(point);
    let mut run = Run {
        id: RunId::from_uuid(journal.ctx.uuid()),
        session_id: session.id.clone(),
        principal: session.principal.clone(),
        input_ids: inputs.iter().map(|input| input.id.clone()).collect(),
        generation: session.generation,
        attempt: inputs.first().map_or(0, |input| input.attempt),
        state: RunState::Running,
        terminal_state: None,
        last_seq: 0,
        last_event: String::new(),
        last_event_at: journal.now(),
        first_offset: 0,
        last_offset: 0,
        step_seq: 0,
        writes: 0,
        writes_epoch: session.epoch,
        cause: None,
        evidence: None,
        marker_id: None,
        parked: None,
        late: None,
        continues: before.as_ref().map(|run| run.id.clone()),
        interrupted_at: before.as_ref().and_then(|run| run.ended_at),
        usage: None,
        error: None,
        stop: None,
        node: claimer.node.clone(),
        workspace: claimer.workspace.clone(),
        model: model(&session, before.as_ref(), claimer),
        started_at: journal.now(),
        ended_at: None,
    };
    session.running = Some(run.id.clone());
    session.queue_length =
        session.queue_length.saturating_sub(u32::try_from(inputs.len()).unwrap_or(u32::MAX));
    // The rows that the snapshot below reads.
    tx.put_run(&run)?;
    tx.put_session(&session)?;

    let started = Event::TurnStarted {
        generation: run.generation,
        run_id: run.id.clone(),
        input_ids: run.input_ids.clone(),
    };
    journal.emit(tx, &mut session, &started)?;
    for input in &mut inputs {
        enter(tx, journal, &mut session, &run, input)?;
    }
    let started = Event::RunStarted {
        generation: run.generation,
        input_ids: run.input_ids.clone(),
        attempt: run.attempt,
        continues: run.continues.clone(),
        model: run.model.clone(),
    };
    journal.emit_run(tx, &mut session, &mut run, &started)?;
    run.step_seq = run.last_seq;
    tx.put_run(&run)?;
    journal.emit_session(tx, &mut session)?;
    // A synced commit: reserve numbers for the deltas that follow it without a sync.
    session.offset_ceiling =
        session.offset_ceiling.max(session.last_offset + limits::OFFSET_RESERVE);
    tx.put_session(&session)?;
    if before.is_some() {
        everturn_crash::pass(Point::ContinuationApplied);
    }
    Ok(ClaimedTurn { fence: fence(&session, &run, claimer), session, run })
}

/// What a turn runs on: what people gave the session, else, for a continuation, what the turn that it
/// goes on from ran on, else the node's default.
fn model(session: &Session, before: Option<&Run>, claimer: &Claimer) -> String {
    let bound = session.model.as_ref().or(before.map(|run| &run.model));
    bound.unwrap_or(&claimer.default_model).clone()
}

/// An input becomes a row of the transcript: from now on the model sees it.
fn enter(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    input: &mut Input,
) -> Result<(), StorageError> {
    input.status = InputStatus::Started;
    input.generation = Some(run.generation);
    input.run_id = Some(run.id.clone());
    tx.put_input(input)?;
    for mut decided in decided_inputs(tx, input)? {
        decided.generation = Some(run.generation);
        decided.run_id = Some(run.id.clone());
        tx.put_input(&decided)?;
    }
    if let (InputKind::Continuation, Some(before)) = (input.kind, &run.continues)
        && let Some(before) = tx.run(before)?
    {
        // More may be known than when it was admitted: what arrived late, or a call's outcome.
        input.content = Content::text(continuation_text(tx, &before)?);
        tx.put_input(input)?;
    }
    let (role, kind) = match input.kind {
        InputKind::Continuation => (Role::System, MessageKind::Continuation),
        // An import is never in a queue, and so never enters here.
        InputKind::Message | InputKind::Steer | InputKind::Completion | InputKind::Import => {
            (Role::User, MessageKind::Message)
        }
    };
    session.last_message_id += 1;
    let message = Message {
        id: session.last_message_id,
        position: appended_position(session.last_message_id),
        role,
        kind,
        content: input.content.clone(),
        reasoning: None,
        tool_calls: Vec::new(),
        tool_call_id: None,
        generation: Some(run.generation),
        run_id: Some(run.id.clone()),
        input_id: Some(input.id.clone()),
        recovered: false,
        created_at: journal.now(),
    };
    tx.put_message(&session.key(), &message)?;
    journal.emit(tx, session, &Event::MessageAdded(message))
}
