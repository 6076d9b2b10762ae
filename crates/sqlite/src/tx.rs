//! One operation's rows in SQLite.
//!
//! Nothing here decides anything: rows go in and out as the operations say. A savepoint is opened
//! before the first change of an operation, so that its failure leaves no trace while the operations
//! beside it go on.

use std::sync::Arc;

use everturn_core::{
    CallId, Input, InputId, LeaseExpiry, Message, NodeId, Principal, Prompt, PromptId, RequestId,
    Run, RunId, Session, SessionKey, Timestamp, TokenId, ToolCall,
};
use everturn_store::columns;
use everturn_store::op::EndedRun;
use everturn_store::read::StoredEvent;
use everturn_store::rows::{EventRow, Gap, LateRow, Node, Token, Tombstone};
use everturn_store::tx::Tx;
use rusqlite::{Connection, Params, params};

use crate::ask;
use crate::cache::{Cache, Kept, same_run, same_session};
use crate::errors::{Result, corrupt};
use crate::events;
use crate::rows::{self, all, big, first, run_sql};

/// The rows of one operation inside the writer's transaction.
pub(crate) struct RowTx<'w> {
    conn: &'w Connection,
    cache: &'w mut Cache,
    /// Whether changes need a savepoint at all.
    guarded: bool,
    /// Whether it is open.
    open: bool,
}

impl<'w> RowTx<'w> {
    /// Begins an operation. Unguarded, it cannot be rolled back alone: for operations that cannot
    /// be refused any more once they have changed something.
    pub(crate) fn new(conn: &'w Connection, cache: &'w mut Cache, guarded: bool) -> Self {
        cache.begin();
        Self { conn, cache, guarded, open: false }
    }

    /// The operation succeeded.
    pub(crate) fn keep(self) -> Result<()> {
        if self.open {
            run_sql(self.conn, "RELEASE op", [])?;
        }
        Ok(())
    }

    /// The operation failed: nothing of it stays.
    pub(crate) fn roll_back(self) -> Result<()> {
        self.cache.roll_back();
        if self.open {
            run_sql(self.conn, "ROLLBACK TO op", [])?;
            run_sql(self.conn, "RELEASE op", [])?;
        }
        Ok(())
    }

    /// Changes rows.
    fn change(&mut self, sql: &str, params: impl Params) -> Result<usize> {
        if self.guarded && !self.open {
            run_sql(self.conn, "SAVEPOINT op", [])?;
            self.open = true;
        }
        run_sql(self.conn, sql, params)
    }

    /// The number that stands for a session's name, if it has one.
    fn known_number(&mut self, key: &SessionKey) -> Result<Option<i64>> {
        match self.cache.number(key) {
            Some(no) => Ok(Some(no)),
            None => rows::session_no(self.conn, key),
        }
    }

    /// The number that stands for a session's name, made if need be.
    fn number(&mut self, key: &SessionKey) -> Result<i64> {
        if let Some(no) = self.known_number(key)? {
            return Ok(no);
        }
        self.change(
            "INSERT INTO names (principal, id) VALUES (?1, ?2)",
            (key.principal.as_str(), key.id.as_str()),
        )?;
        let no = self.conn.last_insert_rowid();
        self.cache.keep_number(key.clone(), no);
        Ok(no)
    }

    fn kept_run(&mut self, id: &RunId) -> Result<Option<Kept<Run>>> {
        if let Some(kept) = self.cache.run(id) {
            return Ok(Some(kept.clone()));
        }
        let Some((no, run)) = rows::run_of(self.conn, id)? else { return Ok(None) };
        let kept = Kept { no, row: Arc::new(run), dirty: false };
        self.cache.keep_run(kept.clone());
        Ok(Some(kept))
    }

    fn kept_session(&mut self, key: &SessionKey) -> Result<Option<Kept<Session>>> {
        if let Some(kept) = self.cache.session(key) {
            return Ok(Some(kept.clone()));
        }
        let Some((no, session)) = rows::session_of(self.conn, key)? else { return Ok(None) };
        let kept = Kept { no, row: Arc::new(session), dirty: false };
        self.cache.keep_session(key.clone(), kept.clone());
        Ok(Some(kept))
    }

    fn write_session(&mut self, no: i64, row: &Session) -> Result<usize> {
        let lease = row.lease.as_ref();
        self.change(
            "UPDATE sessions SET last_offset = ?2, offset_ceiling = ?3, last_message_id = ?4, \
             generation = ?5, revision = ?6, epoch = ?7, lease_holder = ?8, lease_boot_id = ?9, \
             lease_boot_ms = ?10, lease_since = ?11, last_queue_key = ?12, queue_length = ?13, \
             running = ?14, interrupted = ?15, quiet = ?16, created_at = ?17, updated_at = ?18, \
             ended_at = ?19, end_reason = ?20, title = ?21, model = ?22, policy = ?23, \
             metadata = ?24, system = ?25 WHERE session_no = ?1",
            params![
                no,
                big(row.last_offset),
                big(row.offset_ceiling),
                big(row.last_message_id),
                big(row.generation),
                big(row.revision),
                big(row.epoch),
                lease.map(|lease| lease.holder.as_str()),
                lease.map(|lease| lease.expiry.boot_id.as_str()),
                lease.map(|lease| big(lease.expiry.boot_ms)),
                lease.map(|lease| lease.since.0),
                row.last_queue_key,
                row.queue_length,
                row.running.as_ref().map(RunId::as_str),
                row.interrupted.as_ref().map(RunId::as_str),
                row.quiet,
                row.created_at.0,
                row.updated_at.0,
                row.ended_at.map(|at| at.0),
                row.end_reason,
                row.title,
                row.model,
                columns::write_policy(&row.policy),
                row.metadata,
                row.system,
            ],
        )
    }

    fn insert_session(&mut self, no: i64, row: &Session) -> Result<()> {
        self.change(
            "INSERT INTO sessions (session_no, principal, id, last_offset, offset_ceiling, \
             last_message_id, generation, revision, epoch, last_queue_key, queue_length, quiet, \
             created_at, updated_at, policy) \
             VALUES (?1, ?2, ?3, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?4, ?5, '{}')",
            params![
                no,
                row.principal.as_str(),
                row.id.as_str(),
                row.created_at.0,
                row.updated_at.0
            ],
        )?;
        self.change(
            "INSERT INTO principals (principal, sessions) VALUES (?1, 1) \
             ON CONFLICT (principal) DO UPDATE SET sessions = sessions + 1",
            [row.principal.as_str()],
        )?;
        self.write_session(no, row)?;
        Ok(())
    }
}

/// Writes the counters of a run.
const COUNT_RUN: &str = "UPDATE runs SET last_seq = ?2, last_offset = ?3, last_event = ?4, \
     last_event_at = ?5, step_seq = ?6, writes = ?7 WHERE run_no = ?1";

/// What [`COUNT_RUN`] takes.
fn counted(kept: &Kept<Run>) -> impl Params {
    let row = &kept.row;
    (
        kept.no,
        big(row.last_seq),
        big(row.last_offset),
        row.last_event.clone(),
        row.last_event_at.0,
        big(row.step_seq),
        big(row.writes),
    )
}

/// Writes the counters of all changed sessions and runs: the last step before a commit.
pub(crate) fn flush(conn: &Connection, cache: &mut Cache) -> Result<()> {
    let (sessions, runs) = cache.take_dirty();
    for kept in sessions {
        run_sql(
            conn,
            "UPDATE sessions SET last_offset = ?2, offset_ceiling = ?3, last_message_id = ?4 \
             WHERE session_no = ?1",
            (
                kept.no,
                big(kept.row.last_offset),
                big(kept.row.offset_ceiling),
                big(kept.row.last_message_id),
            ),
        )?;
    }
    for kept in runs {
        run_sql(conn, COUNT_RUN, counted(&kept))?;
    }
    Ok(())
}

impl Tx for RowTx<'_> {
    fn session(&mut self, key: &SessionKey) -> Result<Option<Session>> {
        Ok(self.kept_session(key)?.map(|kept| (*kept.row).clone()))
    }

    fn put_session(&mut self, row: &Session) -> Result<()> {
        everturn_crash::record();
        let key = row.key();
        let (no, dirty) = match self.kept_session(&key)? {
            Some(kept) if same_session(&kept.row, row) => (kept.no, true),
            Some(kept) => {
                self.write_session(kept.no, row)?;
                (kept.no, false)
            }
            None => {
                let no = self.number(&key)?;
                self.insert_session(no, row)?;
                (no, false)
            }
        };
        self.cache.keep_session(key, Kept { no, row: Arc::new(row.clone()), dirty });
        Ok(())
    }

    fn count_sessions(&mut self, principal: &Principal) -> Result<u64> {
        let count = first(
            self.conn,
            "principals",
            "SELECT sessions FROM principals WHERE principal = ?1",
            [principal.as_str()],
            |c| c.number(0),
        )?;
        Ok(count.unwrap_or(0))
    }

    fn delete_session(&mut self, key: &SessionKey) -> Result<()> {
        let Some(kept) = self.kept_session(key)? else { return Ok(()) };
        let no = kept.no;
        self.cache.drop_session(key);
        // Its runs stay known, for a client or a node that asks again after what it had done.
        for kept in self.cache.drop_runs(key) {
            self.change(COUNT_RUN, counted(&kept))?;
        }
        self.change("DELETE FROM sessions WHERE session_no = ?1", [no])?;
        self.change(
            "UPDATE principals SET sessions = sessions - 1 WHERE principal = ?1",
            [key.principal.as_str()],
        )?;
        self.change("DELETE FROM calls WHERE session_no = ?1", [no])?;
        self.change("DELETE FROM prompts WHERE session_no = ?1", [no])?;
        self.change("DELETE FROM presence WHERE session_no = ?1", [no])?;
        self.change("DELETE FROM gaps WHERE session_no = ?1", [no])?;
        self.change(
            "DELETE FROM late_records WHERE run_no IN (SELECT run_no FROM runs WHERE session_no = ?1)",
            [no],
        )?;
        self.change(
            "UPDATE inputs SET text = '', parts = '[]', metadata = NULL WHERE session_no = ?1",
            [no],
        )?;
        self.change(
            "UPDATE runs SET error = NULL, pruned_to = NULL, late_since = NULL, \
             late_attempts = NULL WHERE session_no = ?1",
            [no],
        )?;
        // Nothing leads to its events and messages any more; the writer removes them piece by
        // piece, so that no delete of a long session holds everybody up.
        self.change("INSERT OR IGNORE INTO trash (session_no) VALUES (?1)", [no])?;
        Ok(())
    }

    fn tombstone(&mut self, key: &SessionKey) -> Result<Option<Tombstone>> {
        rows::tombstone_of(self.conn, key)
    }

    fn put_tombstone(&mut self, key: &SessionKey, row: &Tombstone) -> Result<()> {
        let no = self.number(key)?;
        self.change(
            "INSERT OR REPLACE INTO tombstones (session_no, deleted_at, generation) \
             VALUES (?1, ?2, ?3)",
            (no, row.deleted_at.0, big(row.generation)),
        )?;
        Ok(())
    }

    fn input(&mut self, id: &InputId) -> Result<Option<Input>> {
        rows::input_of(self.conn, id)
    }

    fn input_by_identity(
        &mut self,
        key: &SessionKey,
        request: &RequestId,
    ) -> Result<Option<Input>> {
        rows::input_by_identity(self.conn, key, request)
    }

    fn put_input(&mut self, row: &Input) -> Result<()> {
        everturn_crash::record();
        let no = self.number(&row.session_key())?;
        let (text, parts) = columns::write_content(&row.content);
        self.change(
            "INSERT INTO inputs (id, session_no, request_id, digest, kind, mode, queue_key, \
             status, delivery, outcome, generation, run_id, attempt, continues, decides, \
             accepted_at, ended_at, metadata, text, parts) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
             ?18, ?19, ?20) \
             ON CONFLICT (id) DO UPDATE SET session_no = excluded.session_no, \
             request_id = excluded.request_id, digest = excluded.digest, kind = excluded.kind, \
             mode = excluded.mode, queue_key = excluded.queue_key, status = excluded.status, \
             delivery = excluded.delivery, outcome = excluded.outcome, \
             generation = excluded.generation, run_id = excluded.run_id, \
             attempt = excluded.attempt, continues = excluded.continues, \
             decides = excluded.decides, accepted_at = excluded.accepted_at, \
             ended_at = excluded.ended_at, metadata = excluded.metadata, text = excluded.text, \
             parts = excluded.parts",
            params![
                row.id.as_str(),
                no,
                row.request_id.as_str(),
                row.digest.0,
                row.kind.as_str(),
                row.mode.as_str(),
                row.queue_key,
                row.status.as_str(),
                row.delivery.as_str(),
                row.outcome.map(|outcome| outcome.as_str()),
                row.generation.map(big),
                row.run_id.as_ref().map(RunId::as_str),
                row.attempt,
                row.continues.as_ref().map(RunId::as_str),
                row.decides.as_ref().map(InputId::as_str),
                row.accepted_at.0,
                row.ended_at.map(|at| at.0),
                row.metadata,
                text,
                parts,
            ],
        )?;
        Ok(())
    }

    fn queued(&mut self, key: &SessionKey, limit: u32) -> Result<Vec<Input>> {
        match self.known_number(key)? {
            Some(no) => rows::queued(self.conn, no, i64::MIN, limit),
            None => Ok(Vec::new()),
        }
    }

    fn queue_position(&mut self, key: &SessionKey, queue_key: i64) -> Result<u32> {
        match self.known_number(key)? {
            Some(no) => rows::queue_position(self.conn, no, queue_key),
            None => Ok(0),
        }
    }

    fn run(&mut self, id: &RunId) -> Result<Option<Run>> {
        Ok(self.kept_run(id)?.map(|kept| (*kept.row).clone()))
    }

    fn put_run(&mut self, row: &Run) -> Result<()> {
        everturn_crash::record();
        if let Some(kept) = self.kept_run(&row.id)?
            && same_run(&kept.row, row)
        {
            let kept = Kept { no: kept.no, row: Arc::new(row.clone()), dirty: true };
            self.cache.keep_run(kept);
            return Ok(());
        }
        let session_no = self.number(&row.session_key())?;
        self.change(
            "INSERT INTO runs (id, session_no, last_seq, last_offset, last_event, last_event_at, \
             step_seq, first_offset, generation, attempt, state, terminal_state, node, model, \
             stop_by, stop_at, cause, continues, interrupted_at, started_at, ended_at, \
             input_ids, usage, error, evidence, writes, writes_epoch, marker_id, parked, \
             late_since, late_attempts, workspace) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
             ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32) \
             ON CONFLICT (id) DO UPDATE SET last_seq = excluded.last_seq, \
             last_offset = excluded.last_offset, last_event = excluded.last_event, \
             last_event_at = excluded.last_event_at, step_seq = excluded.step_seq, \
             first_offset = excluded.first_offset, generation = excluded.generation, \
             attempt = excluded.attempt, state = excluded.state, \
             terminal_state = excluded.terminal_state, node = excluded.node, \
             model = excluded.model, stop_by = excluded.stop_by, stop_at = excluded.stop_at, \
             cause = excluded.cause, continues = excluded.continues, \
             interrupted_at = excluded.interrupted_at, started_at = excluded.started_at, \
             ended_at = excluded.ended_at, input_ids = excluded.input_ids, \
             usage = excluded.usage, error = excluded.error, evidence = excluded.evidence, \
             writes = excluded.writes, writes_epoch = excluded.writes_epoch, \
             marker_id = excluded.marker_id, parked = excluded.parked, \
             late_since = excluded.late_since, late_attempts = excluded.late_attempts, \
             workspace = excluded.workspace",
            params![
                row.id.as_str(),
                session_no,
                big(row.last_seq),
                big(row.last_offset),
                row.last_event,
                row.last_event_at.0,
                big(row.step_seq),
                big(row.first_offset),
                big(row.generation),
                row.attempt,
                row.state.as_str(),
                row.terminal_state.map(|state| state.as_str()),
                row.node.as_str(),
                row.model,
                row.stop.as_ref().map(|stop| stop.by.as_str()),
                row.stop.as_ref().map(|stop| stop.at.0),
                row.cause.map(|cause| cause.as_str()),
                row.continues.as_ref().map(RunId::as_str),
                row.interrupted_at.map(|at| at.0),
                row.started_at.0,
                row.ended_at.map(|at| at.0),
                columns::write_input_ids(&row.input_ids),
                row.usage.as_ref().map(columns::write_usage),
                row.error.as_ref().map(columns::write_failure),
                row.evidence.as_ref().map(columns::write_evidence),
                big(row.writes),
                big(row.writes_epoch),
                row.marker_id.map(big),
                row.parked.map(|parked| parked.as_str()),
                row.late.map(|late| late.since.0),
                row.late.map(|late| late.attempts),
                row.workspace,
            ],
        )?;
        let no = match self.cache.run(&row.id) {
            Some(kept) => kept.no,
            None => self.conn.last_insert_rowid(),
        };
        self.cache.keep_run(Kept { no, row: Arc::new(row.clone()), dirty: false });
        Ok(())
    }

    fn push_event(&mut self, key: &SessionKey, row: &EventRow) -> Result<()> {
        everturn_crash::record();
        let session_no = self.number(key)?;
        let (run_no, seq) = match &row.head.run {
            Some((id, seq)) => {
                let kept = self
                    .kept_run(id)?
                    .ok_or_else(|| corrupt(format!("table runs: there is no run {id}")))?;
                (Some(kept.no), Some(big(*seq)))
            }
            None => (None, None),
        };
        let stored = events::encode(&row.head.name, &row.body);
        self.change(
            "INSERT INTO events (session_no, \"offset\", kind, run_no, seq, at, name, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            (
                session_no,
                big(row.head.offset),
                stored.kind,
                run_no,
                seq,
                row.head.at.0,
                stored.name,
                stored.body,
            ),
        )?;
        Ok(())
    }

    fn run_events(&mut self, run: &Run, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let Some(kept) = self.kept_run(&run.id)? else { return Ok(Vec::new()) };
        let Some(session_no) = self.known_number(&run.session_key())? else {
            return Ok(Vec::new());
        };
        ask::journal(self.conn, session_no, (kept.no, &kept.row), after, None, limit)
    }

    fn remove_events(&mut self, key: &SessionKey, from: u64, to: u64) -> Result<()> {
        everturn_crash::record();
        let Some(no) = self.known_number(key)? else { return Ok(()) };
        self.change(
            "DELETE FROM events WHERE session_no = ?1 AND \"offset\" >= ?2 AND \"offset\" <= ?3",
            (no, big(from), big(to)),
        )?;
        Ok(())
    }

    fn prunable(
        &mut self,
        before: Timestamp,
        after: Option<&EndedRun>,
        limit: u32,
    ) -> Result<Vec<(Run, u64)>> {
        // Before every run: times and ids are above these.
        let (at, id) = after.map_or((i64::MIN, ""), |after| (after.ended_at.0, after.id.as_str()));
        let found = all(
            self.conn,
            "runs",
            "SELECT id, pruned_to FROM runs \
             WHERE ended_at IS NOT NULL AND pruned_to IS NOT NULL \
             AND ended_at < ?1 AND (ended_at, id) > (?2, ?3) ORDER BY ended_at, id LIMIT ?4",
            (before.0, at, id, limit),
            |c| Ok((c.parsed(0, RunId::new)?, c.number(1)?)),
        )?;
        let mut runs = Vec::with_capacity(found.len());
        for (id, pruned_to) in found {
            // Not kept: nobody writes to a run that ended.
            if let Some((_, run)) = rows::run_of(self.conn, &id)? {
                runs.push((run, pruned_to));
            }
        }
        Ok(runs)
    }

    fn put_pruned(&mut self, run: &RunId, to: Option<u64>) -> Result<()> {
        everturn_crash::record();
        self.change("UPDATE runs SET pruned_to = ?2 WHERE id = ?1", (run.as_str(), to.map(big)))?;
        Ok(())
    }

    fn put_gap(&mut self, key: &SessionKey, run: &RunId, gap: &Gap) -> Result<()> {
        let no = self.number(key)?;
        self.change(
            "INSERT OR REPLACE INTO gaps (session_no, from_offset, to_offset, run_id, from_seq, \
             to_seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (
                no,
                big(gap.from_offset),
                big(gap.to_offset),
                run.as_str(),
                big(gap.from_seq),
                big(gap.to_seq),
            ),
        )?;
        Ok(())
    }

    fn put_message(&mut self, key: &SessionKey, row: &Message) -> Result<()> {
        everturn_crash::record();
        let no = self.number(key)?;
        let (text, parts) = columns::write_content(&row.content);
        self.change(
            "INSERT INTO messages (session_no, id, position, role, kind, tool_call_id, \
             generation, run_id, input_id, recovered, created_at, text, parts, reasoning) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT (session_no, id) DO UPDATE SET position = excluded.position, \
             role = excluded.role, kind = excluded.kind, tool_call_id = excluded.tool_call_id, \
             generation = excluded.generation, run_id = excluded.run_id, \
             input_id = excluded.input_id, recovered = excluded.recovered, \
             created_at = excluded.created_at, text = excluded.text, parts = excluded.parts, \
             reasoning = excluded.reasoning",
            params![
                no,
                big(row.id),
                row.position,
                row.role.as_str(),
                row.kind.as_str(),
                row.tool_call_id.as_ref().map(CallId::as_str),
                row.generation.map(big),
                row.run_id.as_ref().map(RunId::as_str),
                row.input_id.as_ref().map(InputId::as_str),
                row.recovered,
                row.created_at.0,
                text,
                parts,
                row.reasoning,
            ],
        )?;
        Ok(())
    }

    fn message_above(&mut self, key: &SessionKey, position: &str) -> Result<Option<Message>> {
        let Some(no) = self.known_number(key)? else { return Ok(None) };
        let sql = format!(
            "SELECT {} FROM messages WHERE session_no = ?1 AND position < ?2 \
             ORDER BY position DESC LIMIT 1",
            rows::MESSAGE_COLUMNS
        );
        let mut found = all(self.conn, "messages", &sql, (no, position), rows::message)?;
        rows::fill_calls(self.conn, no, &mut found)?;
        Ok(found.pop())
    }

    fn message(&mut self, key: &SessionKey, id: u64) -> Result<Option<Message>> {
        let Some(no) = self.known_number(key)? else { return Ok(None) };
        let sql = format!(
            "SELECT {} FROM messages WHERE session_no = ?1 AND id = ?2",
            rows::MESSAGE_COLUMNS
        );
        let mut found = all(self.conn, "messages", &sql, (no, big(id)), rows::message)?;
        rows::fill_calls(self.conn, no, &mut found)?;
        Ok(found.pop())
    }

    fn call(&mut self, id: &CallId) -> Result<Option<ToolCall>> {
        rows::call_of(self.conn, id)
    }

    fn put_call(&mut self, row: &ToolCall) -> Result<()> {
        everturn_crash::record();
        let no = self.number(&row.session)?;
        self.change(
            "INSERT INTO calls (id, session_no, run_id, message_id, place, provider_id, name, \
             effect, schema, state, started_at, ended_at, arguments, result) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT (id) DO UPDATE SET session_no = excluded.session_no, \
             run_id = excluded.run_id, message_id = excluded.message_id, \
             place = excluded.place, provider_id = excluded.provider_id, name = excluded.name, \
             effect = excluded.effect, schema = excluded.schema, state = excluded.state, \
             started_at = excluded.started_at, ended_at = excluded.ended_at, \
             arguments = excluded.arguments, result = excluded.result",
            params![
                row.id.as_str(),
                no,
                row.run_id.as_str(),
                big(row.message_id),
                row.index,
                row.provider_id,
                row.name,
                row.effect.as_str(),
                row.schema,
                row.state.as_str(),
                row.started_at.map(|at| at.0),
                row.ended_at.map(|at| at.0),
                row.arguments,
                row.result,
            ],
        )?;
        Ok(())
    }

    fn run_calls(&mut self, run: &RunId) -> Result<Vec<ToolCall>> {
        rows::run_calls(self.conn, run)
    }

    fn put_late(&mut self, run: &RunId, row: &LateRow) -> Result<()> {
        let Some(kept) = self.kept_run(run)? else { return Ok(()) };
        self.change(
            "INSERT OR REPLACE INTO late_records (run_no, number, at, write, record) \
             VALUES (?1, ?2, ?3, ?4, ?5)",
            (kept.no, big(row.number), row.at.0, big(row.write), columns::write_late(&row.record)),
        )?;
        Ok(())
    }

    fn late(&mut self, run: &RunId) -> Result<Vec<LateRow>> {
        let Some(kept) = self.kept_run(run)? else { return Ok(Vec::new()) };
        all(
            self.conn,
            "late_records",
            "SELECT number, at, write, record FROM late_records WHERE run_no = ?1 ORDER BY number",
            [kept.no],
            |c| {
                let record = c.parsed(3, columns::read_late)?;
                Ok(LateRow { number: c.number(0)?, at: c.time(1)?, write: c.number(2)?, record })
            },
        )
    }

    fn clear_late(&mut self, run: &RunId) -> Result<()> {
        let Some(kept) = self.kept_run(run)? else { return Ok(()) };
        self.change("DELETE FROM late_records WHERE run_no = ?1", [kept.no])?;
        Ok(())
    }

    fn prompt(&mut self, id: &PromptId) -> Result<Option<Prompt>> {
        rows::prompt_of(self.conn, id)
    }

    fn put_prompt(&mut self, row: &Prompt) -> Result<()> {
        everturn_crash::record();
        let key = SessionKey { principal: row.principal.clone(), id: row.session_id.clone() };
        let no = self.number(&key)?;
        self.change(
            "INSERT INTO prompts (id, session_no, run_id, generation, kind, state, call_id, \
             choice, answered_by, opened_at, expires_at, settled_at, question, text) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT (id) DO UPDATE SET session_no = excluded.session_no, \
             run_id = excluded.run_id, generation = excluded.generation, kind = excluded.kind, \
             state = excluded.state, call_id = excluded.call_id, choice = excluded.choice, \
             answered_by = excluded.answered_by, opened_at = excluded.opened_at, \
             expires_at = excluded.expires_at, settled_at = excluded.settled_at, \
             question = excluded.question, text = excluded.text",
            params![
                row.id.as_str(),
                no,
                row.run_id.as_str(),
                big(row.generation),
                row.kind.as_str(),
                row.state.as_str(),
                row.call_id.as_ref().map(CallId::as_str),
                row.choice.map(|choice| choice.as_str()),
                row.answered_by.as_ref().map(Principal::as_str),
                row.opened_at.0,
                row.expires_at.0,
                row.settled_at.map(|at| at.0),
                row.question,
                row.text,
            ],
        )?;
        Ok(())
    }

    fn open_prompts(&mut self, run: &RunId) -> Result<Vec<Prompt>> {
        let sql = concat!(
            "SELECT ",
            rows::prompt_columns!(),
            " WHERE p.run_id = ?1 AND p.state = 'open' ORDER BY p.opened_at, p.id"
        );
        all(self.conn, "prompts", sql, [run.as_str()], rows::prompt)
    }

    fn put_grant(&mut self, principal: &Principal, tool: &str) -> Result<()> {
        self.change(
            "INSERT OR IGNORE INTO grants (principal, tool) VALUES (?1, ?2)",
            (principal.as_str(), tool),
        )?;
        Ok(())
    }

    fn remove_grant(&mut self, principal: &Principal, tool: &str) -> Result<bool> {
        let sql = "DELETE FROM grants WHERE principal = ?1 AND tool = ?2";
        Ok(self.change(sql, (principal.as_str(), tool))? > 0)
    }

    fn node(&mut self, id: &NodeId) -> Result<Option<Node>> {
        rows::node_of(self.conn, id)
    }

    fn put_node(&mut self, row: &Node) -> Result<()> {
        self.change(
            "INSERT INTO nodes (id, home, boot_id, role, started_at, interrupted_start, ended_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (id) DO UPDATE SET home = excluded.home, boot_id = excluded.boot_id, \
             role = excluded.role, started_at = excluded.started_at, \
             interrupted_start = excluded.interrupted_start, ended_at = excluded.ended_at",
            params![
                row.id.as_str(),
                row.home,
                row.boot_id,
                row.role,
                row.started_at.0,
                row.interrupted_start,
                row.ended_at.map(|at| at.0),
            ],
        )?;
        Ok(())
    }

    fn serve_starts(&mut self, home: &str, limit: u32) -> Result<Vec<Node>> {
        rows::serve_starts(self.conn, home, limit)
    }

    fn renew(&mut self, node: &NodeId, expiry: &LeaseExpiry) -> Result<Vec<(RunId, bool)>> {
        self.change(
            "UPDATE sessions SET lease_boot_id = ?2, lease_boot_ms = ?3 WHERE lease_holder = ?1",
            (node.as_str(), expiry.boot_id.as_str(), big(expiry.boot_ms)),
        )?;
        let held =
            |session: &Session| session.lease.as_ref().is_some_and(|lease| lease.holder == *node);
        for key in self.cache.sessions_where(held) {
            let Some(kept) = self.cache.session(&key).cloned() else { continue };
            let mut row = (*kept.row).clone();
            if let Some(lease) = &mut row.lease {
                lease.expiry = expiry.clone();
            }
            self.cache.keep_session(key, Kept { row: Arc::new(row), ..kept });
        }
        all(
            self.conn,
            "runs",
            "SELECT r.id, r.stop_by IS NOT NULL FROM sessions s JOIN runs r ON r.id = s.running \
             WHERE s.lease_holder = ?1 ORDER BY s.session_no",
            [node.as_str()],
            |c| Ok((c.parsed(0, RunId::new)?, c.int(1)? != 0)),
        )
    }

    fn put_presence(&mut self, key: &SessionKey, node: &NodeId, present: bool) -> Result<()> {
        let Some(kept) = self.kept_session(key)? else { return Ok(()) };
        let sql = if present {
            "INSERT OR IGNORE INTO presence (session_no, node) VALUES (?1, ?2)"
        } else {
            "DELETE FROM presence WHERE session_no = ?1 AND node = ?2"
        };
        self.change(sql, (kept.no, node.as_str()))?;
        Ok(())
    }

    fn clear_presence(&mut self, node: &NodeId) -> Result<()> {
        self.change("DELETE FROM presence WHERE node = ?1", [node.as_str()])?;
        Ok(())
    }

    fn presence(&mut self, key: &SessionKey) -> Result<Vec<NodeId>> {
        match self.known_number(key)? {
            Some(no) => rows::presence_of(self.conn, no),
            None => Ok(Vec::new()),
        }
    }

    fn token(&mut self, id: &TokenId) -> Result<Option<Token>> {
        let sql = format!("SELECT {} WHERE id = ?1", rows::TOKEN_COLUMNS);
        first(self.conn, "tokens", &sql, [id.as_str()], rows::token)
    }

    fn put_token(&mut self, row: &Token) -> Result<()> {
        self.change(
            "INSERT INTO tokens (id, hash, principal, scopes, created_at, expires_at, \
             last_used_at, revoked_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
             ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, \
             principal = excluded.principal, scopes = excluded.scopes, \
             created_at = excluded.created_at, expires_at = excluded.expires_at, \
             last_used_at = excluded.last_used_at, revoked_at = excluded.revoked_at",
            params![
                row.id.as_str(),
                row.hash,
                row.principal.as_str(),
                row.scopes.join(" "),
                row.created_at.0,
                row.expires_at.map(|at| at.0),
                row.last_used_at.map(|at| at.0),
                row.revoked_at.map(|at| at.0),
            ],
        )?;
        Ok(())
    }

    fn prune_tombstones(&mut self, before: Timestamp) -> Result<u64> {
        let old = all(
            self.conn,
            "tombstones",
            "SELECT t.session_no, n.principal, n.id FROM tombstones t \
             JOIN names n ON n.session_no = t.session_no WHERE t.deleted_at < ?1",
            [before.0],
            |c| {
                let principal = c.parsed(1, Principal::new)?;
                let id = c.parsed(2, everturn_core::SessionId::new)?;
                Ok((c.int(0)?, SessionKey { principal, id }))
            },
        )?;
        let count = old.len() as u64;
        for (no, key) in old {
            // A number may be given anew: nothing with it may stay, neither here nor in memory.
            for table in ["events", "messages", "trash", "inputs", "runs", "tombstones", "names"] {
                self.change(&format!("DELETE FROM {table} WHERE session_no = ?1"), [no])?;
            }
            self.cache.drop_runs(&key);
            self.cache.drop_number(&key);
        }
        Ok(count)
    }

    fn prune_nodes(&mut self, before: Timestamp) -> Result<()> {
        self.change(
            "DELETE FROM nodes WHERE ended_at < ?1 AND NOT EXISTS \
             (SELECT 1 FROM sessions WHERE lease_holder = nodes.id)",
            [before.0],
        )?;
        Ok(())
    }
}
