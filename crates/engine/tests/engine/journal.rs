//! Run journals on the real store: what the earlier web UI's tests of its journal demand, of ours,
//! and what our runs are as journals for its tools. (The same demands on those files themselves are
//! in the tests of `everturn-hermes`.)

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn_agent::provider::{ProviderError, ProviderErrorKind};
use everturn_core::{Effect, Outcome, Principal, Run, TerminalState};
use everturn_engine::{Config, Engine, Scope};
use everturn_hermes::journal::{Identity, Journal, Window, read, stale_report};
use everturn_hermes::{Exporter, Importer, RunEvent, RunItem};
use everturn_sqlite::{Fsync, OpenOptions, SqliteStore};
use everturn_store::read::StoredEvent;
use everturn_store::{Clock, Store, SystemClock};
use tokio::sync::mpsc;

use crate::bench::{Model, Node, OneModel, Say, event, key, open, tool, within};

/// An engine and the store behind it.
async fn with_store(home: &Path, fsync: Fsync) -> (Node, Arc<SqliteStore>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new().unwrap());
    let options = OpenOptions { fsync, ..OpenOptions::new(home, "library", clock) };
    let store = Arc::new(SqliteStore::open(options).unwrap());
    let model = Arc::new(Model::default());
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let node = store.node_id().clone();
    let mut config = Config::new(node, home.display().to_string(), "serve", models);
    // Nothing but the turn commits anything while a test counts.
    config.poll = Duration::from_secs(600);
    config.renew = Duration::from_secs(600);
    config.lease = Duration::from_secs(1_800);
    let engine = Engine::open(Arc::clone(&store) as Arc<dyn Store>, config).await.unwrap();
    (Node { engine, model }, store)
}

/// A turn that said these pieces and is over.
async fn said(node: &Node, session: &str, pieces: Vec<&'static str>) -> Run {
    node.model.says(Say::Text(pieces));
    let input = node.say(session, "r1", "hi").await;
    node.ended(&input.id).await;
    node.last_run(session).await
}

/// Seqs and names of a window of a run.
async fn window(node: &Node, run: &Run, after: u64, max: Option<u64>) -> Vec<(u64, String)> {
    let events = node.engine.read().run_events(run, after, max, 1_000).await.unwrap();
    events
        .into_iter()
        .map(|event| match event {
            StoredEvent::Good(row) => (row.head.run.unwrap().1, row.head.name),
            StoredEvent::Malformed { seq, .. } => (seq.unwrap(), "malformed".to_owned()),
        })
        .collect()
}

/// A run as a journal for the earlier tools, and what is read back from that.
async fn exported(node: &Node, run: &Run) -> (Vec<RunItem>, Vec<u8>, Journal) {
    let events = node.engine.read().run_events(run, 0, None, 10_000).await.unwrap();
    let items: Vec<RunItem> = events
        .into_iter()
        .map(|event| match event {
            StoredEvent::Good(row) => {
                let (_, seq) = row.head.run.unwrap();
                RunItem::Event(RunEvent::new(seq, row.head.name, row.head.at, &row.body).unwrap())
            }
            StoredEvent::Malformed { seq, error, .. } => {
                RunItem::Malformed { seq: seq.unwrap(), error }
            }
        })
        .collect();
    let identity = Identity { session_id: run.session_id.clone(), run_id: run.id.clone() };
    let mut exporter = Exporter::new(Vec::new(), identity);
    for item in &items {
        exporter.item(item).unwrap();
    }
    let bytes = exporter.into_inner();
    let journal = read(&bytes[..], Window::default()).unwrap();
    (items, bytes, journal)
}

/// `test_run_journal_appends_monotonic_seq_and_reads_after_cursor`
#[tokio::test]
async fn run_journal_appends_monotonic_seq_and_reads_after_cursor() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let run = said(&node, "s", vec!["hello"]).await;
    let all = window(&node, &run, 0, None).await;
    let seqs: Vec<u64> = all.iter().map(|event| event.0).collect();
    assert_eq!(seqs, (1..=run.last_seq).collect::<Vec<_>>());
    assert_eq!(all.first().unwrap().1, "run.started");
    for after in 0..=run.last_seq + 1 {
        let wanted: Vec<_> = all.iter().filter(|event| event.0 > after).cloned().collect();
        assert_eq!(window(&node, &run, after, None).await, wanted, "after {after}");
    }
    // What the token said is not an end; the last event alone is one.
    assert_eq!(window(&node, &run, run.last_seq - 1, None).await[0].1, "run.completed");
    assert_eq!(run.terminal_state, Some(TerminalState::Completed));
    let ends = all.iter().filter(|event| everturn_core::event::is_terminal(&event.1));
    assert_eq!(ends.count(), 1);
    node.engine.close().await;
}

/// `test_run_journal_reads_bounded_replay_window`
#[tokio::test]
async fn run_journal_reads_bounded_replay_window() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config| config.coalesce = Duration::ZERO).await;
    let run = said(&node, "s", vec!["one", "two", "three", "four"]).await;
    let all = window(&node, &run, 0, None).await;
    for after in 0..run.last_seq + 2 {
        for max in 0..run.last_seq + 2 {
            let inside = |event: &&(u64, String)| event.0 > after && event.0 <= max;
            let wanted: Vec<_> = all.iter().filter(inside).cloned().collect();
            assert_eq!(window(&node, &run, after, Some(max)).await, wanted, "({after}, {max}]");
        }
    }
    let page = node.engine.read().run_events(&run, 1, None, 2).await.unwrap();
    assert_eq!(page.len(), 2, "and a window is as long as asked for");
    node.engine.close().await;
}

/// `test_run_journal_default_fsyncs_terminal_events_only`
#[tokio::test]
async fn run_journal_default_fsyncs_terminal_events_only() {
    let home = tempfile::tempdir().unwrap();
    let (node, store) = with_store(home.path(), Fsync::default()).await;
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "hi").await;
    node.model.asked(1).await;
    let before = store.stats();
    for count in 1..=5 {
        pieces.send("token ".to_owned()).await.unwrap();
        event(&mut feed, "text.delta").await;
        let now = store.stats();
        assert_eq!(now.events, before.events + count);
        assert_eq!(now.commits, before.commits + count, "committed before it is shown");
        assert_eq!(now.synced_commits, before.synced_commits, "and not synced");
    }
    drop(pieces);
    event(&mut feed, "run.completed").await;
    let end = store.stats();
    assert_eq!(end.commits, before.commits + 6);
    assert_eq!(end.synced_commits, before.synced_commits + 1, "the end is synced, once");
    node.ended(&input.id).await;
    node.engine.close().await;
}

/// `test_run_journal_eager_fsync_mode_fsyncs_non_terminal_events`
#[tokio::test]
async fn run_journal_eager_fsync_mode_fsyncs_non_terminal_events() {
    let home = tempfile::tempdir().unwrap();
    let (node, store) = with_store(home.path(), Fsync::Eager).await;
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "hi").await;
    node.model.asked(1).await;
    let before = store.stats();
    for count in 1..=5 {
        pieces.send("token ".to_owned()).await.unwrap();
        event(&mut feed, "text.delta").await;
        let now = store.stats();
        assert_eq!(now.commits, before.commits + count);
        assert_eq!(now.synced_commits, before.synced_commits + count, "each is synced, once");
    }
    drop(pieces);
    node.ended(&input.id).await;
    node.engine.close().await;
}

/// `test_run_journal_tolerates_malformed_lines`
#[tokio::test]
async fn run_journal_tolerates_malformed_records() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config| config.coalesce = Duration::ZERO).await;
    let run = said(&node, "s", vec!["one", "two", "three"]).await;
    let good = window(&node, &run, 0, None).await;
    let (first, last) = (good[1].0, good[good.len() - 2].0);
    let database = rusqlite::Connection::open(home.path().join("everturn.db")).unwrap();
    let damage = "UPDATE events SET kind = ?1, body = ?2 WHERE seq = ?3";
    assert_eq!(database.execute(damage, (99, "x", first as i64)).unwrap(), 1);
    assert_eq!(database.execute(damage, (1, "{not json}", last as i64)).unwrap(), 1);
    let wanted: Vec<_> = good
        .into_iter()
        .map(
            |(seq, name)| {
                if seq == first || seq == last { (seq, "malformed".into()) } else { (seq, name) }
            },
        )
        .collect();
    assert_eq!(window(&node, &run, 0, None).await, wanted);
    assert_eq!(window(&node, &run, first, Some(last)).await, wanted[2..=wanted.len() - 2]);
    // They are exported as what they are, in their places, and the outcome stands.
    let (items, bytes, journal) = exported(&node, &run).await;
    assert_eq!(journal.events.len() as u64, run.last_seq);
    assert_eq!(journal.events[first as usize - 1].event, "everturn.malformed");
    assert_eq!(journal.summary.state(), "completed");
    assert_back(&items, &bytes, &journal);
    // And a session with them goes on.
    let input = node.say("s", "r2", "more").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

/// What was exported comes back as it was, and goes out as it did.
fn assert_back(items: &[RunItem], bytes: &[u8], journal: &Journal) {
    let mut importer = Importer::new(&journal.summary, Principal::local());
    let back: Vec<RunItem> =
        journal.events.iter().filter_map(|record| importer.record(record)).collect();
    assert_eq!(back, items);
    let identity = journal.summary.identity.clone().unwrap();
    let mut exporter = Exporter::new(Vec::new(), identity);
    back.iter().for_each(|item| exporter.item(item).unwrap());
    assert_eq!(exporter.into_inner(), bytes);
}

/// `test_latest_summary_and_find_run_summary_classify_terminal_state`
#[tokio::test]
async fn latest_summary_and_find_run_summary_classify_terminal_state() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let run = cancelled(&node, "session_1").await;
    // By its id alone, without reading a single event.
    let found = node.engine.read().run(&run.id).await.unwrap().unwrap();
    assert_eq!(found.session_id.as_str(), "session_1");
    assert_eq!(found.terminal_state, Some(TerminalState::Cancelled));
    let all = window(&node, &run, 0, None).await;
    assert_eq!(Some(&(found.last_seq, found.last_event.clone())), all.last());
    let (_, _, journal) = exported(&node, &found).await;
    assert_eq!(journal.summary.state(), "interrupted-by-user");
    assert_eq!(journal.summary.last_seq, found.last_seq);
    let unknown = everturn_core::RunId::new("run_nobody_knows").unwrap();
    assert_eq!(node.engine.read().run(&unknown).await.unwrap(), None);
    node.engine.close().await;
}

/// A turn that a person stopped.
async fn cancelled(node: &Node, session: &str) -> Run {
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed(session, Some(0)).await;
    let input = node.say(session, "r1", "hi").await;
    pieces.send("part".to_owned()).await.unwrap();
    event(&mut feed, "text.delta").await;
    node.engine.stop(key(session), None, None, Principal::local(), false).await.unwrap();
    node.ended(&input.id).await;
    node.last_run(session).await
}

/// A node that dies in the middle of a turn: its tasks end where they are, and its lock is free.
fn killed(home: &Path, session: &str) -> Run {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (node, store, run, pieces) = runtime.block_on(async {
        let (node, store) = with_store(home, Fsync::default()).await;
        let (pieces, receiver) = mpsc::channel(8);
        node.model.says(Say::Stream(receiver));
        let mut feed = node.feed(session, Some(0)).await;
        node.say(session, "r1", "hi").await;
        pieces.send("partial".to_owned()).await.unwrap();
        event(&mut feed, "text.delta").await;
        let run = node.last_run(session).await;
        assert!(!node.engine.interrupted_virtually(&run).await.unwrap(), "somebody works on it");
        (node, store, run, pieces)
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    store.set_sink(Arc::new(|_| {}));
    drop((node, pieces));
    // The writer's thread, which is none of the runtime's, may still be telling its last commit.
    let begun = std::time::Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(begun.elapsed().as_secs() < 30, "something still holds the store");
        std::thread::yield_now();
    }
    run
}

/// `test_terminal_state_classification_distinguishes_crash_from_user_cancel`
#[test]
fn terminal_state_classification_distinguishes_crash_from_user_cancel() {
    let home = tempfile::tempdir().unwrap();
    let crashed = killed(home.path(), "crashed");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Opening resolves what the dead node left.
        let node = open(home.path(), |_| {}).await;
        // Its continuation asks the model first; what is said below is for the others.
        node.model.asked(1).await;
        let stopped = cancelled(&node, "stopped").await;
        let refused = ProviderError {
            kind: ProviderErrorKind::Unauthorized,
            message: "401".to_owned(),
            retry_after: None,
        };
        node.model.says(Say::Break(vec![], refused));
        let input = node.say("refused", "r1", "hi").await;
        node.ended(&input.id).await;
        let failed = node.last_run("refused").await;
        let done = said(&node, "done", vec!["x"]).await;
        let crashed = within(async {
            loop {
                let run = node.engine.read().run(&crashed.id).await.unwrap().unwrap();
                if run.terminal_state.is_some() {
                    return run;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        let rows = [
            (&stopped, TerminalState::Cancelled, "interrupted-by-user"),
            (&crashed, TerminalState::Interrupted, "interrupted-by-crash"),
            (&failed, TerminalState::Failed, "errored"),
            (&done, TerminalState::Completed, "completed"),
        ];
        for (run, state, earlier) in rows {
            assert_eq!(run.terminal_state, Some(state));
            let (items, bytes, journal) = exported(&node, run).await;
            assert_eq!(journal.summary.state(), earlier);
            assert_back(&items, &bytes, &journal);
        }
        let evidence = crashed.evidence.unwrap();
        assert_eq!(evidence.last_event, "text.delta");
        node.engine.close().await;
    });
}

/// `test_summary_keeps_logical_terminal_state_when_stream_end_follows`
///
/// Nothing follows an end here: the store refuses it.
#[tokio::test]
async fn summary_keeps_logical_terminal_state_whatever_follows() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let run = cancelled(&node, "s").await;
    // More turns of the session, stops and an end of the session change nothing about it.
    let input = node.say("s", "r2", "more").await;
    node.ended(&input.id).await;
    let late = node.engine.stop(key("s"), None, Some(run.id.clone()), Principal::local(), false);
    assert!(late.await.is_err());
    node.engine.end_session(key("s"), "over".to_owned()).await.unwrap();
    assert_eq!(node.engine.read().run(&run.id).await.unwrap().unwrap(), run);
    assert_eq!(run.last_event, "run.cancelled");
    node.engine.close().await;
}

/// `test_stale_interrupted_event_reports_non_terminal_journal`
#[test]
fn stale_interrupted_event_reports_non_terminal_journal() {
    let home = tempfile::tempdir().unwrap();
    let run = killed(home.path(), "s");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // A process that works on something else reads it, and resolves nothing.
        let node = open(home.path(), |config| config.scope = Scope::Only(key("elsewhere"))).await;
        let seen = node.engine.read().run(&run.id).await.unwrap().unwrap();
        assert!(node.engine.interrupted_virtually(&seen).await.unwrap());
        assert_eq!((seen.terminal_state, seen.last_event.as_str()), (None, "text.delta"));
        assert_eq!(seen.last_seq, run.last_seq, "the report is stored nowhere");
        let (_, _, journal) = exported(&node, &seen).await;
        let report = stale_report(&journal.summary).unwrap();
        assert_eq!(report.terminal_state.as_str(), "lost-worker-bookkeeping");
        assert_eq!(report.payload.journal_last_seq, seen.last_seq);
        node.engine.close().await;
    });
}

/// `test_stale_interrupted_event_skips_terminal_journal`
#[tokio::test]
async fn stale_interrupted_event_skips_terminal_journal() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let run = said(&node, "s", vec!["x"]).await;
    // Nobody works on it any more, and it is not interrupted.
    assert!(!node.engine.interrupted_virtually(&run).await.unwrap());
    let (_, _, journal) = exported(&node, &run).await;
    assert_eq!(stale_report(&journal.summary), None);
    node.engine.close().await;
}

#[tokio::test]
async fn a_real_turn_with_tools_is_a_journal_that_the_earlier_tools_read() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config| {
        let _ = tool(&mut config.tools, "work", Effect::Read, false);
    })
    .await;
    node.model.says(Say::Calls("I work.", vec![("work", r#"{"on":"this"}"#)]));
    let run = said(&node, "s", vec!["Done."]).await;
    let (items, bytes, journal) = exported(&node, &run).await;
    assert_back(&items, &bytes, &journal);
    assert!(journal.malformed.is_empty());
    let names: Vec<_> = journal.events.iter().map(|record| record.event.as_str()).collect();
    for wanted in ["token", "tool", "tool_complete", "done"] {
        assert!(names.contains(&wanted), "{wanted} is not in {names:?}");
    }
    // Streams and pages send what was stored; that is the same journal.
    for (seq, _, bytes) in node.journal(&run).await {
        let event = RunItem::Event(RunEvent::from_wire(&bytes).unwrap());
        assert_eq!(event, items[seq as usize - 1]);
    }
    node.engine.close().await;
}
