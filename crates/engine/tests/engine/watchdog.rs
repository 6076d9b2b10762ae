//! Each phase of a turn ends when it makes no progress, and says so (P4, P12, P13).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn_agent::tool::{Tool, ToolInvocation, ToolOutcome, ToolSpec};
use everturn_core::{CallState, Cause, Effect, NodeId, Outcome, TerminalState};
use everturn_engine::{Config, Engine};
use everturn_store::memory::MemoryStore;
use everturn_store::{StorageError, StorageErrorKind, Store, SystemClock};
use tokio::sync::mpsc;

use crate::bench::{Model, Node, OneModel, Say, event, open, tool, within};

const SOON: Duration = Duration::from_millis(100);

/// A model that never says a word, and one that stops in mid-answer: the turn fails visibly, what it
/// said is kept, and the queue goes on.
#[tokio::test]
async fn a_silent_model_is_ended() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| config.watchdog.model = SOON).await;
    for (number, said) in ["", "so far"].into_iter().enumerate() {
        let (pieces, receiver) = mpsc::channel(8);
        if !said.is_empty() {
            pieces.send(said.to_owned()).await.unwrap();
        }
        node.model.says(Say::Stream(receiver));
        let input = node.say("s", &format!("r{number}"), "go").await;
        assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Failed));
        let error = node.last_run("s").await.error.unwrap();
        assert_eq!(error.code, "model_stalled");
        assert!(error.message.contains("watchdog"), "{}", error.message);
        let last = node.transcript("s").await.pop().unwrap();
        assert_eq!(last.content.plain(), if said.is_empty() { "go" } else { said });
    }
    let input = node.say("s", "r9", "and now?").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

/// A pause that a provider asked for is not silence.
#[tokio::test]
async fn a_pause_before_another_try_is_no_silence() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        config.watchdog.model = SOON;
        config.retry.base = Duration::from_millis(1);
    })
    .await;
    let busy = everturn_agent::provider::ProviderError {
        kind: everturn_agent::provider::ProviderErrorKind::RateLimited,
        message: "later".to_owned(),
        retry_after: Some(3 * SOON),
    };
    node.model.says(Say::Break(Vec::new(), busy));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

/// A tool that says nothing is told to end; the model is told why, and the turn goes on.
#[tokio::test]
async fn a_silent_tool_is_ended_and_the_turn_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        config.watchdog.tool = SOON;
        watch = Some(tool(&mut config.tools, "work", Effect::Read, true));
    })
    .await;
    node.model.says(Say::Calls("", vec![("work", "{}")]));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    let calls = node.engine.read().run_calls(&run.id).await.unwrap();
    let result = calls[0].result.clone().unwrap();
    assert_eq!(calls[0].state, CallState::Unknown);
    assert!(result.contains("watchdog") && result.contains("ended"), "{result}");
    assert!(format!("{:?}", node.model.request(1).messages).contains("watchdog"));
    assert_eq!(watch.unwrap().count(), 1);
    node.engine.close().await;
}

/// A tool that hears nothing.
struct Deaf(ToolSpec);

#[async_trait]
impl Tool for Deaf {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _: ToolInvocation) -> ToolOutcome {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_tool_that_does_not_even_end_when_told_is_dropped() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        config.watchdog.tool = SOON;
        config.tools.add(Deaf(ToolSpec {
            name: "deaf".to_owned(),
            description: "a test".to_owned(),
            parameters: serde_json::json!({ "type": "object" }),
            effect: Effect::Read,
        }));
    })
    .await;
    node.model.says(Say::Calls("", vec![("deaf", "{}")]));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    let calls = node.engine.read().run_calls(&run.id).await.unwrap();
    assert_eq!(calls[0].state, CallState::Unknown);
    node.engine.close().await;
}

/// A store that takes nothing: the turn waits (promise P13), lets go in the end, and is recorded as
/// what it was when the store is back. What it still held is not lost.
#[tokio::test]
async fn a_turn_whose_store_is_away_for_too_long_lets_go() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new().unwrap())));
    let model = Arc::new(Model::default());
    let node = NodeId::new("node_test").unwrap();
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let mut config = Config::new(node, "/home".to_owned(), "serve", models);
    config.poll = Duration::from_millis(20);
    config.watchdog.store = SOON;
    config.auto_continue.enabled = false;
    let shared: Arc<dyn Store> = store.clone();
    let engine = Engine::open(shared, config).await.unwrap();
    let node = Node { engine, model };
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    node.say("s", "r1", "go").await;
    pieces.send("one ".to_owned()).await.unwrap();
    event(&mut feed, "text.delta").await;
    store.set_failure(Some(StorageError::new(StorageErrorKind::Unavailable, "away".to_owned())));
    pieces.send("two".to_owned()).await.unwrap();
    // It lets go of the model.
    within(pieces.closed()).await;
    store.set_failure(None);
    let interrupted = event(&mut feed, "run.interrupted").await;
    assert_eq!(interrupted["cause"], Cause::LeaseLost.as_str());
    let run = node.last_run("s").await;
    assert_eq!(run.terminal_state, Some(TerminalState::Interrupted));
    within(async {
        loop {
            node.engine.look_late(&crate::bench::key("s"));
            let rows = node.transcript("s").await;
            if rows.iter().any(|row| row.recovered && row.content.plain() == "one two") {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    node.engine.close().await;
}
