//! Turns: one after the other, each with one ending (promises P1 to P4, P8).

use everturn_agent::provider::{ProviderError, ProviderErrorKind};
use everturn_core::{Effect, InputStatus, Outcome, Permission, TerminalState};
use everturn_engine::Config;

use crate::bench::{Ending, Say, event, key, open, tool, within};

#[tokio::test]
async fn an_input_becomes_an_answer_and_is_recorded_before_it_is_shown() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    node.model.says(Say::Text(vec!["Hel", "lo"]));
    let input = node.say("s", "r1", "hi").await;
    let input = node.ended(&input.id).await;
    assert_eq!(input.outcome, Some(Outcome::Completed));
    let rows = node.rows("s").await;
    assert_eq!(rows, [("user".into(), "hi".into()), ("assistant".into(), "Hello".into())]);
    let run = node.last_run("s").await;
    assert_eq!(run.terminal_state, Some(TerminalState::Completed));
    let journal = node.journal(&run).await;
    let names: Vec<&str> = journal.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["run.started", "text.delta", "text.delta", "run.completed"]);
    let seqs: Vec<u64> = journal.iter().map(|(seq, ..)| *seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
    node.engine.close().await;
}

#[tokio::test]
async fn three_inputs_at_once_are_three_turns_that_do_not_see_later_ones() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (first, second, third) = tokio::join!(
        node.say("s", "r1", "one"),
        node.say("s", "r2", "two"),
        node.say("s", "r3", "three")
    );
    for input in [&first, &second, &third] {
        assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    }
    let mut said: Vec<String> = Vec::new();
    for (number, request) in node.model.requests.lock().unwrap().iter().enumerate() {
        assert_eq!(request.messages.len(), 2 * number + 1, "a turn saw a later input");
        let text = format!("{:?}", request.messages.last().unwrap());
        said.extend(
            ["one", "two", "three"].iter().filter(|w| text.contains(*w)).map(|w| (*w).to_owned()),
        );
    }
    assert_eq!(said.len(), 3);
    let order: Vec<String> = node
        .rows("s")
        .await
        .into_iter()
        .filter(|(role, _)| role == "user")
        .map(|(_, t)| t)
        .collect();
    assert_eq!(order, said, "the transcript's order is the order of the turns");
    node.engine.close().await;
}

#[tokio::test]
async fn the_same_request_is_the_same_receipt_and_one_turn() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let first = node.say("s", "r1", "hi").await;
    node.ended(&first.id).await;
    let again = node.say("s", "r1", "hi").await;
    assert_eq!(again.id, first.id);
    assert_eq!(again.status, InputStatus::Terminal);
    let other = node.submit("s", "r1", "something else", everturn_core::Mode::Queue).await;
    assert!(other.unwrap_err().to_string().contains("another payload"));
    assert_eq!(node.model.requests.lock().unwrap().len(), 1);
    node.engine.close().await;
}

#[tokio::test]
async fn tools_run_once_with_intent_before_and_result_after() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "look", Effect::Read, false));
    })
    .await;
    let watch = watch.unwrap();
    node.model.says(Say::Calls("let me see", vec![("look", r#"{"n":1}"#), ("look", r#"{"n":2}"#)]));
    node.model.says(Say::Text(vec!["done"]));
    let input = node.say("s", "r1", "look twice").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(*watch.runs.lock().unwrap(), [r#"{"n":1}"#, r#"{"n":2}"#]);
    let journal = node.journal(&node.last_run("s").await).await;
    let names: Vec<&str> = journal.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "run.started",
            "text.delta",
            "tool.intended",
            "tool.intended",
            "tool.output",
            "tool.finished",
            "tool.output",
            "tool.finished",
            "text.delta",
            "run.completed"
        ]
    );
    node.engine.close().await;
}

/// P9: the state of a call is what its tool knows of its end, no more and no less.
#[tokio::test]
async fn a_call_has_the_state_that_its_tool_knows_of() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| config.tools.add(Ending::default())).await;
    let calls = vec![
        ("end", r#"{"how":"succeeded"}"#),
        ("end", r#"{"how":"failed"}"#),
        ("end", r#"{"how":"not_run"}"#),
        ("end", r#"{"how":"unknown"}"#),
        ("end", r#"{"how":"breaks down"}"#),
    ];
    node.model.says(Say::Calls("", calls));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    let calls = node.engine.read().run_calls(&run.id).await.unwrap();
    let states: Vec<&str> = calls.iter().map(|call| call.state.as_str()).collect();
    assert_eq!(states, ["succeeded", "failed", "not_run", "unknown", "unknown"]);
    // The model is told the tool's own words, and so is the person.
    let told = format!("{:?}", node.model.request(1).messages);
    for text in ["not_run", "unknown", "The tool broke down"] {
        assert!(told.contains(&format!("text: \"{text}")), "{text}: {told}");
    }
    node.engine.close().await;
}

#[tokio::test]
async fn broken_calls_are_answered_and_the_turn_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "look", Effect::Read, false));
    })
    .await;
    node.model
        .says(Say::Calls("", vec![("look", "{not json"), ("nothing", "{}"), ("look", "[1]")]));
    node.model.says(Say::Text(vec!["sorry"]));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 0);
    let told = format!("{:?}", node.model.request(1).messages);
    for text in ["not valid JSON", "no tool named", "not a JSON object"] {
        assert!(told.contains(text), "{text}: {told}");
    }
    node.engine.close().await;
}

#[tokio::test]
async fn a_stream_that_breaks_fails_visibly_and_keeps_what_came() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let error = ProviderError {
        kind: ProviderErrorKind::Broken,
        message: "cut".to_owned(),
        retry_after: None,
    };
    node.model.says(Say::Break(vec!["half an ", "answer"], error));
    let input = node.say("s", "r1", "hi").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Failed));
    let rows = node.rows("s").await;
    assert_eq!(rows[1], ("assistant".into(), "half an answer".into()));
    let run = node.last_run("s").await;
    assert_eq!(run.error.unwrap().code, "model_stream_broken");
    // The session goes on.
    let next = node.say("s", "r2", "again").await;
    assert_eq!(node.ended(&next.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

#[tokio::test]
async fn errors_before_the_first_token_are_retried() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    for kind in [ProviderErrorKind::RateLimited, ProviderErrorKind::Unavailable] {
        let error = ProviderError { kind, message: "no".to_owned(), retry_after: None };
        node.model.says(Say::Break(vec![], error));
    }
    node.model.says(Say::Text(vec!["yes"]));
    let input = node.say("s", "r1", "hi").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(node.model.requests.lock().unwrap().len(), 3);
    node.engine.close().await;
}

#[tokio::test]
async fn a_model_that_is_not_there_fails_the_turn_and_not_the_session() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let new = everturn_engine::engine::NewSession {
        model: Some("nobody/nothing".to_owned()),
        ..Default::default()
    };
    node.engine.create_session(key("s"), new).await.unwrap();
    let input = node.say("s", "r1", "hi").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Failed));
    let run = node.last_run("s").await;
    assert_eq!(run.error.unwrap().code, "model_misconfigured");
    node.engine.close().await;
}

#[tokio::test]
async fn a_denied_tool_does_not_run() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
    })
    .await;
    let mut new = everturn_engine::engine::NewSession::default();
    new.policy.tools.insert("wipe".to_owned(), Permission::Deny);
    node.engine.create_session(key("s"), new).await.unwrap();
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let input = node.say("s", "r1", "hi").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 0);
    node.engine.close().await;
}

#[tokio::test]
async fn deltas_of_a_slow_model_are_seen_while_it_speaks() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = tokio::sync::mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "hi").await;
    for piece in ["a", "b", "c"] {
        pieces.send(piece.to_owned()).await.unwrap();
        let seen = event(&mut feed, "text.delta").await;
        assert_eq!(seen["text"], piece);
    }
    drop(pieces);
    within(event(&mut feed, "run.completed")).await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}
