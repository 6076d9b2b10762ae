//! What was allowed for ever can be seen and taken back.

use everturn_sim::client::Client;
use everturn_sim::server::Home;
use serde_json::json;

use crate::support::{QUICK, ended, json, stdout};

/// Asks for the tool in a session of its own, and answers the question if one is put. Whether it was.
async fn asks(client: &Client, session: &str, choice: &str) -> bool {
    let input = client.say(session, "r1", "use the tool").await.unwrap().input_id;
    let was_asked = everturn_sim::wait::until("the end of the turn", || async {
        let prompts = client.get(&format!("/v1/sessions/{session}/prompts")).await?.expect(200)?;
        if let Some(prompt) = prompts["data"].get(0) {
            let path = format!("/v1/prompts/{}/answer", prompt["id"].as_str().unwrap());
            let answer = json!({ "generation": prompt["generation"], "choice": choice });
            client.post(&path, &answer).await?.expect(200)?;
            return Ok(Some(true));
        }
        let input = client.get(&format!("/v1/inputs/{input}")).await?.expect(200)?;
        Ok((input["status"] == "terminal").then_some(false))
    })
    .await
    .unwrap();
    assert_eq!(client.outcome(&input).await.unwrap()["outcome"], "completed");
    was_asked
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_allowed_for_ever_can_be_taken_back() {
    let home = Home::new().unwrap();
    let server = home.serve(&home.script(QUICK).unwrap()).unwrap().start().await.unwrap();
    let client = server.client().unwrap();
    assert_eq!(stdout(&home, &["grant", "list"]).await, "local has allowed no tool for ever\n");

    assert!(asks(&client, "first", "always").await);
    assert!(!asks(&client, "second", "deny").await);
    assert_eq!(stdout(&home, &["grant", "list"]).await, "shell\n");
    assert_eq!(json(&home, &["grant", "list", "--json"]).await, json!([{ "tool": "shell" }]));
    let listed = client.get("/v1/grants").await.unwrap().expect(200).unwrap();
    assert_eq!(listed, json!({ "data": [{ "tool": "shell" }], "has_more": false }));

    // A session that asks by a rule of its own asks, whatever was allowed elsewhere.
    let policy = json!({ "id": "strict", "policy": { "tools": { "shell": "ask" } } });
    client.post("/v1/sessions", &policy).await.unwrap().expect(201).unwrap();
    assert!(asks(&client, "strict", "once").await);

    stdout(&home, &["grant", "revoke", "shell"]).await;
    assert!(asks(&client, "third", "once").await);
    let again = ended(&home, &["grant", "revoke", "shell"]).await;
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("(grant_not_found)"), "{again:?}");
    client.delete("/v1/grants/shell").await.unwrap().expect(404).unwrap();
    let mine = ["grant", "list", "--principal", "a b"];
    assert_eq!(ended(&home, &mine).await.code, Some(2));
}
