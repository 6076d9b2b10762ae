//! Random histories and random readers (promises P6 and P7): whatever happens in sessions, and however
//! a reader is cut off and comes back, what it got one after the other is the journal.
//!
//! A failure prints the seed of its batch; `EVERTURN_SEED=N` begins with that one. Chance decides everything but
//! the moments at which threads and timers meet.
#![allow(clippy::print_stdout, reason = "a failure says with which seed")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everturn_core::{NodeId, Principal, TokenId};
use everturn_engine::{Config, Engine};
use everturn_server::{Scope, Server, ServerConfig, new_token};
use everturn_sim::tier;
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::read::StoredEvent;
use everturn_store::{Clock, Store, SystemClock};
use http::Method;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::puppet::{OneModel, Puppet, tools};
use crate::reader::{Door, Got, Progress, Reader};
use crate::world::{key, memory};

/// How long one case may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cases that share their processes: setting these up takes longer than a case.
const BATCH: usize = 10;

/// Something that a person does.
enum Step {
    Say(String, String),
    Rename(String, u64),
    Stop(String),
    /// Waits until everything that was said is answered.
    Rest,
    /// Lets the others run.
    Pause(usize),
    /// A reader comes.
    Read(u64),
}

/// What one turn does: rounds of pieces, each round but the last with a tool call at its end.
fn program(random: &mut StdRng) -> String {
    let rounds = *[1, 1, 1, 2, 3].choose(random).unwrap();
    let rounds: Vec<String> = (0..rounds)
        .map(|_| {
            let pieces = random.random_range(0..12);
            let mut words: Vec<&str> =
                (0..pieces).map(|_| *["t", "t", "r", "y", "z"].choose(random).unwrap()).collect();
            // Enough of these push what came before out of the shared memory.
            if random.random_bool(0.01) {
                words.extend(["big"; 4]);
            }
            // More than a reader takes from the store at a time.
            if random.random_bool(0.02) {
                words.extend(["t"; 400]);
            }
            words.join(" ")
        })
        .collect();
    let end = if random.random_bool(0.1) { " fail" } else { "" };
    format!("play {}{end}", rounds.join(" | "))
}

fn steps(random: &mut StdRng, sessions: &[String]) -> Vec<Step> {
    let mut steps = Vec::new();
    for session in sessions {
        for _ in 0..random.random_range(1..=3) {
            steps.push(Step::Say(session.clone(), program(random)));
        }
        for _ in 0..random.random_range(0..=2) {
            steps.push(Step::Rename(session.clone(), random.random()));
        }
        if random.random_bool(0.2) {
            steps.push(Step::Stop(session.clone()));
        }
    }
    for _ in 0..random.random_range(0..=4) {
        steps.push(Step::Pause(random.random_range(1..200)));
    }
    if random.random_bool(0.3) {
        steps.push(Step::Rest);
    }
    for _ in 0..random.random_range(1..=4) {
        steps.push(Step::Read(random.random()));
    }
    steps.shuffle(random);
    // One that comes when all is over.
    steps.extend([Step::Rest, Step::Read(random.random())]);
    steps
}

/// A process: an engine on the store, and a server without a socket.
async fn process(
    store: Arc<dyn Store>,
    node: NodeId,
    set: impl FnOnce(&mut Config),
) -> (Engine, Server) {
    let models = Arc::new(OneModel(Puppet::new()));
    let mut config = Config::new(node, "home".to_owned(), "serve", models);
    config.tools = tools();
    set(&mut config);
    let engine = Engine::open(store, config).await.unwrap();
    let bound = SocketAddr::from(([127, 0, 0, 1], 80));
    let server = Server::new(engine.clone(), ServerConfig::default(), bound).unwrap();
    (engine, server)
}

fn node() -> NodeId {
    NodeId::from_uuid(uuid::Uuid::now_v7())
}

/// Processes that share one store, some of the time more than one.
async fn on_memory(random: &mut StdRng) -> Vec<(Engine, Server)> {
    let store = memory();
    let coalesce = Duration::from_millis(random.random_range(0..=1));
    let count = if random.random_bool(0.25) { 2 } else { 1 };
    let mut processes = Vec::new();
    for number in 0..count {
        let node = node();
        store.set_gone(&node, Some(false));
        let store = match number {
            0 => store.clone(),
            _ => Arc::new(store.another(Arc::new(SystemClock::new().unwrap()))),
        };
        let set = |config: &mut Config| {
            config.coalesce = coalesce;
            // Alone, notices must do: the look around that makes up for lost ones does not come.
            config.poll = Duration::from_millis(if count == 1 { 600_000 } else { 2 });
        };
        processes.push(process(store, node, set).await);
    }
    processes
}

async fn on_sqlite(random: &mut StdRng, home: &std::path::Path) -> Vec<(Engine, Server)> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new().unwrap());
    let node = node();
    let options =
        OpenOptions { node_id: Some(node.clone()), ..OpenOptions::new(home, "serve", clock) };
    let store = SqliteStore::open(options).unwrap();
    let coalesce = Duration::from_millis(random.random_range(0..=1));
    let set = |config: &mut Config| {
        config.coalesce = coalesce;
        config.poll = Duration::from_secs(600);
    };
    vec![process(Arc::new(store), node, set).await]
}

/// The routes of these processes, opened by one token.
async fn doors(processes: &[(Engine, Server)]) -> Vec<Door> {
    let clock = SystemClock::new().unwrap();
    let id = TokenId::from_uuid(clock.uuid());
    let scopes = [Scope::Read, Scope::Submit, Scope::Control, Scope::Approve];
    let (token, secret) = new_token(id, Principal::local(), &scopes, clock.now(), None).unwrap();
    processes[0].0.create_token(token).await.unwrap();
    let door = |(_, server): &(_, Server)| Door { router: server.router(), token: secret.clone() };
    processes.iter().map(door).collect()
}

/// Histories, one after the other, on these processes.
async fn batch(random: &mut StdRng, processes: Vec<(Engine, Server)>) {
    let doors = doors(&processes).await;
    for number in 0..BATCH {
        let case = case(random, &processes[0].0, &doors, number);
        tokio::time::timeout(PATIENCE, case).await.expect("the case ends");
    }
    for (engine, _) in processes {
        engine.close().await;
    }
}

/// One history with its readers.
async fn case(random: &mut StdRng, engine: &Engine, doors: &[Door], number: usize) {
    let count = random.random_range(1..=3);
    let sessions: Vec<String> = (0..count).map(|one| format!("s{number}-{one}")).collect();
    for session in &sessions {
        let body = json!({ "id": session, "policy": { "tools": { "*": "allow" } } });
        let (status, said) = doors[0].send(Method::POST, "/v1/sessions", &body).await;
        assert_eq!(status, 201, "{said}");
    }

    let steps = steps(random, &sessions);
    let count = steps.len();
    let progress = watch::Sender::new(Progress::default());
    let mut readers = Vec::new();
    let mut inputs = Vec::new();
    for step in steps {
        let door = doors.choose(random).unwrap();
        match step {
            Step::Say(session, text) => {
                let path = format!("/v1/sessions/{session}/inputs");
                let (status, said) = door.send(Method::POST, &path, &json!({ "text": text })).await;
                assert_eq!(status, 202, "{said}");
                inputs.push(said["input_id"].as_str().unwrap().to_owned());
            }
            Step::Rename(session, number) => {
                let path = format!("/v1/sessions/{session}");
                let revision = door.get(&path).await["revision"].clone();
                let title = json!({ "title": number.to_string(), "expected_revision": revision });
                // A race for the revision may be lost.
                let (status, said) = door.send(Method::PATCH, &path, &title).await;
                assert!(matches!(status, 200 | 409), "{said}");
            }
            Step::Stop(session) => {
                let path = format!("/v1/sessions/{session}/stop");
                let (status, said) =
                    door.send(Method::POST, &path, &json!({ "queue": "keep" })).await;
                // There may be nothing to stop.
                assert!(matches!(status, 200 | 202 | 409), "{status} {said}");
            }
            Step::Rest => rest(door, &inputs).await,
            Step::Pause(times) => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
            Step::Read(seed) => {
                let reader = Reader::new(doors, &sessions, progress.subscribe(), count, seed);
                readers.push(tokio::spawn(reader.read()));
            }
        }
        progress.send_modify(|progress| progress.steps += 1);
    }
    rest(&doors[0], &inputs).await;
    let mut journals = BTreeMap::new();
    for session in &sessions {
        journals.insert(session.clone(), journal(engine, session).await);
    }
    let ends = journals.iter().map(|(id, events)| (id.clone(), events.len() as u64)).collect();
    progress.send_modify(|progress| progress.ends = Some(ends));
    for reader in readers {
        let got =
            reader.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        assert_same(&got, &journals);
    }
}

/// Waits until everything that was said has its outcome. Looks often: of an end in another process
/// nobody is told at once.
async fn rest(door: &Door, inputs: &[String]) {
    for input in inputs {
        let path = format!("/v1/inputs/{input}");
        while door.get(&path).await["status"] != "terminal" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The bytes of a session's events, as the store has them.
async fn journal(engine: &Engine, session: &str) -> Vec<String> {
    let rows = engine.read().feed(&key(session), 0, 100_000).await.unwrap();
    let bytes = |row| match row {
        StoredEvent::Good(row) => everturn_api::event::render(&row.head, &row.body),
        StoredEvent::Malformed { .. } => panic!("{row:?}"),
    };
    rows.into_iter().map(bytes).collect()
}

/// What a reader got is the journal.
fn assert_same(got: &Got, journals: &BTreeMap<String, Vec<String>>) {
    for (session, events) in &got.feeds {
        assert!(*events == journals[session], "{session}: what was read is not the journal");
    }
    for (run, events) in &got.runs {
        let of = |text: &&String| {
            let event: Value = serde_json::from_str(text).unwrap();
            event["run_id"] == run.as_str() && event.get("seq").is_some()
        };
        let journal: Vec<&String> = journals.values().flatten().filter(of).collect();
        assert!(events.iter().eq(journal), "{run}: what was read is not its journal");
    }
}

/// Runs batches, the seeds of which follow each other.
fn batches(cases: usize, one: impl Fn(&Runtime, &mut StdRng)) {
    let first: u64 = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => u64::from(rand::random::<u32>()),
    };
    println!("EVERTURN_SEED={first}");
    let alone = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let several = threads.worker_threads(2).enable_all().build().unwrap();
    for seed in first..first + (cases / BATCH) as u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let runtime = if random.random_bool(0.5) { &alone } else { &several };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one(runtime, &mut random);
        }));
        if let Err(panic) = done {
            println!("EVERTURN_SEED={seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
}

/// P6, P7: whatever happened and however it was read, what was read is the journal.
#[test]
fn whatever_a_reader_got_is_the_journal() {
    batches(tier::count(900, 9_000), |runtime, random| {
        runtime.block_on(async {
            let processes = on_memory(random).await;
            batch(random, processes).await;
        });
    });
}

/// P6, P7: the same on SQLite, whose notices come from a thread of their own.
#[test]
fn whatever_a_reader_got_is_the_journal_on_sqlite() {
    batches(tier::count(100, 1_000), |runtime, random| {
        // What reaches the disk, and when, is not what is looked at.
        let memory = std::path::Path::new("/dev/shm");
        let home = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let home = home.unwrap();
        runtime.block_on(async {
            let processes = on_sqlite(random, home.path()).await;
            batch(random, processes).await;
        });
    });
}
