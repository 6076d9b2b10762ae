//! What is named and not built: it says so, after it has checked who asks and what is meant.

use reqwest::Method;
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn what_is_not_built_says_so_with_a_hint() {
    let world = World::new().await;
    world.say_and_wait("s", "say hi").await;
    let before = world.counts().await;
    let refused = (501, "not_implemented".to_owned());
    let get = |path: &str| world.request(Method::GET, path);
    let post = |path: &str| world.request(Method::POST, path).json(&json!({}));
    let input = |mode: &str| {
        world
            .request(Method::POST, "/v1/sessions/s/inputs")
            .json(&json!({ "text": "say hi", "mode": mode }))
    };
    for (name, request) in [
        ("completions", post("/v1/sessions/s/completions")),
        ("fork", post("/v1/sessions/s/fork")),
        ("compact", post("/v1/sessions/s/compact")),
        ("edit", world.request(Method::PATCH, "/v1/inputs/x").json(&json!({ "text": "a" }))),
        ("tasks", get("/v1/tasks")),
        ("task", get("/v1/tasks/x")),
        ("output", get("/v1/tasks/x/output")),
        ("stop", post("/v1/tasks/x/stop")),
        ("steer", input("steer")),
        ("redirect", input("redirect")),
    ] {
        let answer = world.send(request).await;
        assert_eq!(answer.refusal(), refused, "{name}");
        let problem = answer.json();
        assert_eq!(problem["permanent"], true, "{name}");
        assert!(problem["hint"].is_string(), "{name}");
    }
    assert_eq!(world.counts().await, before);
    // What is meant is checked first.
    let absent = world.post("/v1/sessions/nobody/fork", json!({})).await;
    assert_eq!(absent.refusal(), (404, "session_not_found".to_owned()));
    assert_eq!(world.get("/v1/tasks/..%2fx").await.refusal(), (400, "bad_id".to_owned()));
}
