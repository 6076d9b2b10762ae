//! What follows from an interruption: who is told what, who goes on, and with which model (P5).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn_agent::provider::Provider;
use everturn_core::{
    AutoContinue, AutoContinueWhen, Cause, Failure, MessageKind, Outcome, Run, TerminalState,
};
use everturn_engine::engine::NewSession;
use everturn_engine::live::{Item, Stream};
use everturn_engine::{Config, Models, Scope};
use everturn_store::{Clock, SystemClock};

use crate::bench::{Model, Node, Say, Shifted, event, key, open, open_with, within};

/// A turn of session `s` that its node left in the middle of an answer.
async fn left(home: &std::path::Path, policy: AutoContinue, viewed: bool) -> Run {
    let node = open(home, |config| config.drain_timeout = Duration::from_millis(1)).await;
    let mut new = NewSession::default();
    new.policy.auto_continue = policy;
    node.engine.create_session(key("s"), new).await.unwrap();
    let _viewer = if viewed { Some(viewer(&node).await) } else { None };
    let (_pieces, receiver) = tokio::sync::mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    node.say("s", "r1", "go").await;
    node.model.asked(1).await;
    node.engine.drain().await;
    let run = node.last_run("s").await;
    assert_eq!(run.terminal_state, Some(TerminalState::Interrupted));
    node.engine.close().await;
    run
}

async fn viewer(node: &Node) -> Stream {
    node.engine.session_stream(&key("s"), Some(0), true).await.unwrap()
}

fn on_view() -> AutoContinue {
    AutoContinue { when: AutoContinueWhen::OnView, ..AutoContinue::default() }
}

async fn marker(node: &Node) -> String {
    let rows = node.transcript("s").await;
    let marker = rows.iter().find(|row| row.kind == MessageKind::Interruption).unwrap();
    marker.content.plain()
}

#[tokio::test]
async fn a_leaving_node_says_that_the_step_did_not_end_in_time() {
    let home = tempfile::tempdir().unwrap();
    let run = left(home.path(), AutoContinue::default(), false).await;
    let seen = run.evidence.unwrap();
    assert_eq!(run.cause, Some(Cause::LeaseLost));
    assert_eq!((seen.drain_timeout_s, seen.holder_gone), (Some(0), Some(false)));
    let said = seen.sentence(Cause::LeaseLost);
    assert!(said.contains("was leaving, and the step under way did not end within 0 s"), "{said}");
}

#[tokio::test]
async fn what_waits_for_a_viewer_is_continued_once_when_one_comes() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = left(home.path(), on_view(), false).await;
    let node = open(home.path(), |_| {}).await;
    assert!(marker(&node).await.ends_with("it waits until somebody views the session."));
    // A reader that is no viewer is nobody.
    let _reader = node.feed("s", Some(0)).await;
    let session = node.engine.read().session(&key("s")).await.unwrap().unwrap().session;
    assert_eq!(session.interrupted, Some(interrupted.id.clone()));
    assert_eq!(node.last_run("s").await.id, interrupted.id);

    let mut first = viewer(&node).await;
    event(&mut first, "run.completed").await;
    let run = node.last_run("s").await;
    assert_eq!((run.continues, run.attempt), (Some(interrupted.id), 1));
    assert_eq!(run.terminal_state, Some(TerminalState::Completed));
    // Once: whoever comes later finds nothing to wake. What they could wake would come before this.
    drop(first);
    let mut second = viewer(&node).await;
    let input = node.say("s", "r2", "and now").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let mut started = 0;
    loop {
        let Item::Frame(frame) = within(second.next()).await.unwrap() else { continue };
        match frame.head.name.as_str() {
            "run.started" => started += 1,
            "run.completed" if started == 3 => break,
            _ => {}
        }
    }
    assert_eq!(node.last_run("s").await.continues, None);
    assert_eq!(node.model.requests.lock().unwrap().len(), 2);
    node.engine.close().await;
}

#[tokio::test]
async fn what_is_viewed_when_it_is_interrupted_does_not_wait() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = left(home.path(), on_view(), true).await;
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    assert_eq!(node.last_run("s").await.continues, Some(interrupted.id));
    node.engine.close().await;
}

#[tokio::test]
async fn a_viewer_who_comes_after_the_window_wakes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let interrupted = left(home.path(), on_view(), false).await;
    let late: Arc<dyn Clock> = Arc::new(Shifted(SystemClock::new().unwrap(), 901_000));
    let node = open_with(home.path(), late, |_| {}).await;
    let _viewer = viewer(&node).await;
    // The note of the viewer's coming and what follows from it are done one after the other: when
    // the next viewer is noted, the first one has had its effect.
    let _other = node.engine.session_stream(&key("t"), Some(0), true).await.unwrap();
    let input = node.say("t", "r1", "hello").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(node.last_run("s").await.id, interrupted.id);
    let session = node.engine.read().session(&key("s")).await.unwrap().unwrap().session;
    assert_eq!((session.interrupted, session.queue_length), (Some(interrupted.id), 0));
    node.engine.close().await;
}

/// A node with another default model, which can use the other one as well, or not.
struct Other(Arc<Model>);

#[async_trait]
impl Models for Other {
    async fn provider(&self, _: &str) -> Result<Arc<dyn Provider>, Failure> {
        Ok(self.0.clone())
    }

    fn default_model(&self) -> String {
        "test/other".to_owned()
    }
}

#[tokio::test]
async fn a_continuation_runs_on_the_model_of_its_turn() {
    let home = tempfile::tempdir().unwrap();
    left(home.path(), AutoContinue::default(), false).await;
    let model = Arc::new(Model::default());
    let models = Arc::new(Other(model));
    let node = open(home.path(), |config: &mut Config| config.models = models).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    assert_eq!(node.last_run("s").await.model, "test/model");
    // What begins anew takes the node's default.
    let input = node.say("s", "r2", "more").await;
    node.ended(&input.id).await;
    assert_eq!(node.last_run("s").await.model, "test/other");
    node.engine.close().await;
}

/// Which process is the newer one does not depend on the wall clock.
#[tokio::test]
async fn a_newer_process_is_known_although_the_clock_went_back() {
    let home = tempfile::tempdir().unwrap();
    let ahead: Arc<dyn Clock> = Arc::new(Shifted(SystemClock::new().unwrap(), 3_600_000));
    let first = open_with(home.path(), ahead, |_| {}).await;
    let input = first.say("s", "r1", "hi").await;
    first.ended(&input.id).await;
    let second = open(home.path(), |_| {}).await;
    let run = second.last_run("s").await;
    let seen = second.engine.evidence(&run).await.unwrap();
    assert!(seen.holder_started_at.unwrap() > seen.observer_started_at);
    assert!(seen.newer_process);
    // And an older one is not taken for newer.
    let input = second.say("s", "r2", "hi").await;
    second.ended(&input.id).await;
    let run = second.last_run("s").await;
    let other = if run.node == *second.engine.node() { &first } else { &second };
    let seen = other.engine.evidence(&run).await.unwrap();
    assert_eq!(seen.newer_process, run.node == *first.engine.node());
    first.engine.close().await;
    second.engine.close().await;
}

/// However many sessions need a node, opening looks at all of them.
#[tokio::test]
async fn opening_looks_at_all_that_needs_it() {
    let home = tempfile::tempdir().unwrap();
    let asleep = open(home.path(), |config| config.scope = Scope::Only(key("elsewhere"))).await;
    let mut inputs = Vec::new();
    for number in 0..10 {
        inputs.push(asleep.say(&format!("s{number}"), "r", "hi").await);
    }
    // No round after the first comes within the test's time.
    let node = open(home.path(), |config| {
        config.work_page = 3;
        config.poll = Duration::from_secs(3_600);
    })
    .await;
    for input in &inputs {
        assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    }
    node.engine.close().await;
    asleep.engine.close().await;
}
