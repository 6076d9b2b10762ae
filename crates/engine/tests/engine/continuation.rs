//! Turns whose process died, and what goes on by itself: counterparts of every test of seed 001.
//!
//! That seed keeps a marker in a file beside its transcript. Ours is no marker but the run's own row:
//! begun, without a terminal record, its lease over. It is there in the commit that begins the turn
//! and gone in the commit that ends it, so that what the seed has to order, clear and prune by hand
//! holds by itself. These tests hold it to that.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn_agent::provider::{ProviderError, ProviderErrorKind};
use everturn_core::recovery::{CONTINUATION_PREFIX, Parked};
use everturn_core::{
    AutoContinue, InputKind, MessageKind, Outcome, Run, RunState, Session, TerminalState,
};
use everturn_engine::live::Item;
use everturn_engine::{Config, EngineError};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::op::{Decision, SessionPatch};
use everturn_store::{Clock, OpError, Refusal, Store as _, SystemClock};
use tokio::sync::mpsc;

use crate::bench::{
    Model, Node, OneModel, Say, Shifted, dies_after, event, key, open, open_with, within,
};

const HOUR_MS: i64 = 3_600_000;

/// A process that dies in the middle of an answer: it said "half ", and is gone without a word.
async fn dead(home: &Path, auto_continue: AutoContinue) -> Run {
    let set = move |config: &mut Config| config.auto_continue = auto_continue;
    dies_after(home, set, |node| async move {
        let (pieces, receiver) = mpsc::channel(8);
        node.model.says(Say::Stream(receiver));
        let mut feed = node.feed("s", Some(0)).await;
        node.say("s", "r1", "fix the bug").await;
        pieces.send("half ".to_owned()).await.unwrap();
        event(&mut feed, "text.delta").await;
        // The answer never ends.
        std::mem::forget(pieces);
        node.last_run("s").await
    })
    .await
}

async fn session(node: &Node) -> Session {
    node.engine.read().session(&key("s")).await.unwrap().unwrap().session
}

/// A home that is opened later by the wall clock.
async fn open_after(home: &Path, ms: i64) -> Node {
    let clock: Arc<dyn Clock> = Arc::new(Shifted(SystemClock::new().unwrap(), ms));
    open_with(home, clock, |_| {}).await
}

async fn run_of(node: &Node, run: &Run) -> Run {
    node.engine.read().run(&run.id).await.unwrap().unwrap()
}

/// Nothing was asked of a model, and the interruption waits for a person.
async fn assert_parked(node: &Node, interrupted: &Run, reason: Parked) {
    let run = run_of(node, interrupted).await;
    assert_eq!((run.terminal_state, run.parked), (Some(TerminalState::Interrupted), Some(reason)));
    let session = session(node).await;
    assert_eq!((session.interrupted.as_ref(), session.queue_length), (Some(&run.id), 0));
    assert_eq!(node.last_run("s").await.id, run.id, "no other turn");
    assert!(node.model.requests.lock().unwrap().is_empty());
}

/// `test_marker_roundtrip`: what is known of a turn under way (what was asked, which attempt, since
/// when) is there while it runs, for any process, and nothing unfinished is there afterwards.
#[tokio::test]
async fn marker_roundtrip() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = mpsc::channel::<String>(8);
    node.model.says(Say::Stream(receiver));
    let input = node.say("s", "r1", "fix the bug").await;
    node.model.asked(1).await;
    let other = SqliteStore::open(OpenOptions::new(
        home.path(),
        "library",
        Arc::new(SystemClock::new().unwrap()),
    ))
    .unwrap();
    let read: &dyn everturn_store::Read = &other;
    let work = read.work(None, 10).await.unwrap();
    let run = work[0].running.clone().unwrap();
    assert_eq!((run.state, run.attempt), (RunState::Running, 0));
    assert_eq!(run.input_ids, std::slice::from_ref(&input.id));
    assert_eq!(read.input(&input.id).await.unwrap().unwrap().0.content.plain(), "fix the bug");
    assert!(other.clock().now().since_ms(run.started_at) < 5_000 + 20_000);
    drop(pieces);
    node.ended(&input.id).await;
    assert!(read.work(None, 10).await.unwrap().is_empty());
    node.engine.close().await;
}

/// `test_marker_clear_is_noop_without_entry`: deciding about what is not interrupted is refused, and
/// leaves nothing behind.
#[tokio::test]
async fn marker_clear_is_noop_without_entry() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    for decision in [Decision::Discard, Decision::Continue] {
        let missing = node.engine.decide(key("missing"), 1, decision).await;
        let expected = EngineError::Op(OpError::Refused(Refusal::SessionNotFound));
        assert_eq!(missing.unwrap_err(), expected);
    }
    assert!(node.engine.read().session(&key("missing")).await.unwrap().is_none());
    let input = node.say("s", "r1", "hi").await;
    node.ended(&input.id).await;
    let before = format!("{:?}", session(&node).await);
    let refused = node.engine.decide(key("s"), 1, Decision::Discard).await.unwrap_err();
    assert_eq!(refused, EngineError::Op(OpError::Refused(Refusal::NotInterrupted)));
    assert_eq!(before, format!("{:?}", session(&node).await));
    node.engine.close().await;
}

/// `test_marker_write_prunes_expired_entries`: an interruption that is a day old is closed with a
/// record; one of today stays.
#[tokio::test]
async fn marker_write_prunes_expired_entries() {
    let home = tempfile::tempdir().unwrap();
    let off = AutoContinue { enabled: false, ..AutoContinue::default() };
    let old = dead(home.path(), off).await;
    let node = open(home.path(), |_| {}).await;
    assert_parked(&node, &old, Parked::Disabled).await;
    node.engine.close().await;
    let node = open_after(home.path(), 25 * HOUR_MS).await;
    let mut feed = node.feed("s", Some(0)).await;
    within(async { while event(&mut feed, "message.added").await["message"]["kind"] != "note" {} })
        .await;
    assert_eq!(session(&node).await.interrupted, None);
    assert_eq!(run_of(&node, &old).await.parked, Some(Parked::Undecided));
    node.engine.close().await;
}

/// `test_marker_survives_corrupt_sidecar`: a stored record that cannot be read hides nothing else of
/// the run, and recovery goes on without it.
#[tokio::test]
async fn marker_survives_corrupt_sidecar() {
    let home = tempfile::tempdir().unwrap();
    let run = dead(home.path(), AutoContinue::default()).await;
    let raw = rusqlite::Connection::open(home.path().join("everturn.db")).unwrap();
    let sql = "UPDATE events SET kind = 9999, body = '{not' WHERE seq = ?1 AND run_no IS NOT NULL";
    assert_eq!(raw.execute(sql, [i64::try_from(run.last_seq).unwrap()]).unwrap(), 1);
    drop(raw);
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    let after = node.last_run("s").await;
    assert_eq!((after.continues, after.attempt), (Some(run.id), 1));
    node.engine.close().await;
}

/// `test_concluded_turn_clears_marker`: inside the turn it is unfinished, with attempt 0 and what was
/// asked; when it is over it is not.
#[tokio::test]
async fn concluded_turn_clears_marker() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = mpsc::channel::<String>(8);
    node.model.says(Say::Stream(receiver));
    let input = node.say("s", "r1", "fix the bug").await;
    node.model.asked(1).await;
    let run = node.last_run("s").await;
    assert_eq!((run.state, run.attempt, run.terminal_state), (RunState::Running, 0, None));
    drop(pieces);
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
    assert_nothing_goes_on(home.path(), 1).await;
}

/// A start finds nothing to continue: there are as many turns as before.
async fn assert_nothing_goes_on(home: &Path, turns: usize) {
    let node = open(home, |_| {}).await;
    assert!(node.engine.read().work(None, 9).await.unwrap().is_empty());
    let runs = node.engine.read().runs(&key("s"), None, 9).await.unwrap();
    assert_eq!(runs.len(), turns);
    assert!(node.model.requests.lock().unwrap().is_empty());
    node.engine.close().await;
}

/// `test_marker_is_gone_by_the_terminal_frame`, for a success and for an error: in the moment in which
/// the terminal event can be seen, nothing that can be read looks unfinished.
#[tokio::test]
async fn marker_is_gone_by_the_terminal_frame() {
    for fails in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let node = open(home.path(), |_| {}).await;
        if fails {
            let kind = ProviderErrorKind::Refused;
            let error = ProviderError { kind, message: "no".to_owned(), retry_after: None };
            node.model.says(Say::Break(vec!["a "], error));
        }
        let mut feed = node.feed("s", Some(0)).await;
        let input = node.say("s", "r1", "go").await;
        loop {
            let Item::Frame(frame) = within(feed.next()).await.unwrap() else { continue };
            if !everturn_core::event::is_terminal(&frame.head.name) {
                continue;
            }
            let read = node.engine.read();
            let view = read.session(&key("s")).await.unwrap().unwrap();
            assert!(view.running.is_none() && view.interrupted.is_none());
            let (input, _) = read.input(&input.id).await.unwrap().unwrap();
            let outcome = if fails { Outcome::Failed } else { Outcome::Completed };
            assert_eq!(input.outcome, Some(outcome));
            let (id, _) = frame.head.run.clone().unwrap();
            let run = read.run(&id).await.unwrap().unwrap();
            assert_eq!(run.state, RunState::Ended);
            assert!(read.work(None, 9).await.unwrap().is_empty());
            break;
        }
        node.engine.close().await;
    }
}

/// `test_handled_failure_still_clears_marker`: a handled error is an ending like any other.
#[tokio::test]
async fn handled_failure_still_clears_marker() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let error = ProviderError {
        kind: ProviderErrorKind::Refused,
        message: "no".to_owned(),
        retry_after: None,
    };
    node.model.says(Say::Break(vec!["a "], error));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Failed));
    node.engine.close().await;
    assert_nothing_goes_on(home.path(), 1).await;
}

/// `test_continuation_turn_records_attempt_and_original_prompt`: the second continuation counts as
/// such and carries what the person asked, not the first one's note; the next turn starts clean.
#[tokio::test]
async fn continuation_turn_records_attempt_and_original_prompt() {
    let home = tempfile::tempdir().unwrap();
    let first = dead(home.path(), AutoContinue::default()).await;
    // The continuation is interrupted as well, in mid-answer.
    let model = Arc::new(Model::default());
    let (_pieces, receiver) = mpsc::channel(8);
    model.says(Say::Stream(receiver));
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let node = open(home.path(), |config: &mut Config| {
        config.drain_timeout = Duration::from_millis(1);
        config.models = models;
    })
    .await;
    model.asked(1).await;
    node.engine.close().await;
    let second = node.last_run("s").await;
    assert_eq!((second.attempt, second.continues.as_ref()), (1, Some(&first.id)));

    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    let third = node.last_run("s").await;
    assert_eq!((third.attempt, third.continues.as_ref()), (2, Some(&second.id)));
    let request = node.engine.read().input(&third.input_ids[0]).await.unwrap().unwrap().0;
    let text = request.content.plain();
    assert!(text.ends_with("fix the bug"), "{text}");
    assert_eq!(text.matches(CONTINUATION_PREFIX).count(), 1, "a note inside a note: {text}");
    let input = node.say("s", "r2", "and now?").await;
    node.ended(&input.id).await;
    let clean = node.last_run("s").await;
    assert_eq!((clean.attempt, clean.continues, clean.interrupted_at), (0, None, None));
    node.engine.close().await;
}

/// `test_fresh_marker_schedules_continuation`: attempt 1, the session runs, and the model is asked
/// with the note and the request, shown as an event and not as something the person said.
#[tokio::test]
async fn fresh_marker_schedules_continuation() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    let accepted = within(async {
        loop {
            let accepted = event(&mut feed, "input.accepted").await;
            if accepted["kind"] == InputKind::Continuation.as_str() {
                return accepted;
            }
        }
    })
    .await;
    let text = accepted["text"].as_str().unwrap();
    assert!(text.starts_with(CONTINUATION_PREFIX) && text.ends_with("fix the bug"), "{text}");
    event(&mut feed, "run.completed").await;
    let run = node.last_run("s").await;
    assert_eq!((run.attempt, run.continues), (1, Some(interrupted.id)));
    let rows = node.transcript("s").await;
    let kinds: Vec<MessageKind> = rows.iter().map(|row| row.kind).collect();
    assert_eq!(
        kinds,
        [
            MessageKind::Message,
            MessageKind::Message,
            MessageKind::Interruption,
            MessageKind::Continuation,
            MessageKind::Message,
        ]
    );
    assert_eq!((rows[1].recovered, rows[1].content.plain().as_str()), (true, "half "));
    assert!(format!("{:?}", node.model.request(0).messages).contains("fix the bug"));
    node.engine.close().await;
}

/// `test_stale_marker_is_cleared_not_continued`: an hour is too old.
#[tokio::test]
async fn stale_marker_is_cleared_not_continued() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let node = open_after(home.path(), HOUR_MS).await;
    assert_parked(&node, &interrupted, Parked::Stale).await;
    node.engine.close().await;
}

/// `test_config_widens_freshness_window`: with two hours in the configuration, it is not.
#[tokio::test]
async fn config_widens_freshness_window() {
    let home = tempfile::tempdir().unwrap();
    let wide = AutoContinue { window_s: 7_200, ..AutoContinue::default() };
    let interrupted = dead(home.path(), wide).await;
    let node = open_after(home.path(), HOUR_MS).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    assert_eq!(node.last_run("s").await.continues, Some(interrupted.id));
    node.engine.close().await;
}

/// `test_exhausted_attempts_break_the_loop`: as many as the policy allows, and no more.
#[tokio::test]
async fn exhausted_attempts_break_the_loop() {
    let home = tempfile::tempdir().unwrap();
    let one = AutoContinue { max_attempts: 1, ..AutoContinue::default() };
    dead(home.path(), one).await;
    // The one continuation dies as well.
    let again = dies_after(
        home.path(),
        |_| {},
        |node| async move {
            let mut feed = node.feed("s", Some(0)).await;
            event(&mut feed, "run.interrupted").await;
            event(&mut feed, "run.started").await;
            node.last_run("s").await
        },
    );
    let again = again.await;
    assert_eq!(again.attempt, 1);
    let node = open(home.path(), |_| {}).await;
    assert_parked(&node, &again, Parked::Exhausted).await;
    node.engine.close().await;
}

/// `test_disabled_by_config`.
#[tokio::test]
async fn disabled_by_config() {
    let home = tempfile::tempdir().unwrap();
    let off = AutoContinue { enabled: false, ..AutoContinue::default() };
    let interrupted = dead(home.path(), off).await;
    let node = open(home.path(), |_| {}).await;
    assert_parked(&node, &interrupted, Parked::Disabled).await;
    node.engine.close().await;
}

/// `test_no_marker_means_no_continuation`.
#[tokio::test]
async fn no_marker_means_no_continuation() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let _viewer = node.engine.session_stream(&key("s"), Some(0), true).await.unwrap();
    node.engine.close().await;
    let node = open(home.path(), |_| {}).await;
    assert!(node.engine.read().session(&key("s")).await.unwrap().is_none());
    assert!(node.model.requests.lock().unwrap().is_empty());
    node.engine.close().await;
}

/// `test_running_session_wins_over_continuation`: what a person says between the record of the
/// interruption and the claim of its continuation takes its place, and the model is told what was
/// left unfinished.
#[tokio::test]
async fn running_session_wins_over_continuation() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    // It records the interruption and admits the continuation, and runs no turn.
    let node = open(home.path(), |config: &mut Config| config.turns_max = 0).await;
    let queued = session(&node).await;
    assert_eq!((queued.queue_length, queued.running.as_ref()), (1, None));
    let input = node.say("s", "r2", "never mind, do this").await;
    node.engine.close().await;
    let node = open(home.path(), |_| {}).await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    assert_eq!((run.continues, run.attempt), (None, 0));
    let runs = node.engine.read().runs(&key("s"), None, 9).await.unwrap();
    assert_eq!(runs.len(), 2, "the interrupted one and the person's");
    let told = format!("{:?}", node.model.request(0).messages);
    assert!(told.contains("interrupted") && told.contains("half "), "{told}");
    let root = node.engine.read().input(&interrupted.input_ids[0]).await.unwrap().unwrap().0;
    assert_eq!(root.outcome, Some(Outcome::Interrupted));
    node.engine.close().await;
}

/// `test_double_schedule_is_guarded`, and what is left here of seed 000's
/// `test_repair_stale_pending_skips_pre_compression_snapshot_parent` and
/// `test_repair_stale_pending_skips_parent_when_continuation_exists` (a conversation keeps its id, so
/// that there is no archived parent to be taken for an interrupted one; but what was continued is
/// interrupted once and never again): two processes find it at the same time, and readers look on.
#[tokio::test]
async fn double_schedule_is_guarded() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let (one, two) = tokio::join!(open(home.path(), |_| {}), open(home.path(), |_| {}));
    let mut viewers = Vec::new();
    for node in [&one, &two] {
        viewers.push(node.engine.session_stream(&key("s"), Some(0), true).await.unwrap());
    }
    event(&mut viewers[0], "run.completed").await;
    let input = one.say("s", "r2", "and?").await;
    one.ended(&input.id).await;
    let runs = one.engine.read().runs(&key("s"), None, 9).await.unwrap();
    let continued = runs.iter().filter(|run| run.continues.as_ref() == Some(&interrupted.id));
    assert_eq!((continued.count(), runs.len()), (1, 3));
    let asked = one.model.requests.lock().unwrap().len() + two.model.requests.lock().unwrap().len();
    assert_eq!(asked, 2);
    let markers = one.transcript("s").await;
    let markers = markers.iter().filter(|row| row.kind == MessageKind::Interruption).count();
    assert_eq!(markers, 1, "one marker, however many look");
    one.engine.close().await;
    two.engine.close().await;
}

/// `test_failed_agent_build_leaves_marker_for_retry`: a model that cannot be set up here leaves the
/// turn where it is, with its attempts, until it can.
#[tokio::test]
async fn failed_agent_build_leaves_marker_for_retry() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let node = open(home.path(), |config: &mut Config| config.models = Arc::new(NoModel)).await;
    assert_parked(&node, &interrupted, Parked::ModelMissing).await;
    node.engine.close().await;
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    let run = node.last_run("s").await;
    assert_eq!((run.attempt, run.continues), (1, Some(interrupted.id)));
    node.engine.close().await;
}

/// A node that can set no model up.
struct NoModel;

#[async_trait::async_trait]
impl everturn_engine::Models for NoModel {
    async fn provider(
        &self,
        _: &str,
    ) -> Result<Arc<dyn everturn_agent::provider::Provider>, everturn_core::Failure> {
        Err(everturn_core::Failure {
            code: "model_misconfigured".to_owned(),
            message: "no key".to_owned(),
            permanent: true,
            hint: None,
        })
    }

    fn default_model(&self) -> String {
        "test/model".to_owned()
    }
}

/// `test_continuation_runs_through_turn_pipeline`: a turn like any other, with a descriptor for
/// clients, one model request, and nothing left open.
#[tokio::test]
async fn continuation_runs_through_turn_pipeline() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    let descriptor = within(async {
        loop {
            let updated = event(&mut feed, "session.updated").await;
            let found = updated["session"]["running"]["continuation"].clone();
            if found.is_object() {
                return found;
            }
        }
    })
    .await;
    assert_eq!(descriptor["attempt"], 1);
    let ended_at = run_of(&node, &interrupted).await.ended_at.unwrap();
    assert_eq!(descriptor["interrupted_at"], ended_at.rfc3339());
    event(&mut feed, "run.completed").await;
    assert_eq!(node.model.requests.lock().unwrap().len(), 1);
    let session = session(&node).await;
    assert_eq!((session.running, session.interrupted, session.queue_length), (None, None, 0));
    let root = node.engine.read().input(&interrupted.input_ids[0]).await.unwrap().unwrap().0;
    assert_eq!(root.outcome, Some(Outcome::Completed), "its last run's");
    node.engine.close().await;
    assert_nothing_goes_on(home.path(), 2).await;
}

/// The policy can be changed until the moment in which it decides.
#[tokio::test]
async fn a_policy_counts_as_it_is_when_it_decides() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = dead(home.path(), AutoContinue::default()).await;
    let other = open(home.path(), |config: &mut Config| {
        config.scope = everturn_engine::Scope::Only(key("elsewhere"));
    })
    .await;
    let policy =
        serde_json::from_value(serde_json::json!({ "auto_continue": { "enabled": false } }));
    let patch = SessionPatch { policy: Some(policy.unwrap()), ..SessionPatch::default() };
    other.engine.patch_session(key("s"), None, patch).await.unwrap();
    let node = open(home.path(), |_| {}).await;
    assert_parked(&node, &interrupted, Parked::Disabled).await;
    node.engine.close().await;
    other.engine.close().await;
}
