//! What is synced when, and how many share a commit (DESIGN §4).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::{admit, claim, delta, key, node, open, options, write};
use everturn_core::event::Record;
use everturn_core::limits::OFFSET_RESERVE;
use everturn_sqlite::{Fsync, OpenOptions, SqliteStore};
use everturn_store::op::RenewLeases;
use everturn_store::{Op, Read as _, Store as _};

fn step(text: &str) -> Record {
    Record::Step { text: text.to_owned(), reasoning: None, calls: Vec::new(), usage: None }
}

#[tokio::test]
async fn deltas_are_committed_without_a_sync_and_everything_else_with_one() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    // One operation at a time: one commit each.
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    let before = store.stats();
    assert_eq!((before.commits, before.synced_commits), (2, 2));
    for _ in 0..10 {
        store.submit(delta(&fence, "x")).await.unwrap();
    }
    let boot = store.clock().boot();
    store.submit(Op::RenewLeases(RenewLeases { node: node("n1"), expiry: boot })).await.unwrap();
    let deltas = store.stats();
    assert_eq!(deltas.commits, before.commits + 11);
    assert_eq!(deltas.synced_commits, before.synced_commits, "nothing was synced");
    assert_eq!(deltas.events, before.events + 10);
    // Deltas that come with a step are synced with it.
    let records = vec![Record::TextDelta("y".to_owned()), step("xy")];
    store.submit(write(&fence, records)).await.unwrap();
    let stepped = store.stats();
    assert_eq!(stepped.synced_commits, deltas.synced_commits + 1);
    store.submit(delta(&fence, "z")).await.unwrap();
    assert_eq!(store.stats().synced_commits, stepped.synced_commits, "and no sync after it");
}

#[tokio::test]
async fn eager_means_every_commit() {
    let home = tempfile::tempdir().unwrap();
    let eager = OpenOptions { fsync: Fsync::Eager, ..options(home.path()) };
    let store = SqliteStore::open(eager).unwrap();
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    for _ in 0..10 {
        store.submit(delta(&fence, "x")).await.unwrap();
    }
    let stats = store.stats();
    assert_eq!(stats.synced_commits, stats.commits);
    assert_eq!(stats.commits, 12);
}

#[tokio::test]
async fn numbers_beyond_the_reserve_are_synced_before_anybody_sees_them() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    let synced = store.stats().synced_commits;
    let piece = || write(&fence, vec![Record::TextDelta("x".to_owned()); 500]);
    for _ in 0..8 {
        store.submit(piece()).await.unwrap();
    }
    assert_eq!(store.stats().synced_commits, synced, "4 000 of {OFFSET_RESERVE}");
    store.submit(piece()).await.unwrap();
    assert_eq!(store.stats().synced_commits, synced + 1);
    let session = store.session(&key).await.unwrap().unwrap().session;
    assert!(session.last_offset <= session.offset_ceiling);
    for _ in 0..7 {
        store.submit(piece()).await.unwrap();
    }
    assert_eq!(store.stats().synced_commits, synced + 1);
}

#[tokio::test]
async fn a_reserve_that_another_process_used_up_is_noticed_too() {
    let home = tempfile::tempdir().unwrap();
    let (here, there) = (open(home.path()), open(home.path()));
    let key = key("s");
    here.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&here, &key, "n1").await;
    here.submit(delta(&fence, "x")).await.unwrap();
    // The same turn, through another handle: what `here` remembers of the session is old now.
    there.submit(write(&fence, vec![Record::TextDelta("x".to_owned()); 4_090])).await.unwrap();
    let before = here.stats();
    here.submit(write(&fence, vec![Record::TextDelta("x".to_owned()); 50])).await.unwrap();
    let after = here.stats();
    assert_eq!(after.synced_commits, before.synced_commits + 1, "a second commit synced the first");
    let session = here.session(&key).await.unwrap().unwrap().session;
    assert!(session.last_offset <= session.offset_ceiling);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_share_a_commit() {
    let home = tempfile::tempdir().unwrap();
    let store = Arc::new(open(home.path()));
    let mut waiting = tokio::task::JoinSet::new();
    for client in 0..64 {
        let store = store.clone();
        waiting.spawn(async move {
            for n in 0..10 {
                store.submit(admit(&key(&format!("s-{client}")), n, "x")).await.unwrap();
            }
        });
    }
    while let Some(done) = waiting.join_next().await {
        done.unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.ops, stats.refused, stats.failed), (640, 0, 0));
    assert!(stats.commits * 4 <= stats.ops, "{stats:?}");
    assert_eq!(stats.synced_commits, stats.commits);
    assert_eq!(store.counts().await.unwrap().queued, 640);
}

#[tokio::test]
async fn a_duplicate_is_no_commit() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    let before = store.stats();
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    let after = store.stats();
    assert_eq!((after.ops, after.commits), (before.ops + 1, before.commits));
    store.submit(admit(&key("s"), 1, "y")).await.unwrap_err();
    assert_eq!(store.stats().refused, before.refused + 1);
    assert_eq!(store.stats().commits, before.commits);
}

#[tokio::test]
async fn the_log_is_moved_into_the_database_as_it_grows() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    for n in 0..40 {
        store.submit(admit(&key, n, &"x".repeat(200_000))).await.unwrap();
    }
    let stats = store.stats();
    assert!(stats.checkpoints >= 2, "{stats:?}");
    let wal = std::fs::metadata(home.path().join("everturn.db-wal")).unwrap().len();
    assert!(wal < 9 << 20, "the log holds {wal} bytes of 16 MB written");
}

#[tokio::test]
async fn a_deleted_session_is_removed_piece_by_piece() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    for _ in 0..20 {
        let records = vec![Record::TextDelta("x".to_owned()); 499];
        store.submit(write(&fence, records)).await.unwrap();
    }
    let end =
        everturn_core::event::End::Completed { text: "x".to_owned(), reasoning: None, usage: None };
    store.submit(write(&fence, vec![Record::End(end)])).await.unwrap();
    let before = store.stats();
    let delete = everturn_store::op::DeleteSession { key: key.clone(), expected_generation: None };
    store.submit(Op::DeleteSession(delete)).await.unwrap();
    assert!(store.feed(&key, 0, 10).await.unwrap().is_empty(), "at once, for every reader");
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    let count = |table: &str| -> i64 {
        raw.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    // The writer goes on removing while it has nothing better to do. Each question lets it.
    while count("trash") > 0 {
        store.changed_elsewhere().await;
    }
    assert_eq!((count("events"), count("messages"), count("sessions")), (0, 0, 0));
    assert_eq!(store.stats().synced_commits, before.synced_commits + 1, "for the delete alone");
}

#[tokio::test]
async fn a_long_reader_holds_nobody_up() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    store.submit(admit(&key, 0, "x")).await.unwrap();
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    raw.execute_batch("BEGIN; SELECT count(*) FROM inputs").unwrap();
    let before = store.stats();
    for n in 1..=30 {
        store.submit(admit(&key, n, &"x".repeat(400_000))).await.unwrap();
    }
    let during = store.stats();
    assert_eq!(during.checkpoints, before.checkpoints, "the old state is still read");
    assert_eq!(during.busy, 0, "and nobody waited for that");
    let wal = || std::fs::metadata(home.path().join("everturn.db-wal")).unwrap().len();
    let grown = wal();
    assert!(grown > 12 << 20);
    raw.execute_batch("COMMIT").unwrap();
    // The log begins anew by itself.
    for n in 31..=60 {
        store.submit(admit(&key, n, &"x".repeat(400_000))).await.unwrap();
    }
    assert!(store.stats().checkpoints > during.checkpoints);
    assert!(wal() <= grown + (8 << 20), "{} after {grown}", wal());
}

/// P7: what a look puts into a conversation in which nothing runs is synced before anybody sees it: no
/// numbers are reserved there, and after a power loss they would be given to something else.
#[tokio::test]
async fn a_look_that_settles_something_is_synced_and_no_other() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    let run_id = fence.run_id().clone();
    // Its lease is over, and it still exists.
    let boot = store.clock().boot();
    store.submit(Op::RenewLeases(RenewLeases { node: node("n1"), expiry: boot })).await.unwrap();
    let now = store.clock().now();
    let evidence = everturn_core::Evidence {
        holder: node("n1"),
        holder_started_at: None,
        holder_gone: Some(false),
        rebooted: false,
        observer: node("n2"),
        observer_started_at: now,
        newer_process: false,
        drain_timeout_s: None,
        store_silent_s: None,
        last_seq: 0,
        last_event: String::new(),
        last_event_at: now,
    };
    let interrupt = everturn_store::op::Interrupt {
        key: key.clone(),
        run_id: run_id.clone(),
        epoch: fence.epoch(),
        node: node("n2"),
        evidence,
        by_holder: false,
        may_continue: false,
        model_here: true,
        tools_here: true,
        workspace: String::new(),
        loop_broken: false,
        viewed: false,
    };
    store.submit(Op::Interrupt(interrupt)).await.unwrap();
    let look = || {
        let (key, run_id) = (key.clone(), run_id.clone());
        Op::LookLate(everturn_store::op::LookLate {
            key,
            run_id,
            node: node("n2"),
            holder_gone: false,
        })
    };
    let synced = store.stats().synced_commits;
    store.submit(look()).await.unwrap();
    assert_eq!(store.stats().synced_commits, synced, "nothing arrived");
    let deposit = everturn_store::op::Deposit {
        key: key.clone(),
        run_id: run_id.clone(),
        node: node("n1"),
        epoch: fence.epoch(),
        first: 1,
        records: vec![
            (1, everturn_core::late::LateRecord::Text("late".to_owned())),
            (2, everturn_core::late::LateRecord::Sealed),
        ],
    };
    store.submit(Op::Deposit(deposit)).await.unwrap();
    let synced = store.stats().synced_commits;
    store.submit(look()).await.unwrap();
    assert_eq!(store.stats().synced_commits, synced + 1, "viewers were told of it");
}
