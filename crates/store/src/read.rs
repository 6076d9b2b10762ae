//! Reading: everything that can be asked without changing anything.

use async_trait::async_trait;
use everturn_core::{
    CallId, Input, InputId, InputStatus, Lease, Message, NodeId, Principal, Prompt, PromptId,
    PromptState, RequestId, Run, RunId, Session, SessionKey, SessionState, ToolCall,
};

use crate::error::StorageError;
use crate::in_flight::InFlight;
use crate::rows::{EventRow, Gap, Node, Token, Tombstone};

type Result<T> = std::result::Result<T, StorageError>;

/// A session with what belongs to its snapshot, read in one transaction.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The session.
    pub session: Session,
    /// Its unfinished run.
    pub running: Option<Run>,
    /// Its interrupted run that waits for a decision.
    pub interrupted: Option<Run>,
    /// Number of the turn that the running continuation's chain began with.
    pub chain_generation: Option<u64>,
    /// Nodes that have viewers of it.
    pub present: Vec<NodeId>,
}

/// Which sessions of a principal to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Only in this state.
    pub state: Option<SessionState>,
    /// Only with this text in the title or a message (case-insensitive). Empty: all.
    pub query: Option<String>,
    /// After this place: `(updated_at in ms, session id)` of the last row seen. Newest first.
    pub cursor: Option<(i64, String)>,
}

/// A window of the transcript, by message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageWindow {
    /// The last ones.
    Last,
    /// The ones directly before the message of this id, in position order.
    Before(u64),
    /// The ones directly after the message of this id, in position order.
    After(u64),
}

/// A stored event, or why it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredEvent {
    /// It can be read.
    Good(EventRow),
    /// It cannot; its place is known.
    Malformed {
        /// Its offset.
        offset: u64,
        /// Its seq, for an event of a run.
        seq: Option<u64>,
        /// What is wrong.
        error: String,
    },
}

impl StoredEvent {
    /// Its seq, for an event of a run.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Good(row) => row.head.run.as_ref().map(|run| run.1),
            Self::Malformed { seq, .. } => *seq,
        }
    }
}

/// A session that needs a node's attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// When it last changed.
    pub updated_at: everturn_core::Timestamp,
    /// Which.
    pub key: SessionKey,
    /// Who holds it.
    pub lease: Option<Lease>,
    /// Its epoch.
    pub epoch: u64,
    /// Its unfinished run.
    pub running: Option<Run>,
    /// Inputs that wait.
    pub queue_length: u32,
}

/// Counts for `doctor` and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions.
    pub sessions: u64,
    /// Messages, as far as a constant-time estimate tells.
    pub messages: u64,
    /// Inputs that wait.
    pub queued: u64,
    /// Runs without an end.
    pub unfinished: u64,
}

/// The reading half of a store. Reads see committed state only, never write, and never fail because
/// one record is bad where a good answer can be given beside it.
#[async_trait]
pub trait Read: Send + Sync + 'static {
    /// One session.
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionView>>;
    /// One session with the picture of its turn under way, if it has one, all from one moment: the
    /// events behind [`InFlight::seq`] and nothing else are what is not in it.
    async fn session_in_flight(
        &self,
        key: &SessionKey,
    ) -> Result<Option<(SessionView, Option<InFlight>)>>;
    /// What remains of a deleted one.
    async fn tombstone(&self, key: &SessionKey) -> Result<Option<Tombstone>>;
    /// A principal's sessions, newest change first, at most `limit`.
    async fn sessions(
        &self,
        principal: &Principal,
        filter: &SessionFilter,
        limit: u32,
    ) -> Result<Vec<SessionView>>;
    /// A window of a transcript in order of position, and whether more rows lie in that direction.
    async fn messages(
        &self,
        key: &SessionKey,
        window: MessageWindow,
        limit: u32,
    ) -> Result<(Vec<Message>, bool)>;
    /// The whole transcript, in order of position: for the model's view and for exports.
    async fn transcript(&self, key: &SessionKey) -> Result<Vec<Message>>;

    /// One input and, while it waits, its place in the queue.
    async fn input(&self, id: &InputId) -> Result<Option<(Input, Option<u32>)>>;
    /// The input of an identity.
    async fn input_by_identity(
        &self,
        key: &SessionKey,
        request: &RequestId,
    ) -> Result<Option<Input>>;
    /// Inputs of a session: those that wait in queue order, others by acceptance; at most `limit`,
    /// from behind the place of `after`, one of this session's inputs whatever became of it.
    async fn inputs(
        &self,
        key: &SessionKey,
        status: Option<InputStatus>,
        after: Option<&InputId>,
        limit: u32,
    ) -> Result<Vec<Input>>;

    /// One run.
    async fn run(&self, id: &RunId) -> Result<Option<Run>>;
    /// Runs of a session, newest first, at most `limit`, below generation `before`.
    async fn runs(&self, key: &SessionKey, before: Option<u64>, limit: u32) -> Result<Vec<Run>>;
    /// A run's events with a seq above `after` and, if given, at most `max`; at most `limit`.
    async fn run_events(
        &self,
        run: &Run,
        after: u64,
        max: Option<u64>,
        limit: u32,
    ) -> Result<Vec<StoredEvent>>;
    /// Events of a session's feed with an offset above `after`, at most `limit`.
    async fn feed(&self, key: &SessionKey, after: u64, limit: u32) -> Result<Vec<StoredEvent>>;
    /// `(earliest, latest)` offset of a session's feed; `(1, 0)` when it is empty.
    async fn feed_bounds(&self, key: &SessionKey) -> Result<(u64, u64)>;
    /// Ranges of a session's feed that were lost with unsynced events, oldest first.
    async fn gaps(&self, key: &SessionKey) -> Result<Vec<Gap>>;

    /// The calls that a run owns.
    async fn run_calls(&self, run: &RunId) -> Result<Vec<ToolCall>>;
    /// One call.
    async fn call(&self, id: &CallId) -> Result<Option<ToolCall>>;
    /// One prompt and the call that it is about.
    async fn prompt(&self, id: &PromptId) -> Result<Option<(Prompt, Option<ToolCall>)>>;
    /// Prompts of a session in a state, oldest first, at most `limit`, from behind the place of
    /// `after`, one of this session's prompts whatever became of it.
    async fn prompts(
        &self,
        key: &SessionKey,
        state: PromptState,
        after: Option<&PromptId>,
        limit: u32,
    ) -> Result<Vec<(Prompt, Option<ToolCall>)>>;
    /// The tools that a principal allowed for ever, in the order of their names.
    async fn grants(&self, principal: &Principal) -> Result<Vec<String>>;

    /// Runs of a session of which more may arrive late, oldest first, at most `limit`.
    async fn late_runs(&self, key: &SessionKey, limit: u32) -> Result<Vec<Run>>;
    /// All such runs of all sessions, behind one of them, in an order that does not change while
    /// they are there, at most `limit`.
    async fn all_late_runs(&self, after: Option<&RunId>, limit: u32) -> Result<Vec<Run>>;
    /// Sessions with an interrupted turn that waits for a decision, in the order of their names,
    /// behind `after`, at most `limit`; each with that turn's run.
    async fn parked(
        &self,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<(SessionKey, Run)>>;

    /// Sessions that have an unfinished run or a waiting input, in the order of their last change
    /// (oldest first), behind `after`, at most `limit`. A session that changes while somebody asks
    /// page after page moves behind, and comes once more.
    async fn work(&self, after: Option<&Work>, limit: u32) -> Result<Vec<Work>>;
    /// One node.
    async fn node(&self, id: &NodeId) -> Result<Option<Node>>;
    /// The place of a node in the order in which nodes came to this store, whatever their clocks
    /// said.
    async fn node_number(&self, id: &NodeId) -> Result<Option<u64>>;
    /// All nodes that have not left by their own will, newest first, at most `limit`.
    async fn nodes(&self, limit: u32) -> Result<Vec<Node>>;
    /// The last nodes of a home in the role `serve`, newest first.
    async fn serve_starts(&self, home: &str, limit: u32) -> Result<Vec<Node>>;

    /// The token with this hash of its secret.
    async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Token>>;
    /// All tokens.
    async fn tokens(&self) -> Result<Vec<Token>>;
    /// Counts.
    async fn counts(&self) -> Result<Counts>;
}
