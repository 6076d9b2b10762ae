//! Pruning token events on SQLite: bad rows, long runs, several processes, older databases; and on
//! both stores, that any reader of any run has its whole text.
//!
//! `EVERTURN_SEED=N` runs the histories of one seed; a failure prints its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{admit, claim, key, open, write};
use everturn_api::event::{Piece, piece};
use everturn_core::event::{End, Record, Told};
use everturn_core::{CallId, Run, RunId, SessionKey, Timestamp, limits};
use everturn_sqlite::{Depth, SqliteStore};
use everturn_store::memory::MemoryStore;
use everturn_store::op::{PruneEvents, Pruned};
use everturn_store::read::StoredEvent;
use everturn_store::{Read as _, Store, SystemClock, execute};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

fn delta(text: impl Into<String>) -> Record {
    Record::TextDelta(text.into())
}

fn completed() -> Record {
    Record::End(End::Completed { text: "done".to_owned(), reasoning: None, usage: None })
}

/// A session with one turn that is over: writes of some records each.
async fn turn(store: &dyn Store, key: &SessionKey, writes: Vec<Vec<Record>>) -> Run {
    store.submit(admit(key, 1, "x")).await.unwrap();
    let fence = claim(store, key, "n1").await;
    for (n, records) in writes.into_iter().enumerate() {
        if n > 0 {
            // Something of the session's own in between.
            store.submit(admit(key, 1 + u32::try_from(n).unwrap(), "more")).await.unwrap();
        }
        store.submit(write(&fence, records)).await.unwrap();
    }
    store.submit(write(&fence, vec![completed()])).await.unwrap();
    store.run(fence.run_id()).await.unwrap().unwrap()
}

/// One call after the other, as a node does it; what each answered.
async fn prune(store: &dyn Store) -> Vec<Pruned> {
    let mut calls: Vec<Pruned> = Vec::new();
    loop {
        let after = calls.last().and_then(|done| done.after.clone());
        let done = execute(store, PruneEvents { before: Timestamp(i64::MAX), after }).await;
        calls.push(done.unwrap());
        if !calls.last().unwrap().more {
            return calls;
        }
    }
}

async fn journal(store: &dyn Store, run: &RunId) -> Vec<StoredEvent> {
    let run = store.run(run).await.unwrap().unwrap();
    store.run_events(&run, 0, None, u32::MAX).await.unwrap()
}

/// Names and what they stand for; `!` where an event cannot be read.
fn short(events: &[StoredEvent]) -> Vec<String> {
    let one = |event: &StoredEvent| match event {
        StoredEvent::Malformed { seq, .. } => format!("! {}", seq.unwrap()),
        StoredEvent::Good(row) => match piece(&row.head, &row.body) {
            Some(Piece { from, to, text, .. }) => format!("{} {from}-{to} {text}", row.head.name),
            None => format!("{} {}", row.head.name, row.head.run.as_ref().unwrap().1),
        },
    };
    events.iter().map(one).collect()
}

#[tokio::test]
async fn a_bad_row_in_a_range_stays_and_is_reported() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let pieces = (2..=13).map(|seq| delta(format!("{seq} "))).collect();
    let run = turn(&store, &key("s"), vec![pieces]).await;
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    for (seq, set) in [
        (3, "kind = 99"),
        (5, "kind = 3, body = '{\"text\":'"),
        // Good JSON that says nothing of a piece.
        (7, "kind = 3, body = '{\"no\":1}'"),
        (9, "run_no = 4711"),
        (11, "kind = 0, name = 'a\"b'"),
    ] {
        let sql = format!("UPDATE events SET {set} WHERE seq = {seq}");
        assert_eq!(raw.execute(&sql, []).unwrap(), 1, "{sql}");
    }
    let feed = store.feed(&key("s"), 0, 1_000).await.unwrap();
    let bad = |events: &[StoredEvent]| -> Vec<StoredEvent> {
        let is_bad = |event: &&StoredEvent| matches!(event, StoredEvent::Malformed { .. });
        events.iter().filter(is_bad).cloned().collect()
    };
    let before = bad(&feed);
    assert_eq!(before.len(), 4);
    prune(&store).await;
    let expected = [
        "run.started 1",
        "text.snapshot 2-2 2 ",
        "! 3",
        "text.snapshot 4-4 4 ",
        "! 5",
        "text.snapshot 6-6 6 ",
        "text.delta 7",
        "text.snapshot 8-8 8 ",
        // The next one no longer says whose it is; it is in the feed.
        "text.snapshot 10-10 10 ",
        "! 11",
        "text.snapshot 12-13 12 13 ",
        "run.completed 14",
    ];
    assert_eq!(short(&journal(&store, &run.id).await), expected);
    let feed = store.feed(&key("s"), 0, 1_000).await.unwrap();
    assert_eq!(bad(&feed), before, "each is reported where it was, as it was");
    let report = SqliteStore::check(home.path(), Depth::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Promise P12: a run of any length is pruned in small transactions, others are served in between,
/// and nothing of the text is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_of_a_million_events_never_holds_the_writer() {
    const EVENTS: u64 = 1_000_000;
    let home = tempfile::tempdir().unwrap();
    let store = Arc::new(open(home.path()));
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&*store, &key, "n1").await;
    // What a very long turn leaves, without waiting for it.
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    raw.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {EVENTS})
         INSERT INTO events SELECT s.session_no, s.last_offset + n, 2, r.run_no, r.last_seq + n,
             r.last_event_at, NULL, printf('tok%03d', n % 1000)
             FROM n, sessions s JOIN runs r USING (session_no);
         UPDATE sessions SET last_offset = last_offset + {EVENTS},
             offset_ceiling = offset_ceiling + {EVENTS};
         UPDATE runs SET last_seq = last_seq + {EVENTS}, last_offset = last_offset + {EVENTS};
         COMMIT;"
    ))
    .unwrap();
    drop(raw);
    store.submit(write(&fence, vec![completed()])).await.unwrap();

    let pruning = tokio::spawn({
        let store = Arc::clone(&store);
        async move { prune(&*store).await }
    });
    for n in 2..50 {
        store.submit(admit(&key, n, "others are served")).await.unwrap();
    }
    assert!(!pruning.is_finished(), "nobody waited for the end of it");
    let calls = pruning.await.unwrap();
    assert!(calls.iter().all(|done| done.rows <= limits::PRUNE_ROWS));
    assert!(calls.len() as u64 >= EVENTS / limits::PRUNE_ROWS, "{} transactions", calls.len());
    assert_eq!(calls.iter().map(|done| done.events).sum::<u64>(), EVENTS);
    // A range that grows is written again now and then, not each time from its beginning.
    let rows: u64 = calls.iter().map(|done| done.rows).sum();
    assert!(rows < EVENTS + EVENTS / 100, "{rows} rows were read");

    let mut next = 1;
    let mut token = 0;
    for event in journal(&*store, fence.run_id()).await {
        let StoredEvent::Good(row) = event else { panic!("{event:?}") };
        let told = piece(&row.head, &row.body);
        let seq = row.head.run.as_ref().unwrap().1;
        assert_eq!(told.as_ref().map_or(seq, |told| told.from), next);
        next = seq + 1;
        let Some(told) = told else { continue };
        assert!(told.text.len() <= limits::SNAPSHOT_BYTES_MAX);
        for piece in told.text.as_bytes().chunks(6) {
            token += 1;
            assert_eq!(piece, format!("tok{:03}", token % 1_000).as_bytes());
        }
    }
    assert_eq!((token, next), (EVENTS, EVENTS + 3));
    // The tail of what remains is found at once.
    let run = store.run(fence.run_id()).await.unwrap().unwrap();
    let tail = store.run_events(&run, run.last_seq - 1, None, 10).await.unwrap();
    assert_eq!(short(&tail), [format!("run.completed {}", run.last_seq)]);
}

#[tokio::test]
async fn two_processes_prune_one_home_at_once() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (open(home.path()), open(home.path()));
    let mut runs = Vec::new();
    for n in 0..10 {
        let pieces = || (0..400).map(|n| delta(n.to_string())).collect::<Vec<_>>();
        runs.push(turn(&one, &key(&format!("s-{n}")), vec![pieces(), pieces()]).await);
    }
    let (a, b) = tokio::join!(prune(&one), prune(&two));
    let events: u64 = a.iter().chain(&b).map(|done| done.events).sum();
    assert_eq!(events, 10 * 800, "each once");
    let text: String = (0..400).map(|n| n.to_string()).collect();
    for run in runs {
        let expected = [
            "run.started 1".to_owned(),
            format!("text.snapshot 2-401 {text}"),
            format!("text.snapshot 402-801 {text}"),
            "run.completed 802".to_owned(),
        ];
        assert_eq!(short(&journal(&one, &run.id).await), expected);
        assert_eq!(short(&journal(&two, &run.id).await), expected);
    }
}

/// A database of version 1, as it was left by that version, with one turn in it.
#[tokio::test]
async fn a_database_of_the_first_version_is_brought_up_to_date_and_pruned() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/databases/0001.db");
    let home = tempfile::tempdir().unwrap();
    std::fs::copy(old, home.path().join("everturn.db")).unwrap();
    let store = open(home.path());
    let key = key("old");
    let runs = store.runs(&key, None, 10).await.unwrap();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    let before = journal(&store, &run.id).await;
    assert_eq!(before.len(), 236);
    let text = told(&before, |_| true);
    assert!(text[0].1.ends_with("such as: run date"), "{text:?}");
    prune(&store).await;
    let after = journal(&store, &run.id).await;
    assert_eq!(after.len(), 3, "{:?}", short(&after));
    assert_eq!(told(&after, |_| true), text);
    assert_eq!(store.run(&run.id).await.unwrap().as_ref(), Some(run));
}

/// What some events tell, kind by kind, in order.
fn told(events: &[StoredEvent], of: impl Fn(&Told) -> bool) -> Vec<(Told, String)> {
    let mut out: Vec<(Told, String)> = Vec::new();
    for event in events {
        let StoredEvent::Good(row) = event else { panic!("{event:?}") };
        let Some(piece) = piece(&row.head, &row.body).filter(|piece| of(&piece.of)) else {
            continue;
        };
        say(&mut out, piece.of, &piece.text);
    }
    out
}

fn say(out: &mut Vec<(Told, String)>, of: Told, text: &str) {
    match out.last_mut() {
        Some((last, all)) if *last == of => all.push_str(text),
        _ if text.is_empty() => {}
        _ => out.push((of, text.to_owned())),
    }
}

/// What a reader has that read `before` up to a number and then all of `rest`: a snapshot takes the
/// place of what it covers. Fails where a number is neither told nor covered.
fn read(
    before: &[StoredEvent],
    rest: &[StoredEvent],
    cursor: u64,
    number: fn(&everturn_store::rows::EventRow) -> u64,
) -> Result<Vec<(Told, String)>, String> {
    let mut has: Vec<(u64, Piece)> = Vec::new();
    let mut known = 0;
    let known_part = before.iter().take_while(|event| match event {
        StoredEvent::Good(row) => number(row) <= cursor,
        StoredEvent::Malformed { .. } => false,
    });
    for event in known_part.chain(rest) {
        let StoredEvent::Good(row) = event else { return Err(format!("{event:?}")) };
        let piece = piece(&row.head, &row.body);
        let own = number(row);
        let covered = piece.as_ref().map_or(0, |piece| piece.to - piece.from);
        let from = own - covered;
        if own <= known || from > known + 1 {
            return Err(format!("{known} is followed by {from} to {own}"));
        }
        known = own;
        if let Some(piece) = piece {
            has.retain(|known| known.0 < from);
            has.push((from, piece));
        }
    }
    let mut out = Vec::new();
    for (_, piece) in has {
        say(&mut out, piece.of, &piece.text);
    }
    Ok(out)
}

/// One piece: a kind, and how long it is.
type Step = (u8, u8);

fn records(steps: &[Step], count: &mut u32) -> Vec<Record> {
    let mut one = |(kind, length): &Step| {
        *count += 1;
        // Now and then more than a snapshot holds; often nothing.
        let text = match length {
            0..=40 => String::new(),
            254.. => format!("{count}ä").repeat(12_000),
            _ => format!("{count} "),
        };
        let output = |call: &str| Record::CallOutput {
            call_id: CallId::new(call).unwrap(),
            text: text.clone(),
        };
        match kind % 8 {
            0..=3 => delta(text),
            4 | 5 => Record::ReasoningDelta(text),
            6 => output("a"),
            _ => output("b"),
        }
    };
    steps.iter().map(&mut one).collect()
}

/// Whether any reader of a pruned run has its whole text, on one store.
async fn whole(store: &dyn Store, writes: &[Vec<Step>]) -> Result<Vec<String>, String> {
    let key = key("s");
    let mut count = 0;
    let writes = writes.iter().map(|steps| records(steps, &mut count)).collect();
    let run = turn(store, &key, writes).await;
    let journal_before = journal(store, &run.id).await;
    let feed_before = store.feed(&key, 0, u32::MAX).await.unwrap();
    let text = told(&journal_before, |_| true);
    prune(store).await;
    let seq = |row: &everturn_store::rows::EventRow| row.head.run.as_ref().map_or(0, |run| run.1);
    for cursor in 0..=run.last_seq {
        let rest = store.run_events(&run, cursor, None, u32::MAX).await.unwrap();
        let seen = read(&journal_before, &rest, cursor, seq)?;
        if seen != text {
            return Err(format!("a reader behind seq {cursor} has {seen:?} instead of {text:?}"));
        }
    }
    let latest = store.feed_bounds(&key).await.unwrap().1;
    for cursor in 0..=latest {
        let rest = store.feed(&key, cursor, u32::MAX).await.unwrap();
        let seen = read(&feed_before, &rest, cursor, |row| row.head.offset)?;
        if seen != text {
            return Err(format!("a reader behind offset {cursor} has {seen:?}"));
        }
    }
    Ok(short(&journal(store, &run.id).await))
}

#[test]
fn any_reader_of_any_pruned_run_has_its_whole_text() {
    let seed: u64 = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let writes = proptest::collection::vec(
        proptest::collection::vec((any::<u8>(), any::<u8>()), 1..16),
        1..5,
    );
    let outcome = runner.run(&writes, |writes| {
        let both = async {
            let memory = MemoryStore::new(Arc::new(SystemClock::new().unwrap()));
            let home = tempfile::tempdir().unwrap();
            let sqlite = open(home.path());
            let a = whole(&memory, &writes).await?;
            let b = whole(&sqlite, &writes).await?;
            if a == b { Ok(()) } else { Err(format!("in memory {a:?}\non SQLite {b:?}")) }
        };
        runtime.block_on(both).map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, writes)) => {
            let why: String = why.to_string().chars().take(4_000).collect();
            panic!("EVERTURN_SEED={seed}\nwrites: {writes:?}\n{why}")
        }
        Err(other) => panic!("EVERTURN_SEED={seed}: {other}"),
    }
}
