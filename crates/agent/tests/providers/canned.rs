//! A server that answers each request with the next of its canned answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures::StreamExt as _;
use serde_json::Value;

/// An answer.
pub(super) struct Canned {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    split: usize,
    end: End,
}

enum End {
    Proper,
    Cut,
    Stall,
}

impl Canned {
    /// A stream with this body.
    pub(super) fn stream(body: &str) -> Self {
        let body = body.as_bytes().to_vec();
        Self { status: 200, headers: vec![], body, split: usize::MAX, end: End::Proper }
    }

    /// A refusal.
    pub(super) fn status(status: u16, body: &Value) -> Self {
        Self { status, ..Self::stream(&body.to_string()) }
    }

    pub(super) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// In HTTP chunks of this many bytes.
    pub(super) fn split(mut self, bytes: usize) -> Self {
        self.split = bytes;
        self
    }

    /// Torn down in the end.
    pub(super) fn cut(mut self) -> Self {
        self.end = End::Cut;
        self
    }

    /// Without an end.
    pub(super) fn stall(mut self) -> Self {
        self.end = End::Stall;
        self
    }

    fn send(self) -> Response {
        let pieces: Vec<std::io::Result<Bytes>> = self
            .body
            .chunks(self.split.max(1))
            .map(|part| Ok(Bytes::copy_from_slice(part)))
            .collect();
        let end = futures::stream::once(async move {
            match self.end {
                End::Proper => Ok(Bytes::new()),
                End::Stall => std::future::pending().await,
                End::Cut => {
                    // Pending once lets the server flush what it has.
                    tokio::task::yield_now().await;
                    Err(std::io::Error::other("cut by the test"))
                }
            }
        });
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(Body::from_stream(futures::stream::iter(pieces).chain(end))).unwrap()
    }
}

/// A request that came.
pub(super) struct Request {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<VecDeque<Canned>>,
    requests: Mutex<Vec<Request>>,
}

/// The server.
pub(super) struct Server {
    pub(super) base: String,
    shared: Arc<Shared>,
}

impl Server {
    pub(super) async fn start(answers: impl IntoIterator<Item = Canned>) -> Self {
        let shared = Arc::new(Shared {
            answers: Mutex::new(answers.into_iter().collect()),
            ..Shared::default()
        });
        let app = axum::Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { base, shared }
    }

    /// The requests that came, taken out.
    pub(super) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body = serde_json::from_slice(&body).unwrap();
    let path = uri.path().to_owned();
    shared.requests.lock().unwrap().push(Request { path, headers, body });
    shared.answers.lock().unwrap().pop_front().unwrap().send()
}
