//! A message that an interruption cut off: continued where it ends, or told to the model (P5, P8).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use everturn_agent::provider::ProviderErrorKind;
use everturn_core::view::{self, NOT_IN_PLACE, ViewMessage};
use everturn_core::{Effect, MessageKind, TerminalState};
use everturn_engine::Config;

use crate::bench::{Ending, Model, Node, OneModel, Say, event, open, tool};

/// A node whose model is this one.
async fn with(home: &Path, model: &Arc<Model>, set: impl FnOnce(&mut Config)) -> Node {
    let models = Arc::new(OneModel(Arc::clone(model)));
    let mut node = open(home, |config| {
        config.models = models;
        config.drain_timeout = Duration::from_millis(1);
        set(config);
    })
    .await;
    node.model = Arc::clone(model);
    node
}

/// A model that says that it goes on in the middle of its message.
fn in_place() -> Arc<Model> {
    let model = Arc::new(Model::default());
    model.in_place.store(true, Ordering::Relaxed);
    model
}

/// Lets the turn under way say `text`, and leaves in the middle of it.
async fn leave_amid(node: Node, pieces: tokio::sync::mpsc::Sender<String>, text: &str) {
    let run = node.last_run("s").await;
    let mut feed = node.feed("s", Some(run.first_offset)).await;
    pieces.send(text.to_owned()).await.unwrap();
    event(&mut feed, "text.delta").await;
    node.engine.drain().await;
    assert_eq!(node.last_run("s").await.terminal_state, Some(TerminalState::Interrupted));
    node.engine.close().await;
}

/// A turn of session `s` that said `text` and whose node then left.
async fn cut_off(home: &Path, text: &str) {
    let model = Arc::new(Model::default());
    let node = with(home, &model, |_| {}).await;
    let (pieces, receiver) = tokio::sync::mpsc::channel(8);
    model.says(Say::Stream(receiver));
    node.say("s", "r1", "count").await;
    model.asked(1).await;
    leave_amid(node, pieces, text).await;
}

/// The end of the last turn of `s`.
async fn completed(node: &Node) {
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
}

/// What the model was sent, in short.
fn sent(model: &Model, number: usize) -> Vec<String> {
    let messages = model.request(number).messages;
    let short = messages.iter().map(|message| match message {
        ViewMessage::User(content) => format!("user: {}", content.plain()),
        ViewMessage::Assistant { text, calls } => format!("model: {text} ({})", calls.len()),
        ViewMessage::ToolResult { text, .. } => format!("tool: {text}"),
    });
    short.collect()
}

async fn answers(node: &Node) -> Vec<(MessageKind, String)> {
    let rows = node.transcript("s").await;
    let said = rows.iter().filter(|row| row.role.as_str() == "assistant");
    said.map(|row| (row.kind, row.content.plain())).collect()
}

fn said(kind: MessageKind, text: &str) -> (MessageKind, String) {
    (kind, text.to_owned())
}

#[tokio::test]
async fn a_model_that_can_goes_on_in_the_middle_of_its_message() {
    let home = tempfile::tempdir().unwrap();
    cut_off(home.path(), "one tw").await;
    let model = in_place();
    model.says(Say::Text(vec!["o ", "three"]));
    let node = with(home.path(), &model, |_| {}).await;
    completed(&node).await;
    assert_eq!(sent(&model, 0), ["user: count", "model: one tw (0)"]);
    let expected = [said(MessageKind::Message, "one tw"), said(MessageKind::Resumed, "o three")];
    assert_eq!(answers(&node).await, expected);
    // Whoever reads the run knows where its text belongs before any of it comes.
    let journal = node.journal(&node.last_run("s").await).await;
    let names: Vec<&str> = journal.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["run.started", "text.resumed", "text.delta"]);
    let partial = node.transcript("s").await[1].id;
    assert!(journal[1].2.contains(&format!("\"message_id\":{partial}")), "{}", journal[1].2);

    // To the model it is one message, then and for ever.
    let input = node.say("s", "r2", "and now").await;
    node.ended(&input.id).await;
    assert_eq!(sent(&model, 1), ["user: count", "model: one two three (0)", "user: and now"]);
    node.engine.close().await;
}

#[tokio::test]
async fn a_model_that_cannot_is_told_that_its_message_broke_off() {
    let home = tempfile::tempdir().unwrap();
    cut_off(home.path(), "one tw").await;
    let model = Arc::new(Model::default());
    model.says(Say::Text(vec!["two three"]));
    let node = with(home.path(), &model, |_| {}).await;
    completed(&node).await;
    let told = sent(&model, 0);
    assert_eq!(told[..2], ["user: count", "model: one tw (0)"]);
    assert!(told[2].contains("was interrupted") && told[2].contains(NOT_IN_PLACE), "{told:?}");
    let expected = [said(MessageKind::Message, "one tw"), said(MessageKind::Message, "two three")];
    assert_eq!(answers(&node).await, expected);
    node.engine.close().await;
}

/// A refusal costs neither the turn nor an attempt, and leaves no trace.
#[tokio::test]
async fn a_model_that_refuses_to_is_told_in_the_same_turn() {
    // Some servers fail over what they do not take: they are asked as often as any that fails.
    for (kind, tries) in [(ProviderErrorKind::Refused, 1), (ProviderErrorKind::Unavailable, 5)] {
        let home = tempfile::tempdir().unwrap();
        cut_off(home.path(), "one tw").await;
        let model = in_place();
        *model.refuses.lock().unwrap() = Some(kind);
        model.says(Say::Calls("two. ", vec![("look", "{}")]));
        model.says(Say::Text(vec!["three"]));
        let node = with(home.path(), &model, |config| {
            tool(&mut config.tools, "look", Effect::Read, false);
            config.steps_max = 2;
        })
        .await;
        completed(&node).await;
        assert_eq!(model.requests.lock().unwrap().len(), tries + 2);
        assert_eq!(sent(&model, 0), ["user: count", "model: one tw (0)"]);
        let told = sent(&model, tries);
        assert!(told[2].contains(NOT_IN_PLACE), "{told:?}");
        // What is told once stays: the view only grows.
        assert_eq!(sent(&model, tries + 1)[..3], told);
        let run = node.last_run("s").await;
        assert_eq!((run.attempt, run.terminal_state), (1, Some(TerminalState::Completed)));
        let journal = node.journal(&run).await;
        assert!(journal.iter().all(|(_, name, _)| name != "text.resumed"), "{journal:?}");
        node.engine.close().await;
    }
}

/// Interrupted again, called a tool, said nothing: it stays one message.
#[tokio::test]
async fn what_is_continued_again_stays_one_message() {
    let home = tempfile::tempdir().unwrap();
    cut_off(home.path(), "a").await;
    let model = in_place();
    let (pieces, receiver) = tokio::sync::mpsc::channel(8);
    model.says(Say::Stream(receiver));
    let node = with(home.path(), &model, |_| {}).await;
    model.asked(1).await;
    leave_amid(node, pieces, "b").await;

    let model = in_place();
    model.says(Say::Calls("c", vec![("look", "{}")]));
    model.says(Say::Text(vec!["done"]));
    let node = with(home.path(), &model, |config| {
        tool(&mut config.tools, "look", Effect::Read, false);
    })
    .await;
    completed(&node).await;
    assert_eq!(sent(&model, 0), ["user: count", "model: ab (0)"]);
    assert_eq!(sent(&model, 1), ["user: count", "model: abc (1)", "tool: run 1"]);
    let rows = node.transcript("s").await;
    let partial: Vec<_> = rows.iter().filter(|row| row.recovered).collect();
    assert_eq!((partial[1].kind, partial[1].content.plain()), (MessageKind::Resumed, "b".into()));
    // What follows the step is a message of its own.
    assert_eq!(answers(&node).await.last().unwrap(), &said(MessageKind::Message, "done"));
    let view = view::build(&rows);
    assert_eq!(view.len(), 4, "{view:?}");
    node.engine.close().await;
}

/// Whatever the model would have to be told is told, and nothing is continued in its place.
#[tokio::test]
async fn a_call_of_unknown_outcome_is_told_before_anything_goes_on() {
    for (effect, how) in
        [(Effect::Write, "unknown"), (Effect::Write, "succeeded"), (Effect::Read, "unknown")]
    {
        let home = tempfile::tempdir().unwrap();
        let model = Arc::new(Model::default());
        let node = with(home.path(), &model, |config| {
            config.tools.add(Ending::of(effect));
            config.allowed_tools.insert("end".to_owned());
        })
        .await;
        let arguments =
            if how == "unknown" { r#"{"how":"unknown"}"# } else { r#"{"how":"succeeded"}"# };
        model.says(Say::Calls("", vec![("end", arguments)]));
        let (pieces, receiver) = tokio::sync::mpsc::channel(8);
        model.says(Say::Stream(receiver));
        node.say("s", "r1", "count").await;
        model.asked(2).await;
        leave_amid(node, pieces, "half").await;

        let model = in_place();
        let node = with(home.path(), &model, |config| {
            config.tools.add(Ending::of(effect));
            config.allowed_tools.insert("end".to_owned());
        })
        .await;
        completed(&node).await;
        let sent = sent(&model, 0);
        let is_told = sent.last().unwrap().starts_with("user: ");
        // A call that is run again has a result that the message knew nothing of.
        assert_eq!(is_told, how == "unknown", "{effect} {how} {sent:?}");
        node.engine.close().await;
    }
}
