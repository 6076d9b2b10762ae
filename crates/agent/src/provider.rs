//! What the engine asks of a model provider.

mod failure;
mod frames;
mod hosted;
mod request;

use std::time::Duration;

use async_trait::async_trait;
use everturn_core::view::ViewMessage;
use everturn_core::{Failure, Usage};
use futures::stream::BoxStream;

use crate::tool::ToolSpec;
pub(crate) use failure::Secret;
pub use hosted::RequestTimeouts;
pub(crate) use hosted::{Hosted, HostedSetup, list_models};

/// One request to a model.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// System text.
    pub system: String,
    /// The conversation: legal by construction, see [`everturn_core::view`]. It ends in text of the
    /// model only where [`Provider::continues_partial`].
    pub messages: Vec<ViewMessage>,
    /// Tools that the model may call.
    pub tools: Vec<ToolSpec>,
}

/// What a model sends back, in order. The last one is always [`ModelEvent::Done`].
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// Some text, never empty.
    Text(String),
    /// Some reasoning, never empty.
    Reasoning(String),
    /// The answer is complete.
    Done(ModelReply),
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelReply {
    /// Tools that it asks for, in order.
    pub calls: Vec<RequestedCall>,
    /// Tokens used, where the provider says so.
    pub usage: Option<Usage>,
    /// Why it stopped, where that was not its own choice.
    pub cut: Option<Cut>,
}

/// Why an answer was cut off by the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its output limit.
    Length,
    /// A content filter.
    Filter,
}

/// A tool call as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedCall {
    /// The provider's id; may be empty or repeated.
    pub provider_id: String,
    /// Tool name; may be one that does not exist.
    pub name: String,
    /// JSON text as the model wrote it; may be malformed.
    pub arguments: String,
}

/// What went wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderErrorKind {
    /// No key, or a refused one (401, 403).
    Unauthorized,
    /// The provider or model does not exist, or is set up wrongly (404, bad address).
    Misconfigured,
    /// The request itself was refused (400, 413, 422 …).
    Refused,
    /// The conversation does not fit the model.
    TooLong,
    /// 429.
    RateLimited,
    /// 5xx, 408, or a server that does not answer.
    Unavailable,
    /// The connection broke in the middle of an answer.
    Broken,
    /// Nothing came for longer than the phase allows.
    Stalled,
    /// The answer was not what the protocol says.
    Malformed,
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What went wrong.
    pub kind: ProviderErrorKind,
    /// For people; never holds a key.
    pub message: String,
    /// What the provider asked us to wait.
    pub retry_after: Option<Duration>,
}

impl ModelRequest {
    /// Whether it asks the model to go on writing its last message.
    #[must_use]
    pub fn continues_partial(&self) -> bool {
        matches!(self.messages.last(), Some(ViewMessage::Assistant { .. }))
    }
}

impl ProviderError {
    /// Whether the same request may succeed in a moment.
    #[must_use]
    pub fn retryable(&self) -> bool {
        use ProviderErrorKind as K;
        matches!(self.kind, K::RateLimited | K::Unavailable | K::Broken | K::Stalled)
    }

    /// The error as a turn's failure.
    #[must_use]
    pub fn failure(&self) -> Failure {
        use ProviderErrorKind as K;
        let (code, hint) = match self.kind {
            K::Unauthorized => (
                "model_unauthorized",
                Some("check the provider's API key in the environment; `everturn doctor` tests it"),
            ),
            K::Misconfigured => (
                "model_misconfigured",
                Some("check --model and the provider's base address; `everturn doctor` tests both"),
            ),
            K::Refused => ("model_refused", None),
            K::TooLong => (
                "context_too_long",
                Some("start a new session, or use a model with a larger context"),
            ),
            K::RateLimited => (
                "model_rate_limited",
                Some("the provider refuses for now; send the message again later"),
            ),
            K::Unavailable => (
                "model_unavailable",
                Some(
                    "see that the model's server runs and that its address is right, then send the message again",
                ),
            ),
            K::Broken => {
                ("model_stream_broken", Some("the text that came is kept; ask the model to go on"))
            }
            K::Stalled => {
                ("model_stalled", Some("the text that came is kept; ask the model to go on"))
            }
            K::Malformed => ("model_malformed", None),
        };
        Failure {
            code: code.to_owned(),
            message: self.message.clone(),
            permanent: !self.retryable(),
            hint: hint.map(str::to_owned),
        }
    }
}

/// The stream of one answer. It ends after [`ModelEvent::Done`] or after the first error.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ProviderError>>;

/// A model behind some protocol. One value serves all sessions and is shared.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// `provider/name`, as in `--model`.
    fn model(&self) -> &str;

    /// Tokens that fit one request, where known; the engine refuses longer histories.
    fn context_tokens(&self) -> Option<u64> {
        None
    }

    /// Whether a conversation that ends in the model's own text is one that the model goes on
    /// writing, in the middle of it. Where this is true and the provider refuses such a request all
    /// the same, the engine sends another one that does not end so.
    fn continues_partial(&self) -> bool {
        false
    }

    /// Sends one request. Dropping the stream (or this future) ends the request.
    ///
    /// # Errors
    /// [`ProviderError`] before anything came; once the stream exists errors come through it.
    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError>;
}
