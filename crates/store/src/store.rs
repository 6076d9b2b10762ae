//! The contract of a store, and the handles that callers work with.

use std::sync::Arc;

use async_trait::async_trait;
use everturn_core::NodeId;
use everturn_core::event::Record;

use crate::clock::Clock;
use crate::error::OpError;
use crate::op::{Command, Committed, Fence, Op, Reply, Write, Written, wrong_reply};
use crate::read::Read;

/// Takes what was committed, in commit order, on the writer's own thread: it must not block.
pub type Sink = Arc<dyn Fn(Committed) + Send + Sync>;

/// A durable store.
///
/// # Contract
/// - **Atomic.** An operation commits wholly or not at all. Operations share commits, but the
///   failure or refusal of one never touches another of the same commit.
/// - **Durable.** When `submit` answers, the operation survives the death of the process; if
///   [`Op::synced`] (or the store runs in `eager` mode) it survives power loss as well.
/// - **Ordered.** Operations on one session take effect in the order in which they were submitted
///   by one caller; offsets are gapless in commit order.
/// - **Published after commit.** The sink gets the frames of an operation after its commit, in
///   offset order per session, before the caller gets its answer.
/// - **Fenced.** See [`Fence`]: a stale writer is answered [`crate::Refusal::Fenced`] and leaves no
///   trace.
/// - **Loud.** A storage failure is answered to every operation that it concerns; afterwards memory
///   and disk agree, and the same operation may be submitted again.
#[async_trait]
pub trait Store: Read {
    /// Runs one operation.
    ///
    /// # Errors
    /// [`OpError`]. After a storage error whose operation may have been committed (the answer was
    /// lost with the connection), submitting it again is safe: each operation knows its repetition,
    /// a write by its number.
    async fn submit(&self, op: Op) -> Result<Reply, OpError>;

    /// Sets who is told of commits of this process. Called once, before the first operation whose
    /// events matter.
    fn set_sink(&self, sink: Sink);

    /// Whether a node is provably gone (`Some(true)`), provably alive (`Some(false)`), or neither.
    /// On one machine the proof is a kernel lock, never a pid.
    async fn node_gone(&self, node: &NodeId) -> Option<bool>;

    /// Where the store takes time and ids from.
    fn clock(&self) -> &dyn Clock;

    /// Changes made by other processes since the last call, as far as this can be told cheaply;
    /// `true` when in doubt. Lets a node notice without reading every session.
    async fn changed_elsewhere(&self) -> bool;
}

/// Runs one typed operation.
///
/// # Errors
/// As [`Store::submit`].
pub async fn execute<C: Command>(store: &dyn Store, command: C) -> Result<C::Reply, OpError> {
    let op = command.into_op();
    let name = op.name();
    let reply = store.submit(op).await?;
    C::from_reply(reply).ok_or_else(|| wrong_reply(name))
}

/// A claimed turn: the only thing that records of a turn can be written with.
#[derive(Clone)]
pub struct TurnLease {
    store: Arc<dyn Store>,
    fence: Fence,
}

impl TurnLease {
    /// The handle of a claim.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, fence: Fence) -> Self {
        Self { store, fence }
    }

    /// What was claimed.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Writes records, all or none, as the write of this number since the claim (from 1): repeated
    /// with its number after a storage failure, a write that had been committed changes nothing.
    /// They are durable as their kind demands when this returns, and
    /// published.
    ///
    /// # Errors
    /// [`crate::Refusal::Fenced`] when the turn is no longer ours, [`crate::Refusal::Stopped`] when a
    /// person's stop leaves only the end to write, or a storage failure.
    pub async fn write(&self, number: u64, records: Vec<Record>) -> Result<Written, OpError> {
        let write = Write { fence: self.fence.clone(), records, number: Some(number) };
        execute(&*self.store, write).await
    }
}

impl std::fmt::Debug for TurnLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnLease").field("fence", &self.fence).finish_non_exhaustive()
    }
}
