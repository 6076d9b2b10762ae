//! An HTTP client that goes on after a restart, and keeps everything that it was told.

use std::sync::Once;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::wait;

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: String,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON; `null` if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// The body of an answer with this status.
    ///
    /// # Errors
    /// It has another one.
    pub fn expect(&self, status: u16) -> Result<Value> {
        if self.status != status {
            bail!("{status} was expected and it is {}: {}", self.status, self.body);
        }
        Ok(self.json())
    }

    /// The code of a problem with this status.
    ///
    /// # Errors
    /// It has another status, or is no complete problem.
    pub fn problem(&self, status: u16) -> Result<String> {
        let problem = self.expect(status)?;
        if !self.content_type.starts_with("application/problem+json") {
            bail!("a refusal of type {:?}: {}", self.content_type, self.body);
        }
        let text = |name: &str| problem[name].as_str().is_some_and(|text| !text.is_empty());
        let whole = ["type", "title", "detail", "code"].into_iter().all(text);
        if !whole || problem["status"] != status || !problem["permanent"].is_boolean() {
            bail!("a refusal that is no problem: {}", self.body);
        }
        problem["code"].as_str().map(str::to_owned).context("no code")
    }
}

/// An input that a server took, as the client knows it.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// For which session.
    pub session: String,
    /// The sender's name for it.
    pub request_id: String,
    /// What it says.
    pub text: String,
    /// The server's name for it.
    pub input_id: String,
    /// When it was first sent.
    pub sent_at: Instant,
    /// When the first receipt came.
    pub received_at: Instant,
}

/// A client of one server, wherever that is at the moment.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    address: watch::Receiver<String>,
    token: Option<String>,
}

impl Client {
    /// A client that follows this address.
    ///
    /// # Errors
    /// The TLS library cannot be set up.
    pub fn new(address: watch::Receiver<String>) -> Result<Self> {
        static TLS: Once = Once::new();
        // Only an error if there is one already, which is as good.
        TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { http, address, token: None })
    }

    /// The same client with this token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// `http://HOST:PORT`, as of now.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.borrow().clone()
    }

    /// A request, to be completed by the caller.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.address()));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// There was none.
    pub async fn send(&self, request: RequestBuilder) -> Result<Answer> {
        let response = request.timeout(Duration::from_secs(70)).send().await?;
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let status = response.status().as_u16();
        let content_type = header("content-type").unwrap_or_default();
        let retry_after = header("retry-after");
        let body = response.text().await?;
        Ok(Answer { status, content_type, retry_after, body })
    }

    /// GET.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send(self.request(Method::GET, path)).await
    }

    /// DELETE.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn delete(&self, path: &str) -> Result<Answer> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// POST of JSON.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// Sends an input once.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn submit(&self, session: &str, request_id: &str, text: &str) -> Result<Answer> {
        let path = format!("/v1/sessions/{session}/inputs");
        let request = self.request(Method::POST, &path).header("Idempotency-Key", request_id);
        self.send(request.json(&json!({ "text": text }))).await
    }

    /// Sends an input that the server must take at once.
    ///
    /// # Errors
    /// It does not.
    pub async fn say(&self, session: &str, request_id: &str, text: &str) -> Result<Accepted> {
        let sent_at = Instant::now();
        let receipt = self.submit(session, request_id, text).await?.expect(202)?;
        accepted(session, request_id, text, &receipt, sent_at)
    }

    /// Sends an input again and again, as a careful client does, until there is a receipt: over
    /// restarts, refused connections, and refusals that say that the same request may succeed later.
    ///
    /// # Errors
    /// A refusal for good, or no receipt within `limit`.
    pub async fn say_until_accepted(
        &self,
        session: &str,
        request_id: &str,
        text: &str,
        limit: Duration,
    ) -> Result<Accepted> {
        let sent_at = Instant::now();
        let what = format!("a receipt for {request_id}");
        wait::until_for(limit, &what, || async {
            let Ok(answer) = self.submit(session, request_id, text).await else { return Ok(None) };
            if answer.status == 202 {
                return accepted(session, request_id, text, &answer.json(), sent_at).map(Some);
            }
            let permanent = answer.json()["permanent"] != false;
            if permanent || !matches!(answer.status, 429 | 503 | 507) {
                bail!("refused for good with {}: {}", answer.status, answer.body);
            }
            Ok(None)
        })
        .await
    }

    /// Waits until an input has its outcome, over restarts, and gives the input.
    ///
    /// # Errors
    /// It has none in time, or is not there.
    pub async fn outcome(&self, input_id: &str) -> Result<Value> {
        self.outcome_within(input_id, wait::LIMIT).await
    }

    /// As [`Client::outcome`], with a limit of its own.
    ///
    /// # Errors
    /// As [`Client::outcome`].
    pub async fn outcome_within(&self, input_id: &str, limit: Duration) -> Result<Value> {
        let path = format!("/v1/inputs/{input_id}?wait=5");
        wait::until_for(limit, &format!("the outcome of {input_id}"), || async {
            match self.get(&path).await {
                Ok(answer) if answer.status == 404 => bail!("it is gone: {}", answer.body),
                Ok(answer) if answer.status == 200 => {
                    let input = answer.json();
                    Ok((input["status"] == "terminal").then_some(input))
                }
                // Not there at the moment.
                _ => Ok(None),
            }
        })
        .await
    }

    /// One session.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn session(&self, id: &str) -> Result<Value> {
        self.get(&format!("/v1/sessions/{id}")).await?.expect(200)
    }

    /// All messages of a session, page by page, in order.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn messages(&self, session: &str) -> Result<Vec<Value>> {
        let mut all: Vec<Value> = Vec::new();
        // The last page comes first; the ones before it are asked for from there.
        let mut before = String::new();
        loop {
            let path = format!("/v1/sessions/{session}/messages?limit=500{before}");
            let mut page = self.get(&path).await?.expect(200)?;
            let Value::Array(mut rows) = page["data"].take() else { bail!("no page: {page}") };
            let first = rows.first().map(|row| row["id"].clone());
            rows.append(&mut all);
            all = rows;
            match (page["has_more"].as_bool(), first) {
                (Some(true), Some(first)) => before = format!("&before={first}"),
                (Some(_), _) => return Ok(all),
                (None, _) => bail!("a page without has_more: {page}"),
            }
        }
    }

    /// The messages of a session of this role and kind, as text.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn texts(&self, session: &str, role: &str, kind: &str) -> Result<Vec<String>> {
        let messages = self.messages(session).await?;
        let wanted = messages.iter().filter(|m| m["role"] == role && m["kind"] == kind);
        Ok(wanted.map(|m| m["text"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// One run.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn run(&self, id: &str) -> Result<Value> {
        self.get(&format!("/v1/runs/{id}")).await?.expect(200)
    }

    /// The calls of a session's messages, in order.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn calls(&self, session: &str) -> Result<Vec<Value>> {
        let messages = self.messages(session).await?;
        let lists = messages.iter().filter_map(|message| message["tool_calls"].as_array());
        Ok(lists.flatten().cloned().collect())
    }

    /// Waits until the calls of a session are as `found` wants them.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn wait_for_call(
        &self,
        session: &str,
        found: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait::until("a call", || async {
            Ok(self.calls(session).await?.into_iter().find(|call| found(call)))
        })
        .await
    }

    /// Waits until a prompt of a session is open.
    ///
    /// # Errors
    /// None is in time.
    pub async fn open_prompt(&self, session: &str) -> Result<Value> {
        let path = format!("/v1/sessions/{session}/prompts");
        wait::until("a prompt", || async {
            let answer = self.get(&path).await?;
            // The session may not be there yet.
            if answer.status == 404 {
                return Ok(None);
            }
            Ok(answer.expect(200)?["data"].as_array().and_then(|list| list.first().cloned()))
        })
        .await
    }

    /// Allows every tool in a session, which is created by this.
    ///
    /// # Errors
    /// It exists, or cannot be created.
    pub async fn create_open_session(&self, id: &str) -> Result<Value> {
        let policy = json!({ "tools": { "*": "allow" } });
        self.post("/v1/sessions", &json!({ "id": id, "policy": policy })).await?.expect(201)
    }
}

fn accepted(
    session: &str,
    request_id: &str,
    text: &str,
    receipt: &Value,
    sent_at: Instant,
) -> Result<Accepted> {
    if receipt["session_id"] != session || receipt["request_id"] != request_id {
        bail!("a receipt for something else than {session}/{request_id}: {receipt}");
    }
    let input_id = receipt["input_id"].as_str().context("a receipt without an input")?.to_owned();
    Ok(Accepted {
        session: session.to_owned(),
        request_id: request_id.to_owned(),
        text: text.to_owned(),
        input_id,
        sent_at,
        received_at: Instant::now(),
    })
}
