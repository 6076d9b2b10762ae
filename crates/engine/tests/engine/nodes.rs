//! Several engines on one store: one turn at a time, hand-over, nothing claimed twice (P3, P11).

use everturn_core::{Effect, Outcome};
use everturn_engine::{Config, Scope};
use tokio::sync::mpsc;

use crate::bench::{Say, event, key, open, tool, within};

#[tokio::test]
async fn a_leaving_node_hands_over_at_a_step_boundary_and_the_next_goes_on_with_the_same_run() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let first = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "work", Effect::Read, true));
    })
    .await;
    let watch = watch.unwrap();
    first.model.says(Say::Calls("", vec![("work", "{}")]));
    let input = first.say("s", "r1", "go").await;
    within(watch.began.notified()).await;
    let run = first.last_run("s").await;
    // Leaving begins while the tool works, and waits for its end.
    let (engine, gate) = (first.engine.clone(), watch.gate.clone());
    let left = tokio::spawn(async move { engine.close().await });
    within(async {
        while !first.engine.is_draining() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gate.add_permits(1);
    within(left).await.unwrap();
    assert_eq!(first.last_run("s").await.state.as_str(), "handed_over");

    let mut other = None;
    let second = open(home.path(), |config: &mut Config| {
        other = Some(tool(&mut config.tools, "work", Effect::Read, true));
    })
    .await;
    let input = second.ended(&input.id).await;
    assert_eq!(input.outcome, Some(Outcome::Completed));
    let after = second.last_run("s").await;
    assert_eq!((after.id, after.generation, after.attempt), (run.id, run.generation, 0));
    assert_eq!(other.unwrap().count(), 0, "the finished call is not run again");
    second.engine.close().await;
}

#[tokio::test]
async fn a_draining_node_takes_no_new_input_and_still_answers_known_ones() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |_| {}).await;
    let input = node.say("s", "r1", "hi").await;
    node.ended(&input.id).await;
    node.engine.drain().await;
    let refused = node.submit("s", "r2", "more", everturn_core::Mode::Queue).await;
    assert!(refused.unwrap_err().to_string().contains("leaving"));
    assert_eq!(node.say("s", "r1", "hi").await.id, input.id);
    node.engine.close().await;
}

#[tokio::test]
async fn two_engines_share_the_queue_of_one_session_without_overlap() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), |_| {}).await;
    let second = open(home.path(), |_| {}).await;
    let mut inputs = Vec::new();
    for number in 0..20 {
        let node = if number % 2 == 0 { &first } else { &second };
        inputs.push(node.say("s", &format!("r{number}"), &format!("n{number}")).await);
    }
    let mut generations = Vec::new();
    for input in &inputs {
        let input = first.ended(&input.id).await;
        assert_eq!(input.outcome, Some(Outcome::Completed));
        generations.push(input.generation.unwrap());
    }
    assert!(generations.is_sorted(), "{generations:?}");
    generations.dedup();
    assert_eq!(generations.len(), 20, "two inputs shared a turn");
    // Turns do not overlap: the feed never shows a start between a start and its end.
    let feed = first.engine.read().feed(&key("s"), 0, 10_000).await.unwrap();
    let mut running = false;
    for event in feed {
        let everturn_store::read::StoredEvent::Good(row) = event else { panic!("{event:?}") };
        match row.head.name.as_str() {
            "run.started" => assert!(!std::mem::replace(&mut running, true)),
            name if everturn_core::event::is_terminal(name) => {
                assert!(std::mem::replace(&mut running, false));
            }
            _ => {}
        }
    }
    first.engine.close().await;
    second.engine.close().await;
}

#[tokio::test]
async fn a_viewer_on_another_node_sees_what_this_one_writes() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), |_| {}).await;
    let second = open(home.path(), |config| config.scope = Scope::Only(key("elsewhere"))).await;
    let (pieces, receiver) = mpsc::channel(8);
    first.model.says(Say::Stream(receiver));
    let mut feed = second.feed("s", Some(0)).await;
    first.say("s", "r1", "hi").await;
    pieces.send("one".to_owned()).await.unwrap();
    assert_eq!(event(&mut feed, "text.delta").await["text"], "one");
    drop(pieces);
    event(&mut feed, "run.completed").await;
    first.engine.close().await;
    second.engine.close().await;
}

#[tokio::test]
async fn a_stop_on_another_node_holds() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), |_| {}).await;
    let second = open(home.path(), |config| config.scope = Scope::Only(key("elsewhere"))).await;
    let (_pieces, receiver) = mpsc::channel(8);
    first.model.says(Say::Stream(receiver));
    let input = first.say("s", "r1", "hi").await;
    first.model.asked(1).await;
    let by = everturn_core::Principal::local();
    second.engine.stop(key("s"), None, None, by, false).await.unwrap();
    assert_eq!(first.ended(&input.id).await.outcome, Some(Outcome::Cancelled));
    first.engine.close().await;
    second.engine.close().await;
}

/// P11: a node that was away for longer than its lease notices at its next renewal which turns were
/// taken from it, whatever else it claimed meanwhile, and ends their tools hard, silent ones too.
#[tokio::test]
async fn a_renewal_notices_every_turn_that_was_taken_over() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let first = open(home.path(), |config: &mut Config| {
        config.lease = std::time::Duration::from_millis(300);
        // Later than the other one's look for leases that ran out (2 s).
        config.renew = std::time::Duration::from_secs(6);
        watch = Some(tool(&mut config.tools, "work", Effect::Read, true));
    })
    .await;
    let watch = watch.unwrap();
    first.model.says(Say::Calls("", vec![("work", "{}")]));
    first.say("a", "r1", "go").await;
    within(watch.began.notified()).await;
    // Its lease runs out; somebody else goes on with the conversation.
    let second = open(home.path(), |config: &mut Config| {
        tool(&mut config.tools, "work", Effect::Read, false);
    })
    .await;
    let mut feed = second.feed("a", Some(0)).await;
    event(&mut feed, "run.completed").await;
    // A claim of its own, with a lease that is fresh.
    let input = first.say("b", "r1", "hi").await;
    assert_eq!(first.ended(&input.id).await.outcome, Some(Outcome::Completed));
    // The tool still waits at its gate, and says nothing.
    within(async {
        while first.engine.turns() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(watch.gate.available_permits(), 0);
    first.engine.close().await;
    second.engine.close().await;
}
