//! Several processes on one home: what one does, the others see; who is alive is known (P3, P11).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use common::{admit, claim, delta, key, node, open, options, rows, write};
use everturn_core::event::Record;
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::op::{Interrupt, PatchSession, RegisterNode, SessionPatch, Stop};
use everturn_store::rows::Node;
use everturn_store::{Op, OpError, Read as _, Refusal, Store};

const HOME: &str = "EVERTURN_TEST_HOME";

async fn register(store: &SqliteStore, id: &str) {
    let node = Node {
        id: node(id),
        home: "h".to_owned(),
        boot_id: store.clock().boot().boot_id,
        role: "serve".to_owned(),
        started_at: store.clock().now(),
        interrupted_start: false,
        ended_at: None,
    };
    store.submit(Op::RegisterNode(RegisterNode { node })).await.unwrap();
}

/// This test's own program again, as the process `child` below.
fn spawn(home: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(HOME, home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the child says a line that ends so.
fn wait_for(child: &mut Child, line: &str) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.trim_end().ends_with(line) {
        said.clear();
        assert_ne!(out.read_line(&mut said).unwrap(), 0, "the child left without a word");
    }
    out
}

/// Not a test of its own: what a second process does, when one of the tests below starts it.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "its parent reads it")]
async fn child() {
    let Ok(home) = std::env::var(HOME) else { return };
    let home = std::path::PathBuf::from(home);
    let node_id = Some(node("node_child"));
    let store = SqliteStore::open(OpenOptions { node_id, ..options(&home) }).unwrap();
    register(&store, "node_child").await;
    for n in 0..100 {
        store.submit(admit(&key("s"), 1_000 + n, "from the child")).await.unwrap();
    }
    println!("child is ready");
    // Until the parent hangs up.
    let mut nothing = String::new();
    std::io::stdin().read_to_string(&mut nothing).unwrap();
    println!("child leaves");
}

#[tokio::test]
async fn a_process_is_alive_until_its_lock_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    assert_eq!(store.node_gone(&node("node_child")).await, None, "nobody has heard of it");
    let mut child = spawn(home.path());
    let _out = wait_for(&mut child, "child is ready");
    assert_eq!(store.node_gone(&node("node_child")).await, Some(false));
    // While it lives, nobody takes its name.
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(store.node_gone(&node("node_child")).await, Some(true));
    // The next one to open tidies up; the answer is the same.
    let lock = home.path().join("nodes/node_child.lock");
    assert!(lock.exists());
    let _next = open(home.path());
    assert!(!lock.exists());
    assert_eq!(store.node_gone(&node("node_child")).await, Some(true));
    assert_eq!(rows(&store).await, 100, "what it was told is durable is there");
}

#[tokio::test]
async fn a_process_that_leaves_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    register(&store, store.node_id().as_str()).await;
    assert_eq!(store.node_gone(store.node_id()).await, Some(false), "this one is here");
    let mut child = spawn(home.path());
    let mut out = wait_for(&mut child, "child is ready");
    drop(child.stdin.take());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    assert_eq!(store.node_gone(&node("node_child")).await, Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_write_one_session_without_gaps() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let mut child = spawn(home.path());
    for n in 0..100 {
        store.submit(admit(&key("s"), n, "from here")).await.unwrap();
    }
    let _out = wait_for(&mut child, "child is ready");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(rows(&store).await, 200);
    let feed = store.feed(&key("s"), 0, 1_000).await.unwrap();
    let offsets: Vec<u64> = feed
        .into_iter()
        .map(|event| match event {
            everturn_store::read::StoredEvent::Good(row) => row.head.offset,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(offsets, (1..=200).collect::<Vec<u64>>());
}

#[tokio::test]
async fn what_another_process_did_is_noticed_once() {
    let home = tempfile::tempdir().unwrap();
    let (here, there) = (open(home.path()), open(home.path()));
    here.changed_elsewhere().await;
    here.submit(admit(&key("s"), 1, "x")).await.unwrap();
    assert!(!here.changed_elsewhere().await, "one's own commits are no news");
    there.submit(admit(&key("s"), 2, "x")).await.unwrap();
    assert!(here.changed_elsewhere().await);
    assert!(!here.changed_elsewhere().await);
    // Also when a commit of one's own came between.
    there.submit(admit(&key("s"), 3, "x")).await.unwrap();
    here.submit(admit(&key("s"), 4, "x")).await.unwrap();
    assert!(here.changed_elsewhere().await);
    assert!(!here.changed_elsewhere().await);
}

#[tokio::test]
async fn a_writer_never_acts_on_an_old_picture() {
    let home = tempfile::tempdir().unwrap();
    let (here, there) = (open(home.path()), open(home.path()));
    let key = key("s");
    here.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&here, &key, "n1").await;
    here.submit(delta(&fence, "a")).await.unwrap();
    // Another process changes the session: the counters written here must not undo it.
    let patch = SessionPatch { title: Some(Some("theirs".to_owned())), ..Default::default() };
    let patch = PatchSession { key: key.clone(), expected_revision: None, patch };
    there.submit(Op::PatchSession(patch)).await.unwrap();
    here.submit(delta(&fence, "b")).await.unwrap();
    let session = here.session(&key).await.unwrap().unwrap().session;
    assert_eq!(session.title.as_deref(), Some("theirs"));
    assert_eq!(session.revision, 1);
    // It stops the turn: the next write here is refused.
    let stop = Stop {
        key: key.clone(),
        generation: None,
        run_id: None,
        by: key.principal.clone(),
        keep_queue: false,
    };
    there.submit(Op::Stop(stop)).await.unwrap();
    let refused = here.submit(delta(&fence, "c")).await.unwrap_err();
    assert_eq!(refused, OpError::Refused(Refusal::Stopped));
    // It takes the session over: nothing of ours gets in.
    let view = there.session(&key).await.unwrap().unwrap();
    let interrupt = Interrupt {
        key: key.clone(),
        run_id: fence.run_id().clone(),
        epoch: view.session.epoch,
        node: node("n2"),
        evidence: everturn_core::Evidence {
            holder: node("n1"),
            holder_started_at: None,
            holder_gone: Some(true),
            rebooted: false,
            observer: node("n2"),
            observer_started_at: there.clock().now(),
            newer_process: false,
            drain_timeout_s: None,
            store_silent_s: None,
            last_seq: 0,
            last_event: String::new(),
            last_event_at: there.clock().now(),
        },
        by_holder: false,
        may_continue: false,
        model_here: true,
        tools_here: true,
        workspace: String::new(),
        loop_broken: false,
        viewed: false,
    };
    there.submit(Op::Interrupt(interrupt)).await.unwrap();
    let count = here.feed(&key, 0, 1_000).await.unwrap().len();
    let records = vec![Record::CallOutput {
        call_id: everturn_core::CallId::new("c").unwrap(),
        text: "late".to_owned(),
    }];
    let refused = here.submit(write(&fence, records)).await.unwrap_err();
    assert_eq!(refused, OpError::Refused(Refusal::Fenced));
    assert_eq!(here.feed(&key, 0, 1_000).await.unwrap().len(), count);
}

#[tokio::test]
async fn a_store_waits_for_another_process() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let op = store.submit(admit(&key("s"), 2, "x"));
    let mut op = std::pin::pin!(op);
    // Sent, and not answered while the other one writes; reads go on.
    let pending = futures_now(op.as_mut()).await;
    assert!(pending.is_none());
    assert_eq!(rows(&store).await, 1);
    assert!(futures_now(op.as_mut()).await.is_none());
    raw.execute_batch("COMMIT").unwrap();
    op.await.unwrap();
    assert_eq!(rows(&store).await, 2);
}

/// Polls a future once.
async fn futures_now<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failure_in_a_shared_commit_is_its_own() {
    let home = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(open(home.path()));
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&*store, &key, "n1").await;
    // While somebody else writes, everything of ours queues behind the first operation.
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = store.stats();
    let bad = || {
        // Refused after it has written: its own step must go, and nothing else.
        let step = Record::Step {
            text: "bad".to_owned(),
            reasoning: None,
            calls: Vec::new(),
            usage: None,
        };
        let unknown = everturn_core::CallId::new("none").unwrap();
        write(&fence, vec![step, Record::CallStarted(unknown)])
    };
    let (mut good, mut refused) = (Vec::new(), Vec::new());
    for n in 0..30 {
        let (store, op) = (store.clone(), if n % 3 == 2 { bad() } else { delta(&fence, "x") });
        let task = async move { store.submit(op).await };
        let into = if n % 3 == 2 { &mut refused } else { &mut good };
        into.push(tokio::spawn(task));
        tokio::task::yield_now().await;
    }
    raw.execute_batch("COMMIT").unwrap();
    for task in good {
        task.await.unwrap().unwrap();
    }
    for task in refused {
        assert!(matches!(task.await.unwrap(), Err(OpError::Refused(Refusal::BadRecord(_)))));
    }
    let after = store.stats();
    assert!(after.commits - before.commits < 20, "they shared commits: {after:?}");
    let run = store.run(fence.run_id()).await.unwrap().unwrap();
    let events = store.run_events(&run, 0, None, 1_000).await.unwrap();
    assert_eq!((events.len(), run.last_seq), (21, 21));
    assert_eq!(store.transcript(&key).await.unwrap().len(), 1);
}
