//! `ask_user`: the model asks, durably; silence is neither consent nor denial.

use everturn_agent::tool::AskUser;
use everturn_core::{Outcome, Principal, PromptId, PromptState};
use everturn_engine::engine::NewSession;
use everturn_engine::{Asking, Config, Scope};

use crate::bench::{Node, Say, event, key, killed, open};

const ASK: &str = r#"{"question":"Which colour?","choices":["red","blue"]}"#;

fn asks(config: &mut Config) {
    config.tools.add(AskUser::default());
}

/// The first prompt that was opened behind a place in the feed.
async fn asked(node: &Node, after: u64) -> (PromptId, u64, serde_json::Value) {
    let mut feed = node.feed("s", Some(after)).await;
    let prompt = event(&mut feed, "prompt.opened").await["prompt"].clone();
    let id = PromptId::new(prompt["id"].as_str().unwrap()).unwrap();
    (id, prompt["generation"].as_u64().unwrap(), prompt)
}

/// State and result of the last call.
async fn outcome(node: &Node) -> (String, String) {
    let rows = node.transcript("s").await;
    let call = rows.iter().flat_map(|row| &row.tool_calls).next_back().unwrap();
    (call.state.to_string(), call.result.clone().unwrap_or_default())
}

async fn answer(node: &Node, prompt: PromptId, generation: u64, text: &str) {
    let text = Some(text.to_owned());
    node.engine.answer(Principal::local(), prompt, generation, None, text).await.unwrap();
}

#[tokio::test]
async fn what_the_person_answers_is_the_calls_result() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), asks).await;
    node.model.says(Say::Calls("", vec![("ask_user", ASK)]));
    let input = node.say("s", "r1", "paint it").await;
    let (id, generation, prompt) = asked(&node, 0).await;
    assert_eq!(
        (&prompt["kind"], &prompt["question"]),
        (&"clarification".into(), &"Which colour?".into())
    );
    assert_eq!(prompt["suggestions"], serde_json::json!(["red", "blue"]));
    assert_eq!(prompt["choices"], serde_json::json!([]));
    let view = node.engine.read().session(&key("s")).await.unwrap().unwrap();
    assert_eq!(view.running.unwrap().state.as_str(), "waiting");
    let (stored, _) = node.engine.read().prompt(&id).await.unwrap().unwrap();
    assert_eq!(stored.expires_at.since_ms(stored.opened_at), 3_600_000);
    answer(&node, id, generation, "green, please").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(outcome(&node).await, ("succeeded".into(), "green, please".into()));
    assert!(format!("{:?}", node.model.request(1).messages).contains("green, please"));
    node.engine.close().await;
}

#[tokio::test]
async fn silence_is_told_to_the_model_as_what_it_is() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), asks).await;
    let mut new = NewSession::default();
    new.policy.clarification_timeout_s = 1;
    node.engine.create_session(key("s"), new).await.unwrap();
    node.model.says(Say::Calls("", vec![("ask_user", ASK)]));
    let input = node.say("s", "r1", "paint it").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let (state, result) = outcome(&node).await;
    assert_eq!(state, "not_run");
    assert!(
        result.contains("Nobody answered within 1 s")
            && result.contains("neither consent nor denial"),
        "{result}"
    );
    node.engine.close().await;
}

#[tokio::test]
async fn where_nobody_can_be_asked_the_model_is_told_so_at_once() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config| {
        asks(config);
        config.asking = Asking::Deny;
    })
    .await;
    node.model.says(Say::Calls("", vec![("ask_user", ASK), ("ask_user", r#"{"question":""}"#)]));
    let input = node.say("s", "r1", "paint it").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let rows = node.transcript("s").await;
    let calls: Vec<_> = rows.iter().flat_map(|row| row.tool_calls.clone()).collect();
    assert!(calls[0].result.as_ref().unwrap().contains("Nobody can be asked here"), "{calls:?}");
    // What asks nothing is the model's mistake, and it is told which.
    assert_eq!(calls[1].state.as_str(), "failed");
    assert!(calls[1].result.as_ref().unwrap().contains("`question`"), "{calls:?}");
    let open = node.engine.read().prompts(&key("s"), PromptState::Expired, None, 10).await.unwrap();
    assert!(open.is_empty());
    node.engine.close().await;
}

#[tokio::test]
async fn a_stop_withdraws_the_question() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), asks).await;
    node.model.says(Say::Calls("", vec![("ask_user", ASK)]));
    let input = node.say("s", "r1", "paint it").await;
    let (id, generation, _) = asked(&node, 0).await;
    node.engine.stop(key("s"), None, None, Principal::local(), false).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Cancelled));
    let text = Some("red".to_owned());
    let late = node.engine.answer(Principal::local(), id, generation, None, text).await;
    assert!(late.unwrap_err().to_string().contains("no longer open"));
    node.engine.close().await;
}

/// A leaving node hands the waiting turn over: the question stays the same one.
#[tokio::test]
async fn a_question_outlives_the_node_that_put_it() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), asks).await;
    node.model.says(Say::Calls("", vec![("ask_user", ASK)]));
    let input = node.say("s", "r1", "paint it").await;
    let (id, generation, _) = asked(&node, 0).await;
    node.engine.close().await;
    let node = open(home.path(), asks).await;
    answer(&node, id, generation, "blue").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(outcome(&node).await, ("succeeded".into(), "blue".into()));
    let prompts =
        node.engine.read().prompts(&key("s"), PromptState::Settled, None, 10).await.unwrap();
    assert_eq!(prompts.len(), 1);
    node.engine.close().await;
}

/// After a crash the question is withdrawn, and the continuation asks it anew: asking changes
/// nothing. What the person had answered by then is not asked again.
#[test]
fn after_a_crash_the_question_is_put_again_unless_it_was_answered() {
    for answered in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let put = killed(home.path(), asks, async |node: &Node| {
            node.model.says(Say::Calls("", vec![("ask_user", ASK), ("ask_user", ASK)]));
            node.say("s", "r1", "paint it").await;
            let (id, generation, prompt) = asked(node, 0).await;
            if answered {
                answer(node, id.clone(), generation, "red").await;
                // The second question shows that the first one's answer was taken.
                let offset = prompt["offset"].as_u64().unwrap_or(0);
                let mut feed = node.feed("s", Some(offset)).await;
                event(&mut feed, "prompt.settled").await;
                event(&mut feed, "prompt.opened").await;
            }
            id
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let node = open(home.path(), asks).await;
            let mut feed = node.feed("s", Some(0)).await;
            event(&mut feed, "run.interrupted").await;
            let (old, _) = node.engine.read().prompt(&put).await.unwrap().unwrap();
            let state = if answered { PromptState::Settled } else { PromptState::Withdrawn };
            assert_eq!(old.state, state);
            let mut open = 0;
            // One prompt after the other, each of the continuation.
            while open < if answered { 1 } else { 2 } {
                let prompt = event(&mut feed, "prompt.opened").await["prompt"].clone();
                assert_eq!(prompt["generation"], 2);
                let id = PromptId::new(prompt["id"].as_str().unwrap()).unwrap();
                answer(&node, id, 2, "blue").await;
                open += 1;
            }
            event(&mut feed, "run.completed").await;
            let rows = node.transcript("s").await;
            let calls: Vec<_> = rows.iter().flat_map(|row| row.tool_calls.clone()).collect();
            let results: Vec<_> = calls.iter().map(|call| call.result.clone().unwrap()).collect();
            assert_eq!(results, [if answered { "red" } else { "blue" }, "blue"]);
            node.engine.close().await;
        });
    }
}

/// An answer that came when nobody waited for it any more is not lost: nobody is asked again.
#[test]
fn an_answer_outlives_the_node_that_waited_for_it() {
    let home = tempfile::tempdir().unwrap();
    let (id, generation) = killed(home.path(), asks, async |node: &Node| {
        node.model.says(Say::Calls("", vec![("ask_user", ASK)]));
        node.say("s", "r1", "paint it").await;
        let (id, generation, _) = asked(node, 0).await;
        (id, generation)
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // A process that takes answers and works on nothing of this.
        let other = open(home.path(), |config| config.scope = Scope::Only(key("t"))).await;
        answer(&other, id, generation, "red").await;
        other.engine.close().await;
        let node = open(home.path(), asks).await;
        let mut feed = node.feed("s", Some(0)).await;
        event(&mut feed, "run.completed").await;
        assert_eq!(outcome(&node).await, ("succeeded".into(), "red".into()));
        let settled =
            node.engine.read().prompts(&key("s"), PromptState::Settled, None, 9).await.unwrap();
        assert_eq!(settled.len(), 1);
        node.engine.close().await;
    });
}
