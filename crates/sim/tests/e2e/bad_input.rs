//! Bad input: a typed problem each, never a 500, and nothing of it is stored (P2, P12).

use everturn_sim::client::{Answer, Client};
use everturn_sim::server::Home;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SCRIPT: &str = "[[rule]]\nreply = [{ text = \"Yes.\" }]\n";
const INPUTS: &str = "/v1/sessions/s/inputs";
const JSON: &str = "application/json";

/// What it is, its path, content type and body, and the status and the beginning of the code expected.
type Post = (&'static str, String, &'static str, Vec<u8>, u16, &'static str);

/// A POST with exactly these bytes.
async fn post(client: &Client, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = client.request(Method::POST, path).header("Content-Type", kind).body(body);
    client.send(request).await.unwrap()
}

/// A request as bytes, for what a client library would not send; the whole answer.
async fn raw(client: &Client, request: &[u8], half_closed: bool) -> String {
    let address = client.address();
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).await.unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request).await;
    if half_closed {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_its_code_and_leaves_nothing_behind() {
    let home = Home::new().unwrap();
    let server = home.serve(&home.script(SCRIPT).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let good = client.say("s", "r1", "hello").await.unwrap();
    client.outcome(&good.input_id).await.unwrap();
    let before = state(&client).await;

    let text = |bytes: usize| json!({ "text": "x".repeat(bytes) }).to_string();
    let long_id = "a".repeat(129);
    let posts: Vec<Post> = vec![
        ("broken JSON", INPUTS.into(), JSON, b"{\"text\": \"x\"".to_vec(), 400, "bad_json"),
        ("no JSON at all", INPUTS.into(), JSON, b"hello".to_vec(), 400, "bad_json"),
        ("nothing", INPUTS.into(), JSON, vec![], 400, "bad_json"),
        ("two values", INPUTS.into(), JSON, b"{\"text\":\"x\"} {}".to_vec(), 400, "bad_json"),
        ("a list", INPUTS.into(), JSON, b"[]".to_vec(), 400, "bad_request"),
        (
            "unknown field",
            INPUTS.into(),
            JSON,
            br#"{"text":"x","txt":"y"}"#.to_vec(),
            400,
            "bad_request",
        ),
        ("wrong type", INPUTS.into(), JSON, br#"{"text":7}"#.to_vec(), 400, "bad_request"),
        (
            "the same field twice",
            INPUTS.into(),
            JSON,
            br#"{"text":"x","text":"y"}"#.to_vec(),
            400,
            "bad_request",
        ),
        (
            "text and content",
            INPUTS.into(),
            JSON,
            br#"{"text":"x","content":[{"type":"text","text":"y"}]}"#.to_vec(),
            400,
            "bad_request",
        ),
        (
            "an unknown part",
            INPUTS.into(),
            JSON,
            br#"{"content":[{"type":"smell"}]}"#.to_vec(),
            400,
            "bad_request",
        ),
        ("empty text", INPUTS.into(), JSON, br#"{"text":""}"#.to_vec(), 400, "empty_input"),
        ("white space", INPUTS.into(), JSON, br#"{"text":" \n\t "}"#.to_vec(), 400, "empty_input"),
        ("no text", INPUTS.into(), JSON, b"{}".to_vec(), 400, "bad_request"),
        (
            "unknown mode",
            INPUTS.into(),
            JSON,
            br#"{"text":"x","mode":"shout"}"#.to_vec(),
            400,
            "bad_mode",
        ),
        ("2 MiB of text", INPUTS.into(), JSON, text(2 << 20).into_bytes(), 413, "text_too_large"),
        ("11 MiB of body", INPUTS.into(), JSON, text(11 << 20).into_bytes(), 413, "body_too_large"),
        (
            "invalid UTF-8",
            INPUTS.into(),
            JSON,
            b"{\"text\":\"\xff\xfe\"}".to_vec(),
            400,
            "bad_json",
        ),
        (
            "half a surrogate",
            INPUTS.into(),
            JSON,
            br#"{"text":"\ud800"}"#.to_vec(),
            400,
            "bad_json",
        ),
        (
            "wrong content type",
            INPUTS.into(),
            "text/plain",
            br#"{"text":"x"}"#.to_vec(),
            415,
            "unsupported_media_type",
        ),
        (
            "deep nesting",
            INPUTS.into(),
            JSON,
            format!(r#"{{"text":"x","metadata":{}1{}}}"#, r#"{"a":"#.repeat(500), "}".repeat(500))
                .into_bytes(),
            400,
            "bad_",
        ),
        (
            "bad id",
            "/v1/sessions/a%20b/inputs".into(),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "an id with a dot first",
            "/v1/sessions/.hidden/inputs".into(),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "an id that climbs",
            "/v1/sessions/..%2F..%2Fetc/inputs".into(),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "an id with a NUL",
            "/v1/sessions/a%00b/inputs".into(),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "an id that is too long",
            format!("/v1/sessions/{long_id}/inputs"),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "an id that is no UTF-8",
            "/v1/sessions/%ff/inputs".into(),
            JSON,
            br#"{"text":"x"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "stop of an unknown session",
            "/v1/sessions/nobody/stop".into(),
            JSON,
            b"{}".to_vec(),
            404,
            "session_not_found",
        ),
        (
            "unknown field in a stop",
            "/v1/sessions/s/stop".into(),
            JSON,
            br#"{"gen":1}"#.to_vec(),
            400,
            "bad_request",
        ),
        (
            "a negative generation",
            "/v1/sessions/s/stop".into(),
            JSON,
            br#"{"generation":-1}"#.to_vec(),
            400,
            "bad_request",
        ),
        (
            "answer to no prompt",
            "/v1/prompts/nothing/answer".into(),
            JSON,
            br#"{"generation":1,"choice":"once"}"#.to_vec(),
            404,
            "prompt_not_found",
        ),
        (
            "a taken id",
            "/v1/sessions".into(),
            JSON,
            br#"{"id":"s"}"#.to_vec(),
            409,
            "session_exists",
        ),
        (
            "a session with a bad id",
            "/v1/sessions".into(),
            JSON,
            br#"{"id":"../s"}"#.to_vec(),
            400,
            "bad_id",
        ),
        (
            "a policy that is none",
            "/v1/sessions".into(),
            JSON,
            br#"{"policy":{"tools":{"*":"maybe"}}}"#.to_vec(),
            400,
            "bad_request",
        ),
    ];
    for (what, path, kind, body, status, code) in posts {
        let answer = post(&client, &path, kind, body).await;
        let told = answer.problem(status).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(told.starts_with(code), "{what}: {told}, not {code}");
    }

    let gets = [
        ("an unknown session", "/v1/sessions/nobody", 404, "session_not_found"),
        ("its messages", "/v1/sessions/nobody/messages", 404, "session_not_found"),
        ("its feed", "/v1/sessions/nobody/events?after=0", 404, "session_not_found"),
        ("a negative cursor", "/v1/sessions/s/events?after=-1", 400, "bad_cursor"),
        ("a cursor of 2^63", "/v1/sessions/s/events?after=9223372036854775808", 400, "bad_cursor"),
        ("a cursor of letters", "/v1/sessions/s/events?after=abc", 400, "bad_cursor"),
        ("an unknown run", "/v1/runs/nothing/events", 404, "run_not_found"),
        ("an unknown input", "/v1/inputs/nothing", 404, "input_not_found"),
        ("a page of none", "/v1/sessions/s/messages?limit=0", 400, "bad_request"),
        ("a page of letters", "/v1/sessions/s/messages?limit=many", 400, "bad_request"),
        ("an unknown parameter's value", "/v1/sessions?state=asleep", 400, "bad_request"),
        ("a cursor of another list", "/v1/sessions?cursor=%3F%3F", 400, "bad_cursor"),
        ("no such page", "/v1/nothing", 404, "not_found"),
        ("a path that climbs", "/v1/sessions/..%2f..%2fetc%2fpasswd", 400, "bad_id"),
    ];
    for (what, path, status, code) in gets {
        let answer = client.get(path).await.unwrap();
        let told = answer.problem(status).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(told, code, "{what}");
    }

    let put = client.send(client.request(Method::PUT, INPUTS)).await.unwrap();
    assert_eq!(put.problem(405).unwrap(), "method_not_allowed");
    let with_key = |key: String| {
        let request = client.request(Method::POST, INPUTS).header("Idempotency-Key", key);
        client.send(request.json(&json!({ "text": "x" })))
    };
    for key in [String::new(), "k".repeat(256), "with a blank".to_owned()] {
        assert_eq!(with_key(key).await.unwrap().problem(400).unwrap(), "bad_request_id");
    }
    let request = client.request(Method::POST, INPUTS).header("Idempotency-Key", "one");
    let two_names = request.json(&json!({ "text": "x", "request_id": "two" }));
    let answer = client.send(two_names).await.unwrap();
    assert_eq!(answer.problem(400).unwrap(), "request_id_mismatch");
    let other = client.submit("s", "r1", "something else").await.unwrap();
    assert_eq!(other.problem(409).unwrap(), "input_conflict");

    let host = client.address();
    let host = host.trim_start_matches("http://");
    let huge =
        format!("GET /v1/info HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let answer = raw(&client, huge.as_bytes(), false).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    for garbage in [&b"\x16\x03\x01\x02\x00\x01"[..], b"GET / HTTP/9.9\r\n\r\n", b"hello\r\n\r\n"] {
        let answer = raw(&client, garbage, true).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    // A body that ends early is nobody's input.
    let short = format!(
        "POST {INPUTS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n\r\n{{\"text\":\"x\"}}"
    );
    let address = client.address();
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).await.unwrap();
    stream.write_all(short.as_bytes()).await.unwrap();
    drop(stream);

    assert_eq!(state(&client).await, before, "something of it was stored");
    assert!(!server.process.err.text().contains("panicked"), "{}", server.process.err.text());
}

/// Everything that a client can see of what is stored.
async fn state(client: &Client) -> (serde_json::Value, Vec<serde_json::Value>) {
    let sessions = client.get("/v1/sessions?limit=500").await.unwrap().expect(200).unwrap();
    (sessions, client.messages("s").await.unwrap())
}

/// P12: every limit is a typed refusal, and what was accepted before it stays.
#[tokio::test(flavor = "multi_thread")]
async fn limits_refuse_with_a_code_and_keep_what_was_accepted() {
    let home = Home::new().unwrap();
    // A model that never answers keeps the queue full.
    let script = "[[rule]]\nreply = [{ stall = true }]\n";
    let _server = home
        .serve(&home.script(script).unwrap())
        .unwrap()
        .env("EVERTURN_LIMITS_QUEUE", "3")
        .env("EVERTURN_LIMITS_SESSIONS", "2")
        .start()
        .await
        .unwrap();
    let client = home.client().unwrap();
    let mut taken = 0;
    let refused = loop {
        let answer = client.submit("s", &format!("r{taken}"), "x").await.unwrap();
        if answer.status != 202 {
            break answer;
        }
        taken += 1;
        assert!(taken < 10);
    };
    assert_eq!(refused.problem(429).unwrap(), "queue_full");
    assert!((3..=4).contains(&taken), "{taken}");
    let again = client.submit("s", "r0", "x").await.unwrap().expect(202).unwrap();
    assert_eq!(again["replayed"], true);
    assert_eq!(client.submit("t", "r", "x").await.unwrap().status, 202);
    let third = client.submit("u", "r", "x").await.unwrap();
    assert_eq!(third.problem(429).unwrap(), "too_many_sessions");
    assert_eq!(client.get("/v1/sessions/u").await.unwrap().status, 404);
}

/// P12: too many requests are refused with the time to wait, and nothing else is touched.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_refused_with_the_time_to_wait() {
    let home = Home::new().unwrap();
    let _server = home
        .serve(&home.script(SCRIPT).unwrap())
        .unwrap()
        .env("EVERTURN_LIMITS_RATE", "1")
        .env("EVERTURN_LIMITS_BURST", "5")
        .start()
        .await
        .unwrap();
    let client = home.client().unwrap();
    let mut refused = None;
    for _ in 0..20 {
        let answer = client.get("/v1/info").await.unwrap();
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("twenty requests at once are more than five");
    assert_eq!(refused.problem(429).unwrap(), "rate_limited");
    let wait: u64 = refused.retry_after.unwrap().parse().unwrap();
    assert!((1..=10).contains(&wait), "{wait}");
}
