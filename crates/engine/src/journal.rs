//! The one place where a turn's records are written.

use std::sync::Arc;
use std::time::Duration;

use everturn_core::Timestamp;
use everturn_core::event::Record;
use everturn_core::late::LateRecord;
use everturn_store::op::Deposit;
use everturn_store::{Fence, OpError, Refusal, StorageError, TurnLease};
use tokio::time::Instant;

use crate::control::TurnControl;
use crate::engine::Shared;
use crate::late;
use crate::patience::Patience;

/// Why a turn cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Halt {
    /// The session is somebody else's: write nothing, end everything (promise P11).
    Lost,
    /// A person stopped it: end everything, then settle as cancelled.
    Stopped,
    /// The node leaves: hand over at this step boundary.
    Draining,
    /// A record did not fit: a bug, named, which fails the turn visibly.
    Bug(&'static str),
}

/// Writes one turn's records. Each write returns when its records are committed and published.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    lease: TurnLease,
    control: TurnControl,
    /// Writes that are committed.
    writes: u64,
    /// The last write that was tried.
    tried: u64,
    /// What could not be written any more, because the turn is somebody else's; each with the write
    /// that it belongs to.
    unwritten: Vec<(u64, LateRecord)>,
}

impl Journal {
    pub(crate) fn new(shared: Arc<Shared>, fence: Fence, control: TurnControl) -> Self {
        let lease = TurnLease::new(Arc::clone(&shared.store), fence);
        Self { shared, lease, control, writes: 0, tried: 0, unwritten: Vec::new() }
    }

    /// Whether nothing was written since the claim.
    pub(crate) fn is_untouched(&self) -> bool {
        self.writes == 0
    }

    /// Keeps records that the turn held when it was lost, and that were in no write yet: see
    /// [`Journal::leave`].
    pub(crate) fn keep(&mut self, records: Vec<Record>) {
        let write = self.tried.max(self.writes) + 1;
        self.keep_as(write, records);
    }

    fn keep_as(&mut self, write: u64, records: Vec<Record>) {
        self.unwritten.extend(late::worth(records).map(|record| (write, record)));
    }

    /// The turn was taken from this node: what it still held is left beside its run, where it
    /// touches nothing (promise P11), and said to be all.
    pub(crate) async fn leave(mut self) {
        let fence = self.lease.fence();
        let (key, run_id) = (fence.session().clone(), fence.run_id().clone());
        let node = self.shared.config.node.clone();
        let epoch = fence.epoch();
        self.unwritten.push((self.tried + 1, LateRecord::Sealed));
        let deposit = Deposit { key, run_id, node, epoch, first: 1, records: self.unwritten };
        late::leave(&self.shared, deposit).await;
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.store.clock().now()
    }

    /// Writes records, all or none. While the store fails, this waits and tries again: nothing is
    /// published meanwhile, and as long as nobody takes the session over the turn goes on when the
    /// store is back (promise P13).
    pub(crate) async fn write(&mut self, records: Vec<Record>) -> Result<(), Halt> {
        if records.is_empty() {
            return Ok(());
        }
        let mut wait = Patience::default();
        let number = self.writes + 1;
        self.tried = number;
        let given_up = Instant::now() + self.shared.config.watchdog.store;
        loop {
            let write = self.lease.write(number, records.clone());
            let Ok(written) = tokio::time::timeout_at(given_up, write).await else {
                return Err(self.give_up(records));
            };
            match written {
                Ok(_) => {
                    self.writes = number;
                    return Ok(());
                }
                Err(OpError::Refused(refusal)) => {
                    let halt = halt(&refusal);
                    if halt == Halt::Lost {
                        self.keep_as(number, records);
                    }
                    return Err(halt);
                }
                // The number makes it safe: what was committed although its answer was lost is
                // known again, and what was not is written now.
                Err(OpError::Storage(_)) if Instant::now() >= given_up => {
                    return Err(self.give_up(records));
                }
                Err(OpError::Storage(error)) => {
                    if let Err(halt) = self.wait_for_store(&error, &mut wait).await {
                        self.keep_as(number, records);
                        return Err(halt);
                    }
                }
            }
        }
    }

    /// The store has not taken a record for as long as the watchdog allows: the turn lets go. What
    /// it holds is left for later; the interruption is recorded by whoever finds the run.
    fn give_up(&mut self, records: Vec<Record>) -> Halt {
        let after_s = self.shared.config.watchdog.store.as_secs();
        tracing::error!(run = %self.control.run_id, after_s, "the store takes no record; the turn lets go");
        metrics::counter!("everturn_watchdog_total", "phase" => "store").increment(1);
        self.shared.note_let_go(&self.control.run_id, after_s);
        // The write may be committed after all, in a moment: the number tells.
        self.keep_as(self.tried, records);
        Halt::Lost
    }

    async fn wait_for_store(&self, error: &StorageError, wait: &mut Patience) -> Result<(), Halt> {
        self.shared.noise.say("the store is away; a turn waits", error);
        metrics::counter!("everturn_store_retries_total").increment(1);
        let pause = wait.pause(Some(error.kind));
        tokio::select! {
            () = self.control.lost.cancelled() => Err(Halt::Lost),
            () = self.shared.closed.cancelled() => Err(Halt::Lost),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}

fn halt(refusal: &Refusal) -> Halt {
    match refusal {
        Refusal::Stopped => Halt::Stopped,
        Refusal::BadRecord(what) => Halt::Bug(what),
        _ => Halt::Lost,
    }
}

/// Deltas that wait to share a commit. The first of a burst goes at once; those after it may wait
/// for `within` (DESIGN §4).
pub(crate) struct Deltas {
    records: Vec<Record>,
    bytes: usize,
    written_at: Option<Instant>,
    within: Duration,
}

/// Deltas, and bytes of them, that are written without waiting any longer.
const DELTAS_MAX: usize = 128;
const DELTA_BYTES_MAX: usize = 64 << 10;

impl Deltas {
    pub(crate) fn new(within: Duration) -> Self {
        Self { records: Vec::new(), bytes: 0, written_at: None, within }
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.bytes += match &record {
            Record::TextDelta(text) | Record::ReasoningDelta(text) => text.len(),
            Record::CallOutput { text, .. } => text.len(),
            _ => 0,
        };
        self.records.push(record);
    }

    /// When what waits is to be written; `None` while nothing does.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.records.is_empty() {
            return None;
        }
        let full = self.records.len() >= DELTAS_MAX || self.bytes >= DELTA_BYTES_MAX;
        match self.written_at {
            Some(at) if !full => Some(at + self.within),
            _ => Some(Instant::now()),
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }

    /// Everything that waits.
    pub(crate) fn take(&mut self) -> Vec<Record> {
        self.bytes = 0;
        self.written_at = Some(Instant::now());
        std::mem::take(&mut self.records)
    }
}
