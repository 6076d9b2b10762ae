//! Reading what is in memory.

use async_trait::async_trait;
use everturn_core::message::appended_position;
use everturn_core::{
    CallId, Input, InputId, InputStatus, Message, NodeId, Principal, Prompt, PromptId, PromptState,
    RequestId, Run, RunId, RunState, Session, SessionKey, SessionState, ToolCall,
};

use super::{MemoryStore, Rows};
use crate::error::StorageError;
use crate::in_flight::{self, InFlight};
use crate::read::{Counts, MessageWindow, Read, SessionFilter, SessionView, StoredEvent, Work};
use crate::rows::{Gap, Node, Token, Tombstone};
use crate::search::Needle;

type Result<T> = std::result::Result<T, StorageError>;

/// Sorts before every run id.
fn lowest_run() -> RunId {
    RunId::new("-").unwrap_or_else(|_| RunId::from_uuid(uuid::Uuid::nil()))
}

impl Rows {
    fn view(&self, session: &Session) -> SessionView {
        let run = |id: &Option<RunId>| id.as_ref().and_then(|id| self.runs.get(id)).cloned();
        let running = run(&session.running);
        let chain_generation = running.as_ref().map(|run| {
            let mut run = run;
            for _ in 0..100 {
                let before = run.continues.as_ref().and_then(|id| self.runs.get(id));
                let Some(before) = before else { break };
                run = before;
            }
            run.generation
        });
        SessionView {
            session: session.clone(),
            running,
            interrupted: run(&session.interrupted),
            chain_generation,
            present: self.presence(&session.key()),
        }
    }

    fn state(&self, session: &Session) -> SessionState {
        if let Some(id) = &session.running {
            let waits = self.runs.get(id).is_some_and(|run| run.state == RunState::Waiting);
            return if waits { SessionState::Waiting } else { SessionState::Running };
        }
        if session.ended_at.is_some() {
            SessionState::Ended
        } else if session.interrupted.is_some() {
            SessionState::Interrupted
        } else {
            SessionState::Idle
        }
    }

    /// The transcript in order.
    fn transcript(&self, key: &SessionKey) -> Vec<Message> {
        if !self.sessions.contains_key(key) {
            return Vec::new();
        }
        let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let mut all: Vec<Message> =
            self.messages.range(range).map(|(_, row)| self.with_calls(key, row)).collect();
        all.sort_by(|a, b| (&a.position, a.id).cmp(&(&b.position, b.id)));
        all
    }

    fn says(&self, session: &Session, needle: &Needle) -> bool {
        let titled = session.title.as_deref().is_some_and(|title| needle.is_in(title));
        let key = session.key();
        titled
            || self
                .messages
                .range((key.clone(), 0)..=(key, u64::MAX))
                .any(|(_, row)| needle.is_in(&row.content.plain()))
    }

    fn with_call(&self, prompt: &Prompt) -> (Prompt, Option<ToolCall>) {
        let call = prompt.call_id.as_ref().and_then(|id| self.calls.get(id)).cloned();
        (prompt.clone(), call)
    }
}

/// The rows for the picture of a turn.
struct Of<'a>(&'a Rows);

impl in_flight::Rows for Of<'_> {
    fn input(&mut self, id: &InputId) -> Result<Option<Input>> {
        Ok(self.0.input(id).cloned())
    }

    fn events(&mut self, run: &Run, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let events = self.0.run_events(run, after).take(limit as usize);
        Ok(events.cloned().map(StoredEvent::Good).collect())
    }

    fn calls(&mut self, run: &Run) -> Result<Vec<ToolCall>> {
        Ok(self.0.run_calls(&run.id))
    }

    fn open_prompts(&mut self, run: &Run) -> Result<Vec<(Prompt, Option<ToolCall>)>> {
        let mut open: Vec<&Prompt> = self
            .0
            .prompts
            .values()
            .filter(|prompt| prompt.run_id == run.id && prompt.state == PromptState::Open)
            .collect();
        open.sort_by(|a, b| (a.opened_at, &a.id).cmp(&(b.opened_at, &b.id)));
        Ok(open.into_iter().map(|prompt| self.0.with_call(prompt)).collect())
    }
}

#[async_trait]
impl Read for MemoryStore {
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionView>> {
        let rows = self.rows()?;
        Ok(rows.sessions.get(key).map(|session| rows.view(session)))
    }

    async fn session_in_flight(
        &self,
        key: &SessionKey,
    ) -> Result<Option<(SessionView, Option<InFlight>)>> {
        let rows = self.rows()?;
        let Some(view) = rows.sessions.get(key).map(|session| rows.view(session)) else {
            return Ok(None);
        };
        let mut of = Of(&rows);
        let picture = view.running.as_ref().map(|run| InFlight::read(&mut of, run)).transpose()?;
        Ok(Some((view, picture)))
    }

    async fn tombstone(&self, key: &SessionKey) -> Result<Option<Tombstone>> {
        Ok(self.rows()?.tombstones.get(key).cloned())
    }

    async fn sessions(
        &self,
        principal: &Principal,
        filter: &SessionFilter,
        limit: u32,
    ) -> Result<Vec<SessionView>> {
        let rows = self.rows()?;
        let place = |session: &Session| (session.updated_at.0, session.id.to_string());
        let needle = filter.query.as_deref().filter(|text| !text.is_empty()).map(Needle::new);
        let mut found: Vec<&Session> = rows
            .sessions
            .values()
            .filter(|session| session.principal == *principal)
            .filter(|session| filter.state.is_none_or(|state| rows.state(session) == state))
            .filter(|session| filter.cursor.as_ref().is_none_or(|after| place(session) < *after))
            .filter(|session| needle.as_ref().is_none_or(|needle| rows.says(session, needle)))
            .collect();
        found.sort_by_key(|session| std::cmp::Reverse(place(session)));
        Ok(found.into_iter().take(limit as usize).map(|session| rows.view(session)).collect())
    }

    async fn messages(
        &self,
        key: &SessionKey,
        window: MessageWindow,
        limit: u32,
    ) -> Result<(Vec<Message>, bool)> {
        let mut all = self.rows()?.transcript(key);
        let limit = limit as usize;
        let place = |id: u64| {
            let known = all.iter().find(|message| message.id == id);
            let at = known.map_or_else(|| appended_position(id), |known| known.position.clone());
            (at, id)
        };
        let stands = |message: &Message| (message.position.clone(), message.id);
        let from_end = match window {
            MessageWindow::Last => true,
            MessageWindow::Before(id) => {
                let at = place(id);
                all.retain(|message| stands(message) < at);
                true
            }
            MessageWindow::After(id) => {
                let at = place(id);
                all.retain(|message| stands(message) > at);
                false
            }
        };
        let more = all.len() > limit;
        if from_end {
            all.drain(..all.len().saturating_sub(limit));
        } else {
            all.truncate(limit);
        }
        Ok((all, more))
    }

    async fn transcript(&self, key: &SessionKey) -> Result<Vec<Message>> {
        Ok(self.rows()?.transcript(key))
    }

    async fn input(&self, id: &InputId) -> Result<Option<(Input, Option<u32>)>> {
        let rows = self.rows()?;
        Ok(rows.input(id).map(|input| {
            let waits = input.status == InputStatus::Queued;
            let position =
                waits.then(|| rows.queue_position(&input.session_key(), input.queue_key));
            (input.clone(), position)
        }))
    }

    async fn input_by_identity(
        &self,
        key: &SessionKey,
        request: &RequestId,
    ) -> Result<Option<Input>> {
        let rows = self.rows()?;
        let at = rows.input_by_identity.get(&(key.clone(), request.clone()));
        Ok(at.and_then(|at| rows.inputs.get(at)).cloned())
    }

    async fn inputs(
        &self,
        key: &SessionKey,
        status: Option<InputStatus>,
        after: Option<&InputId>,
        limit: u32,
    ) -> Result<Vec<Input>> {
        let rows = self.rows()?;
        let (after_key, first_no) = match after {
            None => (i64::MIN, 0),
            Some(id) => match rows.input_by_id.get(id).filter(|(of, _)| of == key) {
                Some(place) => {
                    (rows.inputs.get(place).map_or(i64::MAX, |row| row.queue_key), place.1 + 1)
                }
                None => return Ok(Vec::new()),
            },
        };
        if status == Some(InputStatus::Queued) {
            let mut waiting = rows.queued(key, u32::MAX);
            waiting.retain(|input| input.queue_key > after_key || after.is_none());
            waiting.truncate(limit as usize);
            return Ok(waiting);
        }
        Ok(rows
            .inputs
            .range((key.clone(), first_no)..=(key.clone(), u64::MAX))
            .map(|(_, input)| input)
            .filter(|input| status.is_none_or(|status| input.status == status))
            .take(limit as usize)
            .cloned()
            .collect())
    }

    async fn run(&self, id: &RunId) -> Result<Option<Run>> {
        Ok(self.rows()?.runs.get(id).cloned())
    }

    async fn runs(&self, key: &SessionKey, before: Option<u64>, limit: u32) -> Result<Vec<Run>> {
        let rows = self.rows()?;
        Ok(rows
            .runs_of_session
            .keys()
            .rev()
            .filter(|(of, generation, _)| {
                of == key && before.is_none_or(|before| *generation < before)
            })
            .filter_map(|(.., id)| rows.runs.get(id).cloned())
            .take(limit as usize)
            .collect())
    }

    async fn run_events(
        &self,
        run: &Run,
        after: u64,
        max: Option<u64>,
        limit: u32,
    ) -> Result<Vec<StoredEvent>> {
        let rows = self.rows()?;
        let Some(run) = rows.runs.get(&run.id) else { return Ok(Vec::new()) };
        let below = |seq: u64| max.is_none_or(|max| seq <= max);
        Ok(rows
            .run_events(run, after)
            .take_while(|row| row.head.run.as_ref().is_some_and(|(_, seq)| below(*seq)))
            .take(limit as usize)
            .cloned()
            .map(StoredEvent::Good)
            .collect())
    }

    async fn feed(&self, key: &SessionKey, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let Some(from) = after.checked_add(1) else { return Ok(Vec::new()) };
        let rows = self.rows()?;
        Ok(rows
            .events
            .range((key.clone(), from)..=(key.clone(), u64::MAX))
            .take(limit as usize)
            .map(|(_, row)| StoredEvent::Good(row.clone()))
            .collect())
    }

    async fn feed_bounds(&self, key: &SessionKey) -> Result<(u64, u64)> {
        let rows = self.rows()?;
        let Some(session) = rows.sessions.get(key) else { return Ok((1, 0)) };
        let first = rows.events.range((key.clone(), 0)..=(key.clone(), u64::MAX)).next();
        let earliest = first.map_or(session.last_offset + 1, |((_, offset), _)| *offset);
        Ok((earliest, session.last_offset))
    }

    async fn gaps(&self, key: &SessionKey) -> Result<Vec<Gap>> {
        let rows = self.rows()?;
        let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
        Ok(rows.gaps.range(range).map(|(_, gap)| gap.clone()).collect())
    }

    async fn run_calls(&self, run: &RunId) -> Result<Vec<ToolCall>> {
        Ok(self.rows()?.run_calls(run))
    }

    async fn call(&self, id: &CallId) -> Result<Option<ToolCall>> {
        Ok(self.rows()?.calls.get(id).cloned())
    }

    async fn prompt(&self, id: &PromptId) -> Result<Option<(Prompt, Option<ToolCall>)>> {
        let rows = self.rows()?;
        Ok(rows.prompts.get(id).map(|prompt| rows.with_call(prompt)))
    }

    async fn prompts(
        &self,
        key: &SessionKey,
        state: PromptState,
        after: Option<&PromptId>,
        limit: u32,
    ) -> Result<Vec<(Prompt, Option<ToolCall>)>> {
        let rows = self.rows()?;
        let place = |prompt: &Prompt| (prompt.opened_at, prompt.id.clone());
        let behind = match after {
            None => None,
            Some(id) => match rows.prompts.get(id) {
                Some(prompt)
                    if rows.prompts_of_session.contains_key(&(key.clone(), id.clone())) =>
                {
                    Some(place(prompt))
                }
                _ => return Ok(Vec::new()),
            },
        };
        let mut found: Vec<&Prompt> = rows
            .prompts_of_session
            .keys()
            .filter(|(of, _)| of == key)
            .filter_map(|(_, id)| rows.prompts.get(id))
            .filter(|prompt| prompt.state == state)
            .filter(|prompt| behind.as_ref().is_none_or(|behind| place(prompt) > *behind))
            .collect();
        found.sort_by(|a, b| (a.opened_at, &a.id).cmp(&(b.opened_at, &b.id)));
        Ok(found.into_iter().take(limit as usize).map(|prompt| rows.with_call(prompt)).collect())
    }

    async fn grants(&self, principal: &Principal) -> Result<Vec<String>> {
        let rows = self.rows()?;
        let mine = rows.grants.keys().filter(|(of, _)| of == principal);
        Ok(mine.map(|(_, tool)| tool.clone()).collect())
    }

    async fn late_runs(&self, key: &SessionKey, limit: u32) -> Result<Vec<Run>> {
        let rows = self.rows()?;
        let range = (key.clone(), 0, lowest_run())..;
        let mine = rows.runs_of_session.range(range).take_while(|((of, ..), ())| of == key);
        let runs = mine.filter_map(|((.., id), ())| rows.runs.get(id));
        Ok(runs.filter(|run| run.late.is_some()).take(limit as usize).cloned().collect())
    }

    async fn all_late_runs(&self, after: Option<&RunId>, limit: u32) -> Result<Vec<Run>> {
        let rows = self.rows()?;
        let mut runs: Vec<&Run> = rows
            .runs
            .values()
            .filter(|run| run.late.is_some() && after.is_none_or(|after| run.id > *after))
            .collect();
        runs.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(runs.into_iter().take(limit as usize).cloned().collect())
    }

    async fn parked(
        &self,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<(SessionKey, Run)>> {
        let rows = self.rows()?;
        let behind = rows.sessions.iter().filter(|(key, _)| after.is_none_or(|after| *key > after));
        let parked = behind.filter_map(|(key, session)| {
            let run = rows.runs.get(session.interrupted.as_ref()?)?;
            Some((key.clone(), run.clone()))
        });
        Ok(parked.take(limit as usize).collect())
    }

    async fn work(&self, after: Option<&Work>, limit: u32) -> Result<Vec<Work>> {
        let rows = self.rows()?;
        let mut busy: Vec<&Session> = rows
            .sessions
            .values()
            .filter(|session| session.running.is_some() || session.queue_length > 0)
            .filter(|session| {
                after.is_none_or(|after| {
                    (session.updated_at, session.key()) > (after.updated_at, after.key.clone())
                })
            })
            .collect();
        busy.sort_by_key(|session| (session.updated_at, session.key()));
        Ok(busy
            .into_iter()
            .take(limit as usize)
            .map(|session| Work {
                updated_at: session.updated_at,
                key: session.key(),
                lease: session.lease.clone(),
                epoch: session.epoch,
                running: session.running.as_ref().and_then(|id| rows.runs.get(id)).cloned(),
                queue_length: session.queue_length,
            })
            .collect())
    }

    async fn node(&self, id: &NodeId) -> Result<Option<Node>> {
        let rows = self.rows()?;
        Ok(rows.node_by_id.get(id).and_then(|at| rows.nodes.get(at)).cloned())
    }

    async fn node_number(&self, id: &NodeId) -> Result<Option<u64>> {
        Ok(self.rows()?.node_by_id.get(id).copied())
    }

    async fn nodes(&self, limit: u32) -> Result<Vec<Node>> {
        let rows = self.rows()?;
        let here = rows.nodes.values().rev().filter(|node| node.ended_at.is_none());
        Ok(here.take(limit as usize).cloned().collect())
    }

    async fn serve_starts(&self, home: &str, limit: u32) -> Result<Vec<Node>> {
        Ok(self.rows()?.serve_starts(home, limit))
    }

    async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Token>> {
        Ok(self.rows()?.tokens.values().find(|token| token.hash == *hash).cloned())
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        Ok(self.rows()?.tokens.values().cloned().collect())
    }

    async fn counts(&self) -> Result<Counts> {
        let rows = self.rows()?;
        let running = rows.sessions.values().filter(|session| session.running.is_some());
        Ok(Counts {
            sessions: rows.sessions.len() as u64,
            messages: rows.messages.len() as u64,
            queued: rows.queue.len() as u64,
            unfinished: running.count() as u64,
        })
    }
}
