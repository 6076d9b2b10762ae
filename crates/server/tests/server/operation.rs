//! How the server is: document, health, figures, leaving, mistakes.

use std::sync::Arc;

use async_trait::async_trait;
use everturn_agent::provider::Provider;
use everturn_core::Failure;
use everturn_engine::Models;
use reqwest::Method;
use serde_json::json;

use crate::world::World;

/// The OpenAPI document lists exactly the routes that are answered.
#[tokio::test]
async fn the_document_lists_the_routes() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut routes = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            routes.push(format!("{} {path}", method.to_uppercase()));
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{name} is there twice");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let is_in_path = parameter["in"] == "path";
                let is_session = parameter["name"] == "session";
                assert_eq!(parameter["required"], is_in_path || is_session, "{name} {parameter}");
            }
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("default"), "{method} {path} has problems as well");
            assert!(operation["summary"].is_string(), "{method} {path} says what it does");
        }
    }
    routes.sort_unstable();
    insta::assert_json_snapshot!(routes);
    for route in &routes {
        let (method, path) = route.split_once(' ').unwrap();
        if path == "/v1/admin/drain" {
            continue;
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let path =
            path.replace("{id}", "x").replace("{name}", "app.js").replace("{code}", "bad_id");
        let answer = world.send(world.request(method, &path)).await;
        assert_ne!(answer.status, 405, "{route}");
        assert_ne!(answer.status, 500, "{route}");
        if answer.status == 404 {
            assert!(!answer.text.contains("there is no route"), "{route} is not answered");
        }
    }
    // Every schema that is named is there.
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for piece in text.split("#/components/schemas/").skip(1) {
        let name = piece.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is not described");
    }
}

#[tokio::test]
async fn a_server_says_what_it_is() {
    let world = World::with(|_, config| {
        config.notice = Some("a demonstration".to_owned());
        config.store_kind = "memory".to_owned();
        config.store_schema = Some(7);
    })
    .await;
    let info = world.get("/v1/info").await.ok();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info["model"], "puppet/one");
    assert_eq!(info["notice"], "a demonstration");
    assert_eq!(info["node"], world.engine.node().as_str());
    assert_eq!(info["store"], json!({ "kind": "memory", "schema": 7 }));
    assert_eq!(info["draining"], false);
    assert_eq!(info["limits"]["text_bytes"], 1 << 20);
    assert_eq!(info["limits"]["body_bytes"], 10 << 20);
    assert_eq!(world.get("/healthz").await.ok(), json!({ "status": "ok" }));
    assert_eq!(world.get("/readyz").await.ok(), json!({ "status": "ready" }));
}

/// Figures have names, and hold nothing of anyone's.
#[tokio::test]
async fn figures_are_kept_and_hold_nothing_private() {
    let world = World::new().await;
    world.say_and_wait("a-private-name", "say a-private-word").await;
    world.get("/v1/sessions/a-private-name").await.ok();
    world.get("/a-private-path").await;
    let answer = world.get("/metrics").await;
    assert!(answer.header("content-type").starts_with("text/plain"));
    for name in [
        "everturn_http_requests_total{",
        "everturn_http_request_duration_seconds_bucket{",
        "everturn_inputs_total",
        "everturn_connections",
        "everturn_streams",
        "everturn_turns",
        "everturn_sessions 1",
        "everturn_inputs_queued 0",
        "everturn_runs_unfinished 0",
        "everturn_draining 0",
        "route=\"/v1/sessions/{id}\"",
        "route=\"unmatched\"",
    ] {
        assert!(answer.text.contains(name), "{name} is not in {}", answer.text);
    }
    assert!(!answer.text.contains("private"), "{}", answer.text);
}

/// While a server leaves, reads and controls work, new inputs are sent away, known ones are known.
#[tokio::test]
async fn a_draining_server_answers_and_takes_nothing_new() {
    let world = World::new().await;
    let known = json!({ "text": "say hi", "request_id": "known" });
    let receipt = world.post("/v1/sessions/s/inputs", known.clone()).await.ok();
    world.ended(receipt["input_id"].as_str().unwrap()).await;
    let answer = world.post("/v1/admin/drain", json!({})).await;
    assert_eq!((answer.status, answer.json()["status"].as_str().unwrap()), (202, "draining"));
    world.when("/v1/info", |seen| seen["draining"] == true).await;

    let fresh = world.post("/v1/sessions/s/inputs", json!({ "text": "say more" })).await;
    assert_eq!(fresh.refusal(), (503, "draining".to_owned()));
    assert!(fresh.header("retry-after").parse::<u32>().is_ok());
    assert_eq!(fresh.json()["permanent"], false);
    assert_eq!(world.get("/readyz").await.refusal(), (503, "draining".to_owned()));
    assert_eq!(world.post("/v1/sessions/s/inputs", known).await.ok()["replayed"], true);
    assert_eq!(world.get("/v1/sessions/s").await.status, 200);
    assert_eq!(world.rename("s", "t").await.status, 200);
    assert_eq!(world.get("/healthz").await.status, 200);
}

/// A model that makes the server panic.
struct Broken;

#[async_trait]
impl Models for Broken {
    async fn provider(&self, _: &str) -> Result<Arc<dyn Provider>, Failure> {
        panic!("no provider")
    }
    fn default_model(&self) -> String {
        panic!("a secret that is not for clients")
    }
}

/// A mistake of the server is a typed problem, and the server goes on.
#[tokio::test]
async fn a_panic_is_a_typed_problem() {
    let world = World::with(|config, _| config.models = Arc::new(Broken)).await;
    let answer = world.get("/v1/info").await;
    assert_eq!(answer.refusal(), (500, "internal".to_owned()));
    assert!(!answer.text.contains("secret"));
    assert_eq!(answer.json()["permanent"], false);
    assert_eq!(world.get("/healthz").await.status, 200);
}
