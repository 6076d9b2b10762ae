//! Limits: a number, a typed refusal, and what happens behind it (promises P12 and P13).

use std::time::Duration;

use everturn_store::{StorageError, StorageErrorKind};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::sse::{Events, ask};
use crate::world::{PATIENCE, World};

#[tokio::test]
async fn more_requests_than_the_rate_are_refused() {
    let world = World::with(|_, config| {
        (config.rate_per_s, config.rate_burst) = (1, 3);
    })
    .await;
    for _ in 0..3 {
        assert_eq!(world.get("/v1/info").await.status, 200);
    }
    let answer = world.get("/v1/info").await;
    assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
    assert_eq!(answer.json()["permanent"], false);
    assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
    assert_eq!(world.get("/healthz").await.status, 200, "the sign of life is never refused");
}

#[tokio::test]
async fn a_full_queue_takes_nothing_more() {
    let world = World::with(|config, _| config.queue_max = 2).await;
    world.held_turn("s").await;
    let first = world.say("s", "say 1").await;
    world.say("s", "say 2").await;
    let full = world.post("/v1/sessions/s/inputs", json!({ "text": "say 3" })).await;
    assert_eq!(full.refusal(), (429, "queue_full".to_owned()));
    assert!(full.headers.contains_key("retry-after"));
    let again = json!({ "text": "say 1", "request_id": first["request_id"] });
    assert_eq!(world.post("/v1/sessions/s/inputs", again).await.ok()["replayed"], true);
    world.puppet.release();
    world.ended(first["input_id"].as_str().unwrap()).await;
    assert_eq!(world.post("/v1/sessions/s/inputs", json!({ "text": "say 3" })).await.status, 202);
}

#[tokio::test]
async fn a_principal_has_a_limit_of_sessions() {
    let world = World::with(|config, _| config.sessions_max = 2).await;
    world.post("/v1/sessions", json!({ "id": "a" })).await.ok();
    world.say_and_wait("b", "say hi").await;
    let refused = (429, "too_many_sessions".to_owned());
    assert_eq!(world.post("/v1/sessions", json!({ "id": "c" })).await.refusal(), refused);
    let by_input = world.post("/v1/sessions/c/inputs", json!({ "text": "say hi" })).await;
    assert_eq!(by_input.refusal(), refused);
    assert_eq!(world.delete("/v1/sessions/a").await.status, 204);
    world.post("/v1/sessions", json!({ "id": "c" })).await.ok();
}

#[tokio::test]
async fn streams_are_limited_and_places_are_given_back() {
    let world = World::with(|_, config| config.streams_per_principal = 2).await;
    let run = world.say_and_wait("s", "say hi").await["run_id"].as_str().unwrap().to_owned();
    let mut one = Events::open(&world, "/v1/sessions/s/events").await;
    one.through("caught_up").await;
    let mut two = Events::open(&world, "/v1/events?session=s").await;
    two.through("caught_up").await;
    for path in [
        "/v1/sessions/s/events".to_owned(),
        "/v1/events?session=s".to_owned(),
        format!("/v1/runs/{run}/events"),
    ] {
        let answer = ask(&world, &path, &[]).await;
        assert_eq!(answer.status(), 429, "{path}");
        assert!(answer.headers().contains_key("retry-after"));
        let problem: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(problem["code"], "too_many_viewers");
    }
    drop(one);
    while ask(&world, "/v1/sessions/s/events", &[]).await.status() != 200 {
        tokio::task::yield_now().await;
    }
}

/// The limit of the whole server, whoever they are for.
#[tokio::test]
async fn all_streams_together_are_limited() {
    let world = World::with(|_, config| config.streams_max = 2).await;
    world.say_and_wait("s", "say hi").await;
    let mut one = Events::open(&world, "/v1/sessions/s/events").await;
    one.through("caught_up").await;
    let mut two = Events::open(&world, "/v1/sessions/s/events").await;
    two.through("caught_up").await;
    let answer = ask(&world, "/v1/sessions/s/events", &[]).await;
    assert_eq!(answer.status(), 429);
    let problem: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(problem["code"], "too_many_viewers");
    drop(one);
    while ask(&world, "/v1/sessions/s/events", &[]).await.status() != 200 {
        tokio::task::yield_now().await;
    }
}

/// What a request may hold, at the limit and one past it.
#[tokio::test]
async fn each_field_takes_as_much_as_its_limit_and_no_more() {
    let world = World::new().await;
    let bad = (400, "bad_request".to_owned());
    let parts = |count: usize| {
        let parts = vec![json!({ "type": "text", "text": "say" }); count];
        json!({ "content": parts })
    };
    let image = |bytes: usize| {
        let address = format!("https://example.org/{}", "a".repeat(bytes - 20));
        let image = json!({ "type": "image", "media_type": "image/png", "url": address });
        json!({ "content": [{ "type": "text", "text": "say hi" }, image] })
    };
    for (most, more) in [(parts(256), parts(257)), (image(8 << 10), image((8 << 10) + 1))] {
        let answer = world.post("/v1/sessions/s/inputs", most).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert_eq!(world.post("/v1/sessions/s/inputs", more).await.refusal(), bad);
    }
    let model = |chars: usize| json!({ "model": format!("test/{}", "m".repeat(chars - 5)) });
    let answer = world.post("/v1/sessions", model(256)).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(world.post("/v1/sessions", model(257)).await.refusal(), bad);
    let search = |chars: usize| format!("/v1/sessions?q={}", "q".repeat(chars));
    assert_eq!(world.get(&search(500)).await.status, 200);
    assert_eq!(world.get(&search(501)).await.refusal(), bad);
    for (field, most, more) in [("max_attempts", 100, 101), ("window_s", 604_800, 604_801_u64)] {
        let patch = |value: u64| json!({ "policy": { "auto_continue": { (field): value } } });
        world.change("s", patch(most)).await.ok();
        assert_eq!(world.change("s", patch(more)).await.refusal(), bad, "{field}");
    }
    let patch = |seconds: u64| json!({ "policy": { "approval_timeout_s": seconds } });
    world.change("s", patch(1)).await.ok();
    world.change("s", patch(86_400)).await.ok();
    assert_eq!(world.change("s", patch(0)).await.refusal(), bad);
    assert_eq!(world.change("s", patch(86_401)).await.refusal(), bad);
}

/// P13: while there is little space nothing new is taken, and everything else works.
#[tokio::test]
async fn little_space_is_kept_for_what_was_accepted() {
    let store = crate::world::memory();
    let mut before = World::on(store.clone(), |_, _| {}).await;
    let known = world_input(&before).await;
    before.stop().await;
    let world = World::on(store, |_, config| {
        config.data_dir = Some(std::env::temp_dir());
        config.min_free_bytes = u64::MAX;
    })
    .await;
    let full = (507, "storage_full".to_owned());
    let fresh = world.post("/v1/sessions/s/inputs", json!({ "text": "say new" })).await;
    assert_eq!(fresh.refusal(), full);
    assert!(fresh.headers.contains_key("retry-after"));
    assert_eq!(world.post("/v1/sessions", json!({})).await.refusal(), full);
    assert_eq!(
        world
            .patch("/v1/sessions/s", json!({ "title": "t", "expected_revision": 0 }))
            .await
            .refusal(),
        full
    );
    assert_eq!(world.get("/readyz").await.refusal(), full);
    let again = world.post("/v1/sessions/s/inputs", known).await.ok();
    assert_eq!(again["replayed"], true);
    assert_eq!(world.get("/v1/sessions/s/messages").await.status, 200);
    assert_eq!(world.get("/healthz").await.status, 200);
    assert_eq!(world.delete("/v1/sessions/s").await.status, 204, "space can be made");
}

async fn world_input(world: &World) -> serde_json::Value {
    let body = json!({ "text": "say hi", "request_id": "known" });
    let receipt = world.post("/v1/sessions/s/inputs", body.clone()).await.ok();
    world.ended(receipt["input_id"].as_str().unwrap()).await;
    body
}

/// P13: a store that fails is a typed problem, and the process goes on once it is mended.
#[tokio::test]
async fn a_store_that_fails_is_told_and_mended() {
    let world = World::new().await;
    world.say_and_wait("s", "say hi").await;
    for (kind, status, code) in [
        (StorageErrorKind::Full, 507, "storage_full"),
        (StorageErrorKind::Unavailable, 503, "storage_unavailable"),
        (StorageErrorKind::Corrupt, 503, "storage_unavailable"),
        (StorageErrorKind::Replaced, 503, "storage_unavailable"),
    ] {
        let message = "/secret/path/everturn.db: it is bad";
        world.store.set_failure(Some(StorageError::new(kind, message)));
        let submit = world.post("/v1/sessions/s/inputs", json!({ "text": "say more" })).await;
        assert_eq!(submit.refusal(), (status, code.to_owned()));
        assert!(submit.headers.contains_key("retry-after"));
        assert!(!submit.text.contains("secret"), "what is for the operator is in the log");
        assert_eq!(submit.json()["permanent"], false);
        let read = world.get("/v1/sessions/s").await;
        assert_eq!(read.refusal(), (status, code.to_owned()));
        assert_eq!(world.get("/readyz").await.refusal(), (status, code.to_owned()));
        assert_eq!(world.get("/healthz").await.status, 200);
        world.store.set_failure(None);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while world.get("/readyz").await.status != 200 {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        world.say_and_wait("s", "say again").await;
    }
}

/// P13: a stream outlives a store that is away for a moment, and misses nothing.
#[tokio::test]
async fn a_stream_waits_for_a_store_that_is_away() {
    let world = World::with(|_, config| config.heartbeat = Duration::from_millis(20)).await;
    world.say_and_wait("s", "say hi").await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    let at = events.until("caught_up").await.data["at"].as_u64().unwrap();
    let failure = StorageError::new(StorageErrorKind::Unavailable, "away");
    world.store.set_failure(Some(failure));
    // The readiness probe answers from the store: once it fails, so does the stream's next look.
    assert_eq!(world.get("/readyz").await.status, 503);
    world.store.set_failure(None);
    world.say("s", "say more").await;
    let seen = events.through("run.completed").await;
    let offsets: Vec<u64> =
        seen.iter().map(|event| event.data["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, (at + 1..=at + offsets.len() as u64).collect::<Vec<_>>());
}

/// P12: a viewer that does not read is cut off, and holds back nobody.
#[tokio::test]
async fn a_viewer_that_does_not_read_is_cut_off() {
    let world = World::with(|_, config| {
        config.write_timeout = Duration::from_millis(500);
        config.heartbeat = Duration::from_millis(100);
    })
    .await;
    // More than the kernel keeps for both ends.
    let text = format!("say {}", "x".repeat(1_000_000));
    let mut last = String::new();
    for _ in 0..4 {
        let receipt = world.say("s", &text).await;
        last = receipt["input_id"].as_str().unwrap().to_owned();
    }
    world.ended(&last).await;
    let mut deaf = TcpStream::connect(world.addr).await.unwrap();
    deaf.write_all(b"GET /v1/sessions/s/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut begun = [0_u8; 12];
    deaf.read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    world.session_when("s", |seen| seen["viewers"] == 0).await;
    // What the kernel kept is still there; then the connection is over, far from its end.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, deaf.read_to_end(&mut rest)).await.expect("it is cut");
    assert!(rest.len() < 14_000_000, "{} bytes", rest.len());
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    events.through("caught_up").await;
    world.say("s", "say on").await;
    events.until("run.completed").await;
}

/// A silent stream says every now and then that it is alive, and says how often.
#[tokio::test]
async fn a_silent_stream_sends_heartbeats() {
    use futures::StreamExt as _;
    let world = World::with(|_, config| config.heartbeat = Duration::from_millis(20)).await;
    world.say_and_wait("s", "say hi").await;
    let response = ask(&world, "/v1/sessions/s/events", &[]).await;
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    assert!(response.headers()["cache-control"].to_str().unwrap().contains("no-store"));
    let mut bytes = response.bytes_stream();
    let mut seen = String::new();
    while seen.matches(": heartbeat\n\n").count() < 3 {
        seen.push_str(std::str::from_utf8(&bytes.next().await.unwrap().unwrap()).unwrap());
    }
    assert!(seen.starts_with("retry: 1000\n: a heartbeat follows 20ms of silence\n\n"), "{seen}");
}

/// P12: a connection too many waits until another one ends.
#[tokio::test]
async fn a_connection_too_many_waits_for_its_turn() {
    let world = World::with(|_, config| config.connections_max = 1).await;
    let mut first = TcpStream::connect(world.addr).await.unwrap();
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"{\"status\":\"ok\"}") {
            seen.push(stream.read_u8().await.unwrap());
        }
    };
    ask(&mut first).await;
    let second = tokio::spawn(world.request(Method::GET, "/healthz").send());
    for _ in 0..50 {
        ask(&mut first).await;
    }
    assert!(!second.is_finished(), "there is no place for it yet");
    drop(first);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}
