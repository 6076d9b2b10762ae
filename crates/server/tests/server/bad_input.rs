//! Bad input of every kind: a typed problem each, never a 500, and nothing stored (promise P12).

use std::collections::BTreeMap;

use reqwest::{Body, Method, RequestBuilder};

use crate::world::World;

const JSON: &str = "application/json";

fn inputs(world: &World, session: &str, body: impl Into<Body>) -> RequestBuilder {
    world
        .request(Method::POST, &format!("/v1/sessions/{session}/inputs"))
        .header("content-type", JSON)
        .body(body)
}

fn get(world: &World, path: &str) -> RequestBuilder {
    world.request(Method::GET, path)
}

fn sessions(world: &World, body: &str) -> RequestBuilder {
    world.request(Method::POST, "/v1/sessions").header("content-type", JSON).body(body.to_owned())
}

/// Every request, with a name. The session `s` exists and has had one turn; `run` is its run.
fn requests(world: &World, run: &str) -> Vec<(&'static str, RequestBuilder)> {
    let text = |text: &str| serde_json::json!({ "text": text }).to_string();
    let plain = || inputs(world, "s", text("say hi"));
    let keyed = |key: &str| plain().header("Idempotency-Key", key.to_owned());
    let with = |body: &str| inputs(world, "s", body.to_owned());
    let patch = |body: &str| {
        let request = world.request(Method::PATCH, "/v1/sessions/s");
        request.header("content-type", JSON).body(body.to_owned())
    };
    let stop = |body: &str| {
        let request = world.request(Method::POST, "/v1/sessions/s/stop");
        request.header("content-type", JSON).body(body.to_owned())
    };
    let resolve = |body: &str| {
        let request = world.request(Method::POST, "/v1/sessions/s/resolve");
        request.header("content-type", JSON).body(body.to_owned())
    };
    let big_metadata =
        serde_json::json!({ "text": "a", "metadata": { "k": "v".repeat(65 << 10) } });
    vec![
        ("body: broken JSON", with("{\"text\": ")),
        ("body: empty", with("")),
        ("body: trailing text", with("{\"text\":\"a\"} b")),
        ("body: a list", with("[\"a\"]")),
        ("body: a string", with("\"a\"")),
        ("body: invalid UTF-8", inputs(world, "s", b"{\"text\":\"\xff\xfe\"}".to_vec())),
        ("body: half a surrogate", with("{\"text\":\"\\ud800\"}")),
        ("body: unknown field", with("{\"text\":\"a\",\"txet\":\"b\"}")),
        ("body: wrong type", with("{\"text\":5}")),
        ("body: field twice", with("{\"text\":\"a\",\"text\":\"b\"}")),
        ("body: nothing said", with("{}")),
        ("body: text and content", with("{\"text\":\"a\",\"content\":[]}")),
        ("body: unknown part", with("{\"content\":[{\"type\":\"smell\",\"text\":\"a\"}]}")),
        (
            "body: image without data",
            with("{\"content\":[{\"type\":\"image\",\"media_type\":\"image/png\"}]}"),
        ),
        ("body: metadata is a list", with("{\"text\":\"a\",\"metadata\":[1]}")),
        ("body: metadata too large", with(&big_metadata.to_string())),
        ("body: 11 MiB", inputs(world, "s", vec![b' '; 11 << 20])),
        ("text: empty", inputs(world, "s", text(""))),
        ("text: white space", inputs(world, "s", text(" \n\t\u{2003}"))),
        ("text: 2 MiB", inputs(world, "s", text(&"a".repeat(2 << 20)))),
        ("content: empty", with("{\"content\":[]}")),
        ("mode: unknown", with("{\"text\":\"a\",\"mode\":\"shout\"}")),
        ("type: none", plain_body(world)),
        ("type: text/plain", plain_body(world).header("content-type", "text/plain")),
        (
            "type: latin-1",
            plain_body(world).header("content-type", "application/json; charset=iso-8859-1"),
        ),
        ("key: with a space", keyed("a b")),
        ("key: empty", keyed("")),
        ("key: 256 characters", keyed(&"k".repeat(256))),
        (
            "key: another in the body",
            with("{\"text\":\"a\",\"request_id\":\"one\"}").header("Idempotency-Key", "two"),
        ),
        ("key: bad in the body", with("{\"text\":\"a\",\"request_id\":\"a b\"}")),
        ("id: a path", inputs(world, "..%2fx", text("a"))),
        ("id: hidden", inputs(world, ".hidden", text("a"))),
        ("id: a space", inputs(world, "a%20b", text("a"))),
        ("id: 129 characters", inputs(world, &"x".repeat(129), text("a"))),
        ("id: invalid UTF-8", inputs(world, "%ff%fe", text("a"))),
        ("id: U+0000", inputs(world, "a%00", text("a"))),
        ("id: in a body", sessions(world, "{\"id\":\"../x\"}")),
        ("id: of an input", get(world, "/v1/inputs/..%2f..%2fetc")),
        ("unknown: route", get(world, "/v1/nothing")),
        ("unknown: session", get(world, "/v1/sessions/nobody")),
        ("unknown: session's messages", get(world, "/v1/sessions/nobody/messages")),
        ("unknown: session's feed", get(world, "/v1/sessions/nobody/events")),
        ("unknown: input", get(world, "/v1/inputs/nobody")),
        ("unknown: run", get(world, "/v1/runs/nobody")),
        ("unknown: run's journal", get(world, "/v1/runs/nobody/events")),
        (
            "unknown: prompt",
            world
                .request(Method::POST, "/v1/prompts/nobody/answer")
                .json(&serde_json::json!({ "generation": 1, "choice": "once" })),
        ),
        ("method: PUT", world.request(Method::PUT, "/v1/sessions/s")),
        ("method: TRACE", world.request(Method::TRACE, "/v1/sessions")),
        ("cursor: abc", get(world, "/v1/sessions/s/events?after=abc")),
        ("cursor: negative", get(world, "/v1/sessions/s/events?after=-1")),
        ("cursor: 2^63", get(world, "/v1/sessions/s/events?after=9223372036854775808")),
        ("cursor: empty", get(world, "/v1/sessions/s/events?after=")),
        (
            "cursor: Last-Event-ID",
            get(world, "/v1/sessions/s/events").header("Last-Event-ID", "abc"),
        ),
        ("cursor: run, abc", get(world, &format!("/v1/runs/{run}/events?after=abc"))),
        (
            "cursor: run, streamed, abc",
            get(world, &format!("/v1/runs/{run}/events?after=abc"))
                .header("accept", "text/event-stream"),
        ),
        ("cursor: run, max", get(world, &format!("/v1/runs/{run}/events?max=-1"))),
        ("cursor: run, ahead", get(world, &format!("/v1/runs/{run}/events?after=999"))),
        ("cursor: run, another's", get(world, &format!("/v1/runs/{run}/events?after=run_x:1"))),
        (
            "cursor: run, 2^63",
            get(world, &format!("/v1/runs/{run}/events"))
                .header("Last-Event-ID", format!("{run}:9223372036854775808")),
        ),
        ("cursor: many", get(world, "/v1/events?session=s&after=abc")),
        ("cursor: list", get(world, "/v1/sessions?cursor=abc")),
        ("cursor: messages", get(world, "/v1/sessions/s/messages?before=x")),
        ("cursor: turns", get(world, "/v1/sessions/s/turns?before=-3")),
        ("page: zero", get(world, "/v1/sessions?limit=0")),
        ("page: 501", get(world, "/v1/sessions/s/messages?limit=501")),
        ("page: both ways", get(world, "/v1/sessions/s/messages?before=1&after=1")),
        ("query: unknown", get(world, "/v1/sessions?color=red")),
        ("query: state", get(world, "/v1/sessions?state=tired")),
        ("query: status", get(world, "/v1/sessions/s/inputs?status=lost")),
        ("query: wait", get(world, "/v1/inputs/x?wait=61")),
        ("query: no session", get(world, "/v1/events")),
        ("query: viewer of another", get(world, "/v1/events?session=s&viewer=t")),
        ("accept: JSON of a feed", get(world, "/v1/sessions/s/events").header("accept", JSON)),
        ("session: taken", sessions(world, "{\"id\":\"s\"}")),
        ("session: title", sessions(world, &format!("{{\"title\":\"{}\"}}", "t".repeat(501)))),
        ("session: model", sessions(world, "{\"model\":\"gpt\"}")),
        (
            "session: system",
            sessions(world, &format!("{{\"system\":\"{}\"}}", "s".repeat(257 << 10))),
        ),
        ("session: policy", sessions(world, "{\"policy\":{\"approval_timeout_s\":0}}")),
        ("session: policy list", sessions(world, "{\"policy\":[]}")),
        ("body: part list", with("{\"content\":[[\"text\",\"hi\"]]}")),
        ("session: policy word", sessions(world, "{\"policy\":{\"tools\":{\"a\":\"maybe\"}}}")),
        ("session: policy field", sessions(world, "{\"policy\":{\"tool\":{}}}")),
        ("session: metadata", sessions(world, "{\"metadata\":5}")),
        ("change: revision", patch("{\"title\":\"t\",\"expected_revision\":99}")),
        ("change: unknown field", patch("{\"state\":\"ended\"}")),
        (
            "delete: generation",
            world.request(Method::DELETE, "/v1/sessions/s?expected_generation=9"),
        ),
        ("delete: force", world.request(Method::DELETE, "/v1/sessions/s?force=perhaps")),
        ("stop: nothing runs", stop("{}")),
        ("stop: queue", stop("{\"queue\":\"maybe\"}")),
        ("resolve: nothing interrupted", resolve("{\"generation\":1,\"decision\":\"continue\"}")),
        ("resolve: decision", resolve("{\"generation\":1,\"decision\":\"shrug\"}")),
        ("resolve: no generation", resolve("{\"decision\":\"discard\"}")),
        (
            "answer: nothing",
            world
                .request(Method::POST, "/v1/prompts/p/answer")
                .json(&serde_json::json!({ "generation": 1 })),
        ),
    ]
}

/// A good body without a type.
fn plain_body(world: &World) -> RequestBuilder {
    world.request(Method::POST, "/v1/sessions/s/inputs").body("{\"text\":\"say hi\"}")
}

/// P12: each kind of bad input is a typed problem, and leaves nothing behind.
#[tokio::test]
async fn every_bad_input_is_a_typed_problem_and_stores_nothing() {
    let world = World::new().await;
    let input = world.say_and_wait("s", "say hi").await;
    let run = input["run_id"].as_str().unwrap().to_owned();
    let before = (world.counts().await, world.get("/v1/sessions/s").await.json());

    let mut seen = BTreeMap::new();
    let requests = requests(&world, &run);
    let count = requests.len();
    assert!(count >= 30);
    for (name, request) in requests {
        let answer = world.send(request).await;
        assert!((400..500).contains(&answer.status), "{name}: {} {}", answer.status, answer.text);
        answer.code();
        let problem = answer.json();
        // Ids that the server made differ from run to run.
        let detail = problem["detail"].as_str().unwrap().replace(&run, "RUN");
        let said = format!("{} {}: {detail}", answer.status, problem["code"].as_str().unwrap());
        assert!(seen.insert(name, said).is_none(), "{name} stands there twice");
    }
    assert_eq!(seen.len(), count);
    insta::assert_json_snapshot!(seen);
    let after = (world.counts().await, world.get("/v1/sessions/s").await.json());
    assert_eq!(before, after);
}

/// A problem in full: what a client gets to see.
#[tokio::test]
async fn a_problem_says_what_happened_and_what_to_do() {
    let world = World::new().await;
    let body = serde_json::json!({ "text": "say hi", "mode": "shout" });
    let answer = world.post("/v1/sessions/s/inputs", body).await;
    insta::assert_json_snapshot!(answer.json());
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let world = World::new().await;
    let answer = world.send(world.request(Method::PUT, "/v1/sessions/s")).await;
    assert_eq!(answer.refusal(), (405, "method_not_allowed".to_owned()));
    let mut allowed: Vec<&str> = answer.header("allow").split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PATCH"]);
}

/// A path is taken as it is sent: no dots in it lead anywhere.
#[tokio::test]
async fn dots_in_a_path_lead_nowhere() {
    let world = World::new().await;
    world.say_and_wait("s", "say hi").await;
    for (path, refusal) in [
        ("/v1/sessions/..", (400, "bad_id")),
        ("/v1/sessions/../messages", (400, "bad_id")),
        ("/v1/sessions/%2e%2e/messages", (400, "bad_id")),
        ("/v1/sessions/s/../s", (404, "not_found")),
        ("/assets/%2e%2e", (400, "bad_id")),
        ("/assets/../index.html", (404, "not_found")),
        ("/../etc/passwd", (404, "not_found")),
        ("//v1/sessions", (404, "not_found")),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let answer = world.raw(request.as_bytes()).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()), "{path}");
    }
}
