//! One operation's rows in memory, with a log of how to take each change back.

use std::collections::BTreeMap;

use everturn_core::{
    CallId, Input, InputId, InputStatus, LeaseExpiry, Message, NodeId, Principal, Prompt, PromptId,
    PromptState, RequestId, Run, RunId, Session, SessionKey, Timestamp, TokenId, ToolCall,
};

use super::Rows;
use crate::error::StorageError;
use crate::op::EndedRun;
use crate::read::StoredEvent;
use crate::rows::{EventRow, Gap, LateRow, Node, Token, Tombstone};
use crate::tx::Tx;

type Result<T> = std::result::Result<T, StorageError>;
type Table<K, V> = fn(&mut Rows) -> &mut BTreeMap<K, V>;
/// How to take one change back.
pub(super) type Undo = Box<dyn FnOnce(&mut Rows) + Send>;

pub(super) struct RowTx<'r> {
    rows: &'r mut Rows,
    undo: Vec<Undo>,
}

impl<'r> RowTx<'r> {
    pub(super) fn new(rows: &'r mut Rows) -> Self {
        Self { rows, undo: Vec::new() }
    }

    pub(super) fn roll_back(self) {
        for undo in self.undo.into_iter().rev() {
            undo(self.rows);
        }
    }

    /// How to take everything back, in the order of the changes.
    pub(super) fn into_undo(self) -> Vec<Undo> {
        self.undo
    }

    /// Puts a row, or removes it.
    fn set<K, V>(&mut self, table: Table<K, V>, key: K, value: Option<V>)
    where
        K: Ord + Clone + Send + 'static,
        V: Send + 'static,
    {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            }
        }
        let before = put(table(self.rows), key.clone(), value);
        self.undo.push(Box::new(move |rows| {
            put(table(rows), key, before);
        }));
    }

    fn order(&mut self) -> u64 {
        // Not taken back: only the order counts.
        self.rows.clock += 1;
        self.rows.clock
    }

    /// Removes all rows of a session from a table keyed by session and number.
    fn clear<V: Send + 'static>(&mut self, table: Table<(SessionKey, u64), V>, key: &SessionKey) {
        let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let numbers: Vec<u64> = table(self.rows).range(range).map(|(at, _)| at.1).collect();
        for number in numbers {
            self.set(table, (key.clone(), number), None);
        }
    }

    fn remove_call(&mut self, id: &CallId) {
        if let Some(call) = self.rows.calls.get(id).cloned() {
            let (message, place) = (call.message_id, call.index);
            self.set(|rows| &mut rows.calls, id.clone(), None);
            self.set(
                |rows| &mut rows.calls_of_run,
                (call.run_id, message, place, id.clone()),
                None,
            );
            self.set(
                |rows| &mut rows.calls_of_message,
                (call.session, message, place, id.clone()),
                None,
            );
        }
    }

    fn remove_input(&mut self, at: &(SessionKey, u64)) {
        if let Some(input) = self.rows.inputs.get(at).cloned() {
            let identity = (at.0.clone(), input.request_id);
            self.set(|rows| &mut rows.queue, (at.0.clone(), input.queue_key, at.1), None);
            self.set(|rows| &mut rows.input_by_identity, identity, None);
            self.set(|rows| &mut rows.input_by_id, input.id, None);
            self.set(|rows| &mut rows.inputs, at.clone(), None);
        }
    }
}

impl Rows {
    pub(super) fn queued(&self, key: &SessionKey, limit: u32) -> Vec<Input> {
        let range = (key.clone(), i64::MIN, 0)..=(key.clone(), i64::MAX, u64::MAX);
        self.queue
            .range(range)
            .filter_map(|((_, _, order), ())| self.inputs.get(&(key.clone(), *order)).cloned())
            .take(limit as usize)
            .collect()
    }

    pub(super) fn queue_position(&self, key: &SessionKey, queue_key: i64) -> u32 {
        let range = (key.clone(), i64::MIN, 0)..=(key.clone(), queue_key, u64::MAX);
        u32::try_from(self.queue.range(range).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn input(&self, id: &InputId) -> Option<&Input> {
        self.input_by_id.get(id).and_then(|at| self.inputs.get(at))
    }

    pub(super) fn run_events(&self, run: &Run, after: u64) -> impl Iterator<Item = &EventRow> {
        let key = run.session_key();
        let first = run.first_offset.saturating_add(after);
        self.events.range((key.clone(), first)..=(key, u64::MAX)).map(|(_, row)| row).filter(
            move |row| row.head.run.as_ref().is_some_and(|(id, seq)| *id == run.id && *seq > after),
        )
    }

    pub(super) fn run_calls(&self, run: &RunId) -> Vec<ToolCall> {
        self.calls_of_run
            .range((run.clone(), 0, 0, lowest())..)
            .take_while(|((of, ..), ())| of == run)
            .filter_map(|((.., id), ())| self.calls.get(id).cloned())
            .collect()
    }

    pub(super) fn with_calls(&self, key: &SessionKey, message: &Message) -> Message {
        let mut message = message.clone();
        if message.role == everturn_core::Role::Assistant {
            message.tool_calls = self
                .calls_of_message
                .range((key.clone(), message.id, 0, lowest())..)
                .take_while(|((of, id, ..), ())| of == key && *id == message.id)
                .filter_map(|((.., id), ())| self.calls.get(id).cloned())
                .collect();
        }
        message
    }

    pub(super) fn serve_starts(&self, home: &str, limit: u32) -> Vec<Node> {
        let serving = self.nodes.values().rev().filter(|n| n.home == home && n.role == "serve");
        serving.take(limit as usize).cloned().collect()
    }

    pub(super) fn presence(&self, key: &SessionKey) -> Vec<NodeId> {
        let all = self.presence.keys().filter(|(of, _)| of == key);
        all.map(|(_, node)| node.clone()).collect()
    }
}

/// Sorts before every call id.
fn lowest() -> CallId {
    // `-` is the lowest character that an id may begin with.
    CallId::new("-").unwrap_or_else(|_| CallId::from_uuid(uuid::Uuid::nil()))
}

impl Tx for RowTx<'_> {
    fn session(&mut self, key: &SessionKey) -> Result<Option<Session>> {
        Ok(self.rows.sessions.get(key).cloned())
    }

    fn put_session(&mut self, row: &Session) -> Result<()> {
        self.set(|rows| &mut rows.sessions, row.key(), Some(row.clone()));
        Ok(())
    }

    fn count_sessions(&mut self, principal: &Principal) -> Result<u64> {
        let count = self.rows.sessions.keys().filter(|key| key.principal == *principal).count();
        Ok(count as u64)
    }

    fn delete_session(&mut self, key: &SessionKey) -> Result<()> {
        if !self.rows.sessions.contains_key(key) {
            return Ok(());
        }
        self.set(|rows| &mut rows.sessions, key.clone(), None);
        self.clear(|rows| &mut rows.events, key);
        self.clear(|rows| &mut rows.gaps, key);
        self.clear(|rows| &mut rows.messages, key);
        let runs: Vec<RunId> = self
            .rows
            .runs
            .values()
            .filter(|r| r.session_key() == *key)
            .map(|r| r.id.clone())
            .collect();
        for id in &runs {
            self.clear_late(id)?;
        }
        let calls: Vec<CallId> =
            self.rows.calls.values().filter(|c| c.session == *key).map(|c| c.id.clone()).collect();
        for id in &calls {
            self.remove_call(id);
        }
        let prompts: Vec<PromptId> = self
            .rows
            .prompts_of_session
            .keys()
            .filter(|(of, _)| of == key)
            .map(|(_, id)| id.clone())
            .collect();
        for id in prompts {
            if let Some(prompt) = self.rows.prompts.get(&id).cloned() {
                self.set(|rows| &mut rows.prompts_of_run, (prompt.run_id, id.clone()), None);
            }
            self.set(|rows| &mut rows.prompts_of_session, (key.clone(), id.clone()), None);
            self.set(|rows| &mut rows.prompts, id, None);
        }
        for node in self.rows.presence(key) {
            self.set(|rows| &mut rows.presence, (key.clone(), node), None);
        }
        let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let inputs: Vec<_> =
            self.rows.inputs.range(range).map(|(at, row)| (at.clone(), row.clone())).collect();
        for (at, mut input) in inputs {
            input.content = everturn_core::Content::default();
            input.metadata = None;
            self.set(|rows| &mut rows.inputs, at, Some(input));
        }
        let runs: Vec<Run> =
            self.rows.runs.values().filter(|run| run.session_key() == *key).cloned().collect();
        for mut run in runs {
            run.error = None;
            run.late = None;
            self.set(|rows| &mut rows.pruned, run.id.clone(), Some(None));
            self.set(|rows| &mut rows.runs, run.id.clone(), Some(run));
        }
        Ok(())
    }

    fn tombstone(&mut self, key: &SessionKey) -> Result<Option<Tombstone>> {
        Ok(self.rows.tombstones.get(key).cloned())
    }

    fn put_tombstone(&mut self, key: &SessionKey, row: &Tombstone) -> Result<()> {
        self.set(|rows| &mut rows.tombstones, key.clone(), Some(row.clone()));
        Ok(())
    }

    fn input(&mut self, id: &InputId) -> Result<Option<Input>> {
        Ok(self.rows.input(id).cloned())
    }

    fn input_by_identity(
        &mut self,
        key: &SessionKey,
        request: &RequestId,
    ) -> Result<Option<Input>> {
        let at = self.rows.input_by_identity.get(&(key.clone(), request.clone()));
        Ok(at.and_then(|at| self.rows.inputs.get(at)).cloned())
    }

    fn put_input(&mut self, row: &Input) -> Result<()> {
        let key = row.session_key();
        let at = match self.rows.input_by_id.get(&row.id).cloned() {
            Some(at) => at,
            None => (key.clone(), self.order()),
        };
        if let Some(before) = self.rows.inputs.get(&at) {
            let queued = (at.0.clone(), before.queue_key, at.1);
            self.set(|rows| &mut rows.queue, queued, None);
        }
        if row.status == InputStatus::Queued {
            let queued = (at.0.clone(), row.queue_key, at.1);
            self.set(|rows| &mut rows.queue, queued, Some(()));
        }
        let identity = (key, row.request_id.clone());
        self.set(|rows| &mut rows.input_by_identity, identity, Some(at.clone()));
        self.set(|rows| &mut rows.input_by_id, row.id.clone(), Some(at.clone()));
        self.set(|rows| &mut rows.inputs, at, Some(row.clone()));
        Ok(())
    }

    fn queued(&mut self, key: &SessionKey, limit: u32) -> Result<Vec<Input>> {
        Ok(self.rows.queued(key, limit))
    }

    fn queue_position(&mut self, key: &SessionKey, queue_key: i64) -> Result<u32> {
        Ok(self.rows.queue_position(key, queue_key))
    }

    fn run(&mut self, id: &RunId) -> Result<Option<Run>> {
        Ok(self.rows.runs.get(id).cloned())
    }

    fn put_run(&mut self, row: &Run) -> Result<()> {
        let of = (row.session_key(), row.generation, row.id.clone());
        self.set(|rows| &mut rows.runs_of_session, of, Some(()));
        self.set(|rows| &mut rows.runs, row.id.clone(), Some(row.clone()));
        Ok(())
    }

    fn push_event(&mut self, key: &SessionKey, row: &EventRow) -> Result<()> {
        let at = (key.clone(), row.head.offset);
        self.set(|rows| &mut rows.events, at, Some(row.clone()));
        Ok(())
    }

    fn run_events(&mut self, run: &Run, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let events = self.rows.run_events(run, after).take(limit as usize);
        Ok(events.cloned().map(StoredEvent::Good).collect())
    }

    fn remove_events(&mut self, key: &SessionKey, from: u64, to: u64) -> Result<()> {
        let range = (key.clone(), from)..=(key.clone(), to);
        let places: Vec<_> = self.rows.events.range(range).map(|(at, _)| at.clone()).collect();
        for at in places {
            self.set(|rows| &mut rows.events, at, None);
        }
        Ok(())
    }

    fn prunable(
        &mut self,
        before: Timestamp,
        after: Option<&EndedRun>,
        limit: u32,
    ) -> Result<Vec<(Run, u64)>> {
        let mut found: Vec<(EndedRun, u64)> = self
            .rows
            .runs
            .values()
            .filter_map(|run| {
                let ended_at = run.ended_at.filter(|at| *at < before)?;
                let to = self.rows.pruned.get(&run.id).copied().unwrap_or(Some(0))?;
                Some((EndedRun { ended_at, id: run.id.clone() }, to))
            })
            .filter(|(place, _)| after.is_none_or(|after| place > after))
            .collect();
        found.sort();
        let runs = found.into_iter().take(limit as usize);
        Ok(runs.filter_map(|(at, to)| Some((self.rows.runs.get(&at.id)?.clone(), to))).collect())
    }

    fn put_pruned(&mut self, run: &RunId, to: Option<u64>) -> Result<()> {
        self.set(|rows| &mut rows.pruned, run.clone(), Some(to));
        Ok(())
    }

    fn put_gap(&mut self, key: &SessionKey, _run: &RunId, gap: &Gap) -> Result<()> {
        self.set(|rows| &mut rows.gaps, (key.clone(), gap.from_offset), Some(gap.clone()));
        Ok(())
    }

    fn put_message(&mut self, key: &SessionKey, row: &Message) -> Result<()> {
        let row = Message { tool_calls: Vec::new(), ..row.clone() };
        self.set(|rows| &mut rows.messages, (key.clone(), row.id), Some(row));
        Ok(())
    }

    fn message_above(&mut self, key: &SessionKey, position: &str) -> Result<Option<Message>> {
        let all = self.rows.messages.range((key.clone(), 0)..=(key.clone(), u64::MAX));
        let above = all.map(|(_, row)| row).filter(|row| row.position.as_str() < position);
        let row = above.max_by(|a, b| a.position.cmp(&b.position));
        Ok(row.map(|row| self.rows.with_calls(key, row)))
    }

    fn message(&mut self, key: &SessionKey, id: u64) -> Result<Option<Message>> {
        let row = self.rows.messages.get(&(key.clone(), id));
        Ok(row.map(|row| self.rows.with_calls(key, row)))
    }

    fn call(&mut self, id: &CallId) -> Result<Option<ToolCall>> {
        Ok(self.rows.calls.get(id).cloned())
    }

    fn put_call(&mut self, row: &ToolCall) -> Result<()> {
        self.remove_call(&row.id);
        let (message, place, id) = (row.message_id, row.index, row.id.clone());
        let of_run = (row.run_id.clone(), message, place, id.clone());
        self.set(|rows| &mut rows.calls_of_run, of_run, Some(()));
        let of_message = (row.session.clone(), message, place, id.clone());
        self.set(|rows| &mut rows.calls_of_message, of_message, Some(()));
        self.set(|rows| &mut rows.calls, id, Some(row.clone()));
        Ok(())
    }

    fn run_calls(&mut self, run: &RunId) -> Result<Vec<ToolCall>> {
        Ok(self.rows.run_calls(run))
    }

    fn put_late(&mut self, run: &RunId, row: &LateRow) -> Result<()> {
        self.set(|rows| &mut rows.late, (run.clone(), row.number), Some(row.clone()));
        Ok(())
    }

    fn late(&mut self, run: &RunId) -> Result<Vec<LateRow>> {
        let range = (run.clone(), 0)..=(run.clone(), u64::MAX);
        Ok(self.rows.late.range(range).map(|(_, row)| row.clone()).collect())
    }

    fn clear_late(&mut self, run: &RunId) -> Result<()> {
        for row in self.late(run)? {
            self.set(|rows| &mut rows.late, (run.clone(), row.number), None);
        }
        Ok(())
    }

    fn prompt(&mut self, id: &PromptId) -> Result<Option<Prompt>> {
        Ok(self.rows.prompts.get(id).cloned())
    }

    fn put_prompt(&mut self, row: &Prompt) -> Result<()> {
        let key = SessionKey { principal: row.principal.clone(), id: row.session_id.clone() };
        self.set(|rows| &mut rows.prompts_of_session, (key, row.id.clone()), Some(()));
        let of_run = (row.run_id.clone(), row.id.clone());
        self.set(|rows| &mut rows.prompts_of_run, of_run, Some(()));
        self.set(|rows| &mut rows.prompts, row.id.clone(), Some(row.clone()));
        Ok(())
    }

    fn open_prompts(&mut self, run: &RunId) -> Result<Vec<Prompt>> {
        let mut open: Vec<Prompt> = self
            .rows
            .prompts_of_run
            .keys()
            .filter(|(of, _)| of == run)
            .filter_map(|(_, id)| self.rows.prompts.get(id))
            .filter(|prompt| prompt.state == PromptState::Open)
            .cloned()
            .collect();
        open.sort_by(|a, b| (a.opened_at, &a.id).cmp(&(b.opened_at, &b.id)));
        Ok(open)
    }

    fn put_grant(&mut self, principal: &Principal, tool: &str) -> Result<()> {
        self.set(|rows| &mut rows.grants, (principal.clone(), tool.to_owned()), Some(()));
        Ok(())
    }

    fn remove_grant(&mut self, principal: &Principal, tool: &str) -> Result<bool> {
        let key = (principal.clone(), tool.to_owned());
        let known = self.rows.grants.contains_key(&key);
        self.set(|rows| &mut rows.grants, key, None);
        Ok(known)
    }

    fn node(&mut self, id: &NodeId) -> Result<Option<Node>> {
        let at = self.rows.node_by_id.get(id);
        Ok(at.and_then(|at| self.rows.nodes.get(at)).cloned())
    }

    fn put_node(&mut self, row: &Node) -> Result<()> {
        let at = match self.rows.node_by_id.get(&row.id) {
            Some(at) => *at,
            None => self.order(),
        };
        self.set(|rows| &mut rows.node_by_id, row.id.clone(), Some(at));
        self.set(|rows| &mut rows.nodes, at, Some(row.clone()));
        Ok(())
    }

    fn serve_starts(&mut self, home: &str, limit: u32) -> Result<Vec<Node>> {
        Ok(self.rows.serve_starts(home, limit))
    }

    fn renew(&mut self, node: &NodeId, expiry: &LeaseExpiry) -> Result<Vec<(RunId, bool)>> {
        let held: Vec<Session> = self
            .rows
            .sessions
            .values()
            .filter(|session| session.lease.as_ref().is_some_and(|lease| lease.holder == *node))
            .cloned()
            .collect();
        let mut running = Vec::new();
        for mut session in held {
            let run = session.running.as_ref().and_then(|id| self.rows.runs.get(id));
            running.extend(run.map(|run| (run.id.clone(), run.stop.is_some())));
            if let Some(lease) = &mut session.lease {
                lease.expiry = expiry.clone();
            }
            self.put_session(&session)?;
        }
        Ok(running)
    }

    fn put_presence(&mut self, key: &SessionKey, node: &NodeId, present: bool) -> Result<()> {
        if self.rows.sessions.contains_key(key) {
            let row = present.then_some(());
            self.set(|rows| &mut rows.presence, (key.clone(), node.clone()), row);
        }
        Ok(())
    }

    fn clear_presence(&mut self, node: &NodeId) -> Result<()> {
        let of = self.rows.presence.keys().filter(|(_, of)| of == node);
        let keys: Vec<SessionKey> = of.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.set(|rows| &mut rows.presence, (key, node.clone()), None);
        }
        Ok(())
    }

    fn presence(&mut self, key: &SessionKey) -> Result<Vec<NodeId>> {
        Ok(self.rows.presence(key))
    }

    fn token(&mut self, id: &TokenId) -> Result<Option<Token>> {
        let at = self.rows.token_by_id.get(id);
        Ok(at.and_then(|at| self.rows.tokens.get(at)).cloned())
    }

    fn put_token(&mut self, row: &Token) -> Result<()> {
        let at = match self.rows.token_by_id.get(&row.id) {
            Some(at) => *at,
            None => self.order(),
        };
        self.set(|rows| &mut rows.token_by_id, row.id.clone(), Some(at));
        self.set(|rows| &mut rows.tokens, at, Some(row.clone()));
        Ok(())
    }

    fn prune_tombstones(&mut self, before: Timestamp) -> Result<u64> {
        let old: Vec<SessionKey> = self
            .rows
            .tombstones
            .iter()
            .filter(|(_, row)| row.deleted_at < before)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &old {
            let range = (key.clone(), 0)..=(key.clone(), u64::MAX);
            let inputs: Vec<_> = self.rows.inputs.range(range).map(|(at, _)| at.clone()).collect();
            for at in &inputs {
                self.remove_input(at);
            }
            let of = self.rows.runs_of_session.keys().filter(|(of, ..)| of == key);
            let runs: Vec<_> = of.cloned().collect();
            for at in runs {
                self.set(|rows| &mut rows.pruned, at.2.clone(), None);
                self.set(|rows| &mut rows.runs, at.2.clone(), None);
                self.set(|rows| &mut rows.runs_of_session, at, None);
            }
            self.set(|rows| &mut rows.tombstones, key.clone(), None);
        }
        Ok(old.len() as u64)
    }

    fn prune_nodes(&mut self, before: Timestamp) -> Result<()> {
        let holds = |id: &NodeId| {
            let leases = self.rows.sessions.values().filter_map(|session| session.lease.as_ref());
            leases.into_iter().any(|lease| lease.holder == *id)
        };
        let old: Vec<(u64, NodeId)> = self
            .rows
            .nodes
            .iter()
            .filter(|(_, node)| node.ended_at.is_some_and(|at| at < before) && !holds(&node.id))
            .map(|(at, node)| (*at, node.id.clone()))
            .collect();
        for (at, id) in old {
            self.set(|rows| &mut rows.nodes, at, None);
            self.set(|rows| &mut rows.node_by_id, id, None);
        }
        Ok(())
    }
}
