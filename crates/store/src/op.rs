//! Everything that can be asked of a store's writer, and what it answers.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use everturn_core::digest::Digest;
use everturn_core::event::{EventHead, Record};
use everturn_core::late::{LateRecord, Look};
use everturn_core::{
    AutoContinue, Choice, Content, Evidence, Input, InputId, Mode, NodeId, Policy, Principal,
    Prompt, PromptId, RequestId, Run, RunId, Session, SessionId, SessionKey, Timestamp, TokenId,
};

use crate::error::{OpError, StorageError, StorageErrorKind};
use crate::rows::{Node, Token};

/// An event as it is published: where it stands, and its bytes, shared by all viewers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The session in whose feed it is.
    pub session: SessionKey,
    /// Where it stands.
    pub head: EventHead,
    /// Its final bytes.
    pub bytes: Bytes,
}

/// Something that a commit means for somebody who waits. A hint: the store is the truth, and a
/// signal may be missing when the commit was another process's.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// An admission claimed its turn in the same transaction, for the node that asked for it.
    Claimed(Box<ClaimedTurn>),
    /// An input waits.
    Queued(SessionKey),
    /// A stop was recorded on a run.
    Stop(SessionKey, RunId),
    /// A prompt was settled.
    Prompt(SessionKey, PromptId),
    /// A run reached its terminal record, or was handed over.
    Released(SessionKey),
    /// An input reached its outcome.
    InputEnded(InputId),
    /// The session was deleted.
    Deleted(SessionKey),
}

/// What one operation committed, given to the store's sink after its commit and before the
/// operation is acknowledged to its caller.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// Events, in offset order per session.
    pub frames: Vec<Arc<Frame>>,
    /// Hints.
    pub signals: Vec<Signal>,
}

/// Proof that a node claimed a session's turn. Every record that a turn writes goes through one, and
/// is checked against the rows inside the transaction. Only a claim makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub(crate) session: SessionKey,
    pub(crate) node: NodeId,
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) run_id: RunId,
}

impl Fence {
    /// The session.
    #[must_use]
    pub fn session(&self) -> &SessionKey {
        &self.session
    }
    /// The run.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }
    /// Number of the turn.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
    /// The lease's epoch.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// An operation with its own reply type.
pub trait Command: Send + 'static {
    /// What it answers.
    type Reply: Send + 'static;
    /// The operation.
    fn into_op(self) -> Op;
    /// Its reply, out of the closed set of replies.
    fn from_reply(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident ($synced:expr) -> $reply:ident ( $out:ty ) { $($(#[$fdoc:meta])* $field:ident : $ty:ty,)* })*) => {
        /// Everything that can be asked of a store's writer.
        #[derive(Debug, Clone)]
        pub enum Op { $($(#[$doc])* $name($name),)* }

        impl Op {
            /// Whether the operation must survive power loss before it is acknowledged.
            #[must_use]
            pub fn synced(&self) -> bool {
                match self { $(Self::$name(command) => { let synced: fn(&$name) -> bool = $synced; synced(command) })* }
            }
            /// A word for logs and metrics.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

            impl Command for $name {
                type Reply = $out;
                fn into_op(self) -> Op { Op::$name(self) }
                fn from_reply(reply: Reply) -> Option<$out> {
                    match reply { Reply::$reply(out) => Some(out), _ => None }
                }
            }
        )*
    };
}

ops! {
    /// Makes a node known. Idempotent.
    RegisterNode(|_| true) -> Unit(()) {
        /// The node.
        node: Node,
    }
    /// Notes that a node left by its own will.
    EndNode(|_| true) -> Unit(()) {
        /// The node.
        node: NodeId,
    }
    /// Moves the expiry of all leases of a node. Answers the runs on them that carry a stop.
    RenewLeases(|_| false) -> Renewed(Vec<(RunId, bool)>) {
        /// The node.
        node: NodeId,
        /// Milliseconds that a lease is good for, counted from before this was sent.
        expiry: everturn_core::LeaseExpiry,
    }
    /// Creates a session.
    CreateSession(|_| true) -> Session(Box<Session>) {
        /// Its name in the store.
        key: SessionKey,
        /// For people.
        title: Option<String>,
        /// `provider/name`.
        model: Option<String>,
        /// System text.
        system: Option<String>,
        /// Its policy.
        policy: Policy,
        /// JSON object text.
        metadata: Option<String>,
        /// Sessions that the principal may have.
        sessions_max: u64,
    }
    /// Changes a session.
    PatchSession(|_| true) -> Session(Box<Session>) {
        /// Which.
        key: SessionKey,
        /// The revision that the change was made for.
        expected_revision: Option<u64>,
        /// What changes.
        patch: SessionPatch,
    }
    /// Closes a session. Closing a closed one changes nothing.
    EndSession(|_| true) -> Session(Box<Session>) {
        /// Which.
        key: SessionKey,
        /// Why.
        reason: String,
    }
    /// Deletes a session and leaves a tombstone. Deleting it again answers the same.
    DeleteSession(|_| true) -> Unit(()) {
        /// Which.
        key: SessionKey,
        /// The generation that the caller saw.
        expected_generation: Option<u64>,
    }
    /// Accepts an input (promises P1 and P2). A session that nobody has seen is created.
    Admit(|_| true) -> Admitted(Box<Admitted>) {
        /// Which session.
        key: SessionKey,
        /// The sender's name for the input.
        request_id: RequestId,
        /// Digest of what was sent.
        digest: Digest,
        /// How it is to be delivered.
        mode: Mode,
        /// What it says.
        content: Content,
        /// JSON object text.
        metadata: Option<String>,
        /// Inputs that may wait.
        queue_max: u32,
        /// Sessions that the principal may have.
        sessions_max: u64,
        /// What follows from interruptions in a session that this creates.
        auto_continue: AutoContinue,
        /// Claim the turn in the same transaction, if nothing runs or waits before it and the
        /// session is free: one sync instead of two until the model is asked. The turn then comes
        /// with [`Signal::Claimed`].
        claimer: Option<Claimer>,
    }
    /// Withdraws an input that still waits.
    CancelInput(|_| true) -> Input(Box<Input>) {
        /// Whose.
        principal: Principal,
        /// Which.
        input_id: InputId,
    }
    /// Takes the lease, if it is free or already this node's, and the next input with it.
    Claim(|_| true) -> Claimed(Box<Claimed>) {
        /// Which session.
        key: SessionKey,
        /// Who claims.
        claimer: Claimer,
        /// A holder that the caller has proof is gone: its lease counts as expired.
        gone: Option<NodeId>,
    }
    /// Writes records of a turn, all or none.
    Write(|write| write.records.iter().any(Record::synced)) -> Written(Written) {
        /// Proof of the claim.
        fence: Fence,
        /// What to write.
        records: Vec<Record>,
        /// Number of this write since the claim, from 1. One that is committed already is answered
        /// and changes nothing, so that a write whose answer was lost can simply be repeated.
        /// `None`: not to be repeated.
        number: Option<u64>,
    }
    /// Records that a run was interrupted, and what follows, in one transaction.
    Interrupt(|_| true) -> Interrupted(Interrupted) {
        /// Which session.
        key: SessionKey,
        /// The run that the caller saw unfinished.
        run_id: RunId,
        /// The epoch that the caller saw: another one means that somebody else came first.
        epoch: u64,
        /// Who records it.
        node: NodeId,
        /// What was observed; the last event is filled in here.
        evidence: Evidence,
        /// The holder says it itself (it could not go on), so no proof of its death is needed.
        by_holder: bool,
        /// Whether this node may continue turns.
        may_continue: bool,
        /// Whether the model of the continuation can be used here.
        model_here: bool,
        /// Whether every tool that the run called is there.
        tools_here: bool,
        /// Where this node's tools work.
        workspace: String,
        /// Whether the home's loop breaker is open.
        loop_broken: bool,
        /// Whether a viewer who may submit is attached.
        viewed: bool,
    }
    /// Takes a run in that happened elsewhere, whole or not at all, and once: its identity is
    /// (principal, session, run id there), and its digest that of its events. It gets an id of ours,
    /// so that it can collide with nothing; it is never claimed, continued or shown to a model but
    /// for its text, which becomes a message.
    ImportRun(|_| true) -> Imported(Box<Imported>) {
        /// Which session takes it in. One that nobody has seen is created.
        key: SessionKey,
        /// What the run is called where it comes from.
        source: RunId,
        /// Digest of its events, see [`everturn_core::digest::JournalDigest`].
        digest: Digest,
        /// Its events in order, the last one being its terminal event and no other.
        events: ForeignEvents,
        /// Who imports it.
        node: NodeId,
        /// Sessions that the principal may have.
        sessions_max: u64,
    }
    /// Decides again about an interrupted turn that was not continued for a reason that may have
    /// passed since: a viewer came, or a node that may continue it, or its model is there again.
    /// Nothing happens when the turn was continued, discarded or superseded meanwhile.
    Reconsider(|_| true) -> Interrupted(Interrupted) {
        /// Which session.
        key: SessionKey,
        /// The interrupted run.
        run_id: RunId,
        /// Whether this node may continue turns.
        may_continue: bool,
        /// Whether the model of the continuation can be used here.
        model_here: bool,
        /// Whether every tool that the run called is there.
        tools_here: bool,
        /// Where this node's tools work.
        workspace: String,
        /// Whether the home's loop breaker is open.
        loop_broken: bool,
        /// Whether a viewer who may submit is attached.
        viewed: bool,
    }
    /// Closes the matter of an interrupted turn about which nobody decided within
    /// `limits::DECISION_S`: a note in the transcript says so. Answers whether there was something
    /// to close.
    CloseUndecided(|_| true) -> Bool(bool) {
        /// Which session.
        key: SessionKey,
        /// The interrupted run.
        run_id: RunId,
    }
    /// Leaves what a node held of a turn that was taken from it, outside the run, the feed and the
    /// transcript (promise P11), for the session's owner to look at. Repeating it changes nothing.
    /// Answers whether anybody waits for it.
    Deposit(|_| true) -> Bool(bool) {
        /// Which session.
        key: SessionKey,
        /// The run.
        run_id: RunId,
        /// The node that held it.
        node: NodeId,
        /// The epoch under which it held it.
        epoch: u64,
        /// Number of the first record, counted from 1 over all deposits of the run.
        first: u64,
        /// What it held, in order, each with the number of the write that it belonged to: what of
        /// these turns out to be committed after all (its answer was lost) is not late. within `limits::LATE_RECORDS_MAX` and `LATE_BYTES_MAX`, over all
        /// deposits; the rest is left out.
        records: Vec<(u64, LateRecord)>,
    }
    /// Looks at what arrived late of an interrupted run and settles its marker if it can be settled.
    /// By the session's owner, or anybody while it has none. Answers `None` where nothing is
    /// pending (any more). Synced only where it settles something.
    LookLate(|_| false) -> Looked(Option<Look>) {
        /// Which session.
        key: SessionKey,
        /// The interrupted run.
        run_id: RunId,
        /// Who looks.
        node: NodeId,
        /// The node that held the run is provably gone: nothing more will come.
        holder_gone: bool,
    }
    /// Decides about an interrupted turn, by a person.
    Decide(|_| true) -> Decided(Box<Decided>) {
        /// Which session.
        key: SessionKey,
        /// The interrupted turn.
        generation: u64,
        /// What to do.
        decision: Decision,
    }
    /// Stops the running turn.
    Stop(|_| true) -> Run(Box<Run>) {
        /// Which session.
        key: SessionKey,
        /// The turn that is meant.
        generation: Option<u64>,
        /// The run that is meant.
        run_id: Option<RunId>,
        /// Who asks.
        by: Principal,
        /// Leave what people queued in the queue.
        keep_queue: bool,
    }
    /// Answers a prompt.
    AnswerPrompt(|_| true) -> Prompt(Box<Prompt>) {
        /// Whose session.
        principal: Principal,
        /// Which prompt.
        prompt_id: PromptId,
        /// The turn that the answer is meant for.
        generation: u64,
        /// The answer to an approval.
        choice: Option<Choice>,
        /// The answer to a clarification, or a word with an approval.
        text: Option<String>,
    }
    /// Notes that the first viewer of a session came to a node, or the last one went.
    SetPresence(|_| false) -> Unit(()) {
        /// Which session.
        key: SessionKey,
        /// Which node.
        node: NodeId,
        /// Whether there are viewers.
        present: bool,
    }
    /// Makes a token known.
    CreateToken(|_| true) -> Unit(()) {
        /// The token.
        token: Token,
    }
    /// Revokes a token. Revoking it again changes nothing.
    RevokeToken(|_| true) -> Bool(bool) {
        /// Which. Answers whether it exists.
        token_id: TokenId,
    }
    /// Notes that a token was used.
    TouchToken(|_| false) -> Unit(()) {
        /// Which.
        token_id: TokenId,
    }
    /// Takes back that a principal allowed a tool for ever. Answers whether there was something to
    /// take back.
    RevokeGrant(|_| true) -> Bool(bool) {
        /// Whose.
        principal: Principal,
        /// The tool's name.
        tool: String,
    }
    /// Forgets what is kept for `limits::RECEIPT_DAYS` only. Answers how many sessions.
    Prune(|_| false) -> Count(u64) {
        /// Tombstones, and nodes that ended, older than this go.
        before: everturn_core::Timestamp,
    }
    /// Puts one snapshot in the place of each range of token events, in runs that ended long ago:
    /// some of them, within `limits::PRUNE_ROWS`, `PRUNE_BYTES` and `PRUNE_RUNS`. Repeated with the
    /// place that it answers until there is no more; any node may do it at any time.
    PruneEvents(|_| false) -> Pruned(Pruned) {
        /// Runs that ended before this.
        before: Timestamp,
        /// Runs behind this place; `None`: from the one that ended first.
        after: Option<EndedRun>,
    }
}

/// The place of a run in the order of ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndedRun {
    /// When it ended.
    pub ended_at: Timestamp,
    /// Which.
    pub id: RunId,
}

/// One event of a run that happened elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignEvent {
    /// When it was recorded there.
    pub at: Timestamp,
    /// Name, as ours are: `a-z`, dots and underscores.
    pub name: String,
    /// A JSON object that readers can take for the body of an event of this name.
    pub body: String,
}

/// Events that are pulled one by one while they are stored, so that a long run takes no memory. They
/// can be pulled once: a clone shares them.
#[derive(Clone)]
pub struct ForeignEvents(Arc<Mutex<Pulled>>);

type Pulled = Box<dyn Iterator<Item = Result<ForeignEvent, String>> + Send>;

impl ForeignEvents {
    /// From anything that gives them in order. An error says why no more can be had, in words; then
    /// nothing is imported. Giving one must not wait for anything but a file.
    pub fn new(
        events: impl Iterator<Item = Result<ForeignEvent, String>> + Send + 'static,
    ) -> Self {
        Self(Arc::new(Mutex::new(Box::new(events))))
    }

    pub(crate) fn pull(&self) -> Option<Result<ForeignEvent, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }
}

impl std::fmt::Debug for ForeignEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForeignEvents").finish_non_exhaustive()
    }
}

/// What an import answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The record of the import.
    pub input: Input,
    /// The run as it is here.
    pub run: Run,
    /// Whether it was here already; then nothing changed.
    pub replayed: bool,
}

/// What changes in a session. `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct SessionPatch {
    /// For people.
    pub title: Option<Option<String>>,
    /// `provider/name`.
    pub model: Option<Option<String>>,
    /// System text.
    pub system: Option<Option<String>>,
    /// Changes to the policy.
    pub policy: Option<everturn_api::policy::PolicyPatch>,
    /// Keys to set, or with `null` to remove.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A person's decision about an interrupted turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Ask the model to finish it.
    Continue,
    /// Leave it as it is.
    Discard,
    /// Leave it as it is and ask again, with this text or, without one, with the same.
    Resend(Option<String>),
}

/// What an admission answers.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The input (the one accepted first under this identity).
    pub input: Input,
    /// Place in the queue, from 1, while it waits.
    pub position: Option<u32>,
    /// Whether the identity was known.
    pub replayed: bool,
    /// The living node that holds the session, if any.
    pub holder: Option<everturn_core::Lease>,
}

/// A turn that a node claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedTurn {
    /// Proof.
    pub fence: Fence,
    /// The session as claimed.
    pub session: Session,
    /// The new run, or the one that was handed over.
    pub run: Run,
}

/// Who would claim, and on what terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimer {
    /// Who.
    pub node: NodeId,
    /// When the lease runs out unless renewed.
    pub expiry: everturn_core::LeaseExpiry,
    /// `provider/name` of the node's default, for sessions that name none.
    pub default_model: String,
    /// Where its tools work: host and folder.
    pub workspace: String,
}

/// What a claim answers.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "it is boxed as a whole in its reply")]
pub enum Claimed {
    /// The turn is this node's.
    Turn(Box<ClaimedTurn>),
    /// Nothing waits. The lease, if it was this node's, is released.
    Nothing,
    /// Another node holds the session.
    Held {
        /// The node.
        holder: everturn_core::Lease,
    },
    /// A run has no end and nobody works on it: record its interruption first.
    Unfinished {
        /// The session.
        session: Session,
        /// The run.
        run: Run,
    },
}

/// What writing records answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Seq of the run's last event.
    pub last_seq: u64,
    /// Ids of the messages that the records made, in order.
    pub message_ids: Vec<u64>,
}

/// What recording an interruption answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupted {
    /// What followed; `None` when somebody else had resolved the run already.
    pub decision: Option<everturn_core::recovery::Decision>,
}

/// What pruning token events answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Token events that were there one by one and are not any more.
    pub events: u64,
    /// Snapshots that stand in their place (those that only grew included).
    pub snapshots: u64,
    /// Rows that were read.
    pub rows: u64,
    /// Where to go on.
    pub after: Option<EndedRun>,
    /// Whether there may be more.
    pub more: bool,
}

/// What a person's decision answers.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The session afterwards.
    pub session: Session,
    /// The continuation, or the new message, that was admitted.
    pub input: Option<Input>,
}

/// What the writer answers; each operation has one of them, see [`Command`].
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each variant is named after what it holds")]
pub enum Reply {
    Unit(()),
    Bool(bool),
    Count(u64),
    Renewed(Vec<(RunId, bool)>),
    Session(Box<Session>),
    Admitted(Box<Admitted>),
    Input(Box<Input>),
    Claimed(Box<Claimed>),
    Written(Written),
    Interrupted(Interrupted),
    Looked(Option<Look>),
    Pruned(Pruned),
    Imported(Box<Imported>),
    Decided(Box<Decided>),
    Run(Box<Run>),
    Prompt(Box<Prompt>),
}

/// A reply that is not the operation's: a broken backend, reported rather than hidden.
pub(crate) fn wrong_reply(name: &str) -> OpError {
    OpError::Storage(StorageError::new(
        StorageErrorKind::Closed,
        format!("the store answered {name} with another operation's reply"),
    ))
}

/// Names a session id of a principal.
#[must_use]
pub fn key(principal: &Principal, id: &SessionId) -> SessionKey {
    SessionKey { principal: principal.clone(), id: id.clone() }
}
