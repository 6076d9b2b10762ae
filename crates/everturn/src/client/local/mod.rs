//! With the engine in this process, or with the store alone for commands that only read and tidy.

mod observe;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn_api::Code;
use everturn_api::input::{Input, Receipt, WaitingFor};
use everturn_api::message::Message;
use everturn_api::page::{CursorPage, Page};
use everturn_api::prompt::Prompt;
use everturn_api::request::SubmitInput;
use everturn_api::run::{Malformed, Run, RunEvents};
use everturn_api::session::Session;
use everturn_core as core;
use everturn_core::{
    Choice, Content, IdError, InputId, InputStatus, Lease, Mode, Principal, PromptId, RequestId,
    RunId, SessionId, SessionKey, SessionState, limits,
};
use everturn_engine::{Engine, live};
use everturn_sqlite::SqliteStore;
use everturn_store::op::{
    CancelInput, Decide as DecideOp, Decision, DeleteSession, EndSession, Stop,
};
use everturn_store::read::{MessageWindow, SessionFilter, SessionView, StoredEvent};
use everturn_store::{OpError, Read as _, Refusal, StorageError, Store as _, execute};
use serde_json::value::RawValue;

use super::{Client, Decide, Event, Feed, Item, Listing, Place, Window};
use crate::error::{CliError, Fault, Result};

/// How long a forced deletion waits for a running turn to end.
const FORCE_MAX: Duration = Duration::from_secs(10);

/// A client without a server.
pub(crate) struct LocalClient {
    store: Arc<SqliteStore>,
    engine: Option<Engine>,
    principal: Principal,
}

fn bad_id(error: &IdError) -> CliError {
    CliError::api(Code::BadId, format!("the id: {error}"))
}

impl LocalClient {
    /// Over a store, with an engine for commands that run turns.
    pub(crate) fn new(store: Arc<SqliteStore>, engine: Option<Engine>) -> Self {
        Self { store, engine, principal: Principal::local() }
    }

    fn key(&self, session: &str) -> Result<SessionKey> {
        let id = SessionId::new(session).map_err(|error| bad_id(&error))?;
        Ok(SessionKey { principal: self.principal.clone(), id })
    }

    fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().ok_or_else(|| CliError::api(Code::Internal, "no engine is open here"))
    }

    /// The session, or why there is none.
    async fn view(&self, key: &SessionKey) -> Result<SessionView> {
        match self.store.session(key).await? {
            Some(view) => Ok(view),
            None if self.store.tombstone(key).await?.is_some() => {
                Err(Refusal::SessionDeleted.into())
            }
            None => Err(Refusal::SessionNotFound.into()),
        }
    }

    async fn wire(&self, view: &SessionView) -> Result<Session> {
        let session = &view.session;
        let viewers = self.engine.as_ref().map_or(0, |engine| engine.viewers(&session.key()));
        let mut wire = Session::new(
            session,
            view.running.as_ref(),
            view.interrupted.as_ref(),
            view.chain_generation,
            viewers,
        );
        if let Some(run) = &view.running
            && observe::nobody_works(&self.store, run, session.lease.as_ref()).await
        {
            observe::session(&self.store, run, &mut wire).await?;
        }
        Ok(wire)
    }

    /// A lease, if it is another living process's.
    async fn other(&self, lease: Option<&Lease>) -> Option<WaitingFor> {
        let lease = observe::held_elsewhere(&self.store, lease).await?;
        Some(WaitingFor { node: lease.holder.to_string(), since: lease.since.rfc3339() })
    }

    /// An input of this principal.
    async fn own_input(&self, id: &InputId) -> Result<(core::Input, Option<u32>)> {
        let found = self.store.input(id).await?;
        found
            .filter(|(input, _)| input.principal == self.principal)
            .ok_or_else(|| Refusal::InputNotFound.into())
    }

    async fn own_run(&self, id: &str) -> Result<core::Run> {
        let id = RunId::new(id).map_err(|error| bad_id(&error))?;
        let found = self.store.run(&id).await?;
        found
            .filter(|run| run.principal == self.principal)
            .ok_or_else(|| Refusal::RunNotFound.into())
    }

    async fn run_wire(&self, run: &core::Run) -> Result<Run> {
        let mut wire = Run::from(run);
        if self.nobody_works(run).await? {
            observe::run(&self.store, run, &mut wire).await?;
        }
        Ok(wire)
    }

    /// Whether a run has no end and nobody who works on it.
    async fn nobody_works(&self, run: &core::Run) -> Result<bool> {
        let Some(view) = self.store.session(&run.session_key()).await? else { return Ok(false) };
        Ok(observe::nobody_works(&self.store, run, view.session.lease.as_ref()).await)
    }
}

struct LocalFeed {
    stream: live::Stream,
    wire: Box<dyn Fn(&SessionView) -> Session + Send + Sync>,
}

#[async_trait]
impl Feed for LocalFeed {
    async fn next(&mut self) -> Result<Item> {
        loop {
            let item = self.stream.next().await.map_err(passing)?;
            return Ok(match item {
                live::Item::Opened { .. } => Item::Opened,
                live::Item::CaughtUp { .. } => Item::CaughtUp,
                live::Item::End => Item::End,
                live::Item::Reset { reason, latest } => {
                    Item::Reset { reason: reason.to_owned(), latest }
                }
                live::Item::Frame(frame) => {
                    Item::Event(Box::new(Event::parse(&String::from_utf8_lossy(&frame.bytes))?))
                }
                live::Item::Snapshot(view) => {
                    let session = (self.wire)(&view);
                    let said = serde_json::json!({
                        "session_id": session.id,
                        "event": "session.updated",
                        "session": session,
                    });
                    Item::Event(Box::new(Event::parse(&said.to_string())?))
                }
                live::Item::Malformed { offset, error, .. } => {
                    tracing::warn!(offset, error, "a stored event cannot be read");
                    continue;
                }
            });
        }
    }
}

/// A storage failure while something is awaited: the store may be back in a moment.
fn passing(error: StorageError) -> CliError {
    CliError { passing: true, ..error.into() }
}

#[async_trait]
impl Client for LocalClient {
    fn place(&self) -> Place {
        Place::Here
    }

    async fn find_again(&self) -> Result<()> {
        Ok(())
    }

    async fn session(&self, id: &str) -> Result<Option<Session>> {
        match self.view(&self.key(id)?).await {
            Ok(view) => Ok(Some(self.wire(&view).await?)),
            Err(error) if error.is(Code::SessionNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn submit(&self, session: &str, input: &SubmitInput) -> Result<Receipt> {
        let engine = self.engine()?;
        let text = input.text.clone().unwrap_or_default();
        if text.len() > limits::TEXT_BYTES_MAX {
            let detail = format!("{} bytes, at most {}", text.len(), limits::TEXT_BYTES_MAX);
            return Err(CliError::api(Code::TextTooLarge, detail));
        }
        let content = Content::text(text);
        if content.is_blank() {
            return Err(CliError::api(Code::EmptyInput, ""));
        }
        let request_id = match &input.request_id {
            Some(id) => RequestId::new(id).map_err(|error| {
                CliError::api(Code::BadRequestId, format!("the request id: {error}"))
            })?,
            None => RequestId::from_uuid(self.store.clock().uuid()),
        };
        let mode = match input.mode.as_deref() {
            None => Mode::Queue,
            Some(word) => Mode::parse(word)
                .ok_or_else(|| CliError::api(Code::BadMode, format!("{word:?}")))?,
        };
        let submission = everturn_engine::Submission {
            key: self.key(session)?,
            request_id,
            mode,
            content,
            metadata: None,
        };
        let admitted = engine.submit(submission).await?;
        engine.adopt(&admitted.input.id);
        let mut receipt = Receipt::new(&admitted.input, admitted.position, admitted.replayed);
        if admitted.input.status != InputStatus::Terminal {
            receipt.waiting_for = self.other(admitted.holder.as_ref()).await;
        }
        Ok(receipt)
    }

    async fn input(&self, id: &str, wait: Duration) -> Result<Input> {
        let id = InputId::new(id).map_err(|error| bad_id(&error))?;
        if let Some(engine) = self.engine.as_ref().filter(|_| !wait.is_zero()) {
            engine.wait_input(&id, wait).await?;
        }
        let (input, position) = self.own_input(&id).await?;
        let mut wire = Input::new(&input, position);
        if input.status != InputStatus::Terminal
            && let Some(view) = self.store.session(&input.session_key()).await?
        {
            wire.receipt.waiting_for = self.other(view.session.lease.as_ref()).await;
        }
        Ok(wire)
    }

    async fn cancel_input(&self, id: &str) -> Result<()> {
        let input_id = InputId::new(id).map_err(|error| bad_id(&error))?;
        let principal = self.principal.clone();
        execute(&*self.store, CancelInput { principal, input_id }).await?;
        Ok(())
    }

    async fn inputs(&self, session: &str, status: Option<&str>) -> Result<Vec<Input>> {
        let key = self.key(session)?;
        self.view(&key).await?;
        let status = status.and_then(InputStatus::parse);
        // All of them, a page at a time: the queue is bounded, and so is each answer.
        let mut rows: Vec<core::Input> = Vec::new();
        loop {
            let last = rows.last().map(|row| row.id.clone());
            let limit = limits::PAGE_ROWS_MAX;
            let page = self.store.inputs(&key, status, last.as_ref(), limit).await?;
            let is_last = page.len() < limit as usize;
            rows.extend(page);
            if is_last {
                break;
            }
        }
        let place = |index: usize, input: &core::Input| {
            let index = u32::try_from(index + 1).ok();
            index.filter(|_| input.status == InputStatus::Queued)
        };
        Ok(rows.iter().enumerate().map(|(at, row)| Input::new(row, place(at, row))).collect())
    }

    async fn feed(&self, session: &str, after: Option<u64>, viewer: bool) -> Result<Box<dyn Feed>> {
        let engine = self.engine()?.clone();
        let key = self.key(session)?;
        self.view(&key).await?;
        let stream = engine.session_stream(&key, after, viewer).await.map_err(passing)?;
        let wire = move |view: &SessionView| {
            let viewers = engine.viewers(&view.session.key());
            let (running, interrupted) = (view.running.as_ref(), view.interrupted.as_ref());
            Session::new(&view.session, running, interrupted, view.chain_generation, viewers)
        };
        Ok(Box::new(LocalFeed { stream, wire: Box::new(wire) }))
    }

    async fn stop(&self, session: &str, generation: Option<u64>, keep_queue: bool) -> Result<()> {
        let key = self.key(session)?;
        let by = self.principal.clone();
        let stop = Stop { key, generation, run_id: None, by, keep_queue };
        execute(&*self.store, stop).await?;
        Ok(())
    }

    async fn answer(
        &self,
        prompt: &Prompt,
        choice: Option<&str>,
        text: Option<&str>,
    ) -> Result<()> {
        let id = PromptId::new(&prompt.id).map_err(|error| bad_id(&error))?;
        let choice = match choice {
            None => None,
            Some(word) => Some(Choice::parse(word).ok_or_else(|| {
                CliError::api(Code::BadRequest, format!("{word:?} is no choice"))
            })?),
        };
        let (principal, text) = (self.principal.clone(), text.map(str::to_owned));
        self.engine()?.answer(principal, id, prompt.generation, choice, text).await?;
        Ok(())
    }

    async fn decide(&self, session: &str, generation: u64, decision: Decide) -> Result<()> {
        let decision = match decision {
            Decide::Continue => Decision::Continue,
            Decide::Discard => Decision::Discard,
            Decide::Resend(text) => Decision::Resend(text),
        };
        let decide = DecideOp { key: self.key(session)?, generation, decision };
        let decided = *execute(&*self.store, decide).await?;
        if let (Some(engine), Some(input)) = (&self.engine, &decided.input) {
            engine.adopt(&input.id);
        }
        Ok(())
    }

    async fn run(&self, id: &str) -> Result<Run> {
        let run = self.own_run(id).await?;
        self.run_wire(&run).await
    }

    async fn runs(&self, session: &str, before: Option<u64>, limit: u32) -> Result<Page<Run>> {
        let key = self.key(session)?;
        self.view(&key).await?;
        let rows = self.store.runs(&key, before, limit.saturating_add(1)).await?;
        let has_more = rows.len() > limit as usize;
        let mut data = Vec::with_capacity(rows.len());
        for run in rows.iter().take(limit as usize) {
            data.push(self.run_wire(run).await?);
        }
        Ok(Page { data, has_more })
    }

    async fn run_events(&self, run: &str, after: u64, limit: u32) -> Result<RunEvents> {
        let run = self.own_run(run).await?;
        let (mut events, mut malformed) = (Vec::new(), Vec::new());
        for row in self.store.run_events(&run, after, None, limit).await? {
            match row {
                StoredEvent::Good(row) => {
                    let text = everturn_api::event::render(&row.head, &row.body);
                    let seq = row.head.run.as_ref().map_or(0, |(_, seq)| *seq);
                    match RawValue::from_string(text) {
                        Ok(raw) => events.push(raw),
                        Err(error) => {
                            malformed.push(Malformed { seq, error: error.to_string() });
                        }
                    }
                }
                StoredEvent::Malformed { seq, error, .. } => {
                    malformed.push(Malformed { seq: seq.unwrap_or(0), error });
                }
            }
        }
        let evidence = if self.nobody_works(&run).await? {
            Some(observe::evidence(&self.store, &run).await?.1)
        } else {
            None
        };
        Ok(RunEvents {
            run_id: run.id.to_string(),
            events,
            malformed,
            last_seq: run.last_seq,
            terminal: run.terminal_state.is_some(),
            terminal_state: run.terminal_state.map(|state| state.to_string()),
            interrupted_virtually: evidence.is_some(),
            evidence,
        })
    }

    async fn sessions(&self, listing: &Listing) -> Result<CursorPage<Session>> {
        let state = match listing.state.as_deref() {
            None => None,
            Some(word) => Some(SessionState::parse(word).ok_or_else(|| {
                let words: Vec<_> = SessionState::ALL.iter().map(|state| state.as_str()).collect();
                CliError::usage(format!("there is no state {word:?}"))
                    .hint(format!("one of {}", words.join(", ")))
            })?),
        };
        let cursor = match listing.cursor.as_deref() {
            None => None,
            Some(text) => Some(
                text.split_once(':')
                    .and_then(|(ms, id)| Some((ms.parse().ok()?, id.to_owned())))
                    .ok_or_else(|| CliError::api(Code::BadCursor, "the cursor is none of ours"))?,
            ),
        };
        let filter = SessionFilter { state, query: listing.query.clone(), cursor };
        let limit = listing.limit.min(limits::PAGE_ROWS_MAX);
        let rows = self.store.sessions(&self.principal, &filter, limit.saturating_add(1)).await?;
        let next_cursor = (rows.len() > limit as usize)
            .then(|| limit.checked_sub(1).and_then(|last| rows.get(last as usize)))
            .flatten()
            .map(|last| format!("{}:{}", last.session.updated_at.0, last.session.id));
        let mut data = Vec::with_capacity(rows.len());
        for view in rows.iter().take(limit as usize) {
            data.push(self.wire(view).await?);
        }
        Ok(CursorPage { data, next_cursor })
    }

    async fn messages(&self, session: &str, window: Window, limit: u32) -> Result<Page<Message>> {
        let key = self.key(session)?;
        self.view(&key).await?;
        let window = match window {
            Window::Last => MessageWindow::Last,
            Window::Before(id) => MessageWindow::Before(id),
            Window::After(id) => MessageWindow::After(id),
        };
        let (rows, has_more) = self.store.messages(&key, window, limit).await?;
        Ok(Page { data: rows.iter().map(Message::from).collect(), has_more })
    }

    async fn end_session(&self, session: &str, reason: &str) -> Result<Session> {
        let key = self.key(session)?;
        execute(&*self.store, EndSession { key: key.clone(), reason: reason.to_owned() }).await?;
        self.wire(&self.view(&key).await?).await
    }

    async fn delete_session(&self, session: &str, force: bool) -> Result<()> {
        let key = self.key(session)?;
        let deadline = tokio::time::Instant::now() + FORCE_MAX;
        loop {
            let delete = DeleteSession { key: key.clone(), expected_generation: None };
            match execute(&*self.store, delete).await {
                Err(OpError::Refused(Refusal::SessionBusy))
                    if force && tokio::time::Instant::now() < deadline => {}
                answer => return Ok(answer?),
            }
            let by = self.principal.clone();
            let stop =
                Stop { key: key.clone(), generation: None, run_id: None, by, keep_queue: false };
            match execute(&*self.store, stop).await {
                Ok(_) | Err(OpError::Refused(Refusal::NotRunning)) => {}
                Err(error) => return Err(error.into()),
            }
            // The turn is another process's: there is nothing to be woken by.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn close(&self) {
        if let Some(engine) = &self.engine {
            engine.close().await;
        }
    }
}

/// The session id that `text` names.
pub(crate) fn session_id(text: &str) -> Result<SessionId> {
    SessionId::new(text).map_err(|error| {
        CliError::new(Fault::Usage, format!("the session id {text:?}: {error}"))
            .hint("ids have 1 to 128 of A-Z a-z 0-9 _ . - and do not start with a dot")
    })
}
