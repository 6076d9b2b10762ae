//! Stops, interrupts, withdrawals (DESIGN §5, controls).

use everturn_core::{Effect, Mode, Outcome, Principal, TerminalState};
use everturn_engine::Config;
use tokio::sync::mpsc;

use crate::bench::{Say, event, key, open, tool};

#[tokio::test]
async fn a_stop_ends_the_turn_keeps_what_was_shown_and_cancels_what_people_queued() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    let first = node.say("s", "r1", "talk").await;
    pieces.send("shown".to_owned()).await.unwrap();
    event(&mut feed, "text.delta").await;
    let second = node.say("s", "r2", "later").await;
    let by = Principal::local();
    node.engine.stop(key("s"), None, None, by.clone(), false).await.unwrap();
    assert_eq!(node.ended(&first.id).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(node.ended(&second.id).await.outcome, Some(Outcome::Cancelled));
    let rows = node.rows("s").await;
    assert_eq!(rows, [("user".into(), "talk".into()), ("assistant".into(), "shown".into())]);
    let run = node.last_run("s").await;
    assert_eq!(run.terminal_state, Some(TerminalState::Cancelled));
    let journal = node.journal(&run).await;
    assert_eq!(journal.last().unwrap().1, "run.cancelled");
    // A late stop finds nothing, and the next turn is not touched.
    let late = node.engine.stop(key("s"), Some(run.generation), None, by, false).await;
    assert!(late.unwrap_err().to_string().contains("no turn is running"));
    let next = node.say("s", "r3", "again").await;
    assert_eq!(node.ended(&next.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

#[tokio::test]
async fn a_stop_that_keeps_the_queue_lets_the_next_input_run() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (_pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let first = node.say("s", "r1", "talk").await;
    let second = node.say("s", "r2", "later").await;
    node.model.asked(1).await;
    node.engine.stop(key("s"), Some(1), None, Principal::local(), true).await.unwrap();
    assert_eq!(node.ended(&first.id).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(node.ended(&second.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

#[tokio::test]
async fn an_interrupt_runs_first_and_leaves_the_rest_of_the_queue() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (_pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let first = node.say("s", "r1", "talk").await;
    let second = node.say("s", "r2", "later").await;
    node.model.asked(1).await;
    let urgent = node.submit("s", "r3", "now", Mode::Interrupt).await.unwrap();
    assert_eq!(node.ended(&first.id).await.outcome, Some(Outcome::Cancelled));
    let urgent = node.ended(&urgent.id).await;
    let second = node.ended(&second.id).await;
    assert_eq!(urgent.outcome, Some(Outcome::Completed));
    assert_eq!(second.outcome, Some(Outcome::Completed));
    assert!(urgent.generation < second.generation);
    node.engine.close().await;
}

#[tokio::test]
async fn a_stop_during_a_tool_ends_the_tool_and_says_that_its_outcome_is_unknown() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "work", Effect::Read, true));
    })
    .await;
    let watch = watch.unwrap();
    node.model.says(Say::Calls("", vec![("work", "{}"), ("work", "{}")]));
    let input = node.say("s", "r1", "go").await;
    crate::bench::within(watch.began.notified()).await;
    node.engine.stop(key("s"), None, None, Principal::local(), false).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(watch.count(), 1, "the second call never began");
    let rows = node.transcript("s").await;
    let states: Vec<String> =
        rows[1].tool_calls.iter().map(|call| call.state.to_string()).collect();
    assert_eq!(states, ["unknown", "not_run"]);
    // The next turn's view is legal all the same; the model checks it.
    let next = node.say("s", "r2", "and now").await;
    assert_eq!(node.ended(&next.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

#[tokio::test]
async fn a_queued_input_can_be_withdrawn_and_the_queue_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    node.say("s", "r1", "talk").await;
    node.model.asked(1).await;
    let second = node.say("s", "r2", "two").await;
    let third = node.say("s", "r3", "three").await;
    node.engine.cancel_input(Principal::local(), second.id.clone()).await.unwrap();
    assert_eq!(node.ended(&second.id).await.outcome, Some(Outcome::Cancelled));
    drop(pieces);
    assert_eq!(node.ended(&third.id).await.outcome, Some(Outcome::Completed));
    let gone = node.engine.cancel_input(Principal::local(), third.id).await;
    assert!(gone.unwrap_err().to_string().contains("no longer waits"));
    node.engine.close().await;
}

#[tokio::test]
async fn deleting_by_force_stops_first() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let (_pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let input = node.say("s", "r1", "talk").await;
    node.model.asked(1).await;
    let busy = node.engine.delete_session(key("s"), None, false).await;
    assert!(busy.unwrap_err().to_string().contains("busy"));
    node.engine.delete_session(key("s"), None, true).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Cancelled));
    // The receipt still answers, and nothing else does.
    assert_eq!(node.say("s", "r1", "talk").await.id, input.id);
    let new = node.submit("s", "r2", "hello?", Mode::Queue).await;
    assert!(new.unwrap_err().to_string().contains("deleted"));
    node.engine.close().await;
}
