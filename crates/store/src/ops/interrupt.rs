//! Recording an interruption, and what follows from it, in one transaction (promises P4 and P5).

use everturn_core::event::EventHead;
use everturn_core::late;
use everturn_core::recovery::{self, Decision, Facts, Output, Parked, continuation_note};
use everturn_core::{
    AutoContinueWhen, CallState, Cause, Content, Delivery, Event, Evidence, Input, InputId,
    InputKind, InputStatus, MessageKind, Mode, Outcome, RequestId, Role, Run, RunState, Session,
    SessionKey, TerminalState, digest, limits,
};

use super::admit::{QUEUE_STEP, announce};
use super::journal::Journal;
use super::late::park;
use super::session_now;
use super::write::{add_message, close_inputs, close_run, said_kind, seal};
use crate::error::{OpError, Refusal, StorageError};
use crate::op::{CloseUndecided, Interrupt, Interrupted, Reconsider, Signal};
use crate::read::StoredEvent;
use crate::tx::Tx;

/// Bytes of text that are rebuilt from a run's unfinished step; more is cut, with a note.
const RECOVERED_BYTES_MAX: usize = 4 << 20;
/// Continuations of one run that people may ask for.
const CONTINUATIONS_MAX: u32 = 100;
/// Events read at a time.
const PAGE: u32 = 512;

pub(super) fn interrupt(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: Interrupt,
) -> Result<Interrupted, OpError> {
    let _records = everturn_crash::within(everturn_crash::Point::InterruptionRecord);
    let Some((mut session, mut run)) = unresolved(tx, journal, &op)? else {
        return Ok(Interrupted { decision: None });
    };
    let mut evidence = op.evidence;
    evidence.last_seq = recorded_seq(tx, &run)?;
    evidence.last_event.clone_from(&run.last_event);
    evidence.last_event_at = run.last_event_at;
    let cause = if op.by_holder { Cause::LeaseLost } else { recovery::cause(&evidence) };
    let decision = recovery::decide(&Facts {
        stopped: run.stop.is_some(),
        attempt: run.attempt,
        spent: spent(tx, &run)?,
        spared: evidence.store_silent_s.is_some(),
        age_ms: journal.now().since_ms(run.last_event_at),
        policy: session.policy.auto_continue,
        loop_broken: op.loop_broken,
        ended: session.ended_at.is_some(),
        viewed: op.viewed,
        may_continue: op.may_continue,
        model_here: op.model_here,
        tools_here: op.tools_here,
        workspace_here: is_at_home(&run, &op.workspace),
    });
    // The old holder's epoch is over: whatever it still sends is refused (promise P11).
    session.epoch += 1;
    session.lease = None;

    // Text first: what the unfinished step streamed stands directly above the marker.
    let recovered = recover_text(tx, journal, &mut session, &mut run)?;
    seal(tx, journal, &mut session, &mut run)?;

    if decision == Decision::Cancel {
        let by = run.stop.as_ref().map_or_else(|| run.principal.clone(), |stop| stop.by.clone());
        journal.emit_run(tx, &mut session, &mut run, &Event::RunCancelled { by })?;
        close_inputs(tx, journal, &run, Outcome::Cancelled)?;
        close_run(tx, journal, &mut session, &mut run, TerminalState::Cancelled)?;
        tx.clear_late(&run.id)?;
        tx.put_session(&session)?;
        return Ok(Interrupted { decision: Some(decision) });
    }

    let waits = recovery::may_be_late(cause) || !tx.late(&run.id)?.is_empty();
    let output = match (waits, recovered) {
        (true, _) => Output::Pending,
        (false, true) => Output::Recovered,
        (false, false) => Output::Nothing,
    };
    run.late = waits.then(|| late::Pending { since: journal.now(), attempts: 0 });
    run.parked = match decision {
        Decision::Park(parked) => Some(parked),
        Decision::Continue { .. } | Decision::Cancel => None,
    };
    let marker = add_message(
        tx,
        journal,
        &mut session,
        &run,
        Role::System,
        MessageKind::Interruption,
        Content::text(recovery::marker(&evidence, cause, output, run.parked)),
        |_| {},
    )?;
    run.marker_id = Some(marker.id);
    run.cause = Some(cause);
    run.evidence = Some(evidence.clone());
    let event = Event::RunInterrupted { cause, evidence };
    journal.emit_run(tx, &mut session, &mut run, &event)?;
    match decision {
        Decision::Continue { attempt } => {
            let decides = run.input_ids.first().cloned();
            admit_continuation(tx, journal, &mut session, &run, attempt, decides)?;
        }
        Decision::Park(_) | Decision::Cancel => {
            close_inputs(tx, journal, &run, Outcome::Interrupted)?;
            session.interrupted = Some(run.id.clone());
        }
    }
    close_run(tx, journal, &mut session, &mut run, TerminalState::Interrupted)?;
    // Whoever may claims the continuation; nobody holds the session meanwhile.
    session.lease = None;
    tx.put_session(&session)?;
    Ok(Interrupted { decision: Some(decision) })
}

/// Decides again about a parked turn. The interrupted input has had its one outcome; what follows is
/// the continuation's own.
pub(super) fn reconsider(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &Reconsider,
) -> Result<Interrupted, OpError> {
    let nothing = Interrupted { decision: None };
    let Some(mut session) = session_now(tx, journal.ctx, &op.key)? else { return Ok(nothing) };
    if session.interrupted.as_ref() != Some(&op.run_id) {
        return Ok(nothing);
    }
    let Some(mut run) = tx.run(&op.run_id)? else { return Ok(nothing) };
    let may_pass = match run.parked {
        Some(parked) => parked.may_pass(),
        // Recorded by a version that did not say why.
        None => session.policy.auto_continue.when == AutoContinueWhen::OnView,
    };
    if !may_pass {
        return Ok(nothing);
    }
    // What a person said since the interruption was recorded takes the continuation's place, also of
    // one that was not admitted yet.
    let queued = tx.queued(&op.key, limits::QUEUE_INPUTS_MAX)?;
    let said_since =
        |input: &Input| input.kind == InputKind::Message && Some(input.accepted_at) >= run.ended_at;
    if queued.iter().any(said_since) {
        return Ok(nothing);
    }
    // One that failed before it had done anything is not tried at every look, nor without end.
    if run.parked == Some(Parked::Unprepared) {
        let (tried, last) = continuations(tx, &op.key, &run)?;
        let ended_at = last.and_then(|input| input.ended_at).unwrap_or(journal.now());
        if journal.now().since_ms(ended_at) < limits::UNPREPARED_PAUSE_S * 1_000 {
            return Ok(nothing);
        }
        if tried >= limits::UNPREPARED_MAX {
            park(tx, journal, &mut session, &mut run, Some(Parked::Exhausted))?;
            journal.emit_session(tx, &mut session)?;
            tx.put_session(&session)?;
            return Ok(Interrupted { decision: Some(Decision::Park(Parked::Exhausted)) });
        }
    }
    // The interruption itself is the run's last event: what counts is the one before it.
    let last_event_at = run.evidence.as_ref().map_or(run.last_event_at, |seen| seen.last_event_at);
    let decision = recovery::decide(&Facts {
        stopped: run.stop.is_some(),
        attempt: run.attempt,
        spent: spent(tx, &run)?,
        spared: run.evidence.as_ref().is_some_and(|seen| seen.store_silent_s.is_some()),
        age_ms: journal.now().since_ms(last_event_at),
        policy: session.policy.auto_continue,
        loop_broken: op.loop_broken,
        ended: session.ended_at.is_some(),
        viewed: op.viewed,
        may_continue: op.may_continue,
        model_here: op.model_here,
        tools_here: op.tools_here,
        workspace_here: is_at_home(&run, &op.workspace),
    });
    match decision {
        Decision::Continue { attempt } => {
            session.interrupted = None;
            session.revision += 1;
            session.updated_at = journal.now();
            park(tx, journal, &mut session, &mut run, None)?;
            admit_continuation(tx, journal, &mut session, &run, attempt, None)?;
        }
        // What people are told stays true. (Another reason that may pass is no news: it depends on
        // who asks.)
        Decision::Park(parked) if !parked.may_pass() => {
            park(tx, journal, &mut session, &mut run, Some(parked))?;
        }
        Decision::Park(_) | Decision::Cancel => {
            return Ok(Interrupted { decision: Some(decision) });
        }
    }
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(Interrupted { decision: Some(decision) })
}

/// Closes the matter of a turn about which nobody decided in time.
pub(super) fn close_undecided(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &CloseUndecided,
) -> Result<bool, OpError> {
    let Some(mut session) = session_now(tx, journal.ctx, &op.key)? else { return Ok(false) };
    if session.interrupted.as_ref() != Some(&op.run_id) {
        return Ok(false);
    }
    let Some(mut run) = tx.run(&op.run_id)? else { return Ok(false) };
    let waited_ms = run.ended_at.map_or(0, |at| journal.now().since_ms(at));
    if waited_ms <= limits::DECISION_S * 1_000 {
        return Ok(false);
    }
    park(tx, journal, &mut session, &mut run, Some(Parked::Undecided))?;
    session.interrupted = None;
    session.revision += 1;
    let hours = limits::DECISION_S / 3_600;
    let text = format!(
        "Nobody decided within {hours} hours about the turn that was interrupted. It stays as it is."
    );
    add_message(
        tx,
        journal,
        &mut session,
        &run,
        Role::System,
        MessageKind::Note,
        Content::text(text),
        |_| {},
    )?;
    tx.put_session(&session)?;
    journal.emit_session(tx, &mut session)?;
    tx.put_session(&session)?;
    Ok(true)
}

/// How many continuations of a run there were, and the last one.
fn continuations(
    tx: &mut dyn Tx,
    key: &SessionKey,
    run: &Run,
) -> Result<(u32, Option<Input>), OpError> {
    let mut last = None;
    for number in 1..=CONTINUATIONS_MAX {
        match tx.input_by_identity(key, &continuation_name(run, number)?)? {
            Some(input) => last = Some(input),
            None => return Ok((number - 1, last)),
        }
    }
    Ok((CONTINUATIONS_MAX, last))
}

fn continuation_name(run: &Run, number: u32) -> Result<RequestId, OpError> {
    let name = match number {
        1 => format!("continue:{}", run.id),
        _ => format!("continue:{}:{number}", run.id),
    };
    let name = RequestId::new(name);
    name.map_err(|_| Refusal::BadRecord("a run id is too long for a request id").into())
}

/// Continuations that led to a run because an executor died: what the budget counts.
fn spent(tx: &mut dyn Tx, run: &Run) -> Result<u32, StorageError> {
    let mut spent = 0;
    let (mut attempt, mut before) = (run.attempt, run.continues.clone());
    // A chain that a person began anew counts from there.
    while attempt > 0
        && let Some(id) = before
    {
        let Some(run) = tx.run(&id)? else { break };
        let spared = run.evidence.as_ref().is_some_and(|seen| seen.store_silent_s.is_some());
        spent += u32::from(!spared);
        (attempt, before) = (run.attempt, run.continues);
    }
    Ok(spent)
}

/// Whether tools that work in `workspace` work where those of the run did.
fn is_at_home(run: &Run, workspace: &str) -> bool {
    run.workspace.is_empty() || run.workspace == workspace
}

/// The rows, if the run is still as the caller saw it and may be resolved by it.
fn unresolved(
    tx: &mut dyn Tx,
    journal: &Journal<'_>,
    op: &Interrupt,
) -> Result<Option<(Session, Run)>, OpError> {
    let Some(session) = session_now(tx, journal.ctx, &op.key)? else { return Ok(None) };
    if session.running.as_ref() != Some(&op.run_id) || session.epoch != op.epoch {
        return Ok(None);
    }
    let Some(run) = tx.run(&op.run_id)? else { return Ok(None) };
    if matches!(run.state, RunState::Ended | RunState::HandedOver) {
        return Ok(None);
    }
    if let Some(lease) = &session.lease {
        let expired = lease.expiry.passed(&journal.ctx.boot);
        let proven = op.evidence.holder_gone == Some(true) && op.evidence.holder == lease.holder;
        let own = op.by_holder && lease.holder == op.node;
        if !(expired || proven || own) {
            return Err(Refusal::Held { node: lease.holder.clone(), since: lease.since }.into());
        }
    }
    Ok(Some((session, run)))
}

/// Seq of the last event that is there: after a power loss the run's count is above it.
fn recorded_seq(tx: &mut dyn Tx, run: &Run) -> Result<u64, StorageError> {
    if !tx.run_events(run, run.last_seq.saturating_sub(1), 1)?.is_empty() {
        return Ok(run.last_seq);
    }
    let mut seq = run.step_seq;
    loop {
        let page = tx.run_events(run, seq, PAGE)?;
        let Some(last) = page.last().and_then(StoredEvent::seq) else { return Ok(seq) };
        seq = last;
    }
}

/// Rebuilds the text of the step that was under way from its deltas. Answers whether there was any.
fn recover_text(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
) -> Result<bool, StorageError> {
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut after = run.step_seq;
    'pages: loop {
        let page = tx.run_events(run, after, PAGE)?;
        let Some(last) = page.last().and_then(StoredEvent::seq) else { break };
        after = last;
        for event in &page {
            let row = match event {
                StoredEvent::Good(row) => row,
                // Recovery goes on without what cannot be read; readers are told of it.
                StoredEvent::Malformed { offset, error, .. } => {
                    tracing::warn!(session = %session.key(), offset, %error, "a stored event is skipped");
                    continue;
                }
            };
            let into = match row.head.name.as_str() {
                "text.delta" => &mut text,
                "reasoning.delta" => &mut reasoning,
                _ => continue,
            };
            if into.len() > RECOVERED_BYTES_MAX {
                into.push_str("\n[the rest is in the run's journal]");
                break 'pages;
            }
            into.push_str(&delta_text(&row.head, &row.body));
        }
    }
    if text.is_empty() && reasoning.is_empty() {
        return Ok(false);
    }
    let content = if text.is_empty() { Content::default() } else { Content::text(text) };
    let kind = said_kind(tx, run)?;
    add_message(tx, journal, session, run, Role::Assistant, kind, content, |message| {
        message.recovered = true;
        message.reasoning = (!reasoning.is_empty()).then_some(reasoning);
    })?;
    Ok(true)
}

/// The text of a stored delta; empty, and said in the log, where the record is bad.
fn delta_text(head: &EventHead, body: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Delta {
        text: String,
    }
    match serde_json::from_str::<Delta>(body) {
        Ok(delta) => delta.text,
        Err(error) => {
            tracing::warn!(session = %head.session_id, offset = head.offset, %error, "a stored delta cannot be read");
            String::new()
        }
    }
}

/// What a continuation of a run tells the model, by what is known of it now.
pub(super) fn continuation_text(tx: &mut dyn Tx, run: &Run) -> Result<String, StorageError> {
    let original = original_text(tx, run)?;
    let unknown: Vec<String> = tx
        .run_calls(&run.id)?
        .iter()
        .filter(|call| call.state == CallState::Unknown && !call.effect.repeatable())
        .map(|call| format!("{} {}", call.name, call.arguments))
        .collect();
    // Evidence for an interruption that is decided about later is on its run.
    let cause = run.cause.unwrap_or(Cause::Unknown);
    let observed =
        run.evidence.as_ref().map(|seen: &Evidence| seen.observed(cause)).unwrap_or_default();
    Ok(continuation_note(&original, &observed, &unknown))
}

/// Puts a continuation ahead of everything that waits.
pub(super) fn admit_continuation(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    attempt: u32,
    decides: Option<InputId>,
) -> Result<Input, OpError> {
    let content = Content::text(continuation_text(tx, run)?);
    let key = session.key();
    let head = tx.queued(&key, 1)?.first().map(|head| head.queue_key);
    let queue_key = head.unwrap_or(session.last_queue_key + QUEUE_STEP) - QUEUE_STEP;
    let request_id = continuation_identity(tx, &key, run)?;
    let input = Input {
        id: InputId::from_uuid(journal.ctx.uuid()),
        session_id: key.id.clone(),
        principal: key.principal.clone(),
        request_id,
        digest: digest::payload(InputKind::Continuation, Mode::Queue, &content, None),
        kind: InputKind::Continuation,
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_key,
        status: InputStatus::Queued,
        delivery: Delivery::Queued,
        outcome: None,
        generation: None,
        run_id: None,
        attempt,
        continues: Some(run.id.clone()),
        decides,
        accepted_at: journal.now(),
        ended_at: None,
    };
    tx.put_input(&input)?;
    session.queue_length += 1;
    announce(tx, journal, session, &input)?;
    journal.signal(Signal::Queued(key));
    Ok(input)
}

/// A name of its own for each continuation of a run: the first is policy's or a person's; further
/// ones are people's who withdrew one and thought again.
fn continuation_identity(
    tx: &mut dyn Tx,
    key: &SessionKey,
    run: &Run,
) -> Result<RequestId, OpError> {
    for number in 1..=CONTINUATIONS_MAX {
        let request_id = continuation_name(run, number)?;
        if tx.input_by_identity(key, &request_id)?.is_none() {
            return Ok(request_id);
        }
    }
    Err(Refusal::Superseded.into())
}

/// What people asked, never an earlier note: a continuation leads back to the run before it.
pub(super) fn original_text(tx: &mut dyn Tx, run: &Run) -> Result<String, StorageError> {
    let mut run = run.clone();
    loop {
        let mut texts = Vec::new();
        let mut before = None;
        for id in &run.input_ids {
            let Some(input) = tx.input(id)? else { continue };
            if input.kind == InputKind::Continuation {
                before = input.continues;
            } else {
                texts.push(input.content.plain());
            }
        }
        let earlier = match before.filter(|_| texts.is_empty()) {
            Some(id) => tx.run(&id)?,
            None => None,
        };
        match earlier {
            Some(earlier) => run = earlier,
            None => return Ok(texts.join("\n\n")),
        }
    }
}
