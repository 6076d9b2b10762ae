//! What an engine is told when it is opened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn_agent::provider::Provider;
use everturn_agent::tool::Registry;
use everturn_core::{AutoContinue, Failure, InputId, NodeId, SessionKey, limits};

/// Which sessions a node works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of the store's; it also resolves and continues what others left (`serve`).
    All,
    /// One (`run`, `chat`): it never touches another's.
    Only(SessionKey),
}

/// What happens when a tool needs a person's approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// A prompt is opened and the turn waits.
    Prompt,
    /// Nobody can be asked (a command line without a terminal): the call is denied.
    Deny,
}

/// Finds the provider that a session is bound to.
#[async_trait]
pub trait Models: Send + Sync + 'static {
    /// The provider of `provider/name`.
    ///
    /// # Errors
    /// What the person is told when there is none, or it cannot be set up.
    async fn provider(&self, model: &str) -> Result<Arc<dyn Provider>, Failure>;

    /// `provider/name` for sessions that name none.
    fn default_model(&self) -> String;
}

/// How long each phase of a turn may go without progress before the watchdog ends it and says so. A
/// heartbeat proves a process, not progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchdog {
    /// A model request of which nothing comes, waits between tries apart. Providers have shorter
    /// limits of their own; this one holds for whatever they forget.
    pub model: Duration,
    /// A tool that neither says anything nor ends.
    pub tool: Duration,
    /// A store that does not take a record: the turn is let go, and recorded as interrupted when
    /// the store is back.
    pub store: Duration,
}

impl Default for Watchdog {
    fn default() -> Self {
        let limit = Duration::from_secs(limits::WATCHDOG_S);
        Self { model: limit, tool: limit, store: limit }
    }
}

/// An engine's settings.
#[derive(Clone)]
pub struct Config {
    /// This node's id; the store holds its lock.
    pub node: NodeId,
    /// Text that names the home, the same for every process of it.
    pub home: String,
    /// `serve`, `run`, `chat`, `library`.
    pub role: String,
    /// Which sessions it works on.
    pub scope: Scope,
    /// Models.
    pub models: Arc<dyn Models>,
    /// Tools.
    pub tools: Registry,
    /// Tools that `--allow` opened, whatever the policy says of asking.
    pub allowed_tools: BTreeSet<String>,
    /// Inputs that a node of scope [`Scope::Only`] was asked for before it was opened: should
    /// opening find their turn interrupted, it may continue it. See also [`crate::Engine::adopt`].
    pub adopted: Vec<InputId>,
    /// What happens when a tool needs approval.
    pub asking: Asking,
    /// Where the tools work, host and folder: a turn goes on by itself only where it began. Empty:
    /// not told.
    pub workspace: String,
    /// System text that every session begins with.
    pub system: String,
    /// How long a lease is good for without renewal.
    pub lease: Duration,
    /// How often leases are renewed.
    pub renew: Duration,
    /// How often the store is looked at for what other processes did.
    pub poll: Duration,
    /// Sessions that are read at a time when the node looks for work; it reads until all were seen.
    pub work_page: u32,
    /// Turns at the same time.
    pub turns_max: usize,
    /// Model requests of one turn.
    pub steps_max: u32,
    /// Inputs that may wait in a session.
    pub queue_max: u32,
    /// Sessions of a principal.
    pub sessions_max: u64,
    /// How long a leaving node waits for steps under way.
    pub drain_timeout: Duration,
    /// Interrupted starts in a row that open the loop breaker, and the longest gap between two.
    pub loop_breaker: (usize, Duration),
    /// What follows from interruptions in sessions that nobody gave a policy.
    pub auto_continue: AutoContinue,
    /// How long each phase of a turn may go without progress.
    pub watchdog: Watchdog,
    /// How long after the end of their run token events are kept one by one; `None`: for ever.
    pub retention: Option<Duration>,
    /// How long deltas may wait to share a commit with others.
    pub coalesce: Duration,
    /// Retries of a model request.
    pub retry: everturn_agent::retry::RetryPolicy,
}

impl Config {
    /// Defaults for everything that has one.
    #[must_use]
    pub fn new(node: NodeId, home: String, role: &str, models: Arc<dyn Models>) -> Self {
        Self {
            node,
            home,
            role: role.to_owned(),
            scope: Scope::All,
            models,
            tools: Registry::default(),
            allowed_tools: BTreeSet::new(),
            adopted: Vec::new(),
            asking: Asking::Prompt,
            workspace: String::new(),
            system: String::new(),
            lease: Duration::from_secs(30),
            renew: Duration::from_secs(10),
            poll: Duration::from_millis(250),
            work_page: 4_096,
            turns_max: 1_024,
            steps_max: 100,
            queue_max: limits::QUEUE_INPUTS_MAX,
            sessions_max: 100_000,
            drain_timeout: Duration::from_secs(30),
            loop_breaker: (3, Duration::from_secs(300)),
            auto_continue: AutoContinue::default(),
            watchdog: Watchdog::default(),
            retention: Some(Duration::from_secs(limits::TOKEN_EVENT_DAYS * 86_400)),
            coalesce: Duration::from_millis(10),
            retry: everturn_agent::retry::RetryPolicy::default(),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("node", &self.node)
            .field("role", &self.role)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
