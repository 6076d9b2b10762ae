//! Through a running server.

use std::sync::RwLock;
use std::time::Duration;

use async_trait::async_trait;
use everturn_api::input::{Input, Receipt};
use everturn_api::message::Message;
use everturn_api::page::{CursorPage, Page};
use everturn_api::prompt::Prompt;
use everturn_api::request::{
    AnswerPrompt, EndSession, ResolveInterruption, StopSession, SubmitInput,
};
use everturn_api::run::{Run, RunEvents};
use everturn_api::session::Session;
use everturn_api::{Code, Problem};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sse_stream::{Sse, SseByteStream};

use super::{Client, Decide, Event, Feed, Item, Listing, Place, Window};
use crate::client::join::{self, Endpoint};
use crate::error::{CliError, Fault, Result};
use crate::home::Home;

/// Silence on a connection after which the server counts as away: streams send something every few
/// seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A client of the server of a home.
pub(crate) struct HttpClient {
    home: Home,
    store: String,
    http: reqwest::Client,
    endpoint: RwLock<Endpoint>,
}

/// The HTTP side that all requests share: loopback only, so no proxy and no redirects.
pub(crate) fn http() -> Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        .read_timeout(SILENCE_MAX)
        .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| CliError::new(Fault::Io, format!("cannot set HTTP up: {error}")))
}

impl HttpClient {
    /// A client of a server that was found.
    pub(crate) fn new(home: Home, store: String, http: reqwest::Client, found: Endpoint) -> Self {
        Self { home, store, http, endpoint: RwLock::new(found) }
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<RequestBuilder> {
        let endpoint = self.endpoint();
        let mut url = Url::parse(&endpoint.address).map_err(|error| {
            CliError::new(Fault::Protocol, format!("the server's address is none: {error}"))
        })?;
        // Each piece is escaped: an id never becomes another path.
        url.path_segments_mut()
            .map_err(|()| CliError::new(Fault::Protocol, "the server's address is none"))?
            .pop_if_empty()
            .extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        Ok(match &endpoint.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, String)]) -> Result<T> {
        body(send(self.request(Method::GET, path, query)?).await?).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &[&str], said: &impl Serialize) -> Result<T> {
        body(send(self.request(Method::POST, path, &[])?.json(said)).await?).await
    }

    async fn control(&self, request: RequestBuilder) -> Result<()> {
        send(request).await.map(drop)
    }
}

async fn send(request: RequestBuilder) -> Result<Response> {
    let response = request.send().await.map_err(|error| away(&error))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let retry_after = response
        .headers()
        .get(reqwest::header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let text = response.text().await.map_err(|error| away(&error))?;
    let Ok(problem) = serde_json::from_str::<Problem>(&text) else {
        let message = format!("the server answered {status} and no reason");
        return Err(
            CliError::new(Fault::Protocol, message).hint("is it everturn that listens there?")
        );
    };
    let limited = problem.code == Code::RateLimited.as_str() && retry_after.is_some();
    let mut error = CliError::from(problem);
    error.passing |= limited;
    Err(error)
}

async fn body<T: DeserializeOwned>(response: Response) -> Result<T> {
    let text = response.text().await.map_err(|error| away(&error))?;
    serde_json::from_str(&text).map_err(|error| {
        CliError::new(Fault::Protocol, format!("the server's answer cannot be understood: {error}"))
            .hint("server and command line may be of different versions")
    })
}

fn away(error: &reqwest::Error) -> CliError {
    // The source says what the first sentence only hints at.
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        message = inner.to_string();
        source = inner.source();
    }
    CliError::away(format!("the server does not answer: {message}"))
}

/// `None` for what does not exist.
fn found<T>(answer: Result<T>, code: Code) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is(code) => Ok(None),
        Err(error) => Err(error),
    }
}

struct HttpFeed {
    events: BoxStream<'static, Result<Sse, CliError>>,
}

#[async_trait]
impl Feed for HttpFeed {
    async fn next(&mut self) -> Result<Item> {
        loop {
            let Some(sse) = self.events.next().await else {
                return Err(CliError::away("the server ended the stream"));
            };
            let sse = sse?;
            let data = sse.data.as_deref().unwrap_or_default();
            match sse.event.as_deref() {
                Some("opened") => return Ok(Item::Opened),
                Some("caught_up") => return Ok(Item::CaughtUp),
                Some("reset") => {
                    #[derive(serde::Deserialize)]
                    struct Reset {
                        reason: String,
                        latest: u64,
                    }
                    let reset: Reset = serde_json::from_str(data).map_err(|error| {
                        CliError::new(Fault::Protocol, format!("a reset without sense: {error}"))
                    })?;
                    return Ok(Item::Reset { reason: reset.reason, latest: reset.latest });
                }
                Some(_) if !data.is_empty() => {
                    return Ok(Item::Event(Box::new(Event::parse(data)?)));
                }
                // A block without an event: nothing of ours.
                _ => {}
            }
        }
    }
}

#[async_trait]
impl Client for HttpClient {
    fn place(&self) -> Place {
        Place::Server(self.endpoint().address)
    }

    async fn find_again(&self) -> Result<()> {
        match join::look(&self.home, &self.store, &self.http).await? {
            Some(endpoint) => {
                *self.endpoint.write().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    endpoint;
                Ok(())
            }
            None => Err(CliError::away("no server of this home is running")),
        }
    }

    async fn session(&self, id: &str) -> Result<Option<Session>> {
        found(self.get(&["v1", "sessions", id], &[]).await, Code::SessionNotFound)
    }

    async fn submit(&self, session: &str, input: &SubmitInput) -> Result<Receipt> {
        self.post(&["v1", "sessions", session, "inputs"], input).await
    }

    async fn input(&self, id: &str, wait: Duration) -> Result<Input> {
        // Shorter than the silence that counts as the server's absence.
        let wait = wait.min(SILENCE_MAX / 2).as_secs();
        self.get(&["v1", "inputs", id], &[("wait", wait.to_string())]).await
    }

    async fn cancel_input(&self, id: &str) -> Result<()> {
        self.control(self.request(Method::DELETE, &["v1", "inputs", id], &[])?).await
    }

    async fn inputs(&self, session: &str, status: Option<&str>) -> Result<Vec<Input>> {
        #[derive(serde::Deserialize)]
        struct Inputs {
            data: Vec<Input>,
            has_more: bool,
        }
        let mut inputs: Vec<Input> = Vec::new();
        loop {
            let mut query = vec![("limit", super::PAGE.to_string())];
            query.extend(status.map(|status| ("status", status.to_owned())));
            query.extend(inputs.last().map(|last| ("after", last.receipt.input_id.clone())));
            let page: Inputs = self.get(&["v1", "sessions", session, "inputs"], &query).await?;
            let is_last = !page.has_more || page.data.is_empty();
            inputs.extend(page.data);
            if is_last {
                return Ok(inputs);
            }
        }
    }

    async fn feed(&self, session: &str, after: Option<u64>, viewer: bool) -> Result<Box<dyn Feed>> {
        let mut query = vec![("viewer", viewer.to_string())];
        query.extend(after.map(|after| ("after", after.to_string())));
        let request = self
            .request(Method::GET, &["v1", "sessions", session, "events"], &query)?
            .header(reqwest::header::ACCEPT, "text/event-stream");
        let bytes = send(request).await?.bytes_stream();
        let events = SseByteStream::new(bytes).map(|event| {
            event.map_err(|error| {
                tracing::debug!(%error, "a stream broke off");
                CliError::away("the stream broke off")
            })
        });
        Ok(Box::new(HttpFeed { events: events.boxed() }))
    }

    async fn stop(&self, session: &str, generation: Option<u64>, keep_queue: bool) -> Result<()> {
        let queue = Some(if keep_queue { "keep" } else { "cancel" }.to_owned());
        let request = self.request(Method::POST, &["v1", "sessions", session, "stop"], &[])?;
        self.control(request.json(&StopSession { generation, queue })).await
    }

    async fn answer(
        &self,
        prompt: &Prompt,
        choice: Option<&str>,
        text: Option<&str>,
    ) -> Result<()> {
        let said = AnswerPrompt {
            generation: prompt.generation,
            choice: choice.map(str::to_owned),
            text: text.map(str::to_owned),
        };
        let request = self.request(Method::POST, &["v1", "prompts", &prompt.id, "answer"], &[])?;
        self.control(request.json(&said)).await
    }

    async fn decide(&self, session: &str, generation: u64, decision: Decide) -> Result<()> {
        let (decision, text) = match decision {
            Decide::Continue => ("continue", None),
            Decide::Discard => ("discard", None),
            Decide::Resend(text) => ("resend", text),
        };
        let said = ResolveInterruption { generation, decision: decision.to_owned(), text };
        let request = self.request(Method::POST, &["v1", "sessions", session, "resolve"], &[])?;
        self.control(request.json(&said)).await
    }

    async fn run(&self, id: &str) -> Result<Run> {
        self.get(&["v1", "runs", id], &[]).await
    }

    async fn runs(&self, session: &str, before: Option<u64>, limit: u32) -> Result<Page<Run>> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(before.map(|before| ("before", before.to_string())));
        self.get(&["v1", "sessions", session, "turns"], &query).await
    }

    async fn run_events(&self, run: &str, after: u64, limit: u32) -> Result<RunEvents> {
        let max = after.saturating_add(u64::from(limit));
        let query = [("after", after.to_string()), ("max", max.to_string())];
        self.get(&["v1", "runs", run, "events"], &query).await
    }

    async fn sessions(&self, listing: &Listing) -> Result<CursorPage<Session>> {
        let mut query = vec![("limit", listing.limit.to_string())];
        query.extend(listing.state.clone().map(|state| ("state", state)));
        query.extend(listing.query.clone().map(|text| ("q", text)));
        query.extend(listing.cursor.clone().map(|cursor| ("cursor", cursor)));
        self.get(&["v1", "sessions"], &query).await
    }

    async fn messages(&self, session: &str, window: Window, limit: u32) -> Result<Page<Message>> {
        let mut query = vec![("limit", limit.to_string())];
        match window {
            Window::Last => {}
            Window::Before(id) => query.push(("before", id.to_string())),
            Window::After(id) => query.push(("after", id.to_string())),
        }
        self.get(&["v1", "sessions", session, "messages"], &query).await
    }

    async fn end_session(&self, session: &str, reason: &str) -> Result<Session> {
        let said = EndSession { reason: Some(reason.to_owned()) };
        self.post(&["v1", "sessions", session, "end"], &said).await
    }

    async fn delete_session(&self, session: &str, force: bool) -> Result<()> {
        let query = [("force", force.to_string())];
        self.control(self.request(Method::DELETE, &["v1", "sessions", session], &query)?).await
    }

    async fn close(&self) {}
}
