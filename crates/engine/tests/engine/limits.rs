//! Limits of turns: what is at the limit is taken, and one past it is refused with a code (P12).

use std::sync::Arc;

use everturn_agent::provider::{Cut, ModelReply, RequestedCall};
use everturn_core::{Effect, Failure, Outcome, Timestamp, limits};
use everturn_engine::Config;
use everturn_store::{Clock, SystemClock};
use tokio::sync::mpsc;

use crate::bench::{Node, Say, Shifted, key, open, open_with, tool, within};

/// A text that lives as long as the test.
fn text(bytes: usize) -> &'static str {
    Box::leak("x".repeat(bytes).into_boxed_str())
}

/// How a turn ended that was asked `words`: the code of its failure, if it failed.
async fn asked(node: &Node, session: &str, words: &str) -> Option<Failure> {
    let input = node.say(session, "r1", words).await;
    let input = node.ended(&input.id).await;
    let run = node.last_run(session).await;
    let expected = if run.error.is_some() { Outcome::Failed } else { Outcome::Completed };
    assert_eq!(input.outcome, Some(expected));
    run.error
}

fn code(failure: Option<Failure>) -> String {
    failure.map_or_else(|| "none".to_owned(), |failure| failure.code)
}

#[tokio::test]
async fn a_turn_makes_as_many_requests_as_the_limit_says() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        config.steps_max = 3;
        watch = Some(tool(&mut config.tools, "look", Effect::Read, false));
    })
    .await;
    let look = || node.model.says(Say::Calls("", vec![("look", "{}")]));
    look();
    look();
    node.model.says(Say::Text(vec!["done"]));
    assert_eq!(code(asked(&node, "at", "go").await), "none");
    look();
    look();
    look();
    assert_eq!(code(asked(&node, "past", "go").await), "too_many_steps");
    assert_eq!(node.model.requests.lock().unwrap().len(), 6);
    assert_eq!(watch.unwrap().count(), 4, "the calls of the last request were not run for nobody");
    node.engine.close().await;
}

/// The count of a run goes on where another node takes the run over.
#[tokio::test]
async fn a_run_that_is_handed_over_keeps_its_count_of_requests() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let first = open(home.path(), |config: &mut Config| {
        config.steps_max = 3;
        watch = Some(tool(&mut config.tools, "look", Effect::Read, true));
    })
    .await;
    let watch = watch.unwrap();
    first.model.says(Say::Calls("", vec![("look", "{}")]));
    first.model.says(Say::Calls("", vec![("look", "{}")]));
    let input = first.say("s", "r1", "go").await;
    watch.gate.add_permits(1);
    first.model.asked(2).await;
    within(async {
        while watch.count() < 2 {
            watch.began.notified().await;
        }
    })
    .await;
    let engine = first.engine.clone();
    let left = tokio::spawn(async move { engine.close().await });
    within(async {
        while !first.engine.is_draining() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    watch.gate.add_permits(1);
    within(left).await.unwrap();
    assert_eq!(first.last_run("s").await.state.as_str(), "handed_over");

    let second = open(home.path(), |config: &mut Config| {
        config.steps_max = 3;
        tool(&mut config.tools, "look", Effect::Read, false);
    })
    .await;
    // Had it begun anew, the model of this node would be asked three times.
    let ended = second.ended(&input.id).await;
    assert_eq!(ended.outcome, Some(Outcome::Completed));
    assert_eq!(second.model.requests.lock().unwrap().len(), 1);
    second.engine.close().await;
}

#[tokio::test]
async fn turns_beyond_the_limit_wait_for_their_turn() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config| config.turns_max = 2).await;
    let mut streams = Vec::new();
    let mut inputs = Vec::new();
    for number in 0..6 {
        let (pieces, receiver) = mpsc::channel(1);
        node.model.says(Say::Stream(receiver));
        streams.push(pieces);
        inputs.push(node.say(&format!("s{number}"), "r", "hi").await);
    }
    // Requests take their streams in the order of asking, whichever session it is.
    for (ended, pieces) in streams.into_iter().enumerate() {
        node.model.asked((ended + 2).min(6)).await;
        assert!(node.engine.turns() <= 2, "{} turns", node.engine.turns());
        assert_eq!(node.model.requests.lock().unwrap().len(), (ended + 2).min(6));
        drop(pieces);
    }
    for input in &inputs {
        assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    }
    node.engine.close().await;
}

#[tokio::test]
async fn the_longest_answer_is_kept_and_a_longer_one_fails_with_what_came() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let max = limits::ANSWER_BYTES_MAX;
    node.model.says(Say::Text(vec![text(max - 1), "y"]));
    assert_eq!(code(asked(&node, "at", "go").await), "none");
    assert_eq!(node.rows("at").await[1].1.len(), max);
    node.model.says(Say::Text(vec![text(max), "y"]));
    assert_eq!(code(asked(&node, "past", "go").await), "model_answer_too_large");
    assert_eq!(node.rows("past").await[1].1.len(), max, "what came is kept");
    node.engine.close().await;
}

#[tokio::test]
async fn the_longest_arguments_are_taken_and_longer_ones_fail() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "look", Effect::Read, false));
    })
    .await;
    let watch = watch.unwrap();
    // Of all calls of one request together.
    let half = |bytes: usize| -> &'static str {
        Box::leak(format!(r#"{{"n":"{}"}}"#, text(bytes - 8)).into_boxed_str())
    };
    let max = limits::ARGUMENTS_BYTES_MAX;
    node.model.says(Say::Calls("", vec![("look", half(max / 2)), ("look", half(max / 2))]));
    assert_eq!(code(asked(&node, "at", "go").await), "none");
    assert_eq!(watch.count(), 2);
    node.model.says(Say::Calls("so", vec![("look", half(max / 2)), ("look", half(max / 2 + 1))]));
    assert_eq!(code(asked(&node, "past", "go").await), "model_answer_too_large");
    assert_eq!(watch.count(), 2, "none of them ran");
    assert_eq!(node.rows("past").await[1].1, "so");
    node.engine.close().await;
}

/// Four bytes are counted as a token.
#[tokio::test]
async fn a_conversation_fills_the_models_context_and_no_more() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    *node.model.context_tokens.lock().unwrap() = Some(100);
    assert_eq!(code(asked(&node, "at", text(400)).await), "none");
    let failure = asked(&node, "past", text(401)).await.unwrap();
    assert_eq!((failure.code.as_str(), failure.permanent), ("context_too_long", true));
    assert!(failure.message.contains("101") && failure.message.contains("100"), "{failure:?}");
    assert_eq!(node.model.requests.lock().unwrap().len(), 1, "the model was not asked");
    node.engine.close().await;
}

#[tokio::test]
async fn an_answer_that_the_provider_cut_says_why() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let call = RequestedCall {
        provider_id: "c".to_owned(),
        name: "look".to_owned(),
        arguments: "{\"n\":".to_owned(),
    };
    let cut = |cut, calls| ModelReply { calls, usage: None, cut: Some(cut) };
    for (session, reply, expected) in [
        ("filter", cut(Cut::Filter, Vec::new()), "model_filtered"),
        ("calls", cut(Cut::Length, vec![call]), "model_output_limit"),
        // A text that is cut is an answer: whoever reads it sees that it stops.
        ("text", cut(Cut::Length, Vec::new()), "none"),
    ] {
        node.model.says(Say::Reply("half", reply));
        assert_eq!(code(asked(&node, session, "go").await), expected, "{session}");
        assert_eq!(node.rows(session).await[1].1, "half", "{session}");
    }
    node.engine.close().await;
}

/// Receipts of deleted sessions are kept for 90 days, and then forgotten by any node that serves.
#[tokio::test]
async fn tombstones_are_forgotten_after_their_days() {
    let home = tempfile::tempdir().unwrap();
    let at = |days: u64, more_ms: i64| -> Arc<dyn Clock> {
        let shift = i64::try_from(days * 86_400_000).unwrap() + more_ms;
        Arc::new(Shifted(SystemClock::new().unwrap(), shift))
    };
    for (day, session) in [(0, "old"), (1, "young")] {
        let node = open_with(home.path(), at(day, 0), |_| {}).await;
        let input = node.say(session, "r1", "hi").await;
        node.ended(&input.id).await;
        node.engine.delete_session(key(session), None, false).await.unwrap();
        node.engine.close().await;
    }
    let node = open_with(home.path(), at(limits::RECEIPT_DAYS, 60_000), |_| {}).await;
    let read = node.engine.read();
    within(async {
        while read.tombstone(&key("old")).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let young = read.tombstone(&key("young")).await.unwrap().unwrap();
    assert!(young.deleted_at > Timestamp(0), "it was in the same sweep, and is kept");
    node.engine.close().await;
}
