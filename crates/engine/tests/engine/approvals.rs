//! Approvals: durable questions; the first settlement wins; silence is neither yes nor no.

use everturn_core::{Choice, Effect, Outcome, Principal, PromptId};
use everturn_engine::{Asking, Config};

use crate::bench::{Node, Say, event, key, open, tool};

async fn asked(node: &Node) -> (PromptId, u64) {
    let mut feed = node.feed("s", Some(0)).await;
    let opened = event(&mut feed, "prompt.opened").await;
    let prompt = &opened["prompt"];
    (PromptId::new(prompt["id"].as_str().unwrap()).unwrap(), prompt["generation"].as_u64().unwrap())
}

#[tokio::test]
async fn once_runs_this_call_and_asks_again_for_the_next() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
    })
    .await;
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let input = node.say("s", "r1", "go").await;
    let (prompt, generation) = asked(&node).await;
    let by = Principal::local;
    let stale = node.engine.answer(by(), prompt.clone(), generation + 1, Some(Choice::Once), None);
    assert!(stale.await.is_err());
    assert_eq!(watch.as_ref().unwrap().count(), 0);
    node.engine.answer(by(), prompt.clone(), generation, Some(Choice::Once), None).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 1);
    let late = node.engine.answer(by(), prompt, generation, Some(Choice::Deny), None).await;
    assert!(late.unwrap_err().to_string().contains("already"));
    node.engine.close().await;
}

#[tokio::test]
async fn a_denial_is_told_to_the_model_and_nothing_runs() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
    })
    .await;
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let input = node.say("s", "r1", "go").await;
    let (prompt, generation) = asked(&node).await;
    let word = Some("not today".to_owned());
    node.engine
        .answer(Principal::local(), prompt, generation, Some(Choice::Deny), word)
        .await
        .unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 0);
    assert!(format!("{:?}", node.model.request(1).messages).contains("not today"));
    node.engine.close().await;
}

#[tokio::test]
async fn session_and_always_are_remembered_where_they_say() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
    })
    .await;
    node.model.says(Say::Calls("", vec![("wipe", "{}"), ("wipe", "{}")]));
    let input = node.say("s", "r1", "go").await;
    let (prompt, generation) = asked(&node).await;
    node.engine
        .answer(Principal::local(), prompt, generation, Some(Choice::Always), None)
        .await
        .unwrap();
    // The second call of the step does not ask again, nor does another session.
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let other = node.say("t", "r1", "go").await;
    assert_eq!(node.ended(&other.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 3);
    node.engine.close().await;
}

#[tokio::test]
async fn silence_is_a_timeout_and_the_call_does_not_run() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
    })
    .await;
    let mut new = everturn_engine::engine::NewSession::default();
    new.policy.approval_timeout_s = 1;
    node.engine.create_session(key("s"), new).await.unwrap();
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 0);
    let rows = node.transcript("s").await;
    assert_eq!(rows[1].tool_calls[0].state.as_str(), "not_run");
    node.engine.close().await;
}

#[tokio::test]
async fn where_nobody_can_be_asked_a_tool_that_asks_is_denied_unless_opened() {
    let home = tempfile::tempdir().unwrap();
    let (mut wipe, mut write) = (None, None);
    let node = open(home.path(), |config: &mut Config| {
        wipe = Some(tool(&mut config.tools, "wipe", Effect::Write, false));
        write = Some(tool(&mut config.tools, "write", Effect::Write, false));
        config.asking = Asking::Deny;
        config.allowed_tools.insert("write".to_owned());
    })
    .await;
    node.model.says(Say::Calls("", vec![("wipe", "{}"), ("write", "{}")]));
    let input = node.say("s", "r1", "go").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!((wipe.unwrap().count(), write.unwrap().count()), (0, 1));
    node.engine.close().await;
}

#[tokio::test]
async fn a_stop_withdraws_the_question() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        tool(&mut config.tools, "wipe", Effect::Write, false);
    })
    .await;
    node.model.says(Say::Calls("", vec![("wipe", "{}")]));
    let input = node.say("s", "r1", "go").await;
    let (prompt, generation) = asked(&node).await;
    let by = Principal::local;
    node.engine.stop(key("s"), None, None, by(), false).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Cancelled));
    let late = node.engine.answer(by(), prompt, generation, Some(Choice::Once), None).await;
    assert!(late.unwrap_err().to_string().contains("no longer open"));
    node.engine.close().await;
}
