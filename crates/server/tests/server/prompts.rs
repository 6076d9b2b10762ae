//! Prompts: a turn asks, a person answers.

use serde_json::{Value, json};

use crate::world::World;

/// A turn that waits for an approval: its input and its prompt.
async fn asking(world: &World) -> (String, Value) {
    let receipt = world.say("s", "tool").await;
    let open = world
        .when("/v1/sessions/s/prompts", |seen| seen["data"].as_array().unwrap().len() == 1)
        .await;
    (receipt["input_id"].as_str().unwrap().to_owned(), open["data"][0].clone())
}

fn path(prompt: &Value) -> String {
    format!("/v1/prompts/{}/answer", prompt["id"].as_str().unwrap())
}

async fn a_prompt_is_answered_once_and_the_tool_runs(world: World) {
    let (input, prompt) = asking(&world).await;
    assert_eq!(prompt["kind"], "approval");
    assert_eq!(prompt["state"], "open");
    assert_eq!(prompt["choices"], json!(["once", "session", "always", "deny"]));
    assert_eq!(prompt["call"]["name"], "touch");
    assert_eq!(prompt["call"]["arguments"], json!({ "what": "it" }));
    assert_eq!(world.get("/v1/sessions/s").await.ok()["state"], "waiting");

    let stale = world.post(&path(&prompt), json!({ "generation": 9, "choice": "once" })).await;
    assert_eq!(stale.refusal(), (409, "stale_generation".to_owned()));
    let word = world.post(&path(&prompt), json!({ "generation": 1, "choice": "perhaps" })).await;
    assert_eq!(word.refusal(), (400, "bad_request".to_owned()));
    let answer = json!({ "generation": 1, "choice": "once" });
    let settled = world.post(&path(&prompt), answer.clone()).await.ok();
    assert_eq!((&settled["state"], &settled["choice"]), (&json!("settled"), &json!("once")));
    assert_eq!(settled["answered_by"], "local");
    let late = world.post(&path(&prompt), answer).await;
    assert_eq!(late.refusal(), (409, "already_resolved".to_owned()));

    assert_eq!(world.ended(&input).await["outcome"], "completed");
    let settled = world.get("/v1/sessions/s/prompts?state=settled").await.ok();
    assert_eq!(settled["data"].as_array().unwrap().len(), 1);
    let messages = world.get("/v1/sessions/s/messages").await.ok();
    let calls: Vec<_> = messages["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!((&calls[0]["state"], &calls[0]["result"]), (&json!("succeeded"), &json!("touched")));
}

async fn a_denied_call_does_not_run(world: World) {
    let (input, prompt) = asking(&world).await;
    world.post(&path(&prompt), json!({ "generation": 1, "choice": "deny" })).await.ok();
    world.ended(&input).await;
    let messages = world.get("/v1/sessions/s/messages").await.ok();
    assert!(messages.to_string().contains("\"state\":\"denied\""), "{messages}");
}

/// The prompts of a stopped turn are withdrawn, and an answer to one is told so.
async fn a_stopped_turn_withdraws_its_prompts(world: World) {
    let (input, prompt) = asking(&world).await;
    world.post("/v1/sessions/s/stop", json!({})).await.ok();
    assert_eq!(world.ended(&input).await["outcome"], "cancelled");
    let late = world.post(&path(&prompt), json!({ "generation": 1, "choice": "once" })).await;
    assert_eq!(late.refusal(), (410, "expired".to_owned()));
    let withdrawn = world.get("/v1/sessions/s/prompts?state=withdrawn").await.ok();
    assert_eq!(withdrawn["data"].as_array().unwrap().len(), 1);
}

on_both_stores! {
    a_prompt_is_answered_once_and_the_tool_runs
    a_denied_call_does_not_run
    a_stopped_turn_withdraws_its_prompts
}
