//! What runs in this process, and who waits for something: the in-memory half of stops, answers and
//! waits. Everything here is a hint; the store is the truth, and each waiter looks there again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use everturn_core::{InputId, PromptId, RunId, SessionKey};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Handles of one running turn.
#[derive(Debug, Clone)]
pub(crate) struct TurnControl {
    /// The run.
    pub(crate) run_id: RunId,
    /// A person's stop was recorded: drop the model request, end the tools, settle as cancelled.
    pub(crate) stop: CancellationToken,
    /// The lease is lost: end the tools, write nothing.
    pub(crate) lost: CancellationToken,
    /// Cancelled before `lost` where this node itself ends the turn, because it is leaving.
    pub(crate) abandoned: CancellationToken,
    /// A prompt of the session was settled.
    pub(crate) prompt: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    turns: HashMap<SessionKey, TurnControl>,
    inputs: HashMap<InputId, Weak<Notify>>,
    released: HashMap<SessionKey, Weak<Notify>>,
    adopted: HashSet<InputId>,
}

/// The registry.
#[derive(Default)]
pub(crate) struct Controls {
    inner: Mutex<Inner>,
}

impl Controls {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No section below can leave the maps half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a turn; its handles live until [`Controls::finish`].
    pub(crate) fn begin(&self, key: &SessionKey, run_id: &RunId) -> TurnControl {
        let control = TurnControl {
            run_id: run_id.clone(),
            stop: CancellationToken::new(),
            lost: CancellationToken::new(),
            abandoned: CancellationToken::new(),
            prompt: Arc::new(Notify::new()),
        };
        self.lock().turns.insert(key.clone(), control.clone());
        control
    }

    /// Removes a turn. A late stop for it then finds nothing to touch.
    pub(crate) fn finish(&self, key: &SessionKey, run_id: &RunId) {
        let mut inner = self.lock();
        if inner.turns.get(key).is_some_and(|control| control.run_id == *run_id) {
            inner.turns.remove(key);
        }
    }

    /// Whether this run runs here.
    pub(crate) fn has(&self, key: &SessionKey, run_id: &RunId) -> bool {
        self.lock().turns.get(key).is_some_and(|control| control.run_id == *run_id)
    }

    /// Turns that run.
    pub(crate) fn count(&self) -> usize {
        self.lock().turns.len()
    }

    /// All that run.
    pub(crate) fn all(&self) -> Vec<(SessionKey, TurnControl)> {
        self.lock().turns.iter().map(|(key, control)| (key.clone(), control.clone())).collect()
    }

    /// A stop was recorded on a run.
    pub(crate) fn stop(&self, key: &SessionKey, run_id: &RunId) {
        if let Some(control) = self.lock().turns.get(key)
            && control.run_id == *run_id
        {
            control.stop.cancel();
        }
    }

    /// A stop was recorded on a run, whose session is not at hand.
    pub(crate) fn stop_run(&self, run_id: &RunId) {
        for control in self.lock().turns.values() {
            if control.run_id == *run_id {
                control.stop.cancel();
            }
        }
    }

    /// A prompt was settled.
    pub(crate) fn prompt(&self, key: &SessionKey, _prompt: &PromptId) {
        if let Some(control) = self.lock().turns.get(key) {
            control.prompt.notify_one();
        }
    }

    /// A notice for whoever waits for an input's end.
    pub(crate) fn wait_for_input(&self, id: &InputId) -> Arc<Notify> {
        let mut inner = self.lock();
        forget_gone(&mut inner.inputs);
        notice(&mut inner.inputs, id)
    }

    /// An input has its outcome.
    pub(crate) fn input_ended(&self, id: &InputId) {
        let mut inner = self.lock();
        inner.adopted.remove(id);
        if let Some(notify) = inner.inputs.remove(id).and_then(|weak| weak.upgrade()) {
            notify.notify_waiters();
        }
    }

    /// A notice for whoever waits until a session's turn is over.
    pub(crate) fn released(&self, key: &SessionKey) -> Arc<Notify> {
        let mut inner = self.lock();
        forget_gone(&mut inner.released);
        notice(&mut inner.released, key)
    }

    /// A session's turn is over.
    pub(crate) fn on_released(&self, key: &SessionKey) {
        if let Some(notify) = self.lock().released.remove(key).and_then(|weak| weak.upgrade()) {
            notify.notify_waiters();
            notify.notify_one();
        }
    }

    /// An input that this node was asked for itself.
    pub(crate) fn adopt(&self, id: &InputId) {
        self.lock().adopted.insert(id.clone());
    }

    /// Whether this node was asked for one of these inputs itself.
    pub(crate) fn is_adopted(&self, ids: &[InputId]) -> bool {
        let inner = self.lock();
        ids.iter().any(|id| inner.adopted.contains(id))
    }
}

fn notice<K: std::hash::Hash + Eq + Clone>(
    map: &mut HashMap<K, Weak<Notify>>,
    key: &K,
) -> Arc<Notify> {
    if let Some(notify) = map.get(key).and_then(Weak::upgrade) {
        return notify;
    }
    let notify = Arc::new(Notify::new());
    map.insert(key.clone(), Arc::downgrade(&notify));
    notify
}

/// Waiters that went away leave their entry behind; it is dropped when the map has grown.
fn forget_gone<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Weak<Notify>>) {
    if map.len() >= 1_024 && map.len().is_power_of_two() {
        map.retain(|_, weak| weak.strong_count() > 0);
    }
}
