//! The engine's face: opening it, submitting, controlling, watching, leaving.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use everturn_core::digest;
use everturn_core::{
    Choice, Content, Evidence, Input, InputId, InputKind, InputStatus, LeaseExpiry, Mode, NodeId,
    Policy, Principal, Prompt, PromptId, RequestId, Run, RunId, Session, SessionKey, TokenId,
};
use everturn_store::op::{
    Admit, Admitted, AnswerPrompt, CancelInput, Claimer, CreateSession, CreateToken, Decide,
    Decided, Decision, DeleteSession, EndNode, EndSession, PatchSession, RegisterNode, RevokeGrant,
    RevokeToken, SessionPatch, Stop, TouchToken,
};
use everturn_store::rows::{Node, Token};
use everturn_store::{OpError, Read, Refusal, StorageError, Store, execute};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Models, Scope};
use crate::control::Controls;
use crate::late::{self, Looks};
use crate::lease::Leases;
use crate::live::{self, Hub, RunCursor, Stream};
use crate::patience::Noise;
use crate::wake::{Pending, Places};
use crate::{recover, retain, wake};

/// Why a call of the engine did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store refused it, or failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The node is leaving and takes no new inputs; another will.
    #[error("this server is leaving and takes no new inputs")]
    Draining,
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        Self::Op(OpError::Refused(refusal))
    }
}

impl From<StorageError> for EngineError {
    fn from(error: StorageError) -> Self {
        Self::Op(OpError::Storage(error))
    }
}

/// Why an engine could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The store failed while the node was registered or turns were resolved.
    #[error("cannot open the engine: {0}")]
    Store(#[from] OpError),
}

/// What all parts of an engine share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) pending: Pending,
    pub(crate) controls: Controls,
    pub(crate) leases: Leases,
    /// No new turn is claimed; steps under way end.
    pub(crate) draining: AtomicBool,
    /// Wakes whoever waits at a step boundary or for a prompt when draining begins.
    pub(crate) drain: CancellationToken,
    /// Ends the loops.
    pub(crate) closed: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Set when the last turn of a draining node is over.
    pub(crate) idle: Notify,
    pub(crate) loop_broken: AtomicBool,
    /// Runs that this node let go of because the store took no record for so many seconds.
    pub(crate) let_go: Mutex<HashMap<RunId, u64>>,
    /// How many turns there are, or may be in a moment.
    pub(crate) places: Places,
    /// Sessions in which a look is taken at what arrived late.
    pub(crate) looks: Looks,
    /// What was said of a store that fails.
    pub(crate) noise: Noise,
    /// When this node started.
    pub(crate) started_at: everturn_core::Timestamp,
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Notes that a turn was let go because of the store. Forgotten where another node records the
    /// interruption; so as not to grow with these, no more are kept than turns can run.
    pub(crate) fn note_let_go(&self, run: &RunId, silent_s: u64) {
        let mut let_go = self.let_go.lock().unwrap_or_else(PoisonError::into_inner);
        if let_go.len() > self.config.turns_max {
            let_go.clear();
        }
        let_go.insert(run.clone(), silent_s);
    }

    /// Whether a turn was, and after how many seconds.
    pub(crate) fn was_let_go(&self, run: &RunId) -> Option<u64> {
        self.let_go.lock().unwrap_or_else(PoisonError::into_inner).remove(run)
    }

    /// This node as a claimer.
    pub(crate) fn claimer(&self, expiry: LeaseExpiry) -> Claimer {
        let default_model = self.config.models.default_model();
        Claimer {
            node: self.config.node.clone(),
            expiry,
            default_model,
            workspace: self.config.workspace.clone(),
        }
    }
}

/// An open engine. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// What an input says, and how it is to be delivered.
#[derive(Debug, Clone)]
pub struct Submission {
    /// For which session.
    pub key: SessionKey,
    /// The sender's name for it.
    pub request_id: RequestId,
    /// How.
    pub mode: Mode,
    /// What.
    pub content: Content,
    /// JSON object text.
    pub metadata: Option<String>,
}

/// What a new session is given.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// For people.
    pub title: Option<String>,
    /// `provider/name`.
    pub model: Option<String>,
    /// System text.
    pub system: Option<String>,
    /// Its policy.
    pub policy: Policy,
    /// JSON object text.
    pub metadata: Option<String>,
}

impl Engine {
    /// Opens an engine on a store: registers the node, resolves what dead nodes left unfinished,
    /// and starts to work. Opening is recovering; no entry point can forget it.
    ///
    /// # Errors
    /// [`OpenError`] when the store fails.
    pub async fn open(store: Arc<dyn Store>, config: Config) -> Result<Self, OpenError> {
        let (presence, presence_changes) = mpsc::unbounded_channel();
        let hub = Arc::new(Hub::new(presence));
        let now = store.clock().now();
        let shared = Arc::new(Shared {
            leases: Leases::new(&*store, config.lease),
            hub,
            pending: Pending::default(),
            controls: Controls::default(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
            idle: Notify::new(),
            loop_broken: AtomicBool::new(false),
            let_go: Mutex::default(),
            places: Places::default(),
            looks: Looks::default(),
            noise: Noise::default(),
            started_at: now,
            store,
            config,
        });
        let sink = Arc::clone(&shared);
        shared.store.set_sink(Arc::new(move |committed| {
            sink.hub.publish(&committed);
            for signal in committed.signals {
                wake::on_signal(&sink, signal);
            }
        }));
        let node = Node {
            id: shared.config.node.clone(),
            home: shared.config.home.clone(),
            boot_id: shared.store.clock().boot().boot_id,
            role: shared.config.role.clone(),
            started_at: now,
            interrupted_start: false,
            ended_at: None,
        };
        for input in &shared.config.adopted {
            shared.controls.adopt(input);
        }
        execute(&*shared.store, RegisterNode { node: node.clone() }).await?;
        recover::on_open(&shared, node).await?;
        shared.tasks.spawn(wake::run(Arc::clone(&shared)));
        shared.tasks.spawn(wake::tick(Arc::clone(&shared)));
        if shared.config.scope == Scope::All {
            shared.tasks.spawn(wake::tidy(Arc::clone(&shared)));
            shared.tasks.spawn(retain::run(Arc::clone(&shared)));
            shared.tasks.spawn(recover::watch_parked(Arc::clone(&shared)));
        }
        shared.tasks.spawn(wake::presence(Arc::clone(&shared), presence_changes));
        Ok(Self { shared })
    }

    /// The reading half of the store.
    #[must_use]
    pub fn read(&self) -> &dyn Read {
        &*self.shared.store
    }

    /// The store's clock.
    #[must_use]
    pub fn clock(&self) -> &dyn everturn_store::Clock {
        self.shared.store.clock()
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.shared.config.node
    }

    /// The models that this node can use.
    #[must_use]
    pub fn models(&self) -> &dyn Models {
        &*self.shared.config.models
    }

    /// Accepts an input. When this returns it is durable, whatever dies next (promise P1); it never
    /// waits for an agent, a model or a lease.
    ///
    /// # Errors
    /// [`EngineError::Draining`], or what [`Admit`] refuses.
    pub async fn submit(&self, submission: Submission) -> Result<Admitted, EngineError> {
        let Submission { key, request_id, mode, content, metadata } = submission;
        if self.shared.is_draining() {
            // A known identity still gets its receipt.
            return match self.shared.store.input_by_identity(&key, &request_id).await? {
                Some(_) => self.admit(key, request_id, mode, content, metadata).await,
                None => Err(EngineError::Draining),
            };
        }
        self.admit(key, request_id, mode, content, metadata).await
    }

    async fn admit(
        &self,
        key: SessionKey,
        request_id: RequestId,
        mode: Mode,
        content: Content,
        metadata: Option<String>,
    ) -> Result<Admitted, EngineError> {
        let digest = digest::payload(InputKind::Message, mode, &content, metadata.as_deref());
        let config = &self.shared.config;
        // A turn that can begin at once is claimed with the admission of its input.
        let place = self.shared.places.ask();
        let at_once = wake::in_scope(&self.shared, &key)
            && !self.shared.is_draining()
            && place.is_within(config.turns_max);
        let expiry = self.shared.leases.expiry(self.shared.store.clock());
        let claimer = at_once.then(|| self.shared.claimer(expiry));
        let admit = Admit {
            key,
            request_id,
            digest,
            mode,
            content,
            metadata,
            queue_max: config.queue_max,
            sessions_max: config.sessions_max,
            auto_continue: config.auto_continue,
            claimer,
        };
        let admitted = execute(&*self.shared.store, admit).await?;
        // The loop counts the turn from its claim on, which was told before this answer.
        drop(place);
        metrics::counter!(
            "everturn_inputs_total",
            "replayed" => if admitted.replayed { "true" } else { "false" }
        )
        .increment(1);
        Ok(*admitted)
    }

    /// Tells a node of scope [`Scope::Only`] that an input is its own: should its turn turn out to
    /// be interrupted, this node may continue it.
    pub fn adopt(&self, input: &InputId) {
        self.shared.controls.adopt(input);
        if let Scope::Only(key) = &self.shared.config.scope {
            self.shared.pending.add(key.clone());
        }
    }

    /// Waits until an input has its outcome, at most `limit`. Answers the input as it is then, or
    /// `None` if there is no such input.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn wait_input(
        &self,
        id: &InputId,
        limit: Duration,
    ) -> Result<Option<(Input, Option<u32>)>, EngineError> {
        let deadline = tokio::time::Instant::now() + limit;
        let waiter = self.shared.controls.wait_for_input(id);
        loop {
            // Armed before the row is read, so that an end between the two is noticed.
            let mut ended = std::pin::pin!(waiter.notified());
            ended.as_mut().enable();
            let found = self.shared.store.input(id).await?;
            let open =
                found.as_ref().is_some_and(|(input, _)| input.status != InputStatus::Terminal);
            if !open || tokio::time::Instant::now() >= deadline {
                return Ok(found);
            }
            // Another process may end it: its commit sends no signal here.
            let look = (tokio::time::Instant::now() + Duration::from_millis(500)).min(deadline);
            let _ = tokio::time::timeout_at(look, ended).await;
        }
    }

    /// Withdraws an input that still waits.
    ///
    /// # Errors
    /// What [`CancelInput`] refuses.
    pub async fn cancel_input(
        &self,
        principal: Principal,
        input_id: InputId,
    ) -> Result<Input, EngineError> {
        Ok(*execute(&*self.shared.store, CancelInput { principal, input_id }).await?)
    }

    /// Stops the running turn. When this returns the stop is durable: the turn will not complete,
    /// whatever dies next.
    ///
    /// # Errors
    /// What [`Stop`] refuses.
    pub async fn stop(
        &self,
        key: SessionKey,
        generation: Option<u64>,
        run_id: Option<RunId>,
        by: Principal,
        keep_queue: bool,
    ) -> Result<Run, EngineError> {
        let stop = Stop { key, generation, run_id, by, keep_queue };
        Ok(*execute(&*self.shared.store, stop).await?)
    }

    /// Decides about an interrupted turn.
    ///
    /// # Errors
    /// What [`Decide`] refuses.
    pub async fn decide(
        &self,
        key: SessionKey,
        generation: u64,
        decision: Decision,
    ) -> Result<Decided, EngineError> {
        Ok(*execute(&*self.shared.store, Decide { key, generation, decision }).await?)
    }

    /// Answers a prompt.
    ///
    /// # Errors
    /// What [`AnswerPrompt`] refuses.
    pub async fn answer(
        &self,
        principal: Principal,
        prompt_id: PromptId,
        generation: u64,
        choice: Option<Choice>,
        text: Option<String>,
    ) -> Result<Prompt, EngineError> {
        let answer = AnswerPrompt { principal, prompt_id, generation, choice, text };
        Ok(*execute(&*self.shared.store, answer).await?)
    }

    /// Creates a session.
    ///
    /// # Errors
    /// What [`CreateSession`] refuses.
    pub async fn create_session(
        &self,
        key: SessionKey,
        new: NewSession,
    ) -> Result<Session, EngineError> {
        let NewSession { title, model, system, policy, metadata } = new;
        let sessions_max = self.shared.config.sessions_max;
        let create = CreateSession { key, title, model, system, policy, metadata, sessions_max };
        Ok(*execute(&*self.shared.store, create).await?)
    }

    /// Changes a session.
    ///
    /// # Errors
    /// What [`PatchSession`] refuses.
    pub async fn patch_session(
        &self,
        key: SessionKey,
        expected_revision: Option<u64>,
        patch: SessionPatch,
    ) -> Result<Session, EngineError> {
        let patch = PatchSession { key, expected_revision, patch };
        Ok(*execute(&*self.shared.store, patch).await?)
    }

    /// Closes a session.
    ///
    /// # Errors
    /// What [`EndSession`] refuses.
    pub async fn end_session(
        &self,
        key: SessionKey,
        reason: String,
    ) -> Result<Session, EngineError> {
        Ok(*execute(&*self.shared.store, EndSession { key, reason }).await?)
    }

    /// Deletes a session. With `force`, a running turn is stopped first.
    ///
    /// # Errors
    /// What [`DeleteSession`] refuses; with `force`, [`Refusal::SessionBusy`] only if the turn has
    /// not ended within ten seconds.
    pub async fn delete_session(
        &self,
        key: SessionKey,
        expected_generation: Option<u64>,
        force: bool,
    ) -> Result<(), EngineError> {
        let delete = || {
            let (key, shared) = (key.clone(), &self.shared);
            async move { execute(&*shared.store, DeleteSession { key, expected_generation }).await }
        };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            match delete().await {
                Err(OpError::Refused(Refusal::SessionBusy))
                    if force && tokio::time::Instant::now() < deadline =>
                {
                    let by = key.principal.clone();
                    match self.stop(key.clone(), None, None, by, false).await {
                        Ok(_) | Err(EngineError::Op(OpError::Refused(Refusal::NotRunning))) => {}
                        Err(error) => return Err(error),
                    }
                    let released = self.shared.controls.released(&key);
                    let wait = Duration::from_millis(200);
                    let _ = tokio::time::timeout(wait, released.notified()).await;
                }
                other => return Ok(other?),
            }
        }
    }

    /// Makes a token known.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn create_token(&self, token: Token) -> Result<(), EngineError> {
        Ok(execute(&*self.shared.store, CreateToken { token }).await?)
    }

    /// Revokes a token; `false` if there is none of this id.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn revoke_token(&self, token_id: TokenId) -> Result<bool, EngineError> {
        Ok(execute(&*self.shared.store, RevokeToken { token_id }).await?)
    }

    /// Takes back that a principal allowed a tool for ever. Answers whether it had.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn revoke_grant(
        &self,
        principal: Principal,
        tool: String,
    ) -> Result<bool, EngineError> {
        Ok(execute(&*self.shared.store, RevokeGrant { principal, tool }).await?)
    }

    /// Notes that a token was used.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn touch_token(&self, token_id: TokenId) -> Result<(), EngineError> {
        Ok(execute(&*self.shared.store, TouchToken { token_id }).await?)
    }

    /// Whether a place in a run's journal was lost with the power: a reader that is there begins anew.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn is_lost(&self, run: &Run, seq: u64) -> Result<bool, StorageError> {
        live::is_lost(&*self.shared.store, run, seq).await
    }

    /// A session's feed behind `after`; without it, a snapshot and live from there. With `viewer`
    /// the reader counts as present.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn session_stream(
        &self,
        key: &SessionKey,
        after: Option<u64>,
        viewer: bool,
    ) -> Result<Stream, StorageError> {
        late::ask(&self.shared, key);
        let store = Arc::clone(&self.shared.store);
        Stream::session(store, &self.shared.hub, key, after, viewer).await
    }

    /// A run's journal behind a cursor.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn run_stream(&self, run: Run, after: RunCursor) -> Result<Stream, StorageError> {
        Stream::run(Arc::clone(&self.shared.store), &self.shared.hub, run, after).await
    }

    /// Viewers of a session that are attached to this node.
    #[must_use]
    pub fn viewers(&self, key: &SessionKey) -> u32 {
        self.shared.hub.viewers(key)
    }

    /// Whether nobody works on a run although it has no terminal record: its lease ran out, or its
    /// holder is provably gone. Reported to readers, stored nowhere.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn interrupted_virtually(&self, run: &Run) -> Result<bool, StorageError> {
        recover::nobody_works(&self.shared, run).await
    }

    /// The policy of a session for which nobody says anything else.
    #[must_use]
    pub fn default_policy(&self) -> Policy {
        Policy { auto_continue: self.shared.config.auto_continue, ..Policy::default() }
    }

    /// Somebody reads a session: if more of an interrupted turn of it may have arrived since, it is
    /// looked at. Does not wait; what is found is published like anything else.
    pub fn look_late(&self, key: &SessionKey) {
        late::ask(&self.shared, key);
    }

    /// What can be observed about the node that holds, or held, a run.
    ///
    /// # Errors
    /// A storage failure.
    pub async fn evidence(&self, run: &Run) -> Result<Evidence, StorageError> {
        recover::evidence(&self.shared, run).await
    }

    /// Whether a node is provably gone (`Some(true)`), provably alive (`Some(false)`), or neither.
    pub async fn node_gone(&self, node: &NodeId) -> Option<bool> {
        self.shared.store.node_gone(node).await
    }

    /// Turns that run in this process.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.shared.controls.count()
    }

    /// Whether the node takes new inputs.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    /// Leaves: claims nothing more, lets turns end or hands them over at their next step boundary,
    /// and interrupts honestly what still runs after `drain_timeout`. The engine still reads
    /// afterwards; calling it again waits for the same end.
    pub async fn drain(&self) {
        wake::drain(&self.shared).await;
    }

    /// Drains, notes that the node left by its own will, and ends the loops.
    pub async fn close(&self) {
        self.drain().await;
        let node = self.shared.config.node.clone();
        if let Err(error) = execute(&*self.shared.store, EndNode { node }).await {
            tracing::warn!(%error, "cannot note that this node left");
        }
        self.shared.closed.cancel();
        self.shared.tasks.close();
        let ended = tokio::time::timeout(Duration::from_secs(5), self.shared.tasks.wait()).await;
        if ended.is_err() {
            tracing::warn!("some tasks of the engine did not end in time");
        }
        // The store's sink holds what the engine shares, which holds the store.
        self.shared.store.set_sink(Arc::new(|_| {}));
    }
}
