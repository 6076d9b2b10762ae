//! Who gets in, and what they may do (promise P14).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use everturn_core::{Principal, Timestamp, TokenId};
use everturn_server::{Scope, fresh_secret, hash_secret, new_token};
use everturn_store::Store as _;
use reqwest::Method;
use serde_json::{Value, json};

use crate::sse::Events;
use crate::world::{Answer, World};

/// The scope that each route needs. A route that is missing here fails the test below.
const SCOPES: &[(&str, Scope)] = &[
    ("GET /metrics", Scope::Read),
    ("GET /openapi.json", Scope::Read),
    ("GET /readyz", Scope::Read),
    ("GET /v1/events", Scope::Read),
    ("GET /v1/grants", Scope::Read),
    ("GET /v1/info", Scope::Read),
    ("GET /v1/inputs/{id}", Scope::Read),
    ("GET /v1/runs/{id}", Scope::Read),
    ("GET /v1/runs/{id}/events", Scope::Read),
    ("GET /v1/sessions", Scope::Read),
    ("GET /v1/sessions/{id}", Scope::Read),
    ("GET /v1/sessions/{id}/events", Scope::Read),
    ("GET /v1/sessions/{id}/inputs", Scope::Read),
    ("GET /v1/sessions/{id}/messages", Scope::Read),
    ("GET /v1/sessions/{id}/prompts", Scope::Read),
    ("GET /v1/sessions/{id}/turns", Scope::Read),
    ("GET /v1/tasks", Scope::Read),
    ("GET /v1/tasks/{id}", Scope::Read),
    ("GET /v1/tasks/{id}/output", Scope::Read),
    ("POST /v1/sessions", Scope::Submit),
    ("POST /v1/sessions/{id}/completions", Scope::Submit),
    ("POST /v1/sessions/{id}/fork", Scope::Submit),
    ("POST /v1/sessions/{id}/inputs", Scope::Submit),
    ("DELETE /v1/inputs/{id}", Scope::Control),
    ("DELETE /v1/sessions/{id}", Scope::Control),
    ("PATCH /v1/inputs/{id}", Scope::Control),
    ("PATCH /v1/sessions/{id}", Scope::Control),
    ("POST /v1/runs/{id}/stop", Scope::Control),
    ("POST /v1/sessions/{id}/compact", Scope::Control),
    ("POST /v1/sessions/{id}/end", Scope::Control),
    ("POST /v1/sessions/{id}/resolve", Scope::Control),
    ("POST /v1/sessions/{id}/stop", Scope::Control),
    ("POST /v1/tasks/{id}/stop", Scope::Control),
    ("DELETE /v1/grants/{tool}", Scope::Approve),
    ("POST /v1/prompts/{id}/answer", Scope::Approve),
    ("DELETE /v1/tokens/{id}", Scope::Admin),
    ("GET /v1/tokens", Scope::Admin),
    ("POST /v1/admin/drain", Scope::Admin),
    ("POST /v1/tokens", Scope::Admin),
];

/// Routes that anybody may use: the page, the way in, the sign of life.
const PUBLIC: &[&str] = &[
    "GET /",
    "GET /assets/{name}",
    "GET /docs/errors/{code}",
    "GET /healthz",
    "POST /v1/login",
    "POST /v1/logout",
];

async fn ask(world: &World, route: &str) -> Answer {
    let (method, path) = route.split_once(' ').unwrap();
    let path = path.replace("{id}", "x").replace("{name}", "x").replace("{code}", "x");
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    world.send(world.request(method, &path)).await
}

/// P14: every route needs its scope, and no other scope opens it.
#[tokio::test]
async fn every_route_needs_its_scope() {
    let mut world = World::new().await;
    let mut tokens = Vec::new();
    for scope in Scope::ALL {
        tokens.push((*scope, world.token("somebody", &[*scope]).await));
    }
    let all = world.token("somebody", Scope::ALL).await;
    world.show(Some(&all));
    let document = world.get("/openapi.json").await.ok();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            routes.push(format!("{} {path}", method.to_uppercase()));
        }
    }
    let scopes: BTreeMap<&str, Scope> = SCOPES.iter().copied().collect();
    for route in &routes {
        if PUBLIC.contains(&route.as_str()) {
            world.show(None);
            assert_ne!(ask(&world, route).await.status, 401, "{route}");
            continue;
        }
        let needed = *scopes.get(route.as_str()).unwrap_or_else(|| panic!("{route}: which scope?"));
        world.show(None);
        assert_eq!(ask(&world, route).await.refusal(), (401, "unauthorized".to_owned()), "{route}");
        for (scope, token) in &tokens {
            world.show(Some(token));
            let answer = ask(&world, route).await;
            if *scope == needed {
                assert!(
                    !matches!(answer.status, 401 | 403),
                    "{route} with {scope}: {}",
                    answer.text
                );
            } else {
                assert_eq!(
                    answer.refusal(),
                    (403, "forbidden_scope".to_owned()),
                    "{route} {scope}"
                );
                assert!(answer.json()["detail"].as_str().unwrap().contains(needed.as_str()));
            }
        }
    }
    assert_eq!(routes.len(), SCOPES.len() + PUBLIC.len());
}

/// P14: without a token loopback is open; from the first one on nothing is, the last one revoked
/// or not.
#[tokio::test]
async fn the_first_token_closes_the_door_for_good() {
    let mut world = World::new().await;
    assert_eq!(world.get("/v1/info").await.ok()["caller"]["principal"], "local");
    let body = json!({ "principal": "ann", "scopes": ["read", "admin"] });
    let created = world.post("/v1/tokens", body).await;
    assert_eq!(created.status, 201);
    let created = created.json();
    let secret = created["token"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("evt_") && secret.len() >= 47, "{secret}");

    assert_eq!(world.get("/v1/info").await.refusal(), (401, "unauthorized".to_owned()));
    assert!(world.get("/v1/info").await.header("www-authenticate").starts_with("Bearer"));
    assert_eq!(world.get("/healthz").await.status, 200);
    world.show(Some(&secret));
    let info = world.get("/v1/info").await.ok();
    assert_eq!(info["caller"], json!({ "principal": "ann", "scopes": ["read", "admin"] }));
    let list = world.get("/v1/tokens").await.ok();
    assert_eq!(list["data"][0]["id"], created["id"]);
    assert!(!list.to_string().contains(&secret), "a secret is shown once");

    let path = format!("/v1/tokens/{}", created["id"].as_str().unwrap());
    assert_eq!(world.delete(&path).await.status, 204);
    assert_eq!(world.get("/v1/info").await.refusal(), (401, "unauthorized".to_owned()));
    world.show(None);
    assert_eq!(world.get("/v1/info").await.refusal(), (401, "unauthorized".to_owned()));
}

/// P14: a token that somebody else made or revoked counts within a second.
#[tokio::test]
async fn a_token_made_or_revoked_elsewhere_is_seen() {
    let mut world = World::new().await;
    assert_eq!(world.get("/v1/info").await.status, 200);
    let token = world.token("ann", &[Scope::Read]).await;
    let made = Instant::now();
    let id = world.engine.read().tokens().await.unwrap()[0].id.clone();
    world.show(Some(&token));
    assert_eq!(world.get("/v1/info").await.status, 200);
    world.engine.revoke_token(id).await.unwrap();
    until_refused(Instant::now(), async || world.get("/v1/info").await).await;
    world.show(None);
    until_refused(made, async || world.get("/v1/info").await).await;
}

/// Asks until the answer is 401, which it must be for whoever asks a second after the change.
async fn until_refused(changed: Instant, ask: impl AsyncFn() -> Answer) {
    loop {
        let asked = changed.elapsed();
        let answer = ask().await;
        if answer.status == 401 {
            return;
        }
        assert_eq!(answer.status, 200);
        assert!(asked < Duration::from_secs(1), "still welcome after {asked:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn unknown_expired_and_odd_tokens_are_refused() {
    let mut world = World::new().await;
    let now = world.store.clock().now();
    let (mut expired, secret) = new_token(
        TokenId::new("tok_old").unwrap(),
        Principal::new("ann").unwrap(),
        Scope::ALL,
        now,
        Some(Timestamp(now.0 - 1)),
    )
    .unwrap();
    world.engine.create_token(expired.clone()).await.unwrap();
    let refused = (401, "unauthorized".to_owned());
    world.show(Some(&secret));
    assert_eq!(world.get("/v1/info").await.refusal(), refused);
    world.show(Some(&fresh_secret().unwrap()));
    assert_eq!(world.get("/v1/info").await.refusal(), refused);
    world.show(None);
    for odd in ["Basic bG9jYWw6", "Bearer", "Bearer  ", "evt_x", "Bearer a b"] {
        let request = world.request(Method::GET, "/v1/info").header("authorization", odd);
        assert_eq!(world.send(request).await.refusal(), refused, "{odd}");
    }
    // One that has not run out yet works.
    let (later, secret) = {
        expired.id = TokenId::new("tok_new").unwrap();
        let at = Some(now.plus_ms(60_000));
        new_token(expired.id, expired.principal, Scope::ALL, now, at).unwrap()
    };
    world.engine.create_token(later).await.unwrap();
    world.show(Some(&secret));
    assert_eq!(world.get("/v1/info").await.status, 200);
}

/// A wrong token is refused even where none is needed: it was meant to say something.
#[tokio::test]
async fn a_wrong_token_is_not_ignored_while_the_door_is_open() {
    let mut world = World::new().await;
    assert_eq!(world.get("/v1/info").await.status, 200);
    world.show(Some("evt_wrong"));
    assert_eq!(world.get("/v1/info").await.refusal(), (401, "unauthorized".to_owned()));
}

/// The command line of the same home speaks for `local`, tokens or not.
#[tokio::test]
async fn the_key_of_the_home_opens_everything() {
    let key = fresh_secret().unwrap();
    let hash = hash_secret(&key);
    let mut world = World::with(|_, config| config.local_key = Some(hash)).await;
    world.token("ann", &[Scope::Read]).await;
    world.show(Some(&key));
    let caller = world.get("/v1/info").await.ok()["caller"].clone();
    assert_eq!(caller["principal"], "local");
    assert_eq!(caller["scopes"].as_array().unwrap().len(), Scope::ALL.len());
}

/// The use of a token is noted.
#[tokio::test]
async fn the_last_use_of_a_token_is_noted() {
    let mut world = World::new().await;
    let token = world.token("ann", &[Scope::Admin]).await;
    world.show(Some(&token));
    world.when("/v1/tokens", |seen| seen["data"][0]["last_used_at"].is_string()).await;
}

/// P14: two principals may use the same ids and never meet.
#[tokio::test]
async fn principals_never_meet() {
    let mut world = World::new().await;
    let ann = world.token("ann", Scope::ALL).await;
    let bob = world.token("bob", Scope::ALL).await;
    world.show(Some(&ann));
    let receipt = world.say("s", "tool").await;
    let input = receipt["input_id"].as_str().unwrap();
    let prompts = world
        .when("/v1/sessions/s/prompts", |seen| !seen["data"].as_array().unwrap().is_empty())
        .await;
    let prompt = prompts["data"][0]["id"].as_str().unwrap();
    let run = prompts["data"][0]["run_id"].as_str().unwrap();

    world.show(Some(&bob));
    let absent = |code: &str| (404, code.to_owned());
    for (path, code) in [
        ("/v1/sessions/s".to_owned(), "session_not_found"),
        ("/v1/sessions/s/messages".to_owned(), "session_not_found"),
        ("/v1/sessions/s/events".to_owned(), "session_not_found"),
        ("/v1/events?session=s".to_owned(), "session_not_found"),
        (format!("/v1/inputs/{input}"), "input_not_found"),
        (format!("/v1/runs/{run}"), "run_not_found"),
        (format!("/v1/runs/{run}/events"), "run_not_found"),
    ] {
        assert_eq!(world.get(&path).await.refusal(), absent(code), "{path}");
    }
    assert_eq!(world.get("/v1/sessions").await.ok()["data"], json!([]));
    let answer = json!({ "generation": 1, "choice": "once" });
    for (path, body, code) in [
        (format!("/v1/prompts/{prompt}/answer"), answer, "prompt_not_found"),
        (format!("/v1/runs/{run}/stop"), json!({}), "run_not_found"),
        ("/v1/sessions/s/stop".to_owned(), json!({}), "session_not_found"),
        ("/v1/sessions/s/end".to_owned(), json!({}), "session_not_found"),
    ] {
        assert_eq!(world.post(&path, body).await.refusal(), absent(code), "{path}");
    }
    for (path, code) in [
        (format!("/v1/inputs/{input}"), "input_not_found"),
        ("/v1/sessions/s".to_owned(), "session_not_found"),
    ] {
        assert_eq!(world.delete(&path).await.refusal(), absent(code), "{path}");
    }

    // Bob's own session of the same name is another one.
    world.say_and_wait("s", "say mine").await;
    let mine = world.get("/v1/sessions/s").await.ok();
    assert_eq!((&mine["title"], &mine["state"]), (&json!("say mine"), &json!("idle")));
    assert_eq!(world.delete("/v1/sessions/s").await.status, 204);
    world.show(Some(&ann));
    assert_eq!(world.get("/v1/sessions/s").await.ok()["state"], "waiting");
}

/// Allowing a tool answers every question in advance, so that it needs the same scope.
#[tokio::test]
async fn a_rule_that_allows_needs_the_scope_to_approve() {
    let mut world = World::new().await;
    let token = world.token("ann", &[Scope::Read, Scope::Submit, Scope::Control]).await;
    world.show(Some(&token));
    let refused = (403, "forbidden_scope".to_owned());
    let allow = json!({ "id": "s", "policy": { "tools": { "*": "allow" } } });
    assert_eq!(world.post("/v1/sessions", allow).await.refusal(), refused);
    let deny = json!({ "id": "s", "policy": { "tools": { "touch": "deny" } } });
    world.post("/v1/sessions", deny).await.ok();
    let loosen = json!({ "policy": { "tools": { "touch": null } } });
    assert_eq!(world.patch("/v1/sessions/s", loosen).await.refusal(), refused);
}

/// A client that may not submit reads a feed and is no viewer: policy continues turns for viewers.
#[tokio::test]
async fn a_reader_who_may_not_submit_is_no_viewer() {
    let mut world = World::new().await;
    let all = world.token("ann", Scope::ALL).await;
    let reads = world.token("ann", &[Scope::Read]).await;
    world.show(Some(&all));
    world.say_and_wait("s", "say hi").await;
    world.show(Some(&reads));
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    let snapshot = events.until("session.updated").await;
    assert_eq!(snapshot.data["session"]["viewers"], 0);
}

fn cookie_of(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

async fn with_cookie(world: &World, path: &str, cookie: &str) -> Answer {
    world.send(world.request(Method::GET, path).header("cookie", cookie)).await
}

/// The page logs in with a token and from then on shows a cookie.
#[tokio::test]
async fn the_page_logs_in_and_out() {
    let world = World::new().await;
    let token = world.token("ann", &[Scope::Read, Scope::Submit]).await;
    let wrong = world.post("/v1/login", json!({ "token": "evt_wrong" })).await;
    assert_eq!(wrong.refusal(), (401, "unauthorized".to_owned()));
    let answer = world.post("/v1/login", json!({ "token": token })).await;
    assert_eq!(answer.ok(), json!({ "principal": "ann", "scopes": ["read", "submit"] }));
    let set = answer.header("set-cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(set.contains(part), "{set}");
    }
    let cookie = cookie_of(&answer);
    assert!(!cookie.contains(&token), "the token itself is not in it");
    let other = format!("theme=dark; {cookie}; lang=en");
    assert_eq!(with_cookie(&world, "/v1/info", &other).await.ok()["caller"]["principal"], "ann");
    let (_, value) = cookie.split_once('=').unwrap();
    for bad in ["x", &value[1..], &"A".repeat(value.len())] {
        let name = cookie.split_once('=').unwrap().0;
        let refused = with_cookie(&world, "/v1/info", &format!("{name}={bad}")).await;
        assert_eq!(refused.refusal(), (401, "unauthorized".to_owned()));
    }

    let second = cookie_of(&world.post("/v1/login", json!({ "token": token })).await);
    let out = world.request(Method::POST, "/v1/logout").header("cookie", &cookie);
    let out = world.send(out).await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(
        with_cookie(&world, "/v1/info", &cookie).await.status,
        401,
        "a copy is worth nothing"
    );
    assert_eq!(with_cookie(&world, "/v1/info", &second).await.status, 200, "another log-in stays");

    let id = world.engine.read().tokens().await.unwrap()[0].id.clone();
    world.engine.revoke_token(id).await.unwrap();
    // The cookie goes with its token.
    until_refused(Instant::now(), async || with_cookie(&world, "/v1/info", &second).await).await;
}

/// Where the home has a key, a restart logs nobody out; without one, it does.
#[tokio::test]
async fn a_log_in_outlives_the_process_of_a_home_with_a_key() {
    let store = crate::world::memory();
    let key = hash_secret(&fresh_secret().unwrap());
    for (local_key, expected) in [(Some(key), 200), (None, 401)] {
        let mut first = World::on(store.clone(), |_, config| config.local_key = local_key).await;
        let token = first.token("ann", &[Scope::Read]).await;
        let cookie = cookie_of(&first.post("/v1/login", json!({ "token": token })).await);
        first.stop().await;
        let second = World::on(store.clone(), |_, config| config.local_key = local_key).await;
        // The name has the port in it, which a restart would keep.
        let value = cookie.split_once('=').unwrap().1;
        let cookie = format!("everturn_{}={value}", second.addr.port());
        assert_eq!(with_cookie(&second, "/v1/info", &cookie).await.status, expected);
    }
}

/// P14: another site's page gets nothing done and reads nothing, with a cookie or without.
#[tokio::test]
async fn other_sites_are_kept_out() {
    let world = World::new().await;
    let own = format!("http://{}", world.addr);
    let submit = |headers: &[(&str, &str)]| {
        let mut request =
            world.request(Method::POST, "/v1/sessions/s/inputs").json(&json!({ "text": "say hi" }));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        world.send(request)
    };
    assert_eq!(submit(&[("origin", &own)]).await.status, 202);
    assert_eq!(submit(&[("sec-fetch-site", "same-origin")]).await.status, 202);
    let before = world.counts().await;
    let foreign = (403, "forbidden_origin".to_owned());
    for origin in ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1"] {
        assert_eq!(submit(&[("origin", origin)]).await.refusal(), foreign, "{origin}");
    }
    assert_eq!(submit(&[("sec-fetch-site", "cross-site")]).await.refusal(), foreign);
    let host = (403, "forbidden_host".to_owned());
    for name in ["evil.example", "localhost.evil.example:80", "10.1.2.3"] {
        assert_eq!(submit(&[("host", name)]).await.refusal(), host, "{name}");
    }
    let read = world.request(Method::GET, "/v1/sessions").header("host", "evil.example");
    assert_eq!(world.send(read).await.refusal(), host);
    // Not even the open routes answer under another name.
    let page = world.request(Method::GET, "/healthz").header("host", "evil.example");
    assert_eq!(world.send(page).await.refusal(), host);
    assert_eq!(world.counts().await, before);

    // No answer says that another site may read it.
    let answer =
        world.send(world.request(Method::OPTIONS, "/v1/sessions").header("origin", &own)).await;
    assert_eq!(answer.status, 405);
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
}

/// P14: whoever may no longer read is let go, in the middle of a stream.
#[tokio::test]
async fn a_revoked_token_ends_its_streams() {
    let mut world = World::with(|_, config| {
        config.heartbeat = std::time::Duration::from_millis(50);
    })
    .await;
    let token = world.token("ann", Scope::ALL).await;
    world.show(Some(&token));
    world.say_and_wait("s", "say hi").await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    events.through("caught_up").await;
    let id = world.engine.read().tokens().await.unwrap()[0].id.clone();
    world.engine.revoke_token(id).await.unwrap();
    assert_eq!(events.rest().await, []);
}

/// P14: a flood of guesses is slowed down, and keeps nobody out who is known.
#[tokio::test]
async fn guesses_are_limited_and_do_no_harm_to_others() {
    let mut world = World::with(|_, config| {
        (config.unknown_per_s, config.unknown_burst) = (1, 5);
    })
    .await;
    let token = world.token("ann", &[Scope::Read]).await;
    world.show(Some(&token));
    assert_eq!(world.get("/v1/info").await.status, 200);
    let mut limited = None;
    for n in 0..200 {
        let guess = world
            .request(Method::GET, "/v1/info")
            .header("authorization", format!("Bearer evt_{n}"));
        world.show(None);
        let answer = world.send(guess).await;
        if answer.status == 429 {
            limited = Some(answer);
            break;
        }
        assert_eq!(answer.status, 401);
    }
    let limited = limited.expect("two hundred guesses are too many");
    assert_eq!(limited.code(), "rate_limited");
    assert!(limited.header("retry-after").parse::<u32>().unwrap() >= 1);
    world.show(Some(&token));
    assert_eq!(world.get("/v1/info").await.status, 200);
}

/// Nothing of a secret is in any answer about it.
#[tokio::test]
async fn no_answer_repeats_a_secret() {
    let mut world = World::new().await;
    world.token("ann", &[Scope::Read]).await;
    let secret = fresh_secret().unwrap();
    world.show(Some(&secret));
    for answer in [
        world.get("/v1/info").await,
        world.post("/v1/login", json!({ "token": secret })).await,
        world.post("/v1/login", json!({ "token": secret, "more": secret })).await,
    ] {
        assert!(answer.status >= 400);
        assert!(!answer.text.contains(&secret), "{}", answer.text);
        let _: Value = answer.json();
    }
}
