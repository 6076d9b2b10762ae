//! The Store in memory: the contract without a disk, for the suite, the simulator and tests of what
//! is built on a store.
//!
//! It is as atomic, ordered and fenced as any backend, survives nothing, and does as it is told: it
//! can be made to fail, one process can be cut off from it, nodes can be declared dead or alive, and the
//! power can fail: then what no sync covered is gone.

mod read;
mod tx;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use async_trait::async_trait;
use everturn_core::{
    CallId, Input, InputId, Message, NodeId, Principal, Prompt, PromptId, RequestId, Run, RunId,
    Session, SessionKey, TokenId, ToolCall,
};

use crate::clock::Clock;
use crate::error::{OpError, StorageError, StorageErrorKind};
use crate::op::{Op, Reply};
use crate::ops::{self, Ctx};
use crate::rows::{EventRow, Gap, LateRow, Node, Token, Tombstone};
use crate::store::{Sink, Store};

/// All rows. Secondary tables (names that end in `_of_…` or `by_…`) are kept by the puts.
#[derive(Default)]
struct Rows {
    /// Counts up: tells in which order rows came.
    clock: u64,
    /// How often the power failed.
    power_losses: u64,
    /// How to take back what was committed since the last synced commit, in the order of the changes.
    unsynced: Vec<tx::Undo>,
    sessions: BTreeMap<SessionKey, Session>,
    tombstones: BTreeMap<SessionKey, Tombstone>,
    /// By session and order of acceptance.
    inputs: BTreeMap<(SessionKey, u64), Input>,
    input_by_id: BTreeMap<InputId, (SessionKey, u64)>,
    input_by_identity: BTreeMap<(SessionKey, RequestId), (SessionKey, u64)>,
    queue: BTreeMap<(SessionKey, i64, u64), ()>,
    runs: BTreeMap<RunId, Run>,
    runs_of_session: BTreeMap<(SessionKey, u64, RunId), ()>,
    events: BTreeMap<(SessionKey, u64), EventRow>,
    gaps: BTreeMap<(SessionKey, u64), Gap>,
    /// Up to which seq a run has no token events left; `None`: it has none at all.
    pruned: BTreeMap<RunId, Option<u64>>,
    messages: BTreeMap<(SessionKey, u64), Message>,
    calls: BTreeMap<CallId, ToolCall>,
    calls_of_run: BTreeMap<(RunId, u64, u32, CallId), ()>,
    calls_of_message: BTreeMap<(SessionKey, u64, u32, CallId), ()>,
    prompts: BTreeMap<PromptId, Prompt>,
    prompts_of_session: BTreeMap<(SessionKey, PromptId), ()>,
    prompts_of_run: BTreeMap<(RunId, PromptId), ()>,
    /// By run and number.
    late: BTreeMap<(RunId, u64), LateRow>,
    grants: BTreeMap<(Principal, String), ()>,
    nodes: BTreeMap<u64, Node>,
    node_by_id: BTreeMap<NodeId, u64>,
    presence: BTreeMap<(SessionKey, NodeId), ()>,
    tokens: BTreeMap<u64, Token>,
    token_by_id: BTreeMap<TokenId, u64>,
}

#[derive(Default)]
struct Shared {
    rows: Mutex<Rows>,
    gone: Mutex<HashMap<NodeId, bool>>,
    failure: Mutex<Option<StorageError>>,
    /// Commits of all handles.
    commits: AtomicU64,
}

/// A store in memory. Several handles may share one: each is a process of its own, with its own
/// clock and sink.
pub struct MemoryStore {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    sink: RwLock<Option<Sink>>,
    /// Commits of this handle, and those of others that it was told of.
    known: AtomicU64,
    /// After how many power losses the process of this handle was started.
    started_after: u64,
    cut_off: AtomicBool,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // An operation that panicked is rolled back by nobody here; the test that did it fails.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::on(Arc::default(), clock)
    }

    fn on(shared: Arc<Shared>, clock: Arc<dyn Clock>) -> Self {
        let known = AtomicU64::new(shared.commits.load(Ordering::SeqCst));
        let started_after = lock(&shared.rows).power_losses;
        let (sink, cut_off) = (RwLock::default(), AtomicBool::new(false));
        Self { shared, clock, sink, known, started_after, cut_off }
    }

    /// Another process on the same store.
    #[must_use]
    pub fn another(&self, clock: Arc<dyn Clock>) -> Self {
        Self::on(self.shared.clone(), clock)
    }

    /// Declares a node dead (`Some(true)`), alive (`Some(false)`) or unknown.
    pub fn set_gone(&self, node: &NodeId, gone: Option<bool>) {
        let mut known = lock(&self.shared.gone);
        match gone {
            Some(gone) => known.insert(node.clone(), gone),
            None => known.remove(node),
        };
    }

    /// From now on everything fails so, on all handles, until it is mended with `None`.
    pub fn set_failure(&self, failure: Option<StorageError>) {
        *lock(&self.shared.failure) = failure;
    }

    /// Cuts this process alone off from the store, or lets it back.
    pub fn set_cut_off(&self, cut_off: bool) {
        // Under the lock: when this returns nothing of the process is under way any more.
        let _rows = lock(&self.shared.rows);
        self.cut_off.store(cut_off, Ordering::SeqCst);
    }

    /// The power fails: what was committed behind the last synced commit is gone, and every handle that
    /// there is fails for ever. [`Self::another`] gives handles of processes that start afterwards;
    /// their clock should be one of another boot.
    pub fn lose_power(&self) {
        let mut rows = lock(&self.shared.rows);
        rows.power_losses += 1;
        for undo in std::mem::take(&mut rows.unsynced).into_iter().rev() {
            undo(&mut rows);
        }
        self.shared.commits.fetch_add(1, Ordering::SeqCst);
    }

    fn rows(&self) -> Result<MutexGuard<'_, Rows>, StorageError> {
        let rows = lock(&self.shared.rows);
        let is_dead = rows.power_losses != self.started_after;
        if is_dead || self.cut_off.load(Ordering::SeqCst) {
            let message = "this process cannot reach the store";
            return Err(StorageError::new(StorageErrorKind::Unavailable, message));
        }
        match &*lock(&self.shared.failure) {
            Some(failure) => Err(failure.clone()),
            None => Ok(rows),
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn submit(&self, op: Op) -> Result<Reply, OpError> {
        let mut rows = self.rows()?;
        let ctx = Ctx::new(&*self.clock);
        let mut tx = tx::RowTx::new(&mut rows);
        let is_synced = op.synced();
        match ops::apply(&mut tx, &ctx, op) {
            Ok(applied) => {
                let undo = tx.into_undo();
                if is_synced || applied.must_sync {
                    rows.unsynced.clear();
                } else {
                    rows.unsynced.extend(undo);
                }
                self.shared.commits.fetch_add(1, Ordering::SeqCst);
                self.known.fetch_add(1, Ordering::SeqCst);
                let committed = applied.committed;
                let sink = self.sink.read().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(sink) = sink
                    && !(committed.frames.is_empty() && committed.signals.is_empty())
                {
                    // Under the lock, so that the order of calls is the order of commits.
                    sink(committed);
                }
                Ok(applied.reply)
            }
            Err(error) => {
                tx.roll_back();
                Err(error)
            }
        }
    }

    fn set_sink(&self, sink: Sink) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    async fn node_gone(&self, node: &NodeId) -> Option<bool> {
        lock(&self.shared.gone).get(node).copied()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    async fn changed_elsewhere(&self) -> bool {
        let all = self.shared.commits.load(Ordering::SeqCst);
        self.known.swap(all, Ordering::SeqCst) != all
    }
}
