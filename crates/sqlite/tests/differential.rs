//! Any history of operations means the same on SQLite as in memory: same replies, same publications,
//! same rows.
//!
//! `EVERTURN_SEED=N` runs the histories of one seed; a failure prints its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use everturn_core::event::{End, Record};
use everturn_core::late::LateRecord;
use everturn_core::{
    AutoContinue, AutoContinueWhen, CallId, CallState, Choice, Content, Effect, Evidence, Failure,
    InputKind, LeaseExpiry, Mode, NewCall, NodeId, Policy, Principal, Prompt, PromptId, PromptKind,
    PromptState, QueuePolicy, RequestId, SessionId, SessionKey, Timestamp, Usage, digest,
};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::conformance::{Factory, World};
use everturn_store::memory::MemoryStore;
use everturn_store::op::{
    Admit, AnswerPrompt, CancelInput, Claim, Claimed, ClaimedTurn, Claimer, CloseUndecided,
    CreateSession, Decide, Decision, DeleteSession, Deposit, EndNode, EndSession, Interrupt,
    LookLate, PatchSession, Prune, PruneEvents, Reconsider, RegisterNode, RenewLeases,
    SessionPatch, SetPresence, Stop, Write,
};
use everturn_store::rows::Node;
use everturn_store::{Clock, Op, Reply, Signal, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

struct Memory;

#[async_trait]
impl Factory for Memory {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(clock))
    }
}

struct Folder(Mutex<Option<tempfile::TempDir>>);

#[async_trait]
impl Factory for Folder {
    async fn open(&self, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
        let folder = tempfile::tempdir().unwrap();
        // A node id of its own would take one from the clock, which both stores count alike.
        let node_id = Some(NodeId::new("node_test").unwrap());
        let options = OpenOptions { node_id, ..OpenOptions::new(folder.path(), "library", clock) };
        let store = SqliteStore::open(options).unwrap();
        *self.0.lock().unwrap() = Some(folder);
        Arc::new(store)
    }
}

/// One step: what, and three numbers that say with what.
type Step = (u8, u8, u8, u8);

/// What the history has made so far, for later steps to name.
#[derive(Default)]
struct Known {
    turns: Vec<ClaimedTurn>,
    calls: Vec<CallId>,
    prompts: Vec<Prompt>,
    inputs: Vec<everturn_core::InputId>,
}

fn pick<T>(list: &[T], n: u8) -> Option<&T> {
    // The newest ones most often.
    let len = list.len();
    (len > 0).then(|| &list[len - 1 - usize::from(n) % len.min(4)])
}

fn keys() -> Vec<SessionKey> {
    let mut keys = Vec::new();
    for principal in ["alice", "bob"] {
        for id in ["one", "two"] {
            keys.push(SessionKey {
                principal: Principal::new(principal).unwrap(),
                id: SessionId::new(id).unwrap(),
            });
        }
    }
    keys
}

fn key(n: u8) -> SessionKey {
    // Mostly one session, so that something happens in it.
    keys().swap_remove(match n % 8 {
        0..=4 => 0,
        n => usize::from(n - 4),
    })
}

fn node(n: u8) -> NodeId {
    NodeId::new(["n1", "n2", "n3"][usize::from(n) % 3]).unwrap()
}

const TEXTS: [&str; 4] = ["plain", "a\0b", "\"\\\n\u{1f9ff}", ""];

fn text(n: u8) -> String {
    TEXTS[usize::from(n) % TEXTS.len()].to_owned()
}

fn call(n: u8) -> CallId {
    CallId::new(format!("c{}", n % 12)).unwrap()
}

/// The operation of a step, on the state that both stores are in.
#[allow(clippy::too_many_lines, reason = "one arm for each operation")]
async fn op(world: &World, known: &mut Known, step: Step) -> Option<Op> {
    let (what, a, b, c) = step;
    let now = world.clock.now();
    let boot = world.clock.boot();
    let expiry = LeaseExpiry { boot_ms: boot.boot_ms + 30_000, ..boot.clone() };
    let key = key(a);
    let claimer = Claimer {
        node: node(b),
        expiry: expiry.clone(),
        default_model: "script/x".to_owned(),
        workspace: String::new(),
    };
    let write = |known: &Known, records: Vec<Record>| {
        let turn = pick(&known.turns, a)?;
        // Now and then a number that is used already, or one that is far ahead.
        let number = (c % 3 == 0).then_some(1 + u64::from(b % 8));
        Some(Op::Write(Write { fence: turn.fence.clone(), records, number }))
    };
    let usage = (c % 3 == 0).then(|| Usage { input_tokens: u64::from(c), ..Usage::default() });
    Some(match what % 26 {
        0..=3 => {
            let mode = [Mode::Queue, Mode::Queue, Mode::Interrupt, Mode::Reject, Mode::Steer]
                [usize::from(c) % 5];
            let content = Content::text(text(c / 5));
            Op::Admit(Admit {
                key,
                request_id: RequestId::new(format!("r-{}", b % 16)).unwrap(),
                digest: digest::payload(InputKind::Message, mode, &content, None),
                mode,
                content,
                metadata: (c % 7 == 0).then(|| "{\"m\":1}".to_owned()),
                queue_max: 5,
                sessions_max: 2,
                auto_continue: AutoContinue { enabled: c % 5 != 0, ..AutoContinue::default() },
                claimer: (c % 4 == 0).then_some(claimer),
            })
        }
        4..=7 => Op::Claim(Claim { key, claimer, gone: (c % 3 == 0).then(|| node(c)) }),
        8 | 9 => {
            let records = match c % 3 {
                0 => vec![Record::TextDelta(text(b))],
                1 => vec![Record::ReasoningDelta(text(b)), Record::TextDelta(text(c))],
                _ => vec![Record::CallOutput { call_id: call(b), text: text(c) }],
            };
            return write(known, records);
        }
        10 | 11 => {
            let id = call(u8::try_from(known.calls.len() % 12).unwrap());
            let calls = if c % 2 == 0 || known.calls.len() >= 12 {
                Vec::new()
            } else {
                known.calls.push(id.clone());
                vec![NewCall {
                    id,
                    provider_id: "p".to_owned(),
                    name: text(b),
                    arguments: "{}".to_owned(),
                    effect: Effect::ALL[usize::from(b) % 3],
                    schema: String::new(),
                }]
            };
            let reasoning = (b % 3 == 0).then(|| text(c));
            return write(known, vec![Record::Step { text: text(b), reasoning, calls, usage }]);
        }
        12 => {
            let id = pick(&known.calls, b)?.clone();
            let record = match c % 3 {
                0 => Record::CallStarted(id),
                1 => Record::CallAdopted(id),
                _ => Record::CallFinished {
                    call_id: id,
                    state: CallState::ALL[usize::from(c) % CallState::ALL.len()],
                    result: text(c),
                },
            };
            return write(known, vec![record]);
        }
        13 | 14 => {
            let end = match b % 4 {
                0 | 1 => End::Completed { text: text(c), reasoning: None, usage },
                2 => End::Cancelled { text: text(c), reasoning: Some(text(b)) },
                3 => End::Unprepared {
                    failure: Failure {
                        code: "x".to_owned(),
                        message: text(c),
                        permanent: false,
                        hint: None,
                    },
                },
                _ => End::Failed {
                    failure: Failure {
                        code: "x".to_owned(),
                        message: text(b),
                        permanent: true,
                        hint: None,
                    },
                    text: text(c),
                    reasoning: None,
                },
            };
            // One that could not begin has said nothing.
            if matches!(end, End::Unprepared { .. }) {
                return write(known, vec![Record::End(end)]);
            }
            return write(known, vec![Record::TextDelta(text(c)), Record::End(end)]);
        }
        15 if c % 2 == 0 => return write(known, vec![Record::HandedOver]),
        15 => {
            let turn = pick(&known.turns, a)?;
            let prompt = Prompt {
                id: PromptId::new(format!("p{}", known.prompts.len())).unwrap(),
                principal: turn.session.principal.clone(),
                session_id: turn.session.id.clone(),
                run_id: turn.run.id.clone(),
                generation: turn.run.generation,
                kind: PromptKind::ALL[usize::from(b) % 2],
                state: PromptState::Open,
                question: text(c),
                call_id: pick(&known.calls, b).cloned(),
                choice: None,
                text: None,
                answered_by: None,
                opened_at: now,
                expires_at: now.plus_ms(60_000),
                settled_at: None,
            };
            known.prompts.push(prompt.clone());
            return write(known, vec![Record::PromptOpened(prompt)]);
        }
        16 if c % 3 == 0 => {
            let id = pick(&known.prompts, b)?.id.clone();
            return write(known, vec![Record::PromptExpired(id)]);
        }
        16 => {
            let prompt = pick(&known.prompts, b)?;
            Op::AnswerPrompt(AnswerPrompt {
                principal: prompt.principal.clone(),
                prompt_id: prompt.id.clone(),
                generation: prompt.generation,
                choice: (c % 2 == 0).then(|| Choice::ALL[usize::from(c / 2) % 4]),
                text: (c % 3 == 1).then(|| text(c)),
            })
        }
        17 | 18 => {
            let view = world.store.session(&key).await.unwrap()?;
            let run = view.running?;
            let gone = [None, Some(true), Some(false)][usize::from(c) % 3];
            Op::Interrupt(Interrupt {
                key,
                run_id: run.id,
                epoch: view.session.epoch,
                node: node(b),
                evidence: Evidence {
                    holder: run.node,
                    holder_started_at: None,
                    holder_gone: gone,
                    rebooted: boot.boot_id != "boot-1",
                    observer: node(b),
                    observer_started_at: now,
                    newer_process: c % 2 == 0,
                    drain_timeout_s: None,
                    store_silent_s: (c % 6 == 0).then_some(600),
                    last_seq: 0,
                    last_event: String::new(),
                    last_event_at: Timestamp(0),
                },
                by_holder: c % 5 == 0,
                may_continue: c % 4 != 0,
                model_here: c % 7 != 0,
                tools_here: c % 9 != 0,
                workspace: String::new(),
                loop_broken: c % 11 == 0,
                viewed: false,
            })
        }
        19 => {
            if b % 5 == 3 {
                let run = pick(&known.turns, a)?.run.clone();
                let (key, run_id) = (run.session_key(), run.id);
                let late = [
                    LateRecord::Text(text(c)),
                    LateRecord::Reasoning(text(c)),
                    LateRecord::CallFinished {
                        call_id: call(c),
                        state: CallState::ALL[usize::from(c) % CallState::ALL.len()],
                        result: text(c),
                    },
                    LateRecord::Sealed,
                ];
                let records = late[usize::from(c) % 4..].to_vec();
                let first = u64::from(c % 3);
                let writes = (u64::from(b % 8)..).zip(records).collect();
                return Some(match c % 2 {
                    0 => Op::Deposit(Deposit {
                        key,
                        run_id,
                        node: run.node,
                        epoch: run.writes_epoch,
                        first,
                        records: writes,
                    }),
                    _ => {
                        let holder_gone = c % 7 == 0;
                        Op::LookLate(LookLate { key, run_id, node: node(b), holder_gone })
                    }
                });
            }
            let generation = world.store.session(&key).await.unwrap()?.session.generation;
            if b % 5 == 4
                && let Some(view) = world.store.session(&key).await.unwrap()
                && let Some(run) = view.session.interrupted
            {
                let run_id = run;
                return Some(match c % 3 {
                    0 => Op::CloseUndecided(CloseUndecided { key, run_id }),
                    _ => Op::Reconsider(Reconsider {
                        key,
                        run_id,
                        may_continue: c % 4 != 0,
                        model_here: c % 7 != 0,
                        tools_here: c % 9 != 0,
                        workspace: String::new(),
                        loop_broken: c % 11 == 0,
                        viewed: c % 2 == 0,
                    }),
                });
            }
            let decision = match b % 4 {
                0 => Decision::Discard,
                1 => Decision::Resend((c % 2 == 0).then(|| text(c))),
                _ => Decision::Continue,
            };
            Op::Decide(Decide { key, generation, decision })
        }
        20 => Op::Stop(Stop {
            by: key.principal.clone(),
            key,
            generation: None,
            run_id: None,
            keep_queue: c % 2 == 0,
        }),
        21 => {
            let input_id = pick(&known.inputs, b)?.clone();
            Op::CancelInput(CancelInput { principal: key.principal, input_id })
        }
        22 => match c % 4 {
            0 => Op::CreateSession(CreateSession {
                key,
                title: Some(text(b)),
                model: None,
                system: Some(text(b)),
                policy: Policy {
                    queue: QueuePolicy::Batch,
                    auto_continue: AutoContinue {
                        when: AutoContinueWhen::OnView,
                        ..AutoContinue::default()
                    },
                    ..Policy::default()
                },
                metadata: None,
                sessions_max: 2,
            }),
            1 => Op::EndSession(EndSession { key, reason: text(b) }),
            2 => {
                let patch = SessionPatch { title: Some(None), ..SessionPatch::default() };
                let expected_revision = (b % 2 == 0).then_some(u64::from(b % 4));
                Op::PatchSession(PatchSession { key, expected_revision, patch })
            }
            _ => Op::DeleteSession(DeleteSession { key, expected_generation: None }),
        },
        23 => match c % 4 {
            0 => Op::RenewLeases(RenewLeases { node: node(b), expiry }),
            1 => Op::SetPresence(SetPresence { key, node: node(b), present: a % 3 != 0 }),
            2 => Op::RegisterNode(RegisterNode {
                node: Node {
                    id: node(b),
                    home: "/h".to_owned(),
                    boot_id: boot.boot_id,
                    role: ["serve", "run"][usize::from(a) % 2].to_owned(),
                    started_at: now,
                    interrupted_start: a % 3 == 0,
                    ended_at: None,
                },
            }),
            _ => Op::EndNode(EndNode { node: node(b) }),
        },
        24 if c % 3 > 0 => {
            let before = Timestamp(now.0 - i64::from(b) * 10);
            Op::PruneEvents(PruneEvents { before, after: None })
        }
        24 => Op::Prune(Prune { before: Timestamp(now.0 - i64::from(b) * 1_000) }),
        _ => return None,
    })
}

/// Lets time pass, on both clocks alike.
fn pass(world: &World, step: Step) {
    let (_, a, b, _) = step;
    match a % 16 {
        0 => world.clock.reboot("boot-2"),
        1 => world.clock.set_wall_ms(1_796_040_000_000 - i64::from(b)),
        2 => world.clock.pass_ms(900_000),
        3..=6 => world.clock.pass_ms(30_000),
        _ => world.clock.pass_ms(u64::from(b)),
    }
}

async fn differs(history: &[Step]) -> Result<(), String> {
    let folder = Folder(Mutex::new(None));
    let (memory, sqlite) = (World::open(&Memory).await, World::open(&folder).await);
    let database = folder.0.lock().unwrap().as_ref().unwrap().path().join("everturn.db");
    let raw = rusqlite::Connection::open(database).unwrap();
    let mut known = Known::default();
    let mut rest = history;
    while let Some(first) = rest.first() {
        // Some operations alone, some together: those share a commit on SQLite.
        let together = if first.3 % 3 == 0 { 1 + usize::from(first.2 % 6) } else { 1 };
        let (group, later) = rest.split_at(together.min(rest.len()));
        rest = later;
        let mut ops = Vec::new();
        let mut said = Vec::new();
        for world in [&memory, &sqlite] {
            // Time passes between groups, so that all of one are done at the same moment.
            world.clock.pass_ms(1);
            for step in group.iter().filter(|step| step.0 % 26 == 25) {
                pass(world, *step);
            }
        }
        for step in group {
            let Some(op) = op(&memory, &mut known, *step).await else { continue };
            let answer = memory.store.submit(op.clone()).await;
            said.push(format!("{answer:#?}"));
            match answer {
                Ok(Reply::Claimed(claimed)) => {
                    if let Claimed::Turn(turn) = *claimed {
                        known.turns.push(*turn);
                    }
                }
                Ok(Reply::Admitted(admitted)) => known.inputs.push(admitted.input.id),
                _ => {}
            }
            ops.push(op);
        }
        let heard = at_once(&*sqlite.store, &raw, &ops).await;
        let at = history.len() - later.len();
        for ((a, b), op) in said.iter().zip(&heard).zip(&ops) {
            if a != b {
                return Err(format!("before step {at}: {}\n{op:?}", difference(a, b)));
            }
        }
        let (a, b) = (memory.take_seen(), sqlite.take_seen());
        for seen in &a {
            for signal in &seen.signals {
                if let Signal::Claimed(turn) = signal {
                    known.turns.push((**turn).clone());
                }
            }
        }
        let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
        if a != b {
            return Err(format!("before step {at}, published: {}\n{ops:?}", difference(&a, &b)));
        }
    }
    for key in keys() {
        let (a, b) = (memory.dump(&key).await, sqlite.dump(&key).await);
        if a != b {
            return Err(format!("in the end, {key}: {}", difference(&a, &b)));
        }
        accounts(&memory, &key).await?;
    }
    Ok(())
}

/// Submits operations one behind the other without waiting for any. Meanwhile somebody else holds the
/// database, so that all but the first of them (if it was quick) share one commit.
async fn at_once(store: &dyn Store, raw: &rusqlite::Connection, ops: &[Op]) -> Vec<String> {
    if ops.len() > 1 {
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    }
    let mut waiting: Vec<_> = ops.iter().map(|op| store.submit(op.clone())).collect();
    let mut answers: Vec<Option<String>> = ops.iter().map(|_| None).collect();
    let mut poll = |context: &mut std::task::Context<'_>| {
        for (future, answer) in waiting.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(reply) = future.as_mut().poll(context)
            {
                *answer = Some(format!("{reply:#?}"));
            }
        }
        answers.iter().all(Option::is_some)
    };
    std::future::poll_fn(|context| {
        poll(context);
        std::task::Poll::Ready(())
    })
    .await;
    if ops.len() > 1 {
        raw.execute_batch("COMMIT").unwrap();
    }
    std::future::poll_fn(|context| match poll(context) {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Where two texts begin to differ, with some lines around.
fn difference(memory: &str, sqlite: &str) -> String {
    let same = memory.lines().zip(sqlite.lines()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| -> String {
        let lines = text.lines().skip(same.saturating_sub(12)).take(20);
        lines.map(|line| format!("    {line}\n")).collect()
    };
    format!("line {same}\nmemory:\n{}SQLite:\n{}", around(memory), around(sqlite))
}

/// What must hold after any history (P4, P7): gapless numbers but for recorded gaps, and one ending.
async fn accounts(world: &World, key: &SessionKey) -> Result<(), String> {
    let feed = world.store.feed(key, 0, u32::MAX).await.unwrap();
    let gaps = world.store.gaps(key).await.unwrap();
    let mut next = 1;
    let mut ends = BTreeMap::<String, u32>::new();
    for event in &feed {
        let everturn_store::read::StoredEvent::Good(row) = event else {
            return Err(format!("{key}: an event cannot be read: {event:?}"));
        };
        if let Some(gap) = gaps.iter().find(|gap| gap.from_offset == next) {
            next = gap.to_offset + 1;
        }
        // A pruned range stands for the offsets directly before its own.
        let told = everturn_api::event::piece(&row.head, &row.body);
        if row.head.offset - told.map_or(0, |told| told.to - told.from) != next {
            return Err(format!("{key}: offset {} instead of {next}", row.head.offset));
        }
        next = row.head.offset + 1;
        if let Some((run, _)) = &row.head.run
            && everturn_core::event::is_terminal(&row.head.name)
        {
            *ends.entry(run.to_string()).or_default() += 1;
        }
    }
    if let Some((run, count)) = ends.iter().find(|(_, count)| **count != 1) {
        return Err(format!("{key}: {run} has {count} ends"));
    }
    let session = world.store.session(key).await.unwrap();
    let inputs = world.store.inputs(key, None, None, u32::MAX).await.unwrap();
    for input in inputs {
        let ended = input.outcome.is_some();
        if ended != (input.status == everturn_core::InputStatus::Terminal) {
            return Err(format!("{key}: {input:?}"));
        }
        // Nothing that was accepted is left hanging: it waits, runs, or is being continued.
        let idle = session
            .as_ref()
            .is_none_or(|view| view.running.is_none() && view.session.queue_length == 0);
        if idle && !ended {
            return Err(format!("{key}: nobody will ever end {input:?}"));
        }
    }
    Ok(())
}

#[test]
fn any_history_means_the_same_on_both() {
    let seed: u64 = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let step = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
    let histories = proptest::collection::vec(step, 1..120);
    let outcome = runner.run(&histories, |history| {
        runtime.block_on(differs(&history)).map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, history)) => {
            panic!("EVERTURN_SEED={seed}\nhistory: {history:?}\n{why}")
        }
        Err(other) => panic!("EVERTURN_SEED={seed}: {other}"),
    }
}

/// A turn's last write and the deletion of its session may share a commit; the write that is sent
/// again, because its answer was lost, is still known to have been done.
#[tokio::test]
async fn a_write_that_shares_its_commit_with_a_deletion_is_known_afterwards() {
    let folder = Folder(Mutex::new(None));
    let (memory, sqlite) = (World::open(&Memory).await, World::open(&folder).await);
    let database = folder.0.lock().unwrap().as_ref().unwrap().path().join("everturn.db");
    let raw = rusqlite::Connection::open(database).unwrap();
    let mut said = Vec::new();
    for (world, shared) in [(&memory, false), (&sqlite, true)] {
        // Admitted and claimed in one.
        let admit = op(world, &mut Known::default(), (0, 0, 0, 0)).await.unwrap();
        world.store.submit(admit).await.unwrap();
        let fence = world
            .take_seen()
            .iter()
            .flat_map(|committed| &committed.signals)
            .find_map(|signal| match signal {
                Signal::Claimed(turn) => Some(turn.fence.clone()),
                _ => None,
            })
            .unwrap();
        let key = fence.session().clone();
        let failure =
            Failure { code: "x".to_owned(), message: "y".to_owned(), permanent: true, hint: None };
        let end = Record::End(End::Failed { text: "z".to_owned(), reasoning: None, failure });
        let write = Op::Write(Write { fence, records: vec![end], number: Some(1) });
        let other = Op::Prune(Prune { before: Timestamp(0) });
        let delete = Op::DeleteSession(DeleteSession { key, expected_generation: None });
        if shared {
            at_once(&*world.store, &raw, &[other, write.clone(), delete]).await;
        } else {
            for op in [other, write.clone(), delete] {
                world.store.submit(op).await.unwrap();
            }
        }
        said.push(format!("{:#?}", world.store.submit(write).await));
    }
    assert!(said[0].starts_with("Ok"), "{}", said[0]);
    assert_eq!(said[0], said[1]);
}
