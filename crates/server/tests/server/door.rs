//! The way into a server in the same process, without a socket, and what comes out of it.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::body::Body;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use serde_json::Value;
use tower::ServiceExt as _;

/// A server's routes, and the token that opens them.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    /// Which process it belongs to.
    pub(crate) number: usize,
    pub(crate) router: Router,
    pub(crate) token: String,
}

impl Door {
    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "127.0.0.1")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
    }

    /// Opens a stream.
    pub(crate) async fn open(&self, path: &str, last_event_id: Option<&str>) -> (StatusCode, Body) {
        let mut request = self.request(Method::GET, path).header(ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        (response.status(), response.into_body())
    }

    /// Sends JSON, and answers the bytes that came back.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Vec<u8>) {
        let request = self.request(method, path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, bytes.to_vec())
    }

    /// Sends JSON, and answers the JSON that came back.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let (status, bytes) = self.ask(method, path, body).await;
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

/// How far a history is, for its readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Steps of the history that were done.
    pub(crate) steps: usize,
    /// The last offset of each session, once nothing more will happen.
    pub(crate) ends: Option<BTreeMap<String, u64>>,
    /// Servers of the same store that can be asked.
    pub(crate) doors: Vec<Door>,
    /// Processes whose connections are cut.
    pub(crate) gone: BTreeSet<usize>,
    /// Processes that something happened to: they may refuse, and end streams.
    pub(crate) shaken: BTreeSet<usize>,
}

/// One event as it came over the wire.
pub(crate) struct Wire {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: String,
}

/// What came on one connection and is no complete event yet.
#[derive(Default)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    /// Up to here there is no end of an event.
    searched: usize,
}

impl Bytes {
    /// Takes bytes in, and gives the events that are complete. What is not when the connection is cut
    /// off is dropped with it, as clients do.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Vec<Wire> {
        self.bytes.extend_from_slice(piece);
        let mut events = Vec::new();
        while let Some(end) = self.end() {
            let block = String::from_utf8(self.bytes.drain(..end).collect()).unwrap();
            self.searched = 0;
            let field = |name: &str| {
                let lines = block.lines().filter_map(|line| line.strip_prefix(name));
                let lines: Vec<&str> = lines.collect();
                (!lines.is_empty()).then(|| lines.join("\n"))
            };
            if let Some(name) = field("event: ") {
                let data = field("data: ").expect("an event has data");
                events.push(Wire { id: field("id: "), name, data });
            }
        }
        events
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Where the first block ends, behind its empty line.
    fn end(&mut self) -> Option<usize> {
        let text = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text,
            // A character that is not complete.
            Err(error) => std::str::from_utf8(&self.bytes[..error.valid_up_to()]).unwrap(),
        };
        while let Some(at) = text[self.searched..].find('\n') {
            let next = self.searched + at + 1;
            match text.as_bytes().get(next) {
                Some(b'\n') => return Some(next + 1),
                Some(_) => self.searched = next,
                None => return None,
            }
        }
        self.searched = text.len();
        None
    }
}
