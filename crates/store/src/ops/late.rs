//! What arrives after an interruption was recorded: deposits of a cut-off executor, and the looks
//! that settle the marker (see [`everturn_core::late`]).

use everturn_core::late::{self, Arrived, LateRecord, Look};
use everturn_core::message::{appended_position, position_behind};
use everturn_core::recovery::{self, Output, Parked};
use everturn_core::{
    CallState, Cause, Content, Event, Message, MessageKind, Role, Run, RunState, Session, ToolCall,
    limits,
};

use super::journal::Journal;
use super::session_now;
use crate::error::{OpError, Refusal, StorageError};
use crate::op::{Deposit, LookLate};
use crate::rows::LateRow;
use crate::tx::Tx;

/// Takes in what a node held of a turn that is not its own any more.
pub(super) fn deposit(
    tx: &mut dyn Tx,
    journal: &Journal<'_>,
    op: Deposit,
) -> Result<bool, OpError> {
    if tx.session(&op.key)?.is_none() {
        return Ok(false);
    }
    let Some(run) = tx.run(&op.run_id)?.filter(|run| run.session_key() == op.key) else {
        return Ok(false);
    };
    if run.node != op.node || run.writes_epoch != op.epoch {
        return Err(Refusal::BadRecord("another node held the run, or under another epoch").into());
    }
    // Before the interruption is recorded, the record will find what is here.
    if run.state == RunState::Ended && run.late.is_none() {
        return Ok(false);
    }
    let here = tx.late(&run.id)?;
    let (mut count, mut bytes) = (here.len(), here.iter().map(|row| row.record.bytes()).sum());
    for (number, (write, record)) in (op.first..).zip(op.records) {
        if here.iter().any(|row| row.number == number) {
            continue;
        }
        let more: usize = bytes + record.bytes();
        // The end is told in any case.
        if record != LateRecord::Sealed
            && (count >= limits::LATE_RECORDS_MAX || more > limits::LATE_BYTES_MAX)
        {
            continue;
        }
        (count, bytes) = (count + 1, more);
        tx.put_late(&run.id, &LateRow { number, at: journal.now(), write, record })?;
    }
    Ok(true)
}

/// Looks at what arrived, and settles the marker if it can be.
pub(super) fn look(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: &LookLate,
) -> Result<Option<Look>, OpError> {
    let Some(mut session) = session_now(tx, journal.ctx, &op.key)? else { return Ok(None) };
    let run = tx.run(&op.run_id)?.filter(|run| run.session_key() == op.key);
    let Some((mut run, pending)) = run.and_then(|run| run.late.map(|late| (run, late))) else {
        return Ok(None);
    };
    if let Some(lease) = &session.lease
        && lease.holder != op.node
        && !lease.expiry.passed(&journal.ctx.boot)
    {
        return Err(Refusal::Held { node: lease.holder.clone(), since: lease.since }.into());
    }
    let now = journal.now();
    // Out of budget, nothing is read any more.
    let mut rows =
        if late::out_of_budget(&pending, now) { Vec::new() } else { tx.late(&op.run_id)? };
    // A write whose answer its owner never heard may have been committed: it is in the run already.
    // (Nothing is committed any more now that the run has its end.)
    for row in &mut rows {
        if row.write <= run.writes && row.record != LateRecord::Sealed {
            row.record = LateRecord::Text(String::new());
        }
    }
    let mut visible = false;
    for row in &rows {
        visible |= match &row.record {
            LateRecord::Text(text) | LateRecord::Reasoning(text) => !text.is_empty(),
            LateRecord::CallFinished { call_id, state, .. } => {
                open_call(tx, &run, call_id, *state)?.is_some()
            }
            LateRecord::Sealed => false,
        };
    }
    let arrived = Arrived {
        visible,
        sealed: op.holder_gone || rows.iter().any(|row| row.record == LateRecord::Sealed),
        last_at: rows.iter().map(|row| row.at).max(),
    };
    let look = late::decide(&pending, &arrived, now);
    match look {
        Look::Wait => return Ok(Some(look)),
        Look::Spend => {
            run.late = Some(late::Pending { attempts: pending.attempts + 1, ..pending });
            tx.put_run(&run)?;
            return Ok(Some(look));
        }
        Look::Promote => promote(tx, journal, &mut session, &run, rows)?,
        Look::GiveUp => {}
    }
    journal.sync();
    let output = if look == Look::Promote { Output::Recovered } else { Output::Lost };
    run.late = None;
    tx.clear_late(&run.id)?;
    tx.put_run(&run)?;
    rewrite_marker(tx, journal, &mut session, &run, output)?;
    // Not a change that lists go by: nobody did anything.
    tx.put_session(&session)?;
    if session.interrupted.as_ref() == Some(&run.id) {
        journal.emit_session(tx, &mut session)?;
        tx.put_session(&session)?;
    }
    Ok(Some(look))
}

/// Sets why an interrupted run is not continued, or that it is, in its row and in its marker. How the
/// matter was closed is in the row only.
pub(super) fn park(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
    parked: Option<Parked>,
) -> Result<(), StorageError> {
    if run.parked == parked {
        return Ok(());
    }
    run.parked = parked;
    tx.put_run(run)?;
    if parked.is_some_and(Parked::closes) {
        return Ok(());
    }
    tx.put_session(session)?;
    let output = known_output(tx, run)?;
    rewrite_marker(tx, journal, session, run, output)?;
    tx.put_session(session)
}

/// What became of an interrupted run's unfinished output, as its rows tell.
fn known_output(tx: &mut dyn Tx, run: &Run) -> Result<Output, StorageError> {
    if run.late.is_some() {
        return Ok(Output::Pending);
    }
    let key = run.session_key();
    let marker = match run.marker_id {
        Some(id) => tx.message(&key, id)?,
        None => None,
    };
    let Some(marker) = marker else { return Ok(Output::Nothing) };
    let above = tx.message_above(&key, &marker.position)?;
    let recovered = above.is_some_and(|row| row.recovered && row.run_id.as_ref() == Some(&run.id));
    // Nothing was pending, or it came: where something had not come, its cause says so.
    let lost = run.cause.is_some_and(recovery::may_be_late) && !recovered;
    Ok(match (recovered, lost) {
        (true, _) => Output::Recovered,
        (false, true) => Output::Lost,
        (false, false) => Output::Nothing,
    })
}

/// Writes the text of an interruption's marker anew, after what is known of it changed.
fn rewrite_marker(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    output: Output,
) -> Result<(), StorageError> {
    let (Some(id), Some(evidence)) = (run.marker_id, &run.evidence) else { return Ok(()) };
    let Some(mut marker) = tx.message(&session.key(), id)? else { return Ok(()) };
    let cause = run.cause.unwrap_or(Cause::Unknown);
    marker.content = Content::text(recovery::marker(evidence, cause, output, run.parked));
    tx.put_message(&session.key(), &marker)?;
    journal.emit(tx, session, &Event::MessageUpdated(marker))
}

/// A call of a run whose outcome is unknown, if this would be its outcome.
fn open_call(
    tx: &mut dyn Tx,
    run: &Run,
    id: &everturn_core::CallId,
    state: CallState,
) -> Result<Option<ToolCall>, StorageError> {
    if !matches!(state, CallState::Succeeded | CallState::Failed) {
        return Ok(None);
    }
    let call = tx.call(id)?;
    // One that a continuation took over is that one's to settle.
    Ok(call.filter(|call| call.run_id == run.id && call.state == CallState::Unknown))
}

/// Puts what arrived into the transcript, directly above the marker, in its order.
fn promote(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    rows: Vec<LateRow>,
) -> Result<(), StorageError> {
    let key = session.key();
    let Some(marker) = run.marker_id.map(|id| tx.message(&key, id)).transpose()?.flatten() else {
        return Ok(());
    };
    let above = tx.message_above(&key, &marker.position)?;
    let mut at = above.as_ref().map_or_else(|| appended_position(0), |row| row.position.clone());
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut finished = Vec::new();
    for row in rows {
        match row.record {
            LateRecord::Text(more) => text.push_str(&more),
            LateRecord::Reasoning(more) => reasoning.push_str(&more),
            LateRecord::CallFinished { call_id, state, result } => {
                if let Some(call) = open_call(tx, run, &call_id, state)? {
                    let mut call = call;
                    call.state = state;
                    call.result = Some(result.clone());
                    call.ended_at = Some(row.at);
                    tx.put_call(&call)?;
                    finished.push((call, result));
                }
            }
            LateRecord::Sealed => {}
        }
    }
    if !(text.is_empty() && reasoning.is_empty()) {
        let begun = above.filter(|row| {
            row.recovered && row.role == Role::Assistant && row.run_id.as_ref() == Some(&run.id)
        });
        match begun {
            // The same answer, of which the beginning was recorded.
            Some(mut row) => {
                if !text.is_empty() {
                    row.content = Content::text(row.content.plain() + &text);
                }
                if !reasoning.is_empty() {
                    row.reasoning = Some(row.reasoning.unwrap_or_default() + &reasoning);
                }
                tx.put_message(&key, &row)?;
                journal.emit(tx, session, &Event::MessageUpdated(row))?;
            }
            None => {
                let content =
                    if text.is_empty() { Content::default() } else { Content::text(text) };
                at = position_behind(&at);
                insert(tx, journal, session, run, Role::Assistant, &at, content, |row| {
                    row.reasoning = (!reasoning.is_empty()).then_some(reasoning);
                })?;
            }
        }
    }
    for (call, result) in finished {
        at = position_behind(&at);
        let id = call.id.clone();
        insert(tx, journal, session, run, Role::Tool, &at, Content::text(result), |row| {
            row.tool_call_id = Some(id);
        })?;
        if let Some(row) = tx.message(&key, call.message_id)? {
            journal.emit(tx, session, &Event::MessageUpdated(row))?;
        }
    }
    Ok(())
}

/// Adds a recovered row at a position of its own.
#[allow(clippy::too_many_arguments, reason = "the row's fields, and where it goes")]
fn insert(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    role: Role,
    position: &str,
    content: Content,
    fill: impl FnOnce(&mut Message),
) -> Result<(), StorageError> {
    session.last_message_id += 1;
    let mut row = Message {
        id: session.last_message_id,
        position: position.to_owned(),
        role,
        kind: MessageKind::Message,
        content,
        reasoning: None,
        tool_calls: Vec::new(),
        tool_call_id: None,
        generation: Some(run.generation),
        run_id: Some(run.id.clone()),
        input_id: None,
        recovered: true,
        created_at: journal.now(),
    };
    fill(&mut row);
    tx.put_message(&session.key(), &row)?;
    journal.emit(tx, session, &Event::MessageAdded(row))
}
