//! Rows within one transaction: what a backend must provide for the operations to run on it.

use everturn_core::{
    CallId, Input, InputId, LeaseExpiry, Message, NodeId, Principal, Prompt, PromptId, RequestId,
    Run, RunId, Session, SessionKey, Timestamp, TokenId, ToolCall,
};

use crate::error::StorageError;
use crate::op::EndedRun;
use crate::read::StoredEvent;
use crate::rows::{EventRow, Gap, LateRow, Node, Token, Tombstone};

type Result<T> = std::result::Result<T, StorageError>;

/// One operation's view of the store. Everything read is as of the transaction; everything put is
/// visible to later reads of the same operation; an operation that ends in an error leaves no trace
/// (the backend rolls its savepoint back).
///
/// `put_*` inserts or replaces the row of that identity.
pub trait Tx {
    /// The session of a key.
    fn session(&mut self, key: &SessionKey) -> Result<Option<Session>>;
    /// Writes a session.
    fn put_session(&mut self, row: &Session) -> Result<()>;
    /// Sessions of a principal.
    fn count_sessions(&mut self, principal: &Principal) -> Result<u64>;
    /// Removes a session with its events, messages, calls, prompts and late records. Inputs and runs stay (their
    /// receipts answer for ever), without what they say.
    fn delete_session(&mut self, key: &SessionKey) -> Result<()>;
    /// What remains of a deleted session.
    fn tombstone(&mut self, key: &SessionKey) -> Result<Option<Tombstone>>;
    /// Writes a tombstone.
    fn put_tombstone(&mut self, key: &SessionKey, row: &Tombstone) -> Result<()>;

    /// The input of an id.
    fn input(&mut self, id: &InputId) -> Result<Option<Input>>;
    /// The input of an identity.
    fn input_by_identity(&mut self, key: &SessionKey, request: &RequestId)
    -> Result<Option<Input>>;
    /// Writes an input.
    fn put_input(&mut self, row: &Input) -> Result<()>;
    /// Queued inputs of a session, in queue order, at most `limit`.
    fn queued(&mut self, key: &SessionKey, limit: u32) -> Result<Vec<Input>>;
    /// Queued inputs of a session whose queue key is at most `queue_key`.
    fn queue_position(&mut self, key: &SessionKey, queue_key: i64) -> Result<u32>;

    /// The run of an id.
    fn run(&mut self, id: &RunId) -> Result<Option<Run>>;
    /// Writes a run.
    fn put_run(&mut self, row: &Run) -> Result<()>;

    /// Appends an event; its offset is the session's next.
    fn push_event(&mut self, key: &SessionKey, row: &EventRow) -> Result<()>;
    /// A run's events with a seq above `after`, in order, at most `limit`.
    fn run_events(&mut self, run: &Run, after: u64, limit: u32) -> Result<Vec<StoredEvent>>;
    /// Removes the events of a session from one offset to another, both included.
    fn remove_events(&mut self, key: &SessionKey, from: u64, to: u64) -> Result<()>;
    /// Runs that ended before a time and may have token events left, in the order of ends, behind a
    /// place, at most `limit`; each with the seq up to which none is left.
    fn prunable(
        &mut self,
        before: Timestamp,
        after: Option<&EndedRun>,
        limit: u32,
    ) -> Result<Vec<(Run, u64)>>;
    /// Notes up to which seq a run has no token events left; `None`: it has none at all.
    fn put_pruned(&mut self, run: &RunId, to: Option<u64>) -> Result<()>;
    /// Records lost numbers.
    fn put_gap(&mut self, key: &SessionKey, run: &RunId, gap: &Gap) -> Result<()>;

    /// Writes a message (without its calls, which are rows of their own).
    fn put_message(&mut self, key: &SessionKey, row: &Message) -> Result<()>;
    /// The message with the highest position below another one, with its calls.
    fn message_above(&mut self, key: &SessionKey, position: &str) -> Result<Option<Message>>;
    /// A message with its calls.
    fn message(&mut self, key: &SessionKey, id: u64) -> Result<Option<Message>>;

    /// The call of an id.
    fn call(&mut self, id: &CallId) -> Result<Option<ToolCall>>;
    /// Writes a call.
    fn put_call(&mut self, row: &ToolCall) -> Result<()>;
    /// The calls that a run owns, in the order of their messages and places.
    fn run_calls(&mut self, run: &RunId) -> Result<Vec<ToolCall>>;

    /// Writes a late record of a run.
    fn put_late(&mut self, run: &RunId, row: &LateRow) -> Result<()>;
    /// The late records of a run, in order.
    fn late(&mut self, run: &RunId) -> Result<Vec<LateRow>>;
    /// Removes the late records of a run.
    fn clear_late(&mut self, run: &RunId) -> Result<()>;

    /// The prompt of an id.
    fn prompt(&mut self, id: &PromptId) -> Result<Option<Prompt>>;
    /// Writes a prompt.
    fn put_prompt(&mut self, row: &Prompt) -> Result<()>;
    /// The open prompts of a run.
    fn open_prompts(&mut self, run: &RunId) -> Result<Vec<Prompt>>;
    /// Allows a tool for ever.
    fn put_grant(&mut self, principal: &Principal, tool: &str) -> Result<()>;
    /// Takes that back. Returns whether there was something to take back.
    fn remove_grant(&mut self, principal: &Principal, tool: &str) -> Result<bool>;

    /// The node of an id.
    fn node(&mut self, id: &NodeId) -> Result<Option<Node>>;
    /// Writes a node.
    fn put_node(&mut self, row: &Node) -> Result<()>;
    /// The last nodes of a home in the role `serve`, newest first, at most `limit`.
    fn serve_starts(&mut self, home: &str, limit: u32) -> Result<Vec<Node>>;
    /// Moves the expiry of every lease that the node holds. Returns the runs under way on them, each
    /// with whether it carries a person's stop.
    fn renew(&mut self, node: &NodeId, expiry: &LeaseExpiry) -> Result<Vec<(RunId, bool)>>;

    /// Notes whether a node has viewers of a session.
    fn put_presence(&mut self, key: &SessionKey, node: &NodeId, present: bool) -> Result<()>;
    /// Forgets all viewers of a node.
    fn clear_presence(&mut self, node: &NodeId) -> Result<()>;
    /// Nodes that have viewers of a session.
    fn presence(&mut self, key: &SessionKey) -> Result<Vec<NodeId>>;

    /// The token of an id.
    fn token(&mut self, id: &TokenId) -> Result<Option<Token>>;
    /// Writes a token.
    fn put_token(&mut self, row: &Token) -> Result<()>;

    /// Forgets tombstones, with the inputs and runs of their sessions, that are older than the
    /// given time. Returns how many.
    fn prune_tombstones(&mut self, before: Timestamp) -> Result<u64>;
    /// Forgets nodes that ended before the given time and hold no lease.
    fn prune_nodes(&mut self, before: Timestamp) -> Result<()>;
}
