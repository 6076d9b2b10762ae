//! A store under test, with the words that cases are told in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use everturn_core::event::{End, Record};
use everturn_core::{
    Content, Input, InputId, InputKind, LeaseExpiry, Message, Mode, NewCall, NodeId, Policy,
    Principal, PromptState, RequestId, Run, RunId, Session, SessionId, SessionKey, Timestamp,
    digest,
};
use uuid::Uuid;

use super::Factory;
use crate::clock::Clock;
use crate::error::{OpError, Refusal};
use crate::op::{
    Admit, Admitted, Claim, Claimed, ClaimedTurn, Claimer, Command, Committed, CreateSession,
    Interrupt, Op, Write, Written,
};
use crate::read::{MessageWindow, StoredEvent};
use crate::rows::{EventRow, Node};
use crate::store::{Store, TurnLease, execute};

/// A clock that stands still until it is told to move, and ids that count.
#[derive(Debug)]
pub struct ManualClock(Mutex<Hands>);

#[derive(Debug)]
struct Hands {
    now_ms: i64,
    boot: LeaseExpiry,
    ids: u128,
}

impl ManualClock {
    /// 2026-11-30 noon, one hour after boot `boot-1`.
    #[must_use]
    pub fn new() -> Self {
        let boot = LeaseExpiry { boot_id: "boot-1".to_owned(), boot_ms: 3_600_000 };
        Self(Mutex::new(Hands { now_ms: 1_796_040_000_000, boot, ids: 0 }))
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass on both clocks.
    pub fn pass_ms(&self, ms: u64) {
        let mut hands = self.hands();
        hands.now_ms += i64::try_from(ms).unwrap_or(i64::MAX);
        hands.boot.boot_ms += ms;
    }

    /// Sets the wall clock alone: it may go back.
    pub fn set_wall_ms(&self, ms: i64) {
        self.hands().now_ms = ms;
    }

    /// The machine starts again.
    pub fn reboot(&self, boot_id: &str) {
        self.hands().boot = LeaseExpiry { boot_id: boot_id.to_owned(), boot_ms: 1_000 };
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.hands().now_ms)
    }

    fn boot(&self) -> LeaseExpiry {
        self.hands().boot.clone()
    }

    fn uuid(&self) -> Uuid {
        let mut hands = self.hands();
        hands.ids += 1;
        Uuid::from_u128(hands.ids)
    }
}

/// A fresh store, its clock, and everything that its sink was told.
pub struct World {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its clock.
    pub clock: Arc<ManualClock>,
    seen: Arc<Mutex<Vec<Committed>>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A claimed turn.
pub(super) struct Turn {
    pub(super) lease: TurnLease,
    pub(super) session: Session,
    pub(super) run: Run,
    pub(super) inputs: Vec<Input>,
    /// Writes so far.
    count: AtomicU64,
}

impl Turn {
    /// The next write of the turn, which must succeed.
    pub(super) async fn write(&self, records: Vec<Record>) -> Written {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.lease.write(number, records).await.expect("the records are written")
    }

    /// The next write of the turn, which must be refused.
    pub(super) async fn refused(&self, records: Vec<Record>) -> Refusal {
        let number = self.count.load(Ordering::SeqCst) + 1;
        refusal(self.lease.write(number, records).await)
    }

    pub(super) async fn complete(&self, text: &str) -> Written {
        self.write(vec![completed(text)]).await
    }
}

/// The end of a turn that answered.
pub(super) fn completed(text: &str) -> Record {
    Record::End(End::Completed { text: text.to_owned(), reasoning: None, usage: None })
}

/// The refusal that an operation must have met.
pub(super) fn refusal<T: std::fmt::Debug>(result: Result<T, OpError>) -> Refusal {
    match result {
        Err(OpError::Refused(refusal)) => refusal,
        other => panic!("should have been refused: {other:?}"),
    }
}

pub(super) fn principal(name: &str) -> Principal {
    Principal::new(name).unwrap()
}

/// A session of the usual principal.
pub(super) fn key(id: &str) -> SessionKey {
    SessionKey { principal: principal("alice"), id: SessionId::new(id).unwrap() }
}

pub(super) fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

/// What a client submits.
pub(super) fn admit(key: &SessionKey, request: &str, text: &str) -> Admit {
    let content = Content::text(text);
    Admit {
        key: key.clone(),
        request_id: RequestId::new(request).unwrap(),
        digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_max: 1_000,
        sessions_max: 1_000_000,
        auto_continue: everturn_core::AutoContinue::default(),
        claimer: None,
    }
}

/// The same in another mode.
pub(super) fn admit_as(mode: Mode, key: &SessionKey, request: &str, text: &str) -> Admit {
    let op = admit(key, request, text);
    let digest = digest::payload(InputKind::Message, mode, &op.content, None);
    Admit { mode, digest, ..op }
}

/// A model request that ended with a text and calls.
pub(super) fn step(text: &str, calls: Vec<NewCall>) -> Record {
    Record::Step { text: text.to_owned(), reasoning: None, calls, usage: None }
}

pub(super) fn delta(text: &str) -> Record {
    Record::TextDelta(text.to_owned())
}

impl World {
    /// Opens a fresh store.
    pub async fn open(factory: &dyn Factory) -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = factory.open(clock.clone()).await;
        let seen = Arc::<Mutex<Vec<Committed>>>::default();
        let sink = seen.clone();
        store.set_sink(Arc::new(move |committed| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(committed);
        }));
        Self { store, clock, seen }
    }

    /// What the sink was told since this was last asked.
    pub fn take_seen(&self) -> Vec<Committed> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn clock_now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) async fn run<C: Command>(&self, command: C) -> Result<C::Reply, OpError> {
        execute(&*self.store, command).await
    }

    /// An operation that must succeed.
    pub(super) async fn ok<C: Command>(&self, command: C) -> C::Reply {
        match self.run(command).await {
            Ok(reply) => reply,
            Err(error) => panic!("should have been done: {error}"),
        }
    }

    /// An operation that must be refused, and must leave no trace in the session.
    pub(super) async fn refused<C: Command>(&self, about: &SessionKey, command: C) -> Refusal {
        let before = self.dump(about).await;
        self.take_seen();
        let refusal = match self.run(command).await {
            Ok(_) => panic!("should have been refused"),
            Err(OpError::Refused(refusal)) => refusal,
            Err(error) => panic!("should have been refused, not failed: {error}"),
        };
        assert_eq!(before, self.dump(about).await, "a refusal leaves no trace: {refusal}");
        assert!(self.take_seen().is_empty(), "a refusal publishes nothing: {refusal}");
        refusal
    }

    pub(super) async fn admit(&self, key: &SessionKey, request: &str, text: &str) -> Admitted {
        *self.ok(admit(key, request, text)).await
    }

    pub(super) async fn create(&self, key: &SessionKey, policy: Policy) -> Session {
        let create = CreateSession {
            key: key.clone(),
            title: None,
            model: None,
            system: None,
            policy,
            metadata: None,
            sessions_max: 1_000_000,
        };
        *self.ok(create).await
    }

    /// A lease of 30 seconds from now.
    pub(super) fn expiry(&self) -> LeaseExpiry {
        let now = self.clock.boot();
        LeaseExpiry { boot_ms: now.boot_ms + 30_000, ..now }
    }

    pub(super) fn claim_op(&self, key: &SessionKey, by: &str) -> Claim {
        Claim { key: key.clone(), claimer: self.claimer(by), gone: None }
    }

    pub(super) fn claimer(&self, by: &str) -> Claimer {
        Claimer {
            node: node(by),
            expiry: self.expiry(),
            default_model: "script/demo".to_owned(),
            workspace: String::new(),
        }
    }

    pub(super) async fn claim(&self, key: &SessionKey, by: &str) -> Claimed {
        *self.ok(self.claim_op(key, by)).await
    }

    /// A claim that must give a turn.
    pub(super) async fn turn(&self, key: &SessionKey, by: &str) -> Turn {
        match self.claim(key, by).await {
            Claimed::Turn(turn) => self.claimed(*turn).await,
            other => panic!("should have claimed a turn: {other:?}"),
        }
    }

    /// The handle of a claimed turn.
    pub(super) async fn claimed(&self, turn: ClaimedTurn) -> Turn {
        let mut inputs = Vec::new();
        for id in &turn.run.input_ids {
            inputs.push(self.input(id).await);
        }
        Turn {
            lease: TurnLease::new(self.store.clone(), turn.fence),
            session: turn.session,
            run: turn.run,
            inputs,
            count: AtomicU64::new(0),
        }
    }

    /// A turn of a fresh input.
    pub(super) async fn turn_of(&self, key: &SessionKey, request: &str, by: &str) -> Turn {
        self.admit(key, request, "do something").await;
        self.turn(key, by).await
    }

    /// Makes a node known.
    pub(super) async fn register(&self, id: &str, role: &str) -> Node {
        let node = Node {
            id: node(id),
            home: "/home/test".to_owned(),
            boot_id: self.clock.boot().boot_id,
            role: role.to_owned(),
            started_at: self.clock.now(),
            interrupted_start: false,
            ended_at: None,
        };
        self.ok(crate::op::RegisterNode { node: node.clone() }).await;
        node
    }

    /// An interruption as another node records it after the holder's proven death.
    pub(super) async fn interrupt_op(&self, key: &SessionKey, run: &Run, by: &str) -> Interrupt {
        let session = self.session(key).await;
        Interrupt {
            key: key.clone(),
            run_id: run.id.clone(),
            epoch: session.epoch,
            node: node(by),
            evidence: everturn_core::Evidence {
                holder: run.node.clone(),
                holder_started_at: Some(Timestamp(1)),
                holder_gone: Some(true),
                rebooted: false,
                observer: node(by),
                observer_started_at: self.clock.now(),
                newer_process: true,
                drain_timeout_s: None,
                store_silent_s: None,
                last_seq: 0,
                last_event: String::new(),
                last_event_at: Timestamp(0),
            },
            by_holder: false,
            may_continue: true,
            model_here: true,
            tools_here: true,
            workspace: String::new(),
            loop_broken: false,
            viewed: false,
        }
    }

    pub(super) async fn session(&self, key: &SessionKey) -> Session {
        self.store.session(key).await.unwrap().expect("the session exists").session
    }

    pub(super) async fn input(&self, id: &InputId) -> Input {
        self.store.input(id).await.unwrap().expect("the input exists").0
    }

    pub(super) async fn run_row(&self, id: &RunId) -> Run {
        self.store.run(id).await.unwrap().expect("the run exists")
    }

    pub(super) async fn transcript(&self, key: &SessionKey) -> Vec<Message> {
        self.store.transcript(key).await.unwrap()
    }

    /// The whole feed; every event must be readable.
    pub(super) async fn feed(&self, key: &SessionKey) -> Vec<EventRow> {
        let mut out: Vec<EventRow> = Vec::new();
        loop {
            let after = out.last().map_or(0, |row| row.head.offset);
            let page = self.store.feed(key, after, 100).await.unwrap();
            if page.is_empty() {
                return out;
            }
            out.extend(page.into_iter().map(good));
        }
    }

    /// A run's whole journal; every event must be readable.
    pub(super) async fn journal(&self, run: &Run) -> Vec<EventRow> {
        let mut out: Vec<EventRow> = Vec::new();
        loop {
            let after = out.last().and_then(|row| row.head.run.as_ref()).map_or(0, |run| run.1);
            let page = self.store.run_events(run, after, None, 7).await.unwrap();
            if page.is_empty() {
                return out;
            }
            out.extend(page.into_iter().map(good));
        }
    }

    /// The names of the events of a run, in order.
    pub(super) async fn names(&self, run: &Run) -> Vec<String> {
        self.journal(run).await.into_iter().map(|row| row.head.name).collect()
    }

    /// Everything that can be read of a session and of the store, as text.
    pub async fn dump(&self, key: &SessionKey) -> String {
        use std::fmt::Write as _;
        let store = &*self.store;
        let mut out = self.dump_session(key).await;
        // Sessions that changed at the same moment are in no order.
        let mut work = store.work(None, u32::MAX).await.unwrap();
        work.sort_by(|a, b| a.key.cmp(&b.key));
        let _ = writeln!(out, "{work:#?}");
        let _ = writeln!(out, "{:#?}", store.nodes(u32::MAX).await.unwrap());
        let _ = writeln!(out, "{:#?}", store.tokens().await.unwrap());
        let counts = store.counts().await.unwrap();
        let _ = writeln!(out, "{:?}", (counts.sessions, counts.queued, counts.unfinished));
        out
    }

    /// Everything that can be read of a session, as text.
    pub async fn dump_session(&self, key: &SessionKey) -> String {
        use std::fmt::Write as _;
        let store = &*self.store;
        let mut out = String::new();
        let _ = writeln!(out, "{:#?}", store.session(key).await.unwrap());
        let _ = writeln!(out, "{:#?}", store.tombstone(key).await.unwrap());
        let _ = writeln!(out, "{:#?}", store.inputs(key, None, None, u32::MAX).await.unwrap());
        for status in everturn_core::InputStatus::ALL {
            for input in store.inputs(key, Some(*status), None, u32::MAX).await.unwrap() {
                let read = store.input(&input.id).await.unwrap();
                let _ = writeln!(out, "{status} {} {:?}", input.id, read.map(|read| read.1));
            }
        }
        for run in store.runs(key, None, u32::MAX).await.unwrap() {
            let _ = writeln!(out, "{run:#?}");
            let _ = writeln!(out, "{:#?}", store.run_calls(&run.id).await.unwrap());
            let events = store.run_events(&run, 0, None, u32::MAX).await.unwrap();
            let _ = writeln!(out, "{} events", events.len());
        }
        for state in PromptState::ALL {
            let prompts = store.prompts(key, *state, None, u32::MAX).await.unwrap();
            let _ = writeln!(out, "{state} {prompts:#?}");
        }
        let _ = writeln!(out, "{:#?}", store.transcript(key).await.unwrap());
        let last = store.messages(key, MessageWindow::Last, 3).await.unwrap();
        let _ = writeln!(out, "{:?}", (last.0.len(), last.1));
        let _ = writeln!(out, "{:#?}", store.feed(key, 0, u32::MAX).await.unwrap());
        let _ = writeln!(out, "{:?}", store.feed_bounds(key).await.unwrap());
        let _ = writeln!(out, "{:?}", store.gaps(key).await.unwrap());
        out
    }

    /// Writes with any fence, past [`TurnLease`].
    pub(super) async fn write(
        &self,
        fence: &crate::Fence,
        records: Vec<Record>,
    ) -> Result<Written, OpError> {
        self.run(Write { fence: fence.clone(), records, number: None }).await
    }

    /// Submits an operation as it is.
    pub(super) async fn submit(&self, op: Op) -> Result<crate::Reply, OpError> {
        self.store.submit(op).await
    }
}

/// The row of a readable event.
pub(super) fn good(event: StoredEvent) -> EventRow {
    match event {
        StoredEvent::Good(row) => row,
        StoredEvent::Malformed { .. } => panic!("an event cannot be read: {event:?}"),
    }
}
