//! Failures that no disk here produces on demand, and the work that queries are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use everturn_core::event::Record;
use everturn_core::{
    Content, InputKind, LeaseExpiry, Mode, NodeId, Principal, RequestId, SessionId, SessionKey,
    Timestamp, digest,
};
use everturn_store::op::{Admit, Claim, Claimed, Claimer, Write};
use everturn_store::read::{MessageWindow, SessionFilter};
use everturn_store::{
    Clock, Fence, Op, OpError, Read as _, Reply, StorageErrorKind, Store as _, SystemClock,
};
use rusqlite::ffi;

use crate::work;
use crate::writer::Job;
use crate::{OpenOptions, SqliteStore};

fn key(id: &str) -> SessionKey {
    SessionKey { principal: Principal::local(), id: SessionId::new(id).unwrap() }
}

fn admit(id: &str, request: u32, text: &str) -> Op {
    let content = Content::text(text);
    Op::Admit(Admit {
        key: key(id),
        request_id: RequestId::new(format!("r-{request}")).unwrap(),
        digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_max: 100_000,
        sessions_max: 1_000_000,
        auto_continue: everturn_core::AutoContinue::default(),
        claimer: None,
    })
}

async fn claim(store: &SqliteStore, id: &str) -> Fence {
    let boot = store.clock().boot();
    let expiry = LeaseExpiry { boot_ms: boot.boot_ms + 3_600_000, ..boot };
    let node = NodeId::new("n1").unwrap();
    let claimer =
        Claimer { node, expiry, default_model: "script/x".to_owned(), workspace: String::new() };
    let claim = Op::Claim(Claim { key: key(id), claimer, gone: None });
    match store.submit(claim).await.unwrap() {
        Reply::Claimed(claimed) => match *claimed {
            Claimed::Turn(turn) => turn.fence,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn deltas(fence: &Fence, count: usize) -> Op {
    let records = vec![Record::TextDelta("some words".to_owned()); count];
    Op::Write(Write { fence: fence.clone(), records, number: None })
}

fn open() -> (tempfile::TempDir, SqliteStore) {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new().unwrap());
    let store = SqliteStore::open(OpenOptions::new(home.path(), "library", clock)).unwrap();
    (home, store)
}

fn failure(answer: Result<Reply, OpError>) -> StorageErrorKind {
    match answer {
        Err(OpError::Storage(error)) => error.kind,
        other => panic!("should have failed: {other:?}"),
    }
}

impl SqliteStore {
    fn fail_commits(&self, codes: &[i32]) {
        self.faults.lock().unwrap().extend(codes);
    }

    async fn pragma(&self, sql: &'static str) -> i64 {
        self.ask(|reply| Job::Pragma(sql, reply)).await.unwrap()
    }
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_before_a_checkpoint() {
    let (_home, store) = open();
    let published = Arc::new(Mutex::new(0));
    let count = published.clone();
    store.set_sink(Arc::new(move |committed| *count.lock().unwrap() += committed.frames.len()));
    store.submit(admit("s", 1, "x")).await.unwrap();
    // Somebody reads an old state: the log cannot begin anew meanwhile.
    let reader = rusqlite::Connection::open(store.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM inputs").unwrap();
    let before = store.stats();
    store.fail_commits(&[ffi::SQLITE_IOERR_FSYNC]);
    let lost = store.submit(admit("s", 2, "x")).await;
    assert_eq!(failure(lost), StorageErrorKind::Unavailable);
    assert_eq!(*published.lock().unwrap(), 1, "what was not committed is not published");
    // The checkpoint does not get through: still nothing.
    let blocked = store.submit(admit("s", 2, "x")).await;
    assert_eq!(failure(blocked), StorageErrorKind::Unavailable);
    reader.execute_batch("COMMIT").unwrap();
    let Ok(Reply::Admitted(admitted)) = store.submit(admit("s", 2, "x")).await else {
        panic!("the store goes on by itself");
    };
    assert!(!admitted.replayed, "the first attempt left nothing");
    let after = store.stats();
    assert_eq!((after.reopened, after.checkpoints), (before.reopened + 1, before.checkpoints + 1));
    assert_eq!(store.feed(&key("s"), 0, 10).await.unwrap().len(), 2);
    assert_eq!(*published.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_full_disk_at_the_commit_is_said_and_forgotten() {
    let (_home, store) = open();
    store.submit(admit("s", 1, "x")).await.unwrap();
    let fence = claim(&store, "s").await;
    store.submit(deltas(&fence, 3)).await.unwrap();
    store.fail_commits(&[ffi::SQLITE_FULL, ffi::SQLITE_FULL]);
    for _ in 0..2 {
        assert_eq!(failure(store.submit(deltas(&fence, 3)).await), StorageErrorKind::Full);
    }
    // What memory knew of the session went with the commit: the numbers are used now.
    let Ok(Reply::Written(written)) = store.submit(deltas(&fence, 3)).await else { panic!() };
    assert_eq!(written.last_seq, 7);
    let run = store.run(fence.run_id()).await.unwrap().unwrap();
    assert_eq!(store.run_events(&run, 0, None, 100).await.unwrap().len(), 7);
    assert_eq!(store.stats().reopened, 0);
}

#[tokio::test]
async fn a_limit_on_pages_is_a_full_disk() {
    let (_home, store) = open();
    store.submit(admit("s", 1, "x")).await.unwrap();
    assert_eq!(store.pragma("PRAGMA max_page_count = 80").await, 80);
    let big = "x".repeat(300_000);
    for _ in 0..3 {
        assert_eq!(failure(store.submit(admit("s", 2, &big)).await), StorageErrorKind::Full);
    }
    store.submit(admit("s", 3, "small")).await.unwrap();
    assert_eq!(store.pragma("PRAGMA max_page_count = 100000").await, 100_000);
    store.submit(admit("s", 2, &big)).await.unwrap();
    assert_eq!(store.inputs(&key("s"), None, None, 10).await.unwrap().len(), 3);
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    let sound: String = raw.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[tokio::test]
async fn events_beyond_the_reserve_wait_for_their_sync() {
    let (_home, store) = open();
    store.submit(admit("s", 1, "x")).await.unwrap();
    let fence = claim(&store, "s").await;
    // Each within the reserve, together beyond it: the commit that they share turns out to need
    // a sync.
    let (end, pause) = tokio::sync::oneshot::channel();
    store.jobs.as_ref().unwrap().send(Job::Pause(pause)).await.unwrap();
    let before = store.stats();
    // The shared commit passes, its sync does not.
    store.fail_commits(&[0, ffi::SQLITE_IOERR_FSYNC]);
    let release = async { end.send(()).unwrap() };
    let (second, third) = (deltas(&fence, 2_500), deltas(&fence, 2_500));
    let (b, c, ()) = tokio::join!(store.submit(second), store.submit(third), release);
    // Committed, but its numbers could be given again after a power loss: nobody may see them yet.
    assert_eq!(failure(b), StorageErrorKind::Unavailable);
    assert_eq!(failure(c), StorageErrorKind::Unavailable);
    // The caller looks what became of them and goes on behind it.
    let run = store.run(fence.run_id()).await.unwrap().unwrap();
    assert_eq!(run.last_seq, 5_001);
    let Ok(Reply::Written(written)) = store.submit(deltas(&fence, 1)).await else { panic!() };
    assert_eq!(written.last_seq, 5_002);
    assert_eq!(store.stats().reopened, before.reopened + 1);
}

#[tokio::test]
async fn sqlite_is_told_what_to_sync() {
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    let (_home, store) = open();
    store.submit(admit("s", 1, "x")).await.unwrap();
    assert_eq!(store.pragma("PRAGMA synchronous").await, FULL);
    let fence = claim(&store, "s").await;
    store.submit(deltas(&fence, 1)).await.unwrap();
    assert_eq!(store.pragma("PRAGMA synchronous").await, NORMAL);
    store.submit(admit("s", 2, "x")).await.unwrap();
    assert_eq!(store.pragma("PRAGMA synchronous").await, FULL);
    // What the whole store stands on.
    let mode: String = rusqlite::Connection::open(store.path())
        .unwrap()
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
    assert_eq!(store.pragma("PRAGMA wal_autocheckpoint").await, 0);
    assert_eq!(store.pragma("PRAGMA trusted_schema").await, 0);
    assert_eq!(store.pragma("PRAGMA cell_size_check").await, 1);
    assert_eq!(store.pragma("PRAGMA foreign_keys").await, 0);
}

#[tokio::test]
async fn patience_ends() {
    let (_home, store) = open();
    store.submit(admit("s", 1, "x")).await.unwrap();
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waited = store.submit(admit("s", 2, "x")).await;
    assert_eq!(failure(waited), StorageErrorKind::Unavailable);
    assert!(store.stats().busy >= 1);
    raw.execute_batch("COMMIT").unwrap();
    store.submit(admit("s", 2, "x")).await.unwrap();
    assert_eq!(store.stats().reopened, 0, "nothing was wrong with the disk");
}

/// Panics instead of giving an id, when it is told to.
struct Trap {
    clock: SystemClock,
    set: AtomicBool,
}

impl Clock for Trap {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
    fn boot(&self) -> LeaseExpiry {
        self.clock.boot()
    }
    fn uuid(&self) -> uuid::Uuid {
        assert!(!self.set.load(Ordering::SeqCst), "a trap");
        self.clock.uuid()
    }
}

#[tokio::test]
async fn a_panic_inside_harms_nobody_else() {
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(Trap { clock: SystemClock::new().unwrap(), set: AtomicBool::new(false) });
    let options = OpenOptions::new(home.path(), "library", clock.clone());
    let store = SqliteStore::open(options).unwrap();
    store.set_sink(Arc::new(|_| panic!("a sink's own trap")));
    store.submit(admit("s", 1, "x")).await.unwrap();
    let fence = claim(&store, "s").await;
    clock.set.store(true, Ordering::SeqCst);
    assert_eq!(failure(store.submit(admit("s", 2, "x")).await), StorageErrorKind::Unavailable);
    store.submit(deltas(&fence, 2)).await.unwrap();
    clock.set.store(false, Ordering::SeqCst);
    store.submit(admit("s", 2, "x")).await.unwrap();
    assert_eq!(store.session(&key("s")).await.unwrap().unwrap().session.queue_length, 1);
    assert_eq!(store.stats().reopened, 0);
}

/// Fills a store by the hand of its own writer: sessions, and one with a long journal.
async fn fill(store: &SqliteStore, sessions: u32, events: usize) {
    for n in 0..sessions {
        store.submit(admit(&format!("s-{n}"), 1, "x")).await.unwrap();
    }
    let fence = claim(store, "s-0").await;
    for n in 0..events / 50 {
        let text = format!("message {n}");
        let step = Record::Step { text, reasoning: None, calls: Vec::new(), usage: None };
        let records = vec![Record::TextDelta("x".to_owned()); 49];
        let write = |records| Op::Write(Write { fence: fence.clone(), records, number: None });
        store.submit(write(records)).await.unwrap();
        store.submit(write(vec![step])).await.unwrap();
    }
}

/// Each question's work: steps of SQLite's machine, and rows passed over without an index.
fn questions(store: &SqliteStore) -> Vec<(&'static str, i64, i64)> {
    use crate::ask;
    let conn = crate::conn::reading(store.path()).unwrap();
    let key = key("s-0");
    let (no, session) = crate::rows::session_of(&conn, &key).unwrap().unwrap();
    let run = session.running.clone().unwrap();
    let (run_no, row) = crate::rows::run_of(&conn, &run).unwrap().unwrap();
    let mut asked = Vec::new();
    let mut measure = |name, question: &dyn Fn()| {
        // Once to compile it.
        question();
        work::take();
        question();
        let (steps, scans) = work::take();
        asked.push((name, steps, scans));
    };
    measure("session", &|| {
        let (no, session) = crate::rows::session_of(&conn, &key).unwrap().unwrap();
        ask::view(&conn, no, session).unwrap();
    });
    let principal = Principal::local();
    measure("list", &|| {
        ask::list(&conn, &principal, &SessionFilter::default(), 20).unwrap();
    });
    let running = SessionFilter {
        state: Some(everturn_core::SessionState::Running),
        ..SessionFilter::default()
    };
    measure("list of the running", &|| {
        assert_eq!(ask::list(&conn, &principal, &running, 20).unwrap().len(), 1);
    });
    measure("last messages", &|| {
        ask::window(&conn, no, MessageWindow::Last, 20).unwrap();
    });
    measure("messages before one", &|| {
        ask::window(&conn, no, MessageWindow::Before(3), 20).unwrap();
    });
    measure("tail of the feed", &|| {
        let after = session.last_offset - 20;
        assert_eq!(ask::feed(&conn, no, &key.id, after, 100).unwrap().len(), 20);
    });
    measure("tail of a journal", &|| {
        let found = ask::journal(&conn, no, (run_no, &row), row.last_seq - 20, None, 100).unwrap();
        assert_eq!(found.len(), 20);
    });
    measure("queue", &|| {
        crate::rows::queued(&conn, no, i64::MIN, 20).unwrap();
    });
    measure("work", &|| {
        assert_eq!(ask::work(&conn, None, 20).unwrap().len(), 20);
    });
    measure("calls of a run", &|| {
        crate::rows::run_calls(&conn, &run).unwrap();
    });
    asked
}

#[tokio::test]
async fn questions_cost_their_page_whatever_the_size_of_the_store() {
    let (_home, small) = open();
    fill(&small, 40, 1_500).await;
    let (_other, large) = open();
    fill(&large, 800, 20_000).await;
    for (small, large) in questions(&small).into_iter().zip(questions(&large)) {
        let (name, few, _) = small;
        let (_, many, scans) = large;
        // A page of `work` is read off its index from the beginning.
        assert!(scans <= 20, "{name} passes over {scans} rows");
        let most = few * 3 / 2 + 500;
        assert!(many <= most, "{name}: {few} steps in a small store, {many} in a large one");
    }
}
