//! Everything that can wake a session, and the loop that reacts.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use everturn_core::{RunState, SessionKey};
use everturn_store::op::{ClaimedTurn, SetPresence};
use everturn_store::{OpError, Signal, execute};
use tokio::sync::{Notify, mpsc};

use crate::config::Scope;
use crate::control::TurnControl;
use crate::engine::Shared;
use crate::{late, lease, recover, turn};

/// What can wake the loop.
enum Wake {
    /// Sessions may have something to do: an input was accepted, a turn ended, a poll found work.
    Sessions(Vec<SessionKey>),
    /// Turns were claimed together with the admission of their input.
    Claimed(Vec<Begun>),
    /// A session's worker has nothing more to do, or may not.
    WorkerEnded(SessionKey),
    /// The engine is being closed.
    Closed,
}

/// A claimed turn and the handles that it was registered with.
pub(crate) type Begun = (Box<ClaimedTurn>, TurnControl);

/// How many turns there are, or may be in a moment: counted so that admissions, which claim turns by
/// themselves, stay within the limit together with the loop, which learns of them later.
#[derive(Default)]
pub(crate) struct Places {
    /// Sessions that the loop works on.
    workers: AtomicUsize,
    /// Turns that were claimed with their admission and that the loop has not seen.
    unseen: AtomicUsize,
    /// Admissions that may claim a turn.
    asking: AtomicUsize,
}

/// An admission's part of [`Places`]; dropping it takes it back.
pub(crate) struct Place<'a> {
    places: &'a Places,
}

impl Places {
    /// Counts one more admission.
    pub(crate) fn ask(&self) -> Place<'_> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        Place { places: self }
    }
}

impl Place<'_> {
    /// Whether everything that is counted, this one included, is within a limit.
    pub(crate) fn is_within(&self, max: usize) -> bool {
        // In the order in which a turn moves through them, so that it is never missed.
        let Places { workers, unseen, asking } = self.places;
        let counted = asking.load(Ordering::SeqCst)
            + unseen.load(Ordering::SeqCst)
            + workers.load(Ordering::SeqCst);
        counted <= max
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.places.asking.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the loop has not seen yet: sessions that may have something to do, and turns that begin.
/// Both are bounded by the number of sessions, so that adding to them never waits.
#[derive(Default)]
pub(crate) struct Pending {
    keys: Mutex<HashSet<SessionKey>>,
    claimed: Mutex<Vec<Begun>>,
    notify: Notify,
}

impl Pending {
    fn begin(&self, turn: Begun) {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
        self.notify.notify_one();
    }

    pub(crate) fn add(&self, key: SessionKey) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.notify.notify_one();
    }

    async fn take(&self) -> Wake {
        loop {
            let claimed: Vec<Begun> =
                self.claimed.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
            if !claimed.is_empty() {
                // The keys may wait: their turn comes with the next call.
                self.notify.notify_one();
                return Wake::Claimed(claimed);
            }
            let keys: Vec<SessionKey> =
                self.keys.lock().unwrap_or_else(PoisonError::into_inner).drain().collect();
            if !keys.is_empty() {
                return Wake::Sessions(keys);
            }
            self.notify.notified().await;
        }
    }
}

/// Reacts to a commit of this process. Runs on the writer's thread: nothing here waits.
pub(crate) fn on_signal(shared: &Shared, signal: Signal) {
    match signal {
        Signal::Claimed(turn) => {
            // Registered before anybody can see the turn, so that no stop misses it and no worker
            // takes it for one that nobody works on.
            let control = shared.controls.begin(&turn.session.key(), &turn.run.id);
            shared.places.unseen.fetch_add(1, Ordering::SeqCst);
            if let Some(lease) = &turn.session.lease {
                shared.leases.granted(&lease.expiry);
            }
            shared.pending.begin((turn, control));
        }
        Signal::Queued(key) => shared.pending.add(key),
        Signal::Stop(key, run) => shared.controls.stop(&key, &run),
        Signal::Prompt(key, prompt) => shared.controls.prompt(&key, &prompt),
        Signal::InputEnded(id) => shared.controls.input_ended(&id),
        Signal::Released(key) => {
            shared.controls.on_released(&key);
            shared.pending.add(key);
        }
        Signal::Deleted(_) => {}
    }
}

/// The loop: one worker per session that has something to do, never two.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (ended, mut workers_ended) = mpsc::channel::<SessionKey>(256);
    // Value: whether the session was woken again while its worker ran.
    let mut workers: HashMap<SessionKey, bool> = HashMap::new();
    let mut waiting: Vec<SessionKey> = Vec::new();
    // Claimed turns of sessions whose worker has not ended yet.
    let mut begun: HashMap<SessionKey, Begun> = HashMap::new();
    loop {
        let wake = tokio::select! {
            biased;
            () = shared.closed.cancelled() => Wake::Closed,
            Some(key) = workers_ended.recv() => Wake::WorkerEnded(key),
            wake = shared.pending.take() => wake,
        };
        let mut seen = 0;
        match wake {
            Wake::Closed => return,
            Wake::Sessions(keys) => waiting.extend(keys),
            Wake::Claimed(turns) => {
                seen = turns.len();
                for turn in turns {
                    let key = turn.0.session.key();
                    if workers.contains_key(&key) {
                        // The worker of the turn before is about to end.
                        begun.insert(key, turn);
                    } else {
                        workers.insert(key.clone(), false);
                        spawn(&shared, &ended, key, Some(turn));
                    }
                }
            }
            Wake::WorkerEnded(key) => {
                let again = workers.remove(&key) == Some(true);
                if let Some(turn) = begun.remove(&key) {
                    workers.insert(key.clone(), again);
                    spawn(&shared, &ended, key, Some(turn));
                } else if again {
                    waiting.push(key);
                }
                if workers.is_empty() {
                    shared.idle.notify_waiters();
                }
            }
        }
        // Claimed meanwhile: they come with the next wake, and what waits is looked at again then.
        let unseen = shared.places.unseen.load(Ordering::SeqCst).saturating_sub(seen);
        let mut full = Vec::new();
        for key in waiting.drain(..) {
            if let Some(again) = workers.get_mut(&key) {
                *again = true;
            } else if !in_scope(&shared, &key) || shared.is_draining() {
                // Not ours, or not any more: another node's poll finds it.
            } else if workers.len() + unseen >= shared.config.turns_max {
                full.push(key);
            } else {
                workers.insert(key.clone(), false);
                spawn(&shared, &ended, key, None);
            }
        }
        waiting = full;
        shared.places.workers.store(workers.len(), Ordering::SeqCst);
        shared.places.unseen.fetch_sub(seen, Ordering::SeqCst);
        metrics::gauge!("everturn_workers").set(workers.len() as f64);
    }
}

fn spawn(
    shared: &Arc<Shared>,
    ended: &mpsc::Sender<SessionKey>,
    key: SessionKey,
    begun: Option<Begun>,
) {
    let (worker, ended) = (Arc::clone(shared), ended.clone());
    shared.tasks.spawn(async move {
        turn::work(&worker, &key, begun).await;
        let _ = ended.send(key).await;
    });
}

/// Whether this node works on a session.
pub(crate) fn in_scope(shared: &Shared, key: &SessionKey) -> bool {
    match &shared.config.scope {
        Scope::All => true,
        Scope::Only(only) => only == key,
    }
}

/// Looks at the store from time to time: renews leases, and finds what other processes did. Signals
/// may be missing; this is the truth that makes up for them.
pub(crate) async fn tick(shared: Arc<Shared>) {
    let mut timer = tokio::time::interval(shared.config.poll);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut renewed = tokio::time::Instant::now();
    // Looks regardless of changes, for leases that ran out and nodes that died without writing.
    let mut looked = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = shared.closed.cancelled() => return,
            _ = timer.tick() => {}
        }
        if renewed.elapsed() >= shared.config.renew && shared.controls.count() > 0 {
            match lease::renew(&shared).await {
                Ok(()) => renewed = tokio::time::Instant::now(),
                Err(OpError::Storage(error)) => {
                    shared.noise.say("cannot renew leases; trying again", &error);
                }
                Err(error) => tracing::warn!(%error, "cannot renew leases; trying again"),
            }
        }
        let changed = shared.store.changed_elsewhere().await;
        if changed {
            shared.hub.poll(&*shared.store).await;
        }
        if changed || looked.elapsed() >= Duration::from_secs(2) {
            looked = tokio::time::Instant::now();
            if let Err(error) = look(&shared).await {
                shared.noise.say("cannot look for work; trying again", &error);
            }
            if let Err(error) = late::poll(&shared).await {
                shared.noise.say("cannot look for late records; trying again", &error);
            }
        }
    }
}

/// Finds sessions that have something to do and nobody who does it.
async fn look(shared: &Arc<Shared>) -> Result<(), everturn_store::StorageError> {
    let mut gone = recover::Gone::default();
    for work in recover::all_work(shared).await? {
        if let Some(run) = &work.running
            && run.node == shared.config.node
            && run.state != RunState::HandedOver
        {
            // Ours; another process may have recorded a stop on it, or an answer.
            if run.stop.is_some() {
                shared.controls.stop(&work.key, &run.id);
            }
            if !shared.controls.has(&work.key, &run.id) {
                // A turn that could not write its end.
                shared.pending.add(work.key);
            }
            continue;
        }
        let free = match &work.lease {
            None => true,
            Some(lease) if lease.holder == shared.config.node => true,
            Some(lease) => {
                lease.expiry.passed(&shared.store.clock().boot())
                    || gone.is_gone(&*shared.store, &lease.holder).await
            }
        };
        if free {
            shared.pending.add(work.key);
        }
    }
    Ok(())
}

/// How often what is kept for a limited time only is looked through.
const TIDY: Duration = Duration::from_secs(3_600);

/// Tidies up at the start and from time to time.
pub(crate) async fn tidy(shared: Arc<Shared>) {
    loop {
        if let Err(error) = recover::tidy_up(&shared).await {
            tracing::warn!(%error, "cannot tidy up; trying again later");
        }
        tokio::select! {
            () = shared.closed.cancelled() => return,
            () = tokio::time::sleep(TIDY) => {}
        }
    }
}

/// Writes down when the first viewer of a session comes, and when the last one goes.
pub(crate) async fn presence(
    shared: Arc<Shared>,
    mut changes: mpsc::UnboundedReceiver<(SessionKey, bool)>,
) {
    loop {
        let (key, _) = tokio::select! {
            () = shared.closed.cancelled() => return,
            change = changes.recv() => match change { Some(change) => change, None => return },
        };
        // A viewer that came and went while this waited: only the last word counts.
        let present = shared.hub.viewers(&key) > 0;
        let node = shared.config.node.clone();
        let noted = SetPresence { key: key.clone(), node, present };
        if let Err(error) = execute(&*shared.store, noted).await {
            tracing::debug!(%error, "cannot note a viewer's presence");
        }
        // After the note, so that an interruption which is recorded now sees the viewer itself.
        if present && let Err(error) = recover::on_view(&shared, &key).await {
            tracing::warn!(session = %key, %error, "cannot continue what waited for a viewer");
        }
    }
}

/// Leaves: see [`crate::Engine::drain`].
pub(crate) async fn drain(shared: &Arc<Shared>) {
    shared.draining.store(true, Ordering::SeqCst);
    shared.drain.cancel();
    let deadline = tokio::time::Instant::now() + shared.config.drain_timeout;
    wait_idle(shared, deadline).await;
    if shared.controls.count() == 0 {
        return;
    }
    // First everything ends, tools included; then the interruption is recorded, which lets others
    // go on: nothing of the old turn works beside its successor.
    let late = shared.controls.all();
    for (key, control) in &late {
        tracing::warn!(session = %key, run = %control.run_id, "a step did not end in time; interrupting it");
        control.abandoned.cancel();
        control.lost.cancel();
    }
    wait_idle(shared, tokio::time::Instant::now() + Duration::from_secs(5)).await;
    let records = late.iter().map(|(key, control)| recover::abandon(shared, key, control));
    futures::future::join_all(records).await;
}

async fn wait_idle(shared: &Shared, deadline: tokio::time::Instant) {
    while shared.controls.count() > 0 && tokio::time::Instant::now() < deadline {
        let look = (tokio::time::Instant::now() + Duration::from_millis(100)).min(deadline);
        let _ = tokio::time::timeout_at(look, shared.idle.notified()).await;
    }
}
