//! Importing: a run that happened elsewhere becomes one of ours, whole or not at all.

use everturn_api::known::{Known, known};
use everturn_core::digest::JournalDigest;
use everturn_core::{
    Content, Delivery, Event, Input, InputId, InputKind, InputStatus, MessageKind, Mode, Policy,
    RequestId, Role, Run, RunId, RunState, Session, TerminalState, Timestamp, Usage, limits,
};

use super::journal::Journal;
use super::write::add_message;
use super::{session_now, sessions};
use crate::error::{OpError, Refusal};
use crate::op::{ForeignEvent, ImportRun, Imported, Signal};
use crate::tx::Tx;

pub(super) fn import(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: ImportRun,
) -> Result<Imported, OpError> {
    let request_id = RequestId::new(format!("import:{}", op.source))
        .map_err(|error| Refusal::BadImport(format!("the run's id: {error}")))?;
    if let Some(input) = tx.input_by_identity(&op.key, &request_id)? {
        return again(tx, &op, input);
    }
    if let Some(here) = own(tx, &op)? {
        return Ok(here);
    }
    let mut session = match session_now(tx, journal.ctx, &op.key)? {
        Some(session) => session,
        None if tx.tombstone(&op.key)?.is_some() => return Err(Refusal::SessionDeleted.into()),
        None => fresh(tx, journal, &op)?,
    };
    if session.running.is_some() {
        // Its fence names the session's last generation, and so does whoever stops it.
        return Err(Refusal::SessionBusy.into());
    }
    session.generation += 1;
    session.revision += 1;
    session.updated_at = journal.now();
    let run_id = RunId::from_uuid(journal.ctx.uuid());
    let input = record(journal, &op, request_id, &session, &run_id);
    let run = empty_run(&op, &session, &input, run_id, journal.now());
    // The rows that events refer to.
    tx.put_input(&input)?;
    tx.put_session(&session)?;
    tx.put_run(&run)?;
    let started = Event::TurnStarted {
        generation: run.generation,
        run_id: run.id.clone(),
        input_ids: run.input_ids.clone(),
    };
    journal.emit(tx, &mut session, &started)?;
    let (input, run) = take_in(tx, journal, &op, &mut session, run, input)?;
    tx.put_input(&input)?;
    tx.put_run(&run)?;
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    session.offset_ceiling =
        session.offset_ceiling.max(session.last_offset + limits::OFFSET_RESERVE);
    tx.put_session(&session)?;
    journal.signal(Signal::InputEnded(input.id.clone()));
    Ok(Imported { input, run, replayed: false })
}

/// The answer for an identity that is known: the run that it became.
fn again(tx: &mut dyn Tx, op: &ImportRun, input: Input) -> Result<Imported, OpError> {
    if input.digest != op.digest || input.kind != InputKind::Import {
        return Err(Refusal::InputConflict.into());
    }
    if tx.session(&op.key)?.is_none() {
        return Err(Refusal::SessionDeleted.into());
    }
    let run = match &input.run_id {
        Some(id) => tx.run(id)?,
        None => None,
    };
    let run = run.ok_or(Refusal::RunNotFound)?;
    Ok(Imported { input, run, replayed: true })
}

/// The answer for the journal of a run that happened in this very session: it is here already, and
/// taking it in would say everything twice.
fn own(tx: &mut dyn Tx, op: &ImportRun) -> Result<Option<Imported>, OpError> {
    let Some(run) = tx.run(&op.source)?.filter(|run| run.session_key() == op.key) else {
        return Ok(None);
    };
    let input = match run.input_ids.first() {
        Some(id) => tx.input(id)?,
        None => None,
    };
    Ok(input.map(|input| Imported { input, run, replayed: true }))
}

fn fresh(tx: &mut dyn Tx, journal: &Journal<'_>, op: &ImportRun) -> Result<Session, OpError> {
    let (key, max) = (op.key.clone(), op.sessions_max);
    let mut session = sessions::fresh(tx, journal.now(), key, Policy::default(), max)?;
    session.title = Some(format!("Imported: {}", op.source));
    Ok(session)
}

/// The import itself: what remembers that it was done.
fn record(
    journal: &Journal<'_>,
    op: &ImportRun,
    request_id: RequestId,
    session: &Session,
    run_id: &RunId,
) -> Input {
    Input {
        id: InputId::from_uuid(journal.ctx.uuid()),
        session_id: op.key.id.clone(),
        principal: op.key.principal.clone(),
        request_id,
        digest: op.digest,
        kind: InputKind::Import,
        mode: Mode::Queue,
        content: Content::text(format!("Import of run {}", op.source)),
        metadata: None,
        queue_key: session.last_queue_key,
        status: InputStatus::Terminal,
        delivery: Delivery::Queued,
        outcome: None,
        generation: Some(session.generation),
        run_id: Some(run_id.clone()),
        attempt: 0,
        continues: None,
        decides: None,
        accepted_at: journal.now(),
        ended_at: Some(journal.now()),
    }
}

fn empty_run(op: &ImportRun, session: &Session, input: &Input, id: RunId, now: Timestamp) -> Run {
    Run {
        id,
        session_id: session.id.clone(),
        principal: session.principal.clone(),
        input_ids: vec![input.id.clone()],
        generation: session.generation,
        attempt: 0,
        state: RunState::Ended,
        terminal_state: None,
        last_seq: 0,
        last_event: String::new(),
        last_event_at: now,
        first_offset: 0,
        last_offset: 0,
        step_seq: 0,
        writes: 0,
        writes_epoch: session.epoch,
        cause: None,
        workspace: String::new(),
        marker_id: None,
        parked: None,
        late: None,
        evidence: None,
        continues: None,
        interrupted_at: None,
        usage: None,
        error: None,
        stop: None,
        node: op.node.clone(),
        model: "unknown".to_owned(),
        started_at: now,
        ended_at: None,
    }
}

/// Takes all events in, one after the other.
fn take_in(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &ImportRun,
    session: &mut Session,
    mut run: Run,
    mut input: Input,
) -> Result<(Input, Run), OpError> {
    let mut digest = JournalDigest::new(&op.source);
    let (mut text, mut bytes) = (String::new(), 0_u64);
    while let Some(event) = op.events.pull() {
        let mut event = event.map_err(Refusal::BadImport)?;
        digest.add(event.at, &event.name, &event.body);
        let seq = run.last_seq + 1;
        bytes = bytes.saturating_add(event.body.len() as u64);
        if seq > limits::IMPORT_EVENTS_MAX || bytes > limits::IMPORT_BYTES_MAX {
            let (events, mib) = (limits::IMPORT_EVENTS_MAX, limits::IMPORT_BYTES_MAX >> 20);
            let message = format!("it has more than {events} events or {mib} MiB");
            return Err(Refusal::BadImport(message).into());
        }
        if run.terminal_state.is_some() {
            return Err(Refusal::BadImport(format!("event {seq} comes after the end")).into());
        }
        let known = known(&event.name, &event.body)
            .map_err(|error| Refusal::BadImport(format!("event {seq}: {error}")))?;
        if seq == 1 {
            run.started_at = event.at;
        }
        match known {
            Known::Text(more) if text.len() + more.len() <= limits::ANSWER_BYTES_MAX => {
                text.push_str(&more);
            }
            Known::Started { model } => run.model = model,
            Known::Usage(usage) => {
                run.usage.get_or_insert_with(Usage::default).add(&usage.into());
            }
            Known::End(end) => {
                (run.terminal_state, run.cause) = (Some(end.state), end.cause);
                run.error = end.error.map(Into::into);
                run.ended_at = Some(event.at);
                let said = std::mem::take(&mut text);
                add_answer(tx, journal, session, &run, said, &mut event)?;
            }
            _ => {}
        }
        journal.take_in(tx, session, &mut run, event)?;
    }
    let Some(state) = run.terminal_state else {
        return Err(Refusal::BadImport("it has no end".to_owned()).into());
    };
    if digest.finish() != op.digest {
        return Err(Refusal::BadImport("it changed while it was read".to_owned()).into());
    }
    run.step_seq = run.last_seq;
    input.outcome = Some(state.outcome());
    Ok((input, run))
}

/// What the run said becomes a message, which its end names if it has one.
fn add_answer(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    text: String,
    end: &mut ForeignEvent,
) -> Result<(), OpError> {
    let completed = run.terminal_state == Some(TerminalState::Completed);
    if text.is_empty() && !completed {
        return Ok(());
    }
    let content = if text.is_empty() { Content::default() } else { Content::text(text) };
    let (role, kind) = (Role::Assistant, MessageKind::Message);
    let message = add_message(tx, journal, session, run, role, kind, content, |_| {})?;
    if completed {
        let named = Event::RunCompleted { message_id: message.id };
        end.body = everturn_api::event::body(&named);
    }
    Ok(())
}
