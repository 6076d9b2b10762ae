//! The rows that every event of a turn changes, kept between operations and between commits.
//!
//! Appending a delta moves counters of its session and its run and nothing else. The writer keeps
//! both rows here, checks fences against them without a query, and writes the counters back once
//! per commit. What is kept is exactly what the database holds plus those counters: it is dropped
//! whenever another process has written, and whenever a commit did not happen.

use std::collections::HashMap;
use std::sync::Arc;

use everturn_core::{Run, RunId, Session, SessionKey};

/// Sessions (and runs) kept at most.
const ROWS_MAX: usize = 2_048;
/// Bytes of their texts at most.
const BYTES_MAX: usize = 16 << 20;

/// One kept row.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// Its number in the database.
    pub(crate) no: i64,
    /// The row as the operations left it.
    pub(crate) row: Arc<T>,
    /// Whether its counters are not written yet.
    pub(crate) dirty: bool,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self { no: self.no, row: self.row.clone(), dirty: self.dirty }
    }
}

enum Undo {
    Session(SessionKey, Option<Kept<Session>>),
    Run(RunId, Option<Kept<Run>>),
    Number(SessionKey),
}

/// The writer's rows.
#[derive(Default)]
pub(crate) struct Cache {
    sessions: HashMap<SessionKey, Kept<Session>>,
    runs: HashMap<RunId, Kept<Run>>,
    /// Numbers of names that were made before their session's row.
    numbers: HashMap<SessionKey, i64>,
    undo: Vec<Undo>,
    bytes: usize,
}

impl Cache {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets everything if it has become too much. Only when nothing is dirty.
    pub(crate) fn shrink(&mut self) {
        if self.sessions.len() > ROWS_MAX || self.runs.len() > ROWS_MAX || self.bytes > BYTES_MAX {
            self.clear();
        }
    }

    /// An operation begins: what it changes can be taken back.
    pub(crate) fn begin(&mut self) {
        self.undo.clear();
    }

    /// The operation failed: its changes are taken back.
    pub(crate) fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Session(key, Some(kept)) => drop(self.sessions.insert(key, kept)),
                Undo::Session(key, None) => drop(self.sessions.remove(&key)),
                Undo::Run(id, Some(kept)) => drop(self.runs.insert(id, kept)),
                Undo::Run(id, None) => drop(self.runs.remove(&id)),
                Undo::Number(key) => drop(self.numbers.remove(&key)),
            }
        }
    }

    pub(crate) fn session(&self, key: &SessionKey) -> Option<&Kept<Session>> {
        self.sessions.get(key)
    }

    pub(crate) fn keep_session(&mut self, key: SessionKey, kept: Kept<Session>) {
        let bytes = weight(&kept.row);
        let before = self.sessions.insert(key.clone(), kept);
        self.bytes += bytes.saturating_sub(before.as_ref().map_or(0, |kept| weight(&kept.row)));
        self.undo.push(Undo::Session(key, before));
    }

    pub(crate) fn drop_session(&mut self, key: &SessionKey) {
        if let Some(before) = self.sessions.remove(key) {
            self.undo.push(Undo::Session(key.clone(), Some(before)));
        }
    }

    pub(crate) fn run(&self, id: &RunId) -> Option<&Kept<Run>> {
        self.runs.get(id)
    }

    pub(crate) fn keep_run(&mut self, kept: Kept<Run>) {
        let id = kept.row.id.clone();
        let before = self.runs.insert(id.clone(), kept);
        self.undo.push(Undo::Run(id, before));
    }

    /// Forgets a session's runs. Returns those whose counters are not written: who forgets the
    /// session and not what its runs counted writes them first.
    pub(crate) fn drop_runs(&mut self, of: &SessionKey) -> Vec<Kept<Run>> {
        let gone: Vec<RunId> = self
            .runs
            .values()
            .filter(|kept| kept.row.session_id == of.id && kept.row.principal == of.principal)
            .map(|kept| kept.row.id.clone())
            .collect();
        let mut unwritten = Vec::new();
        for id in gone {
            let before = self.runs.remove(&id);
            unwritten.extend(before.iter().filter(|kept| kept.dirty).cloned());
            self.undo.push(Undo::Run(id, before));
        }
        unwritten
    }

    /// The number of a name that has no kept session.
    pub(crate) fn number(&self, key: &SessionKey) -> Option<i64> {
        self.sessions.get(key).map(|kept| kept.no).or_else(|| self.numbers.get(key).copied())
    }

    pub(crate) fn keep_number(&mut self, key: SessionKey, no: i64) {
        self.numbers.insert(key.clone(), no);
        self.undo.push(Undo::Number(key));
    }

    pub(crate) fn drop_number(&mut self, key: &SessionKey) {
        // Looked up again where the operation is taken back.
        self.numbers.remove(key);
    }

    /// Keys of kept sessions that fit.
    pub(crate) fn sessions_where(&self, fits: impl Fn(&Session) -> bool) -> Vec<SessionKey> {
        let fitting = self.sessions.iter().filter(|(_, kept)| fits(&kept.row));
        fitting.map(|(key, _)| key.clone()).collect()
    }

    /// Rows whose counters are not written, which then count as written.
    pub(crate) fn take_dirty(&mut self) -> (Vec<Kept<Session>>, Vec<Kept<Run>>) {
        fn take<T>(kept: &mut Kept<T>) -> Option<Kept<T>> {
            std::mem::take(&mut kept.dirty).then(|| kept.clone())
        }
        let sessions = self.sessions.values_mut().filter_map(take).collect();
        let runs = self.runs.values_mut().filter_map(take).collect();
        (sessions, runs)
    }
}

/// Bytes of a session's long texts.
fn weight(session: &Session) -> usize {
    session.system.as_ref().map_or(0, String::len)
        + session.metadata.as_ref().map_or(0, String::len)
}

/// Whether two states of a session differ in nothing but the counters that every event moves.
pub(crate) fn same_session(a: &Session, b: &Session) -> bool {
    // Named one by one, so that a new field cannot be forgotten.
    let Session {
        id,
        principal,
        title,
        model,
        system,
        policy,
        metadata,
        generation,
        revision,
        lease,
        epoch,
        last_offset: _,
        offset_ceiling: _,
        last_message_id: _,
        last_queue_key,
        queue_length,
        running,
        interrupted,
        quiet,
        created_at,
        updated_at,
        ended_at,
        end_reason,
    } = a;
    *generation == b.generation
        && *revision == b.revision
        && *epoch == b.epoch
        && *last_queue_key == b.last_queue_key
        && *queue_length == b.queue_length
        && *quiet == b.quiet
        && *created_at == b.created_at
        && *updated_at == b.updated_at
        && *ended_at == b.ended_at
        && *running == b.running
        && *interrupted == b.interrupted
        && *lease == b.lease
        && *id == b.id
        && *principal == b.principal
        && *title == b.title
        && *model == b.model
        && *end_reason == b.end_reason
        && *policy == b.policy
        && *metadata == b.metadata
        && *system == b.system
}

/// Whether two states of a run differ in nothing but the counters that every event moves.
pub(crate) fn same_run(a: &Run, b: &Run) -> bool {
    let Run {
        id,
        session_id,
        principal,
        input_ids,
        generation,
        attempt,
        state,
        terminal_state,
        last_seq: _,
        last_event: _,
        last_event_at: _,
        first_offset,
        last_offset: _,
        step_seq: _,
        writes: _,
        writes_epoch,
        cause,
        evidence,
        marker_id,
        parked,
        late,
        continues,
        interrupted_at,
        usage,
        error,
        stop,
        node,
        model,
        workspace,
        started_at,
        ended_at,
    } = a;
    *state == b.state
        && *writes_epoch == b.writes_epoch
        && *terminal_state == b.terminal_state
        && *generation == b.generation
        && *attempt == b.attempt
        && *first_offset == b.first_offset
        && *started_at == b.started_at
        && *ended_at == b.ended_at
        && *interrupted_at == b.interrupted_at
        && *marker_id == b.marker_id
        && *parked == b.parked
        && *late == b.late
        && *cause == b.cause
        && *stop == b.stop
        && *id == b.id
        && *session_id == b.session_id
        && *principal == b.principal
        && *node == b.node
        && *model == b.model
        && *workspace == b.workspace
        && *continues == b.continues
        && *input_ids == b.input_ids
        && *usage == b.usage
        && *error == b.error
        && *evidence == b.evidence
}
