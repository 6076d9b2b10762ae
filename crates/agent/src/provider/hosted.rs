//! Providers behind HTTP, through the client library.
//!
//! The library translates between protocols. What a durable turn needs beyond that is here: an
//! answer is complete only when its protocol says so, silence has a limit, and every error has a
//! kind that says what follows from it.

use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use everturn_core::Usage;
use futures::{FutureExt as _, Stream, StreamExt as _};
use genai::adapter::AdapterKind;
use genai::chat::{
    CacheControl, ChatOptions, ChatStream, ChatStreamEvent, ReasoningEffort, StopReason, StreamEnd,
    ToolCall,
};
use genai::resolver::{AuthData, Endpoint, ProviderConfig};
use genai::{Client, ModelIden};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::Dispatch;

use super::failure::{Secret, Teller, root};
use super::frames::{Dialect, Frames};
use super::{
    Cut, ModelEvent, ModelReply, ModelRequest, ModelStream, Provider, ProviderError,
    ProviderErrorKind, RequestedCall, request,
};

/// How long a provider may be silent. What counts is progress of the answer: pings and comments
/// that only keep the connection open do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From the request to the first piece of the answer.
    pub first_event: Duration,
    /// Between two pieces of the answer; pieces of a tool call's arguments count.
    pub between_events: Duration,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_event: Duration::from_secs(120),
            between_events: Duration::from_secs(120),
        }
    }
}

/// What a hosted provider is made from.
#[derive(Debug, Clone)]
pub(crate) struct HostedSetup {
    /// `provider/name`, as people write it.
    pub(crate) model: String,
    /// Whose protocol.
    pub(crate) kind: AdapterKind,
    /// The model's name at the provider.
    pub(crate) name: String,
    /// Key, where one is needed.
    pub(crate) key: Option<Secret>,
    /// Base address in the library's form (with the version, with a final slash), where it is not
    /// the provider's own.
    pub(crate) base: Option<String>,
    /// Limits of silence.
    pub(crate) timeouts: RequestTimeouts,
    /// Tokens that fit one request, where known.
    pub(crate) context_tokens: Option<u64>,
    /// Whether the model goes on writing a last message of its own.
    pub(crate) continues_partial: bool,
}

/// A model behind HTTP.
pub(crate) struct Hosted {
    setup: HostedSetup,
    dialect: Dialect,
    origin: Origin,
    client: Client,
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("setup", &self.setup).finish_non_exhaustive()
    }
}

fn dialect(kind: AdapterKind) -> Dialect {
    use AdapterKind as K;
    match kind {
        K::Anthropic | K::MiniMax => Dialect::Anthropic,
        K::Ollama | K::OllamaCloud => Dialect::Ollama,
        K::Gemini => Dialect::Gemini,
        K::OpenAIResp
        | K::GeminiIx
        | K::Cohere
        | K::Vertex
        | K::BedrockApi
        | K::Baidu
        | K::OpenCodeGo => Dialect::Other,
        _ => Dialect::OpenAi,
    }
}

/// What may be shown of a provider's address, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    /// Scheme, host and port.
    shown: String,
    /// Whether it is on this machine.
    local: bool,
    /// Whether TLS is spoken.
    secure: bool,
}

impl Origin {
    fn of(address: &str) -> Option<Self> {
        let url = reqwest::Url::parse(address).ok()?;
        let host = url.host_str()?;
        let local = host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        let shown = format!("{}://{host}{port}", url.scheme());
        Some(Self { shown, local, secure: url.scheme() == "https" })
    }

    /// Of a provider's own address, which only the library knows.
    fn own(kind: AdapterKind) -> Self {
        Self { shown: kind.as_lower_str().to_owned(), local: false, secure: true }
    }
}

/// The HTTP client of one provider.
fn http_client(
    origin: &Origin,
    connect: Duration,
    whole: Option<Duration>,
) -> Result<reqwest::Client, String> {
    static TLS: Once = Once::new();
    // An error means that the program has installed a provider of its own: all the better.
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        // A redirect would turn the POST into a GET, and may lead the key elsewhere.
        .redirect(reqwest::redirect::Policy::none());
    if let Some(whole) = whole {
        builder = builder.timeout(whole);
    }
    if origin.local {
        // A proxy knows nothing of this machine's own servers.
        builder = builder.no_proxy();
    }
    if !origin.secure {
        // Certificates are read when the client is made, and a machine without any would not even
        // reach the Ollama beside it.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| root(&error))
}

fn config(setup: &HostedSetup) -> ProviderConfig {
    let key = setup.key.as_ref().map_or("none", Secret::reveal);
    ProviderConfig {
        endpoint: setup.base.as_deref().map(Endpoint::from_owned),
        auth: Some(AuthData::from_single(key)),
    }
}

impl Hosted {
    /// Makes a provider. Nothing is sent yet.
    ///
    /// # Errors
    /// An address that is none, or a TLS set-up that does not work: in words, without secrets.
    pub(crate) fn new(setup: HostedSetup) -> Result<Self, String> {
        let origin = match &setup.base {
            Some(base) => Origin::of(base).ok_or("the base address is no http(s) address")?,
            None => Origin::own(setup.kind),
        };
        let http = http_client(&origin, setup.timeouts.connect, None)?;
        let client = Client::builder()
            .with_reqwest(http)
            .append_provider_config(setup.kind, config(&setup))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { dialect: dialect(setup.kind), setup, origin, client })
    }

    fn options(&self, frames: Arc<Frames>) -> ChatOptions {
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            .with_raw_frame_sink_arc(frames);
        match self.dialect {
            // The tools and the system text are the same from turn to turn: worth caching.
            // Thinking is off where it would be on by default: its signed blocks would have to be
            // handed back with the next request, and the transcript has no place for them.
            Dialect::Anthropic => {
                options = options
                    .with_cache_control(CacheControl::Ephemeral)
                    .with_reasoning_effort(ReasoningEffort::Zero);
            }
            // The library reads a last word like `-max` or `-high` as an effort and cuts it off the
            // name. A budget, which this protocol has no field for, keeps the name as it is.
            Dialect::OpenAi if ReasoningEffort::from_model_name(&self.setup.name).0.is_some() => {
                options = options.with_reasoning_effort(ReasoningEffort::Budget(0));
            }
            _ => {}
        }
        options
    }
}

#[async_trait]
impl Provider for Hosted {
    fn model(&self) -> &str {
        &self.setup.model
    }

    fn context_tokens(&self) -> Option<u64> {
        self.setup.context_tokens
    }

    fn continues_partial(&self) -> bool {
        self.setup.continues_partial
    }

    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError> {
        let goes_on = request.continues_partial();
        let chat = request::translate(self.dialect, request)?;
        let teller =
            Teller { origin: self.origin.shown.clone(), key: self.setup.key.clone(), begun: false };
        let frames = Arc::new(Frames::new(self.dialect));
        let mut options = self.options(Arc::clone(&frames));
        if goes_on && self.dialect == Dialect::OpenAi {
            // What vLLM, SGLang and llama.cpp call it; others continue such a message by themselves.
            options = options.with_extra_body(
                json!({ "continue_final_message": true, "add_generation_prompt": false }),
            );
        }
        let model = ModelIden::new(self.setup.kind, self.setup.name.as_str());
        let response = Quiet(Box::pin(self.client.exec_chat_stream(model, chat, Some(&options))))
            .await
            .map_err(|error| teller.library(error))?;
        let mut answer = Answer {
            stream: Quiet(response.stream),
            dialect: self.dialect,
            frames,
            teller,
            raw_calls: Vec::new(),
            silent_until: Instant::now() + self.setup.timeouts.first_event,
            timeouts: self.setup.timeouts,
            over: false,
        };
        // The library connects when it is first asked for an event. Waiting for that one here makes
        // a refusal an error of the request, which may be tried again.
        let first = match answer.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(error),
            None => return Err(answer.teller.unfinished()),
        };
        let rest = futures::stream::unfold(answer, |mut answer| async move {
            answer.next().await.map(|event| (event, answer))
        });
        Ok(futures::stream::once(std::future::ready(Ok(first))).chain(rest).boxed())
    }
}

/// An answer under way.
struct Answer {
    stream: Quiet<ChatStream>,
    dialect: Dialect,
    frames: Arc<Frames>,
    teller: Teller,
    /// The arguments of each call as they came, before the library parsed them.
    raw_calls: Vec<RequestedCall>,
    silent_until: Instant,
    timeouts: RequestTimeouts,
    over: bool,
}

impl Answer {
    async fn next(&mut self) -> Option<Result<ModelEvent, ProviderError>> {
        if self.over {
            return None;
        }
        let event = loop {
            let Ok(item) = tokio::time::timeout_at(self.silent_until, self.stream.next()).await
            else {
                let limit = if self.teller.begun {
                    self.timeouts.between_events
                } else {
                    self.timeouts.first_event
                };
                break Err(self.teller.stalled(limit));
            };
            match item {
                Some(Ok(ChatStreamEvent::Start | ChatStreamEvent::Heartbeat)) => {}
                Some(Ok(ChatStreamEvent::Chunk(chunk))) => {
                    self.progress();
                    if !chunk.content.is_empty() {
                        break Ok(ModelEvent::Text(chunk.content));
                    }
                }
                Some(Ok(ChatStreamEvent::ReasoningChunk(chunk))) => {
                    self.progress();
                    if !chunk.content.is_empty() {
                        break Ok(ModelEvent::Reasoning(chunk.content));
                    }
                }
                Some(Ok(ChatStreamEvent::ThoughtSignatureChunk(_))) => self.progress(),
                Some(Ok(ChatStreamEvent::ToolCallChunk(chunk))) => {
                    self.progress();
                    self.keep_raw(chunk.tool_call);
                }
                Some(Ok(ChatStreamEvent::End(end))) => break self.finish(end),
                Some(Err(error)) => break Err(self.broken(error)),
                None => break Err(self.teller.unfinished()),
            }
        };
        self.over = matches!(event, Err(_) | Ok(ModelEvent::Done(_)));
        Some(event)
    }

    fn progress(&mut self) {
        self.teller.begun = true;
        self.silent_until = Instant::now() + self.timeouts.between_events;
    }

    /// An error of the stream. A frame that makes no sense and after which nothing comes was cut.
    fn broken(&mut self, error: genai::Error) -> ProviderError {
        let unparsed = matches!(&error, genai::Error::StreamParse { serde_error, .. }
            if serde_error.classify() == serde_json::error::Category::Syntax);
        if unparsed && matches!(self.stream.next().now_or_never(), Some(None)) {
            return self.teller.unfinished();
        }
        self.teller.library(error)
    }

    /// Keeps the arguments as text, while they are: each chunk repeats and extends the one before.
    fn keep_raw(&mut self, call: ToolCall) {
        let Value::String(arguments) = call.fn_arguments else { return };
        match self.raw_calls.last_mut() {
            Some(last)
                if last.provider_id == call.call_id
                    && last.name == call.fn_name
                    && arguments.starts_with(&last.arguments) =>
            {
                last.arguments = arguments;
            }
            _ => self.raw_calls.push(RequestedCall {
                provider_id: call.call_id,
                name: call.fn_name,
                arguments,
            }),
        }
    }

    fn finish(&mut self, end: StreamEnd) -> Result<ModelEvent, ProviderError> {
        if let Some(error) = self.frames.error() {
            return Err(self.teller.sent(&error));
        }
        let told_to_stop = match self.dialect {
            Dialect::OpenAi | Dialect::Anthropic | Dialect::Ollama => self.frames.ended(),
            // Here the library makes up an end when the body stops, but not a reason for it.
            Dialect::Gemini | Dialect::Other => end.captured_stop_reason.is_some(),
        };
        if !told_to_stop {
            return Err(self.teller.unfinished());
        }
        let cut = match &end.captured_stop_reason {
            Some(StopReason::MaxTokens(_)) => Some(Cut::Length),
            Some(StopReason::ContentFilter(_)) => Some(Cut::Filter),
            _ => None,
        };
        let wants_tools = matches!(end.captured_stop_reason, Some(StopReason::ToolCall(_)));
        let usage = end.captured_usage.as_ref().and_then(usage);
        let mut calls = self.frames.calls().unwrap_or_default();
        if calls.is_empty() {
            let captured = end.captured_into_tool_calls().unwrap_or_default();
            calls = captured.into_iter().map(|call| self.requested(call)).collect();
        }
        if wants_tools && calls.is_empty() {
            return Err(self.teller.tell(
                ProviderErrorKind::Malformed,
                &format!("{} stopped to call tools but named none", self.teller.origin),
            ));
        }
        if cut.is_none() {
            for call in &mut calls {
                // Many models write nothing where a tool needs nothing.
                if call.arguments.trim().is_empty() {
                    "{}".clone_into(&mut call.arguments);
                }
            }
        }
        Ok(ModelEvent::Done(ModelReply { calls, usage, cut }))
    }

    /// A call of the library's, with the arguments as the model wrote them.
    fn requested(&self, call: ToolCall) -> RequestedCall {
        let arguments = match call.fn_arguments {
            // What the library could not parse it hands on as text.
            Value::String(text) => text,
            value => self
                .raw_calls
                .iter()
                .filter(|raw| raw.provider_id == call.call_id && raw.name == call.fn_name)
                .find(|raw| {
                    serde_json::from_str::<Value>(&raw.arguments).ok().as_ref() == Some(&value)
                })
                .map_or_else(|| value.to_string(), |raw| raw.arguments.clone()),
        };
        RequestedCall { provider_id: call.call_id, name: call.fn_name, arguments }
    }
}

/// Token counts, where the provider gave any.
fn usage(usage: &genai::chat::Usage) -> Option<Usage> {
    let count = |n: i32| u64::try_from(n).unwrap_or(0);
    if usage.prompt_tokens.is_none() && usage.completion_tokens.is_none() {
        return None;
    }
    Some(Usage {
        input_tokens: usage.prompt_tokens.map_or(0, count),
        output_tokens: usage.completion_tokens.map_or(0, count),
        cached_input_tokens: usage
            .prompt_tokens_details
            .as_ref()
            .and_then(|details| details.cached_tokens)
            .map(count),
        reasoning_tokens: usage
            .completion_tokens_details
            .as_ref()
            .and_then(|details| details.reasoning_tokens)
            .map(count),
        cost: None,
    })
}

/// Names of the models that a provider has, in its own order.
///
/// # Errors
/// It does not answer within `patience`, or refuses.
pub(crate) async fn list_models(
    setup: &HostedSetup,
    patience: Duration,
) -> Result<Vec<String>, ProviderError> {
    let origin =
        setup.base.as_deref().and_then(Origin::of).unwrap_or_else(|| Origin::own(setup.kind));
    let teller = Teller { origin: origin.shown.clone(), key: setup.key.clone(), begun: false };
    let failed = |cause: String| teller.tell(ProviderErrorKind::Misconfigured, &cause);
    let http = http_client(&origin, setup.timeouts.connect.min(patience), Some(patience))
        .map_err(failed)?;
    let client =
        Client::builder().with_reqwest(http).build().map_err(|error| failed(error.to_string()))?;
    let names = Quiet(Box::pin(client.all_model_names(setup.kind, config(setup))));
    match tokio::time::timeout(patience, names).await {
        Ok(names) => names.map_err(|error| teller.library(error)),
        Err(_) => Err(teller.stalled(patience)),
    }
}

/// Keeps the library's own log lines out of the log: it writes what the server sent, and a server's
/// error may quote the key. What there is to say is in the errors that come out of here.
struct Quiet<T>(T);

impl<T: Stream + Unpin> Stream for Quiet<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T::Item>> {
        tracing::dispatcher::with_default(&Dispatch::none(), || self.0.poll_next_unpin(cx))
    }
}

impl<T: Future + Unpin> Future for Quiet<T> {
    type Output = T::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        tracing::dispatcher::with_default(&Dispatch::none(), || self.0.poll_unpin(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_origin_of_an_address_is_shown() {
        for (address, shown, local, secure) in [
            ("https://user:pass@api.example.com/v1/?key=1", "https://api.example.com", false, true),
            ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080", true, false),
            ("http://[::1]:8080/", "http://[::1]:8080", true, false),
            ("http://localhost/", "http://localhost", true, false),
        ] {
            let shown = shown.to_owned();
            assert_eq!(Origin::of(address), Some(Origin { shown, local, secure }));
        }
        assert_eq!(Origin::of("not an address"), None);
    }
}
