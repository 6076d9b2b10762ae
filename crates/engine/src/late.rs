//! What arrives after an interruption was recorded: leaving it, and looking at it.
//!
//! A turn that was taken from this node leaves what it still held beside its run ([`leave`]). A
//! reader of a session whose marker is pending asks for a look ([`ask`]); one look at a time is made
//! for each session, by whoever owns it, and no reader waits for it. The rules are
//! [`everturn_core::late`]'s.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use everturn_core::event::Record;
use everturn_core::late::{LateRecord, Look};
use everturn_core::{CallState, SessionKey};
use everturn_store::op::{Deposit, LookLate};
use everturn_store::{OpError, Refusal, StorageError, execute};

use crate::engine::Shared;
use crate::patience::Patience;
use crate::recover;

/// Runs of one session that one look goes through.
const RUNS: u32 = 64;
/// Runs of all sessions that are read at a time.
const POLLED: u32 = 256;

/// Sessions that are being looked at.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<HashSet<SessionKey>>);

impl Looks {
    fn begin(&self, key: &SessionKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone())
    }

    fn end(&self, key: &SessionKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What of a turn's records is worth leaving behind.
pub(crate) fn worth(records: Vec<Record>) -> impl Iterator<Item = LateRecord> {
    records.into_iter().filter_map(|record| match record {
        Record::TextDelta(text) => Some(LateRecord::Text(text)),
        Record::ReasoningDelta(text) => Some(LateRecord::Reasoning(text)),
        Record::CallFinished { call_id, state, result }
            if matches!(state, CallState::Succeeded | CallState::Failed) =>
        {
            Some(LateRecord::CallFinished { call_id, state, result })
        }
        _ => None,
    })
}

/// Leaves what a turn still held when it was taken from this node, and says that this is all of it.
/// Tried until the store takes it or the engine closes; the turn counts as this node's until then, so
/// that nobody here records its interruption before what it held is there.
pub(crate) async fn leave(shared: &Arc<Shared>, deposit: Deposit) {
    let mut patience = Patience::default();
    loop {
        let error = match execute(&*shared.store, deposit.clone()).await {
            Ok(true) => return ask(shared, &deposit.key),
            // Nobody waits for it: the turn was stopped, or what it did is settled.
            Ok(false) => return,
            Err(OpError::Refused(refusal)) => {
                tracing::debug!(run = %deposit.run_id, %refusal, "late records are not taken");
                return;
            }
            Err(OpError::Storage(error)) => error,
        };
        shared.noise.say("cannot leave late records; trying again", &error);
        tokio::select! {
            () = shared.closed.cancelled() => break,
            () = tokio::time::sleep(patience.pause(Some(error.kind))) => {}
        }
    }
    tracing::warn!(run = %deposit.run_id, "late records of a lost turn could not be left");
}

/// Asks for a look at what arrived late in a session, unless one is being made. Does not wait.
pub(crate) fn ask(shared: &Arc<Shared>, key: &SessionKey) {
    if shared.closed.is_cancelled() || !shared.looks.begin(key) {
        return;
    }
    let tasks = shared.tasks.clone();
    let (shared, key) = (Arc::clone(shared), key.clone());
    tasks.spawn(async move {
        if let Err(error) = look(&shared, &key).await {
            shared.noise.say("cannot look for late records; trying again later", &error);
        }
        shared.looks.end(&key);
    });
}

async fn look(shared: &Shared, key: &SessionKey) -> Result<(), StorageError> {
    for run in shared.store.late_runs(key, RUNS).await? {
        // The node itself is alive, and whatever it held it has left.
        let holder_gone =
            run.node != shared.config.node && shared.store.node_gone(&run.node).await == Some(true);
        let node = shared.config.node.clone();
        let op = LookLate { key: key.clone(), run_id: run.id.clone(), node, holder_gone };
        match execute(&*shared.store, op).await {
            Ok(Some(found @ (Look::Promote | Look::GiveUp))) => {
                tracing::info!(session = %key, run = %run.id, ?found, "late records were settled");
            }
            Ok(_) => {}
            // Its owner looks.
            Err(OpError::Refused(Refusal::Held { .. })) => return Ok(()),
            Err(OpError::Refused(refusal)) => {
                tracing::warn!(session = %key, run = %run.id, %refusal, "cannot look");
            }
            Err(OpError::Storage(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Looks where somebody is watching, here or at another node: a viewer who is attached reads what
/// comes.
pub(crate) async fn poll(shared: &Arc<Shared>) -> Result<(), StorageError> {
    let mut after = None;
    loop {
        let page = shared.store.all_late_runs(after.as_ref(), POLLED).await?;
        for run in &page {
            let key = run.session_key();
            if recover::viewed(shared, &key).await? {
                ask(shared, &key);
            }
        }
        match page.last() {
            Some(last) if page.len() >= POLLED as usize => after = Some(last.id.clone()),
            _ => return Ok(()),
        }
    }
}

/// Gives up what is too old, whether or not anybody reads it.
pub(crate) async fn give_up_old(shared: &Shared) -> Result<(), StorageError> {
    let mut after = None;
    loop {
        let page = shared.store.all_late_runs(after.as_ref(), POLLED).await?;
        let now = shared.store.clock().now();
        for run in &page {
            if run.late.is_some_and(|late| everturn_core::late::out_of_budget(&late, now)) {
                look(shared, &run.session_key()).await?;
            }
        }
        match page.last() {
            Some(last) if page.len() >= POLLED as usize => after = Some(last.id.clone()),
            _ => return Ok(()),
        }
    }
}
