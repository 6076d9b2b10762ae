//! The records of a turn: checked against the fence, applied in order, all or none.

use everturn_core::event::{End, Record};
use everturn_core::message::appended_position;
use everturn_core::recovery::Parked;
use everturn_core::{
    CallId, CallState, Content, Event, Failure, Message, MessageKind, NewCall, Outcome, Prompt,
    PromptState, Role, Run, RunId, RunState, Session, TerminalState, ToolCall, Usage, limits,
};
use everturn_crash::Point;

use super::admit::{decided_inputs, settle_input};
use super::journal::Journal;
use super::late::park;
use crate::error::{OpError, Refusal, StorageError};
use crate::op::{Fence, Signal, Write, Written};
use crate::read::StoredEvent;
use crate::tx::Tx;

pub(super) fn write(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    op: Write,
) -> Result<Written, OpError> {
    if let Some(number) = op.number
        && let Some(run) = tx.run(&op.fence.run_id)?
        && run.writes_epoch == op.fence.epoch
        && run.writes >= number
    {
        return Ok(Written { last_seq: run.last_seq, message_ids: Vec::new() });
    }
    let (mut session, mut run) = check(tx, &op.fence)?;
    let stopped = run.stop.is_some();
    let synced = op.records.iter().any(Record::synced);
    let mut turn = Turn { tx, journal, session: &mut session, run: &mut run, ids: Vec::new() };
    let mut ended = false;
    for record in op.records {
        if ended {
            return Err(Refusal::BadRecord("nothing comes after the end").into());
        }
        if stopped && !allowed_after_stop(&record) {
            return Err(Refusal::Stopped.into());
        }
        ended = turn.apply(record)?;
    }
    let ids = turn.ids;
    if let Some(number) = op.number {
        run.writes = number;
    }
    if synced {
        session.offset_ceiling =
            session.offset_ceiling.max(session.last_offset + limits::OFFSET_RESERVE);
    }
    tx.put_run(&run)?;
    tx.put_session(&session)?;
    Ok(Written { last_seq: run.last_seq, message_ids: ids })
}

/// The session and the run, if the fence still holds (promise P11).
fn check(tx: &mut dyn Tx, fence: &Fence) -> Result<(Session, Run), OpError> {
    let Some(session) = tx.session(&fence.session)? else { return Err(Refusal::Fenced.into()) };
    let holds = session.lease.as_ref().is_some_and(|lease| lease.holder == fence.node)
        && session.epoch == fence.epoch
        && session.generation == fence.generation
        && session.running.as_ref() == Some(&fence.run_id);
    let run = if holds { tx.run(&fence.run_id)? } else { None };
    match run {
        Some(run) if matches!(run.state, RunState::Running | RunState::Waiting) => {
            Ok((session, run))
        }
        _ => Err(Refusal::Fenced.into()),
    }
}

/// After a person's stop: what a tool under way returned is still true, and the turn must end.
fn allowed_after_stop(record: &Record) -> bool {
    matches!(
        record,
        Record::CallFinished { .. }
            | Record::CallOutput { .. }
            | Record::End(End::Cancelled { .. })
    )
}

/// The rows of the turn that records are applied to.
struct Turn<'t, 'j, 'c> {
    tx: &'t mut dyn Tx,
    journal: &'j mut Journal<'c>,
    session: &'t mut Session,
    run: &'t mut Run,
    ids: Vec<u64>,
}

impl Turn<'_, '_, '_> {
    /// Applies one record; `true` when the run has ended or was let go.
    fn apply(&mut self, record: Record) -> Result<bool, OpError> {
        match record {
            Record::TextResumed { message_id } => self.resume(message_id)?,
            Record::TextDelta(text) => self.emit(&Event::TextDelta(text))?,
            Record::ReasoningDelta(text) => self.emit(&Event::ReasoningDelta(text))?,
            Record::Step { text, reasoning, calls, usage } => {
                self.step(text, reasoning, calls, usage)?;
            }
            Record::CallAdopted(id) => self.adopt(&id)?,
            Record::CallStarted(id) => {
                let mut call = self.own_call(&id, CallState::Intended)?;
                call.state = CallState::Running;
                call.started_at = Some(self.journal.now());
                self.tx.put_call(&call)?;
            }
            Record::CallOutput { call_id, text } => {
                self.emit(&Event::ToolOutput { call_id, text })?;
            }
            Record::CallFinished { call_id, state, result } => {
                self.finish_call(&call_id, state, result)?;
            }
            Record::PromptOpened(prompt) => self.open_prompt(prompt)?,
            Record::PromptExpired(id) => {
                let prompt = self.tx.prompt(&id)?.ok_or(Refusal::PromptNotFound)?;
                if prompt.state == PromptState::Open && prompt.run_id == self.run.id {
                    self.close_prompt(prompt, PromptState::Expired)?;
                    self.refresh_waiting()?;
                }
            }
            Record::HandedOver => {
                self.hand_over()?;
                return Ok(true);
            }
            Record::End(end) => {
                self.end(end)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn emit(&mut self, event: &Event<everturn_api::session::Session>) -> Result<(), StorageError> {
        self.journal.emit_run(self.tx, self.session, self.run, event)
    }

    /// The model goes on writing a message that an interruption cut off.
    fn resume(&mut self, message_id: u64) -> Result<(), OpError> {
        if self.run.last_seq != self.run.step_seq {
            return Err(Refusal::BadRecord("a message is resumed where its step begins").into());
        }
        let message = self.tx.message(&self.session.key(), message_id)?;
        let fits = match message {
            Some(Message { role: Role::Assistant, recovered: true, run_id: Some(of), .. }) => {
                self.in_chain(&of)?
            }
            _ => false,
        };
        if !fits {
            return Err(Refusal::BadRecord("it goes on from no such message").into());
        }
        Ok(self.emit(&Event::TextResumed { message_id })?)
    }

    /// A model request ended: its text becomes a message, each call gets its intent record.
    fn step(
        &mut self,
        text: String,
        reasoning: Option<String>,
        calls: Vec<NewCall>,
        usage: Option<Usage>,
    ) -> Result<(), OpError> {
        let _records = everturn_crash::within(Point::StepRecord);
        if let Some(usage) = usage {
            self.use_tokens(&usage)?;
        }
        if let Some(message) = self.add_assistant(text, reasoning, calls, false)? {
            for call in &message.tool_calls {
                self.emit(&Event::ToolIntended(call.clone()))?;
            }
        }
        self.run.step_seq = self.run.last_seq;
        Ok(())
    }

    fn use_tokens(&mut self, usage: &Usage) -> Result<(), StorageError> {
        self.run.usage.get_or_insert_with(Usage::default).add(usage);
        self.emit(&Event::Usage(usage.clone()))
    }

    /// Adds what the model said to the transcript; nothing if it said and asked nothing.
    fn add_assistant(
        &mut self,
        text: String,
        reasoning: Option<String>,
        calls: Vec<NewCall>,
        recovered: bool,
    ) -> Result<Option<Message>, StorageError> {
        let reasoning = reasoning.filter(|text| !text.is_empty());
        if text.is_empty() && calls.is_empty() && reasoning.is_none() {
            return Ok(None);
        }
        let (key, run_id) = (self.session.key(), self.run.id.clone());
        let id = self.session.last_message_id + 1;
        let tool_calls: Vec<ToolCall> = calls
            .into_iter()
            .zip(0_u32..)
            .map(|(call, index)| ToolCall {
                id: call.id,
                session: key.clone(),
                run_id: run_id.clone(),
                message_id: id,
                index,
                provider_id: call.provider_id,
                name: call.name,
                arguments: call.arguments,
                effect: call.effect,
                schema: call.schema,
                state: CallState::Intended,
                result: None,
                started_at: None,
                ended_at: None,
            })
            .collect();
        for call in &tool_calls {
            self.tx.put_call(call)?;
        }
        let content = if text.is_empty() { Content::default() } else { Content::text(text) };
        let kind = said_kind(self.tx, self.run)?;
        let message = self.add_message(Role::Assistant, kind, content, |message| {
            message.reasoning = reasoning;
            message.tool_calls = tool_calls;
            message.recovered = recovered;
        })?;
        Ok(Some(message))
    }

    fn add_message(
        &mut self,
        role: Role,
        kind: MessageKind,
        content: Content,
        fill: impl FnOnce(&mut Message),
    ) -> Result<Message, StorageError> {
        let message =
            add_message(self.tx, self.journal, self.session, self.run, role, kind, content, fill)?;
        self.ids.push(message.id);
        Ok(message)
    }

    fn own_call(&mut self, id: &CallId, state: CallState) -> Result<ToolCall, OpError> {
        match self.tx.call(id)? {
            Some(call) if call.run_id == self.run.id && call.state == state => Ok(call),
            Some(_) => Err(Refusal::BadRecord("the call is not in the state for this").into()),
            None => Err(Refusal::BadRecord("there is no such call").into()),
        }
    }

    /// A continuation takes an unfinished call of its interrupted run over: one that never began,
    /// or one that declares itself safe to repeat (promise P9).
    fn adopt(&mut self, id: &CallId) -> Result<(), OpError> {
        let Some(mut call) = self.tx.call(id)? else {
            return Err(Refusal::BadRecord("there is no such call").into());
        };
        let mine = self.in_chain(&call.run_id)?;
        let safe = match call.state {
            CallState::NotRun => call.started_at.is_none(),
            CallState::Unknown => call.effect.repeatable(),
            _ => false,
        };
        if !(mine && safe) {
            return Err(Refusal::BadRecord("the call cannot be taken over").into());
        }
        call.run_id = self.run.id.clone();
        call.state = CallState::Intended;
        call.started_at = None;
        call.ended_at = None;
        call.result = None;
        self.tx.put_call(&call)?;
        self.emit(&Event::ToolIntended(call))?;
        self.run.step_seq = self.run.last_seq;
        Ok(())
    }

    /// Whether a run is one that this run goes on from, directly or through others.
    fn in_chain(&mut self, id: &RunId) -> Result<bool, StorageError> {
        let mut before = self.run.continues.clone();
        while let Some(run) = before {
            if run == *id {
                return Ok(true);
            }
            before = self.tx.run(&run)?.and_then(|run| run.continues);
        }
        Ok(false)
    }

    fn finish_call(
        &mut self,
        id: &CallId,
        state: CallState,
        result: String,
    ) -> Result<(), OpError> {
        let call = match self.tx.call(id)? {
            Some(call) if call.run_id == self.run.id && !call.state.settled() => call,
            Some(_) => return Err(Refusal::BadRecord("the call has its result").into()),
            None => return Err(Refusal::BadRecord("there is no such call").into()),
        };
        let began = call.state == CallState::Running;
        let fits = match state {
            CallState::Intended | CallState::Running => false,
            CallState::Denied => !began,
            // Also one that was let begin, and whose tool did nothing of it.
            CallState::NotRun => true,
            CallState::Succeeded | CallState::Failed | CallState::Unknown => began,
        };
        if !fits {
            return Err(Refusal::BadRecord("the call did not begin, or did").into());
        }
        self.settle_call(call, state, Some(result))?;
        self.run.step_seq = self.run.last_seq;
        Ok(())
    }

    fn settle_call(
        &mut self,
        call: ToolCall,
        state: CallState,
        result: Option<String>,
    ) -> Result<(), StorageError> {
        let id = settle_call(self.tx, self.journal, self.session, self.run, call, state, result)?;
        self.ids.extend(id);
        Ok(())
    }

    fn open_prompt(&mut self, prompt: Prompt) -> Result<(), OpError> {
        let fits = prompt.run_id == self.run.id
            && prompt.generation == self.run.generation
            && prompt.principal == self.session.principal
            && prompt.state == PromptState::Open;
        if !fits {
            return Err(Refusal::BadRecord("the prompt is not this turn's").into());
        }
        let call = match &prompt.call_id {
            Some(id) => self.tx.call(id)?,
            None => None,
        };
        self.tx.put_prompt(&prompt)?;
        self.run.state = RunState::Waiting;
        self.emit(&Event::PromptOpened(prompt, call))?;
        self.publish_session()?;
        Ok(())
    }

    fn close_prompt(&mut self, prompt: Prompt, state: PromptState) -> Result<(), StorageError> {
        close_prompt(self.tx, self.journal, self.session, self.run, prompt, state)
    }

    /// The run waits only as long as a prompt of it is open.
    fn refresh_waiting(&mut self) -> Result<(), StorageError> {
        if self.tx.open_prompts(&self.run.id)?.is_empty() && self.run.state == RunState::Waiting {
            self.run.state = RunState::Running;
            self.publish_session()?;
        }
        Ok(())
    }

    fn publish_session(&mut self) -> Result<(), StorageError> {
        // The snapshot reads rows.
        self.tx.put_run(self.run)?;
        self.tx.put_session(self.session)?;
        self.journal.emit_session(self.tx, self.session)
    }

    fn hand_over(&mut self) -> Result<(), OpError> {
        let unfinished = self.tx.run_calls(&self.run.id)?;
        if unfinished.iter().any(|call| call.state == CallState::Running) {
            return Err(Refusal::BadRecord("a call is under way").into());
        }
        self.run.state = RunState::HandedOver;
        self.session.lease = None;
        self.emit(&Event::RunHandedOver)?;
        self.run.step_seq = self.run.last_seq;
        self.publish_session()?;
        self.journal.signal(Signal::Released(self.session.key()));
        Ok(())
    }

    /// Settles the turn: final message, terminal record, outcome of its inputs (promise P4).
    fn end(&mut self, end: End) -> Result<(), OpError> {
        let _records = everturn_crash::within(Point::SettleRecord);
        let (state, event) = match end {
            End::Completed { text, reasoning, usage } => {
                if let Some(usage) = usage {
                    self.use_tokens(&usage)?;
                }
                // A model may finish without a word; its silence is still a row, so that the
                // answer has an id.
                let message = match self.add_assistant(text, reasoning, Vec::new(), false)? {
                    Some(message) => message,
                    None => {
                        let kind = said_kind(self.tx, self.run)?;
                        self.add_message(Role::Assistant, kind, Content::default(), |_| {})?
                    }
                };
                (TerminalState::Completed, Event::RunCompleted { message_id: message.id })
            }
            End::Failed { failure, text, reasoning } => {
                self.add_assistant(text, reasoning, Vec::new(), false)?;
                self.run.error = Some(failure.clone());
                (TerminalState::Failed, Event::RunFailed(failure))
            }
            End::Unprepared { failure } => return self.unprepared(failure),
            End::Cancelled { text, reasoning } => {
                self.add_assistant(text, reasoning, Vec::new(), false)?;
                let by = match &self.run.stop {
                    Some(stop) => stop.by.clone(),
                    None => return Err(Refusal::BadRecord("nobody stopped the turn").into()),
                };
                (TerminalState::Cancelled, Event::RunCancelled { by })
            }
        };
        seal(self.tx, self.journal, self.session, self.run)?;
        self.emit(&event)?;
        close_inputs(self.tx, self.journal, self.run, state.outcome())?;
        close_run(self.tx, self.journal, self.session, self.run, state)?;
        Ok(())
    }
}

impl Turn<'_, '_, '_> {
    /// A continuation that could not begin: its run failed, and the turn that it was to finish waits
    /// for the next chance, or a person, with as many attempts left as before.
    fn unprepared(&mut self, failure: Failure) -> Result<(), OpError> {
        let before = match &self.run.continues {
            Some(id) => self.tx.run(id)?,
            None => None,
        };
        let Some(mut before) = before else {
            return Err(Refusal::BadRecord("it goes on from nothing").into());
        };
        // Its journal has its beginning and nothing else.
        if self.run.last_seq != 1 {
            return Err(Refusal::BadRecord("the continuation has begun").into());
        }
        self.run.error = Some(failure.clone());
        self.emit(&Event::RunFailed(failure))?;
        for id in &self.run.input_ids {
            let Some(mut input) = self.tx.input(id)? else { continue };
            for mut decided in decided_inputs(self.tx, &input)? {
                settle_input(self.tx, self.journal, &mut decided, Outcome::Interrupted)?;
            }
            settle_input(self.tx, self.journal, &mut input, Outcome::Failed)?;
        }
        park(self.tx, self.journal, self.session, &mut before, Some(Parked::Unprepared))?;
        self.session.interrupted = Some(before.id);
        close_run(self.tx, self.journal, self.session, self.run, TerminalState::Failed)?;
        Ok(())
    }
}

/// The kind of row that the text of the step under way becomes: one of its own, or more of the
/// message that its first event names.
pub(super) fn said_kind(tx: &mut dyn Tx, run: &Run) -> Result<MessageKind, StorageError> {
    if run.continues.is_none() {
        return Ok(MessageKind::Message);
    }
    let resumed = Event::<()>::TextResumed { message_id: 0 }.name();
    let first = tx.run_events(run, run.step_seq, 1)?;
    Ok(match first.first() {
        Some(StoredEvent::Good(row)) if row.head.name == resumed => MessageKind::Resumed,
        _ => MessageKind::Message,
    })
}

/// Appends a row to the transcript.
#[allow(
    clippy::too_many_arguments,
    reason = "the rows of one turn, passed apart to be borrowed apart"
)]
pub(super) fn add_message(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &Run,
    role: Role,
    kind: MessageKind,
    content: Content,
    fill: impl FnOnce(&mut Message),
) -> Result<Message, StorageError> {
    session.last_message_id += 1;
    let mut message = Message {
        id: session.last_message_id,
        position: appended_position(session.last_message_id),
        role,
        kind,
        content,
        reasoning: None,
        tool_calls: Vec::new(),
        tool_call_id: None,
        generation: Some(run.generation),
        run_id: Some(run.id.clone()),
        input_id: None,
        recovered: false,
        created_at: journal.now(),
    };
    fill(&mut message);
    tx.put_message(&session.key(), &message)?;
    journal.emit(tx, session, &Event::MessageAdded(message.clone()))?;
    Ok(message)
}

/// Gives a call its final state; with a result, it becomes a row of the transcript as well.
pub(super) fn settle_call(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
    mut call: ToolCall,
    state: CallState,
    result: Option<String>,
) -> Result<Option<u64>, StorageError> {
    call.state = state;
    if state == CallState::NotRun {
        call.started_at = None;
    }
    call.ended_at = Some(journal.now());
    call.result.clone_from(&result);
    tx.put_call(&call)?;
    let id = call.id.clone();
    journal.emit_run(tx, session, run, &Event::ToolFinished(call))?;
    let Some(result) = result else { return Ok(None) };
    let message = add_message(
        tx,
        journal,
        session,
        run,
        Role::Tool,
        MessageKind::Message,
        Content::text(result),
        |message| message.tool_call_id = Some(id),
    )?;
    Ok(Some(message.id))
}

/// Closes a prompt that nobody answered.
pub(super) fn close_prompt(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
    mut prompt: Prompt,
    state: PromptState,
) -> Result<(), StorageError> {
    prompt.state = state;
    prompt.settled_at = Some(journal.now());
    tx.put_prompt(&prompt)?;
    let call = match &prompt.call_id {
        Some(id) => tx.call(id)?,
        None => None,
    };
    journal.emit_run(tx, session, run, &Event::PromptSettled(prompt, call))
}

/// Leaves nothing of a run open: prompts are withdrawn, calls get a final state.
pub(super) fn seal(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
) -> Result<(), StorageError> {
    for prompt in tx.open_prompts(&run.id)? {
        close_prompt(tx, journal, session, run, prompt, PromptState::Withdrawn)?;
    }
    for call in tx.run_calls(&run.id)? {
        let state = match call.state {
            CallState::Intended => CallState::NotRun,
            CallState::Running => CallState::Unknown,
            _ => continue,
        };
        // No row of the transcript: the view says what is known, and a continuation may yet bring
        // the result.
        settle_call(tx, journal, session, run, call, state, None)?;
    }
    Ok(())
}

/// Ends a run's rows: its state, its inputs' outcome, the session's turn and lease.
pub(super) fn close_run(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    session: &mut Session,
    run: &mut Run,
    state: TerminalState,
) -> Result<(), StorageError> {
    run.state = RunState::Ended;
    run.terminal_state = Some(state);
    run.ended_at = Some(journal.now());
    run.step_seq = run.last_seq;
    session.running = None;
    session.revision += 1;
    session.updated_at = journal.now();
    if session.queue_length == 0 {
        session.lease = None;
    }
    tx.put_run(run)?;
    tx.put_session(session)?;
    journal.emit_session(tx, session)?;
    journal.signal(Signal::Released(session.key()));
    Ok(())
}

/// Gives the inputs of a run, and those that continuations among them decide, their outcome.
pub(super) fn close_inputs(
    tx: &mut dyn Tx,
    journal: &mut Journal<'_>,
    run: &Run,
    outcome: Outcome,
) -> Result<(), StorageError> {
    for id in &run.input_ids {
        let Some(mut input) = tx.input(id)? else { continue };
        for mut decided in decided_inputs(tx, &input)? {
            settle_input(tx, journal, &mut decided, outcome)?;
        }
        settle_input(tx, journal, &mut input, outcome)?;
    }
    Ok(())
}
