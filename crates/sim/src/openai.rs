//! A server that speaks OpenAI's chat completions, for tests.
//!
//! It is a real HTTP server on 127.0.0.1. What it answers is programmed, request by request: text
//! in pieces with delays, tool calls, refusals, silence, a cut connection, a gate that the test
//! opens. And it is strict where real servers are: a conversation that breaks the protocol's rules
//! is answered with 400 and kept among [`OpenAi::violations`].
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use everturn_sim::openai::{OpenAi, Reply};
//!
//! let server = OpenAi::start().await?;
//! server.push(Reply::status(429).header("retry-after", "1"));
//! server.push(Reply::new().text("Let me look. ").call("call_1", "list_files", "{}"));
//! server.push(Reply::new().pieces(["Two ", "files."]).usage(12, 3));
//! // … set OPENAI_BASE_URL to server.base_url(), OPENAI_API_KEY to anything, and talk.
//! assert!(server.violations().is_empty());
//! # Ok(()) }
//! ```

mod line;
mod reply;
mod rules;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use reply::{Gate, Reply};

/// One request, as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// Place in the order of arrival, from 1.
    pub number: usize,
    /// The body.
    pub body: Value,
    /// The key that came with it, without `Bearer`.
    pub key: Option<String>,
    /// Which rules it breaks; empty for a good one.
    pub violations: Vec<String>,
}

impl Request {
    /// The messages.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The text of the last message that is the user's.
    #[must_use]
    pub fn last_user_text(&self) -> String {
        let last = self.messages().iter().rfind(|message| message["role"] == "user");
        last.map(|message| text_of(&message["content"])).unwrap_or_default()
    }

    /// Texts of the tool results at the end of the conversation, in order.
    #[must_use]
    pub fn tool_results(&self) -> Vec<String> {
        let mut results: Vec<String> = self
            .messages()
            .iter()
            .rev()
            .take_while(|message| message["role"] == "tool")
            .map(|message| text_of(&message["content"]))
            .collect();
        results.reverse();
        results
    }
}

/// The text of a message's content, whether it is a text or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

type Responder = Arc<dyn Fn(&Request) -> Reply + Send + Sync>;

struct Shared {
    state: Mutex<Inner>,
    /// How many requests have come.
    count: watch::Sender<usize>,
}

struct Inner {
    queue: VecDeque<Reply>,
    otherwise: Responder,
    requests: Vec<Request>,
    models: Vec<String>,
    key: Option<String>,
    split: Option<usize>,
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server. It ends, with every connection, when this is dropped.
pub struct OpenAi {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    gone: watch::Sender<bool>,
}

impl std::fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAi").field("address", &self.address).finish_non_exhaustive()
    }
}

impl OpenAi {
    /// Starts a server on a free port of 127.0.0.1. What is not programmed is answered with what
    /// the user said, as `You said: …`.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a server on this address: the one of a server that was dropped, for example.
    ///
    /// # Errors
    /// The port cannot be had.
    pub async fn start_on(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let otherwise: Responder = Arc::new(|request| {
            Reply::new().text(format!("You said: {}", request.last_user_text()))
        });
        let shared = Arc::new(Shared {
            state: Mutex::new(Inner {
                queue: VecDeque::new(),
                otherwise,
                requests: Vec::new(),
                models: vec!["test-model".to_owned()],
                key: None,
                split: None,
            }),
            count: watch::Sender::new(0),
        });
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/models", get(models))
            .fallback(async || problem(404, "unknown_url", "no such address here"))
            .with_state(Arc::clone(&shared));
        let gone = watch::Sender::new(false);
        let door = line::Door::new(listener, gone.subscribe());
        let task = tokio::spawn(async move {
            // The only way out is the abort in `drop`.
            let _ = axum::serve(door, app).await;
        });
        Ok(Self { address, shared, task, gone })
    }

    /// Address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What `OPENAI_BASE_URL` is to be.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Programs the answer to the next request that has none yet.
    pub fn push(&self, reply: Reply) {
        self.shared.inner().queue.push_back(reply);
    }

    /// Programs the answer to every request for which nothing was pushed.
    pub fn otherwise(&self, respond: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
        self.shared.inner().otherwise = Arc::new(respond);
    }

    /// Refuses every other key with 401. Without this, any key does.
    pub fn require_key(&self, key: &str) {
        self.shared.inner().key = Some(key.to_owned());
    }

    /// The models that `GET /v1/models` lists.
    pub fn set_models<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        self.shared.inner().models = names.into_iter().map(str::to_owned).collect();
    }

    /// Sends every later answer in HTTP chunks of this many bytes, wherever that splits it.
    pub fn split_every(&self, bytes: usize) {
        self.shared.inner().split = Some(bytes.max(1));
    }

    /// Every request so far, refused ones included.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.inner().requests.clone()
    }

    /// Every rule that was broken so far, each with the number of the request.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let inner = self.shared.inner();
        inner
            .requests
            .iter()
            .flat_map(|r| r.violations.iter().map(move |v| format!("request {}: {v}", r.number)))
            .collect()
    }

    /// Answers that were programmed and not yet asked for.
    #[must_use]
    pub fn left(&self) -> usize {
        self.shared.inner().queue.len()
    }

    /// Waits until this many requests have come.
    pub async fn wait_for_requests(&self, count: usize) {
        let mut seen = self.shared.count.subscribe();
        // The sender lives as long as `self` does.
        let _ = seen.wait_for(|seen| *seen >= count).await;
    }
}

impl Drop for OpenAi {
    fn drop(&mut self) {
        self.task.abort();
        self.gone.send_replace(true);
    }
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let models = shared.inner().models.clone();
    let data: Vec<Value> = models
        .iter()
        .map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "test"}))
        .collect();
    axum::Json(json!({"object": "list", "data": data})).into_response()
}

async fn complete(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(str::to_owned);
    let (body, violations) = match serde_json::from_slice::<Value>(&body) {
        Ok(body) => {
            let violations = rules::check(&body);
            (body, violations)
        }
        Err(error) => (Value::Null, vec![format!("the body is not JSON: {error}")]),
    };
    let (request, programmed, otherwise, split) = {
        let mut inner = shared.inner();
        let number = inner.requests.len() + 1;
        let request = Request { number, body, key, violations };
        inner.requests.push(request.clone());
        let programmed = if inner.key.is_some() && inner.key != request.key {
            Some(Reply::status(401).message("Incorrect API key provided"))
        } else if let Some(first) = request.violations.first() {
            Some(Reply::status(400).message(first))
        } else {
            inner.queue.pop_front()
        };
        (request, programmed, Arc::clone(&inner.otherwise), inner.split)
    };
    shared.count.send_modify(|count| *count += 1);
    // The test's own function runs outside the lock: it may look at the server.
    let reply = programmed.unwrap_or_else(|| otherwise(&request));
    reply.send(&request.body["model"], split)
}

/// An error in OpenAI's shape.
fn problem(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({"error": {"message": message, "type": "error", "code": code, "param": null}});
    (status, axum::Json(body)).into_response()
}

#[cfg(test)]
#[path = "openai/tests.rs"]
mod tests;
