//! Recovery: finding turns whose executor died, and recording what happened (promises P4 and P5).
//!
//! The decision itself is [`everturn_core::recovery`]; the transaction is the store's `Interrupt`
//! operation. Here the evidence is gathered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everturn_core::recovery::{Decision, Parked};
use everturn_core::{
    Evidence, NodeId, Run, RunState, Session, SessionKey, Timestamp, limits, recovery,
};
use everturn_store::op::{CloseUndecided, EndNode, Interrupt, Prune, Reconsider, RegisterNode};
use everturn_store::read::Work;
use everturn_store::rows::Node;
use everturn_store::{OpError, StorageError, StorageErrorKind, Store, execute};
use futures::StreamExt as _;

use crate::config::Scope;
use crate::control::TurnControl;
use crate::engine::Shared;
use crate::late;

/// Interruptions recorded at the same time, so that they share commits.
const CONCURRENT: usize = 256;

/// Whether nodes are gone, asked once each.
#[derive(Default)]
pub(crate) struct Gone {
    known: HashMap<NodeId, Option<bool>>,
}

impl Gone {
    /// `Some(true)`: provably gone; `Some(false)`: provably alive; `None`: cannot be told.
    async fn ask(&mut self, store: &dyn Store, node: &NodeId) -> Option<bool> {
        if let Some(known) = self.known.get(node) {
            return *known;
        }
        let gone = store.node_gone(node).await;
        self.known.insert(node.clone(), gone);
        gone
    }

    pub(crate) async fn is_gone(&mut self, store: &dyn Store, node: &NodeId) -> bool {
        self.ask(store, node).await == Some(true)
    }
}

/// Everything that needs a node, page by page.
pub(crate) async fn all_work(shared: &Shared) -> Result<Vec<Work>, StorageError> {
    let limit = shared.config.work_page;
    let mut all: Vec<Work> = Vec::new();
    // A session that changes meanwhile comes once more; pages that bring nothing else are the end.
    let mut known = HashSet::new();
    loop {
        let page = shared.store.work(all.last(), limit).await?;
        let full = page.len() >= limit as usize;
        let seen = known.len();
        known.extend(page.iter().map(|work| work.key.clone()));
        all.extend(page);
        if !full || known.len() == seen {
            return Ok(all);
        }
    }
}

/// Resolves what dead nodes left unfinished, and wakes whatever waits. Returns when every such turn
/// has its terminal record.
pub(crate) async fn on_open(shared: &Arc<Shared>, mut node: Node) -> Result<(), OpError> {
    let mut gone = Gone::default();
    let mut dead = Vec::new();
    for work in all_work(shared).await? {
        if let Scope::Only(key) = &shared.config.scope
            && *key != work.key
        {
            continue;
        }
        if nobody_holds(shared, &mut gone, &work).await
            && work.running.as_ref().is_some_and(|run| run.state != RunState::HandedOver)
        {
            dead.push(work);
        } else {
            shared.pending.add(work.key);
        }
    }
    if !dead.is_empty() && shared.config.scope == Scope::All {
        node.interrupted_start = true;
        execute(&*shared.store, RegisterNode { node }).await?;
    }
    look_for_loop(shared).await?;
    let results: Vec<Result<(), OpError>> = futures::stream::iter(dead)
        .map(|work| {
            let shared = Arc::clone(shared);
            async move {
                if let Some(run) = &work.running {
                    match resolve(&shared, &work.key, work.epoch, run).await {
                        Ok(()) => {}
                        // Its holder lives and has renewed the lease meanwhile.
                        Err(OpError::Refused(refusal)) => {
                            tracing::info!(session = %work.key, run = %run.id, %refusal, "left to its holder");
                        }
                        // One bad row keeps nobody else from their work; a poll tries again.
                        Err(OpError::Storage(error)) if error.kind == StorageErrorKind::Corrupt => {
                            tracing::error!(session = %work.key, run = %run.id, %error, "cannot be resolved");
                        }
                        Err(error) => return Err(error),
                    }
                }
                shared.pending.add(work.key);
                Ok(())
            }
        })
        .buffer_unordered(CONCURRENT)
        .collect()
        .await;
    results.into_iter().collect()
}

/// Nodes looked at in one go.
const NODES_MAX: u32 = 1_000;

/// Notes which nodes are gone, so that their viewers no longer count, and forgets what is kept for
/// a limited time only. Harmless to repeat, by any node.
pub(crate) async fn tidy_up(shared: &Shared) -> Result<(), OpError> {
    for node in shared.store.nodes(NODES_MAX).await? {
        let other = node.id != shared.config.node;
        if other && shared.store.node_gone(&node.id).await == Some(true) {
            execute(&*shared.store, EndNode { node: node.id }).await?;
        }
    }
    let days_ms = i64::try_from(limits::RECEIPT_DAYS * 86_400_000).unwrap_or(i64::MAX);
    let before = Timestamp(shared.store.clock().now().0.saturating_sub(days_ms));
    execute(&*shared.store, Prune { before }).await?;
    Ok(())
}

/// Opens the loop breaker when the home starts again and again into interrupted turns.
async fn look_for_loop(shared: &Shared) -> Result<(), StorageError> {
    let (starts, gap) = shared.config.loop_breaker;
    let limit = u32::try_from(starts).unwrap_or(u32::MAX).saturating_add(1);
    let recent = shared.store.serve_starts(&shared.config.home, limit).await?;
    let recent: Vec<(i64, bool)> =
        recent.iter().map(|node| (node.started_at.0, node.interrupted_start)).collect();
    let gap_ms = i64::try_from(gap.as_millis()).unwrap_or(i64::MAX);
    if recovery::loop_broken(&recent, starts, gap_ms) {
        tracing::warn!(
            starts,
            "this home was interrupted again and again; interrupted turns wait for a person"
        );
        shared.loop_broken.store(true, Ordering::SeqCst);
    }
    Ok(())
}

async fn nobody_holds(shared: &Shared, gone: &mut Gone, work: &Work) -> bool {
    match &work.lease {
        None => true,
        Some(lease) => {
            lease.expiry.passed(&shared.store.clock().boot())
                || gone.is_gone(&*shared.store, &lease.holder).await
        }
    }
}

/// Whether nobody works on a run although it has no end: for readers, stored nowhere.
pub(crate) async fn nobody_works(shared: &Shared, run: &Run) -> Result<bool, StorageError> {
    if matches!(run.state, RunState::Ended | RunState::HandedOver) {
        return Ok(false);
    }
    let Some(view) = shared.store.session(&run.session_key()).await? else { return Ok(false) };
    Ok(match &view.session.lease {
        None => true,
        Some(lease) if lease.holder == shared.config.node => false,
        Some(lease) => {
            lease.expiry.passed(&shared.store.clock().boot())
                || shared.store.node_gone(&lease.holder).await == Some(true)
        }
    })
}

/// Records the interruption of a run whose session a claim found unfinished.
pub(crate) async fn resolve_session(
    shared: &Shared,
    session: &Session,
    run: &Run,
) -> Result<(), OpError> {
    resolve(shared, &session.key(), session.epoch, run).await
}

async fn resolve(shared: &Shared, key: &SessionKey, epoch: u64, run: &Run) -> Result<(), OpError> {
    let mut evidence = evidence(shared, run).await?;
    // Left by a turn of this very process that could not write its end: nobody works on it.
    let by_holder = run.node == shared.config.node;
    if by_holder {
        evidence.newer_process = false;
        evidence.store_silent_s = shared.was_let_go(&run.id);
    }
    record(shared, key, epoch, run, evidence, by_holder).await
}

/// Records an interruption, and what follows from it as seen from here.
async fn record(
    shared: &Shared,
    key: &SessionKey,
    epoch: u64,
    run: &Run,
    evidence: Evidence,
    by_holder: bool,
) -> Result<(), OpError> {
    let interrupt = Interrupt {
        key: key.clone(),
        run_id: run.id.clone(),
        epoch,
        node: shared.config.node.clone(),
        evidence,
        by_holder,
        may_continue: may_continue(shared, run),
        model_here: model_here(shared, key, run).await?,
        tools_here: tools_here(shared, run).await?,
        workspace: shared.config.workspace.clone(),
        loop_broken: shared.loop_broken.load(Ordering::SeqCst),
        viewed: viewed(shared, key).await?,
    };
    let answer = execute(&*shared.store, interrupt).await?;
    let Some(decision) = answer.decision else { return Ok(()) };
    tracing::info!(session = %key, run = %run.id, ?decision, "an interrupted turn was resolved");
    metrics::counter!("everturn_interruptions_total").increment(1);
    // A viewer who came between the look and the record saw nothing to wake.
    let waits = decision == Decision::Park(Parked::WaitsForViewer);
    if waits && viewed(shared, key).await? {
        on_view(shared, key).await?;
    }
    Ok(())
}

/// Decides again about what waited for a viewer, or for another reason that may have passed: a viewer
/// is there.
pub(crate) async fn on_view(shared: &Shared, key: &SessionKey) -> Result<(), OpError> {
    let Some(view) = shared.store.session(key).await? else { return Ok(()) };
    match view.interrupted {
        Some(run) => reconsider(shared, key, &run, true).await,
        None => Ok(()),
    }
}

async fn reconsider(
    shared: &Shared,
    key: &SessionKey,
    run: &Run,
    viewed: bool,
) -> Result<(), OpError> {
    // Asked of every session that somebody opens: the usual answer costs no write.
    if run.parked.is_some_and(|parked| !parked.may_pass()) {
        return Ok(());
    }
    let op = Reconsider {
        key: key.clone(),
        run_id: run.id.clone(),
        may_continue: may_continue(shared, run),
        model_here: model_here(shared, key, run).await?,
        tools_here: tools_here(shared, run).await?,
        workspace: shared.config.workspace.clone(),
        loop_broken: shared.loop_broken.load(Ordering::SeqCst),
        viewed,
    };
    if let Some(decision) = execute(&*shared.store, op).await?.decision {
        tracing::info!(session = %key, run = %run.id, ?decision, "an interrupted turn was looked at again");
    }
    Ok(())
}

/// How often parked turns are gone through.
const PARKED_EVERY: Duration = Duration::from_secs(60);
/// Parked turns read in one go.
const PARKED_PAGE: u32 = 256;

/// Goes through the turns that wait for a decision: at the start those whose reason may have passed
/// are decided again, later those whose model was missing; and what nobody decided about in time is
/// closed. Late journals that are too old are given up.
pub(crate) async fn watch_parked(shared: Arc<Shared>) {
    let mut first = true;
    let gap = shared.config.loop_breaker.1;
    let started = tokio::time::Instant::now();
    loop {
        // A process that lives for longer than the gap is no link of a chain of deaths any more.
        if started.elapsed() > gap && shared.loop_broken.swap(false, Ordering::SeqCst) {
            tracing::info!(
                "this process has lived long enough; interrupted turns go on by themselves again"
            );
        }
        if let Err(error) = parked(&shared, first).await {
            tracing::warn!(%error, "cannot go through the turns that wait for a decision; trying again");
        } else {
            first = false;
        }
        if let Err(error) = late::give_up_old(&shared).await {
            shared.noise.say("cannot look for late records; trying again", &error);
        }
        tokio::select! {
            () = shared.closed.cancelled() => return,
            () = tokio::time::sleep(PARKED_EVERY) => {}
        }
    }
}

async fn parked(shared: &Shared, at_start: bool) -> Result<(), OpError> {
    let mut after = None;
    loop {
        let page = shared.store.parked(after.as_ref(), PARKED_PAGE).await?;
        let now = shared.store.clock().now();
        for (key, run) in &page {
            let waited_ms = run.ended_at.map_or(0, |at| now.since_ms(at));
            if waited_ms > limits::DECISION_S * 1_000 {
                let close = CloseUndecided { key: key.clone(), run_id: run.id.clone() };
                if execute(&*shared.store, close).await? {
                    tracing::info!(session = %key, run = %run.id, "nobody decided about an interrupted turn in time");
                }
                continue;
            }
            let due = match run.parked {
                Some(Parked::ModelMissing | Parked::ToolMissing) => true,
                Some(parked) => at_start && parked.may_pass(),
                None => false,
            };
            if due && !shared.is_draining() {
                let viewed = viewed(shared, key).await?;
                reconsider(shared, key, run, viewed).await?;
            }
        }
        match page.last() {
            Some((last, _)) if page.len() >= PARKED_PAGE as usize => after = Some(last.clone()),
            _ => return Ok(()),
        }
    }
}

/// Whether this node continues turns that it did not start.
fn may_continue(shared: &Shared, run: &Run) -> bool {
    match shared.config.scope {
        Scope::All => true,
        Scope::Only(_) => shared.controls.is_adopted(&run.input_ids),
    }
}

/// Whether the model that a continuation of a run would be bound to can be used here. One that only
/// cannot be reached now can: its turn fails visibly, or succeeds.
async fn model_here(shared: &Shared, key: &SessionKey, run: &Run) -> Result<bool, StorageError> {
    let view = shared.store.session(key).await?;
    let own = view.and_then(|view| view.session.model);
    let model = own.as_ref().unwrap_or(&run.model);
    match shared.config.models.provider(model).await {
        Ok(_) => Ok(true),
        Err(failure) => {
            tracing::warn!(session = %key, model, code = failure.code, "a model cannot be used here");
            Ok(!failure.permanent)
        }
    }
}

/// Whether every tool that a run called is there. (One that has changed is not run; see there.)
async fn tools_here(shared: &Shared, run: &Run) -> Result<bool, StorageError> {
    let calls = shared.store.run_calls(&run.id).await?;
    // What the model made up was in no registry.
    let mut known = calls.iter().filter(|call| !call.schema.is_empty());
    Ok(known.all(|call| shared.config.tools.get(&call.name).is_some()))
}

/// Whether a viewer is attached here, or on another node that lives.
pub(crate) async fn viewed(shared: &Shared, key: &SessionKey) -> Result<bool, StorageError> {
    if shared.hub.viewers(key) > 0 {
        return Ok(true);
    }
    let Some(view) = shared.store.session(key).await? else { return Ok(false) };
    for node in &view.present {
        if *node != shared.config.node && shared.store.node_gone(node).await == Some(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a newer process of a node's home runs: this one, or the last that serves it. The order is
/// that in which they came to the store, whatever their clocks said.
async fn newer_process(shared: &Shared, holder: &Node) -> Result<bool, StorageError> {
    let other = if holder.home == shared.config.home {
        Some(shared.config.node.clone())
    } else {
        shared.store.serve_starts(&holder.home, 1).await?.into_iter().next().map(|node| node.id)
    };
    let Some(other) = other else { return Ok(false) };
    let (here, there) =
        (shared.store.node_number(&other).await?, shared.store.node_number(&holder.id).await?);
    Ok(here.zip(there).is_some_and(|(other, holder)| other > holder))
}

/// What can be observed about the node that held a run.
pub(crate) async fn evidence(shared: &Shared, run: &Run) -> Result<Evidence, StorageError> {
    let holder = shared.store.node(&run.node).await?;
    let boot = shared.store.clock().boot().boot_id;
    let newer_process = match &holder {
        Some(holder) => newer_process(shared, holder).await?,
        None => false,
    };
    Ok(Evidence {
        holder: run.node.clone(),
        holder_started_at: holder.as_ref().map(|node| node.started_at),
        holder_gone: shared.store.node_gone(&run.node).await,
        rebooted: holder.as_ref().is_some_and(|node| node.boot_id != boot),
        observer: shared.config.node.clone(),
        observer_started_at: shared.started_at,
        newer_process,
        drain_timeout_s: None,
        store_silent_s: None,
        last_seq: run.last_seq,
        last_event: run.last_event.clone(),
        last_event_at: run.last_event_at,
    })
}

/// This node cannot finish a step in time and says so itself, instead of leaving it to be found.
pub(crate) async fn abandon(shared: &Shared, key: &SessionKey, control: &TurnControl) {
    let attempt = async {
        let Some(view) = shared.store.session(key).await? else { return Ok(()) };
        let Some(run) = view.running.filter(|run| run.id == control.run_id) else {
            return Ok(());
        };
        let mut evidence = evidence(shared, &run).await?;
        evidence.holder_gone = Some(false);
        evidence.newer_process = false;
        evidence.drain_timeout_s = Some(shared.config.drain_timeout.as_secs());
        record(shared, key, view.session.epoch, &run, evidence, true).await
    };
    let result: Result<(), OpError> = attempt.await;
    if let Err(error) = result {
        tracing::warn!(session = %key, %error, "cannot record the interruption; it will be found");
    }
}
