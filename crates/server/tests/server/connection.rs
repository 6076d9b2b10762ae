//! What comes over a raw socket: requests that are none, and peers that are slow.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::world::{World, read_answer};

/// Headers that are too large are a typed problem, however large they are.
#[tokio::test]
async fn huge_headers_are_a_typed_problem() {
    let world = World::new().await;
    for bytes in [33 << 10, 60 << 10, 100 << 10, 1 << 20, 3 << 20] {
        let request = format!(
            "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-big: {}\r\n\r\n",
            "a".repeat(bytes)
        );
        let answer = world.raw(request.as_bytes()).await;
        assert_eq!(answer.refusal(), (431, "headers_too_large".to_owned()), "{bytes} bytes");
    }
    let many: String = (0..500).map(|n| format!("x-{n}: a\r\n")).collect();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{many}\r\n");
    assert_eq!(world.raw(request.as_bytes()).await.code(), "headers_too_large");
    let path = "a".repeat(40 << 10);
    let request = format!("GET /{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert_eq!(world.raw(request.as_bytes()).await.code(), "headers_too_large");
    let fits = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-big: {}\r\n\r\n",
        "a".repeat(30 << 10)
    );
    assert_eq!(world.raw(fits.as_bytes()).await.status, 200);
}

/// What is no request at all is answered as one that is bad.
#[tokio::test]
async fn what_is_no_request_is_a_typed_problem() {
    let world = World::new().await;
    for bytes in [
        &b"nonsense\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello, tls\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    ] {
        let answer = world.raw(bytes).await;
        assert_eq!(answer.refusal(), (400, "bad_request".to_owned()), "{}", bytes.escape_ascii());
    }
}

/// An answer that looks like one of the library's own is left alone while a request is answered.
#[tokio::test]
async fn what_a_model_says_is_never_taken_for_an_answer() {
    let world = World::new().await;
    let fake = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    world.say_and_wait("s", &format!("say {fake}")).await;
    let messages = world.get("/v1/sessions/s/messages").await.ok();
    assert_eq!(messages["data"][1]["text"], fake);
}

#[tokio::test]
async fn a_request_without_a_host_is_refused() {
    let world = World::new().await;
    for head in ["GET /healthz HTTP/1.1\r\nconnection: close\r\n", "GET /healthz HTTP/1.0\r\n"] {
        let answer = world.raw(format!("{head}\r\n").as_bytes()).await;
        assert_eq!(answer.refusal(), (403, "forbidden_host".to_owned()), "{head}");
    }
    let absolute = b"GET http://evil.example/healthz HTTP/1.1\r\nhost: localhost\r\n\
                     connection: close\r\n\r\n";
    assert_eq!(world.raw(absolute).await.code(), "forbidden_host");
}

/// A body larger than the limit is refused whether it is announced or not, and the client gets to
/// read why.
#[tokio::test]
async fn a_large_body_is_refused_and_the_client_learns_why() {
    let world = World::new().await;
    let before = world.counts().await;
    let announced = world
        .request(Method::POST, "/v1/sessions/s/inputs")
        .header("content-type", "application/json")
        .body(vec![b' '; 20 << 20]);
    assert_eq!(world.send(announced).await.refusal(), (413, "body_too_large".to_owned()));
    let pieces = futures::stream::iter(
        (0..20).map(|_| Ok::<_, std::convert::Infallible>(vec![b' '; 1 << 20])),
    );
    let streamed = world
        .request(Method::POST, "/v1/sessions/s/inputs")
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(pieces));
    assert_eq!(world.send(streamed).await.refusal(), (413, "body_too_large".to_owned()));
    assert_eq!(world.counts().await, before);

    // The largest that is allowed is read to its end.
    let mut body = br#"{"text":"say hi"}"#.to_vec();
    body.resize(10 << 20, b' ');
    let most = world
        .request(Method::POST, "/v1/sessions/s/inputs")
        .header("content-type", "application/json")
        .body(body);
    assert_eq!(world.send(most).await.status, 202);
}

/// A peer that begins a request and does not end it holds nothing for long.
#[tokio::test]
async fn slow_requests_run_out_of_time() {
    let world = World::with(|_, config| config.read_timeout = Duration::from_millis(200)).await;
    let mut slow = TcpStream::connect(world.addr).await.unwrap();
    slow.write_all(
        b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
          content-length: 100\r\nconnection: close\r\n\r\n{\"title\":",
    )
    .await
    .unwrap();
    let answer = read_answer(&mut slow).await;
    assert_eq!(answer.refusal(), (408, "request_timeout".to_owned()));

    let mut slow = TcpStream::connect(world.addr).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.unwrap();
    let mut seen = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut slow, &mut seen);
    tokio::time::timeout(crate::world::PATIENCE, read).await.expect("it is closed").unwrap();
}

/// A client that goes away in the middle of a body leaves nothing behind.
#[tokio::test]
async fn a_body_that_breaks_off_stores_nothing() {
    let world = World::new().await;
    world.say_and_wait("s", "say hi").await;
    let before = world.counts().await;
    let mut stream = TcpStream::connect(world.addr).await.unwrap();
    let body = json!({ "text": "say half" }).to_string();
    let request = format!(
        "POST /v1/sessions/s/inputs HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
        body.len(),
        &body[..body.len() - 1]
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut seen = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut seen);
    tokio::time::timeout(crate::world::PATIENCE, read).await.expect("it is closed").unwrap();
    assert_eq!(world.counts().await, before);
}
