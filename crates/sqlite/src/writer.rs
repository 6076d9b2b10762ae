//! The writer: one thread, one connection, group commit.
//!
//! The story of a batch: take what queued while the last commit synced; decide whether the commit
//! must be synced; begin; apply each operation under its own savepoint; write the counters; commit;
//! tell the sink; tell the callers. Nothing is acknowledged or published before its commit, and
//! nothing at all after a failure until a fresh look at the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use everturn_crash::Point;
use everturn_store::ops::{self, Applied, Ctx};
use everturn_store::store::Sink;
use everturn_store::{Clock, Op, OpError, Reply, StorageError, StorageErrorKind};
use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tokio::sync::{mpsc, oneshot};

use crate::Fsync;
use crate::cache::Cache;
use crate::conn::{self, Files};
use crate::errors::{self, Result, failure};
use crate::inspect::Damage;
use crate::landmarks::{self, Stage};
use crate::rows::run_sql;
use crate::stats::{Counters, add};
use crate::tx::{self, RowTx};

/// Operations that wait for the writer; more wait for room.
pub(crate) const QUEUE_OPS: usize = 1_024;
/// Operations of one commit.
const BATCH_OPS: usize = 512;
/// Bytes of one commit, about.
const BATCH_BYTES: usize = 4 << 20;
/// How long a commit waits for other processes before it is refused.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 20_000 });
/// Pages of the write-ahead log from which on it is moved into the database.
const CHECKPOINT_PAGES: i32 = 1_000;
/// Rows of deleted sessions that are removed at a time.
const TRASH_ROWS: i64 = 2_000;

/// What the writer is asked.
pub(crate) enum Job {
    /// One operation.
    Op { op: Box<Op>, reply: oneshot::Sender<std::result::Result<Reply, OpError>> },
    /// Whether another process has written since the last time.
    Changed(oneshot::Sender<bool>),
    /// A pragma of the writer's connection, and what it answers.
    #[cfg(test)]
    Pragma(&'static str, oneshot::Sender<i64>),
    /// Waits, so that what comes meanwhile shares a commit.
    #[cfg(test)]
    Pause(oneshot::Receiver<()>),
}

/// An operation that waits for its commit.
struct Waiting {
    op: Box<Op>,
    reply: oneshot::Sender<std::result::Result<Reply, OpError>>,
}

/// What one operation came to, before the commit.
pub(crate) type Outcome = std::result::Result<Applied, OpError>;

/// What the writer shares with the store's handle.
#[derive(Clone)]
pub(crate) struct Shared {
    /// The files that were opened.
    pub(crate) files: Arc<Mutex<Files>>,
    /// Who is told of commits.
    pub(crate) sink: Arc<RwLock<Option<Sink>>>,
    /// What was done.
    pub(crate) counters: Arc<Counters>,
    /// What was found wrong with the database.
    pub(crate) damage: Damage,
    /// Errors that the next commits meet.
    #[cfg(test)]
    pub(crate) faults: Faults,
}

/// Extended error codes of SQLite; 0 lets a commit through.
#[cfg(test)]
pub(crate) type Faults = Arc<Mutex<std::collections::VecDeque<i32>>>;

/// Everything that the writer works with.
pub(crate) struct Writer {
    database: PathBuf,
    home: PathBuf,
    clock: Arc<dyn Clock>,
    fsync: Fsync,
    files: Arc<Mutex<Files>>,
    sink: Arc<RwLock<Option<Sink>>>,
    counters: Arc<Counters>,
    damage: Damage,
    #[cfg(test)]
    faults: Faults,
    /// Open, except after a failure.
    conn: Option<Connection>,
    cache: Cache,
    /// Whether the connection syncs its commits now.
    syncing: bool,
    /// What SQLite said of other connections' commits when this one last looked.
    data_version: i64,
    /// Rows that the connection had changed when the transaction began.
    changes: u64,
    /// Somebody else has written since this was last asked.
    changed: bool,
    /// A write or a sync failed: what reads fine may be in the page cache only, and only a
    /// checkpoint that syncs proves otherwise.
    distrust: bool,
    /// Pages in the write-ahead log after the last commit.
    wal_pages: Arc<std::sync::atomic::AtomicI32>,
    /// Pages from which on the log is moved into the database again.
    checkpoint_at: i32,
    /// Deleted sessions have rows to be removed.
    trash: bool,
}

impl Writer {
    pub(crate) fn new(
        conn: Connection,
        database: PathBuf,
        home: PathBuf,
        clock: Arc<dyn Clock>,
        fsync: Fsync,
        shared: Shared,
    ) -> Result<Self> {
        let Shared { files, sink, counters, damage, .. } = shared;
        let mut writer = Self {
            database,
            home,
            clock,
            fsync,
            files,
            sink,
            counters,
            damage,
            #[cfg(test)]
            faults: shared.faults,
            conn: None,
            cache: Cache::default(),
            syncing: true,
            data_version: 0,
            changes: 0,
            changed: true,
            distrust: false,
            wal_pages: Arc::default(),
            checkpoint_at: CHECKPOINT_PAGES,
            trash: true,
        };
        writer.adopt(conn)?;
        Ok(writer)
    }

    /// The thread: runs until every sender is gone.
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut waiting = None;
        loop {
            let Some(first) = waiting.take().or_else(|| jobs.blocking_recv()) else { break };
            let mut batch = Vec::new();
            let mut asked = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Op { op, reply } => {
                        bytes += weight(&op);
                        batch.push(Waiting { op, reply });
                    }
                    Job::Changed(reply) => asked.push(reply),
                    #[cfg(test)]
                    Job::Pragma(sql, reply) => {
                        let answer = |conn: &Connection| conn.query_row(sql, [], |row| row.get(0));
                        let answer = self.conn.as_ref().map(answer);
                        let _gone =
                            reply.send(answer.and_then(std::result::Result::ok).unwrap_or(-1));
                    }
                    #[cfg(test)]
                    Job::Pause(end) => {
                        let _gone = end.blocking_recv();
                    }
                }
                let full = batch.len() >= BATCH_OPS || bytes >= BATCH_BYTES;
                next = if full { None } else { jobs.try_recv().ok() };
            }
            if !batch.is_empty() {
                self.commit(batch);
            }
            for reply in asked {
                let changed = self.changed_elsewhere();
                let _gone = reply.send(changed);
            }
            waiting = self.tidy(&mut jobs);
        }
    }

    /// One batch, from the first operation to the last acknowledgement.
    fn commit(&mut self, batch: Vec<Waiting>) {
        let synced = self.fsync == Fsync::Eager
            || batch.iter().any(|waiting| waiting.op.synced() || self.outgrows(&waiting.op));
        self.trash |= batch.iter().any(|waiting| matches!(*waiting.op, Op::DeleteSession(_)));
        let (ops, replies): (Vec<Op>, Vec<_>) =
            batch.into_iter().map(|waiting| (*waiting.op, waiting.reply)).unzip();
        match self.attempt(ops, synced) {
            Ok(outcomes) => {
                for (outcome, reply) in outcomes.into_iter().zip(replies) {
                    let answer = match outcome {
                        Ok(applied) => {
                            add(&self.counters.ops, 1);
                            add(&self.counters.events, applied.committed.frames.len());
                            let marks = landmarks::of(&applied.committed);
                            self.publish(applied.committed);
                            landmarks::pass(&marks, Stage::Published);
                            Ok(applied.reply)
                        }
                        Err(error) => {
                            let counter = match &error {
                                OpError::Refused(_) => &self.counters.refused,
                                OpError::Storage(_) => &self.counters.failed,
                            };
                            add(counter, 1);
                            Err(error)
                        }
                    };
                    // A caller that went away does not need its answer.
                    let _gone = reply.send(answer);
                }
            }
            Err(error) => {
                add(&self.counters.failed, replies.len());
                tracing::error!(%error, ops = replies.len(), "a commit failed; nothing of it was acknowledged");
                for reply in replies {
                    let _gone = reply.send(Err(error.clone().into()));
                }
            }
        }
    }

    /// Applies and commits; an error means that nothing of the batch may be acknowledged.
    fn attempt(&mut self, ops: Vec<Op>, synced: bool) -> Result<Vec<Outcome>> {
        self.ready()?;
        self.sync_commits(synced)?;
        self.begin()?;
        match self.apply_all(ops) {
            Ok(outcomes) => {
                landmarks::pass_all(&outcomes, Stage::Applied);
                self.end(synced, &outcomes)?;
                landmarks::pass_all(&outcomes, Stage::Committed);
                Ok(outcomes)
            }
            Err(error) => {
                self.abandon(error.kind == StorageErrorKind::Unavailable);
                Err(error)
            }
        }
    }

    /// Applies each operation by itself. An error sinks the batch.
    fn apply_all(&mut self, ops: Vec<Op>) -> Result<Vec<Outcome>> {
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        let mut outcomes = Vec::with_capacity(ops.len());
        for op in ops {
            let outcome = apply(conn, &mut self.cache, &*self.clock, op)?;
            if conn.is_autocommit() {
                // SQLite gave the whole transaction up.
                return Err(match outcome {
                    Err(OpError::Storage(error)) => error,
                    _ => StorageError::new(
                        StorageErrorKind::Unavailable,
                        "SQLite ended the transaction by itself",
                    ),
                });
            }
            outcomes.push(outcome);
        }
        tx::flush(conn, &mut self.cache)?;
        Ok(outcomes)
    }

    /// Commits, and syncs where an operation turned out to need it.
    fn end(&mut self, synced: bool, outcomes: &[Outcome]) -> Result<()> {
        // A batch of refusals and repetitions changes nothing, and is no commit.
        let changed = self.conn.as_ref().is_some_and(|conn| conn.total_changes() != self.changes);
        self.execute("COMMIT")?;
        if changed {
            add(&self.counters.commits, 1);
            add(&self.counters.synced_commits, usize::from(synced));
        }
        let must_sync =
            outcomes.iter().any(|outcome| outcome.as_ref().is_ok_and(|done| done.must_sync));
        if must_sync && !synced {
            // Rare: `outgrows` foresees it. A second, tiny commit syncs the first one with it.
            self.sync_commits(true)?;
            self.begin()?;
            self.execute("UPDATE heartbeat SET count = count + 1")?;
            self.execute("COMMIT")?;
            add(&self.counters.commits, 1);
            add(&self.counters.synced_commits, 1);
        }
        self.cache.shrink();
        Ok(())
    }

    /// Whether an operation that needs no sync would go beyond the numbers that its session has
    /// reserved (promise P7). In doubt: yes.
    fn outgrows(&self, op: &Op) -> bool {
        let Op::Write(write) = op else { return false };
        self.cache.session(write.fence.session()).is_none_or(|kept| {
            kept.row.last_offset + write.records.len() as u64 > kept.row.offset_ceiling
        })
    }

    fn publish(&self, committed: everturn_store::Committed) {
        if committed.frames.is_empty() && committed.signals.is_empty() {
            return;
        }
        let sink = self.sink.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sink) = sink
            && catch_unwind(AssertUnwindSafe(|| sink(committed))).is_err()
        {
            tracing::error!("the sink of committed events panicked; readers will read the store");
        }
    }

    /// Makes sure that there is a connection to the right files, and that they can be trusted.
    fn ready(&mut self) -> Result<()> {
        self.damage.check()?;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).check()?;
        if self.conn.is_none() {
            let opened = conn::writing(&self.database);
            let conn = opened.map_err(|error| self.explain(&error))?;
            add(&self.counters.reopened, 1);
            self.adopt(conn)?;
        }
        if self.distrust {
            self.checkpoint_all()?;
            tracing::info!("the database was synced again after a failure");
            self.distrust = false;
        }
        Ok(())
    }

    /// Takes a fresh connection.
    fn adopt(&mut self, mut conn: Connection) -> Result<()> {
        let pages = self.wal_pages.clone();
        let hook = move |_: &mut Wal, count: i32| {
            pages.store(count, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(|error| failure(&error))?;
        self.syncing = true;
        self.data_version = version(&conn)?;
        self.changed = true;
        self.trash = true;
        self.cache.clear();
        self.conn = Some(conn);
        Ok(())
    }

    /// Sets whether commits are synced; only possible between transactions.
    fn sync_commits(&mut self, synced: bool) -> Result<()> {
        if self.syncing != synced {
            self.execute(if synced {
                "PRAGMA synchronous = FULL"
            } else {
                "PRAGMA synchronous = NORMAL"
            })?;
            self.syncing = synced;
        }
        Ok(())
    }

    /// Begins the transaction, waiting for other processes as long as patience lasts.
    fn begin(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let conn = self.conn.as_ref().ok_or_else(closed)?;
            match conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])) {
                Ok(_) => break,
                Err(error) if errors::is_busy(&error) && Instant::now() < deadline => {
                    add(&self.counters.busy, 1);
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
        self.files.lock().unwrap_or_else(PoisonError::into_inner).note_sides();
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        self.changes = conn.total_changes();
        let seen = version(conn)?;
        self.compare(seen);
        Ok(())
    }

    /// Drops what is kept if another connection has written since.
    fn compare(&mut self, seen: i64) {
        if seen != self.data_version {
            self.data_version = seen;
            self.changed = true;
            self.trash = true;
            self.cache.clear();
        }
    }

    /// Runs a statement of the transaction's frame.
    fn execute(&mut self, sql: &str) -> Result<()> {
        #[cfg(test)]
        if sql == "COMMIT" {
            let next = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(code) = next.filter(|code| *code != 0) {
                let fault = rusqlite::ffi::Error::new(code);
                return Err(self.fail(&rusqlite::Error::SqliteFailure(fault, None)));
            }
        }
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        let done = conn.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        match done {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// After a failed statement of the transaction's frame.
    fn fail(&mut self, error: &rusqlite::Error) -> StorageError {
        self.abandon(errors::is_io(error));
        self.explain(error)
    }

    /// Rolls back and forgets what memory holds. Where the disk itself failed (`disk`), not even
    /// the connection is kept: the next batch opens another one, and syncs everything that was
    /// written before, or is refused as well.
    fn abandon(&mut self, disk: bool) {
        self.cache.clear();
        let Some(conn) = self.conn.take() else { return };
        let rolled_back = conn.is_autocommit() || conn.execute_batch("ROLLBACK").is_ok();
        if rolled_back && !disk {
            self.conn = Some(conn);
            return;
        }
        self.distrust = true;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).forget_sides();
    }

    /// The failure behind an error, with a second look at the disk where SQLite cannot tell.
    fn explain(&self, error: &rusqlite::Error) -> StorageError {
        let mut explained = failure(error);
        if explained.kind == StorageErrorKind::Unavailable
            && errors::is_io(error)
            && errors::no_space(&self.home)
        {
            explained.kind = StorageErrorKind::Full;
        }
        explained
    }

    /// Moves the whole write-ahead log into the database and syncs it; waits for readers.
    fn checkpoint_all(&mut self) -> Result<()> {
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        let moved = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        match moved {
            Ok((0, log, done)) if log == done => {
                add(&self.counters.checkpoints, 1);
                Ok(())
            }
            Ok(_) => Err(StorageError::new(
                StorageErrorKind::Unavailable,
                "the database could not be synced again yet: somebody still reads an old state",
            )),
            Err(error) => {
                let explained = self.explain(&error);
                self.conn = None;
                Err(explained)
            }
        }
    }

    /// Between batches: checkpoint, and remove rows of deleted sessions while nobody waits.
    /// Returns the job that ended the leisure.
    fn tidy(&mut self, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
        self.checkpoint();
        while self.trash && self.conn.is_some() && !self.distrust {
            if let Ok(job) = jobs.try_recv() {
                return Some(job);
            }
            match self.remove_trash() {
                Ok(more) => self.trash = more,
                Err(error) => {
                    tracing::warn!(%error, "rows of deleted sessions stay for now");
                    self.trash = false;
                }
            }
            self.checkpoint();
        }
        None
    }

    /// Moves the write-ahead log into the database once it has grown, as far as readers let it.
    fn checkpoint(&mut self) {
        let pages = self.wal_pages.load(std::sync::atomic::Ordering::Relaxed);
        if pages < CHECKPOINT_PAGES {
            // The log has begun anew.
            self.checkpoint_at = CHECKPOINT_PAGES;
        }
        if pages < self.checkpoint_at || self.distrust {
            return;
        }
        let Some(conn) = self.conn.as_ref() else { return };
        everturn_crash::pass(Point::CheckpointBegin);
        let moved = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        match moved {
            Ok((log, done)) if log == done => {
                everturn_crash::pass(Point::CheckpointDone);
                // The next commit begins the log anew.
                add(&self.counters.checkpoints, 1);
                self.checkpoint_at = CHECKPOINT_PAGES;
                self.wal_pages.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            // Somebody reads an old state. Not at once again: that would find the same reader.
            Ok(_) => self.checkpoint_at = pages.saturating_add(CHECKPOINT_PAGES / 4),
            Err(error) if errors::is_busy(&error) => {
                self.checkpoint_at = pages.saturating_add(CHECKPOINT_PAGES / 4);
            }
            Err(error) => {
                let explained = self.explain(&error);
                tracing::error!(error = %explained, "the write-ahead log could not be moved into the database");
                self.abandon(errors::is_io(&error));
            }
        }
    }

    /// Removes some rows of one deleted session; `true` while there is more.
    fn remove_trash(&mut self) -> Result<bool> {
        self.ready()?;
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        if next_trash(conn)?.is_none() {
            return Ok(false);
        }
        self.sync_commits(false)?;
        self.begin()?;
        let conn = self.conn.as_ref().ok_or_else(closed)?;
        match remove_some(conn) {
            Ok(more) => {
                self.execute("COMMIT")?;
                Ok(more)
            }
            Err(error) => {
                self.abandon(error.kind == StorageErrorKind::Unavailable);
                Err(error)
            }
        }
    }

    /// Whether another connection has written since this was last asked.
    fn changed_elsewhere(&mut self) -> bool {
        let Some(Ok(seen)) = self.conn.as_ref().map(version) else { return true };
        self.compare(seen);
        std::mem::take(&mut self.changed)
    }
}

/// Applies one operation. `Err` sinks the batch; a refusal and a bad row concern only it.
fn apply(conn: &Connection, cache: &mut Cache, clock: &dyn Clock, op: Op) -> Result<Outcome> {
    let name = op.name();
    // Deltas cannot be refused once the fence has let them in: they need no savepoint.
    let guarded = !matches!(op, Op::Write(_)) || op.synced();
    let ctx = Ctx::new(clock);
    let mut tx = RowTx::new(conn, cache, guarded);
    let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| ops::apply(&mut tx, &ctx, op))) else {
        tracing::error!(op = name, "an operation panicked and was rolled back");
        let message = format!("the operation {name} failed inside; see the log");
        let error = StorageError::new(StorageErrorKind::Unavailable, message);
        return if guarded {
            tx.roll_back()?;
            Ok(Err(error.into()))
        } else {
            Err(error)
        };
    };
    match &outcome {
        Ok(_) => tx.keep()?,
        // A bad row concerns this operation alone; everything else that fails, the whole store.
        Err(OpError::Storage(error)) if !guarded || error.kind != StorageErrorKind::Corrupt => {
            return Err(error.clone());
        }
        Err(_) => tx.roll_back()?,
    }
    Ok(outcome)
}

/// Removes some rows of one deleted session; `true` while there is more.
fn remove_some(conn: &Connection) -> Result<bool> {
    let Some(no) = next_trash(conn)? else { return Ok(false) };
    let events = run_sql(
        conn,
        "DELETE FROM events WHERE session_no = ?1 AND \"offset\" IN \
         (SELECT \"offset\" FROM events WHERE session_no = ?1 ORDER BY \"offset\" LIMIT ?2)",
        (no, TRASH_ROWS),
    )?;
    let messages = run_sql(
        conn,
        "DELETE FROM messages WHERE message_no IN \
         (SELECT message_no FROM messages WHERE session_no = ?1 LIMIT ?2)",
        (no, TRASH_ROWS),
    )?;
    if events == 0 && messages == 0 {
        run_sql(conn, "DELETE FROM trash WHERE session_no = ?1", [no])?;
    }
    Ok(true)
}

/// A deleted session that still has rows.
fn next_trash(conn: &Connection) -> Result<Option<i64>> {
    crate::rows::first(conn, "trash", "SELECT session_no FROM trash LIMIT 1", [], |c| c.int(0))
}

/// A number that changes when another connection commits.
fn version(conn: &Connection) -> Result<i64> {
    conn.prepare_cached("PRAGMA data_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(|error| failure(&error))
}

/// About how many bytes an operation brings.
fn weight(op: &Op) -> usize {
    use everturn_core::event::{End, Record};
    let content = |content: &everturn_core::Content| -> usize {
        content
            .0
            .iter()
            .map(|part| match part {
                everturn_core::Part::Text(text) => text.len(),
                everturn_core::Part::Image { data, .. } => data.as_ref().map_or(0, String::len),
            })
            .sum()
    };
    let body = match op {
        Op::Admit(op) => content(&op.content),
        Op::Write(op) => op
            .records
            .iter()
            .map(|record| match record {
                Record::TextDelta(text)
                | Record::ReasoningDelta(text)
                | Record::CallOutput { text, .. }
                | Record::Step { text, .. }
                | Record::CallFinished { result: text, .. }
                | Record::End(
                    End::Completed { text, .. }
                    | End::Failed { text, .. }
                    | End::Cancelled { text, .. },
                ) => text.len(),
                _ => 0,
            })
            .sum(),
        _ => 0,
    };
    body + 512
}

fn closed() -> StorageError {
    StorageError::new(StorageErrorKind::Closed, "the store has no connection")
}
