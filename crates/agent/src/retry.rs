//! Trying a request again, before anything of the answer has come.
//!
//! Once the first event is there, a new request could say something else, so an error is handed on
//! and the engine decides. Before that nobody has seen anything, and the same request may simply be
//! sent again: after a wait that grows, that is random (so that a thousand turns do not come back
//! at the same moment), and that is bounded, each one and all together.

use std::time::Duration;

use futures::StreamExt as _;
use rand::{Rng, RngExt as _};
use tokio::time::Instant;

use crate::provider::{ModelRequest, ModelStream, Provider, ProviderError, ProviderErrorKind};

/// How often and how patiently a request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries after the first one.
    pub retries: u32,
    /// The first wait is random between nothing and this; each later one may be twice as long.
    pub base: Duration,
    /// No wait of our own choice is longer.
    pub cap: Duration,
    /// The longest wait that a provider may ask for; if it asks for more, its error is handed on.
    pub retry_after_cap: Duration,
    /// No try begins later than this after the first one.
    pub total: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 4,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(30),
            retry_after_cap: Duration::from_secs(60),
            total: Duration::from_secs(300),
        }
    }
}

/// A try failed and there will be another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryNotice {
    /// Which try failed, from 1.
    pub attempt: u32,
    /// How many there are at most.
    pub attempts: u32,
    /// How long until the next one.
    pub wait: Duration,
    /// What went wrong.
    pub error: ProviderError,
}

/// Sends a request, again where that may help, until its first event is there. Dropping the future
/// ends whatever is under way, waits included.
///
/// # Errors
/// The last try's error: one that no retry can mend, or one too many.
pub async fn request_with_retry(
    provider: &dyn Provider,
    request: &ModelRequest,
    policy: &RetryPolicy,
    on_retry: &mut (dyn FnMut(RetryNotice) + Send),
) -> Result<ModelStream, ProviderError> {
    request_with_retry_seeded(provider, request, policy, on_retry, &mut FreshRng).await
}

/// The thread's generator, taken anew for each number: it may not be kept across a suspension.
struct FreshRng;

impl rand::TryRng for FreshRng {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        rand::rng().try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        rand::rng().try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        rand::rng().try_fill_bytes(bytes)
    }
}

/// [`request_with_retry`] with randomness from outside.
///
/// # Errors
/// As [`request_with_retry`].
pub async fn request_with_retry_seeded(
    provider: &dyn Provider,
    request: &ModelRequest,
    policy: &RetryPolicy,
    on_retry: &mut (dyn FnMut(RetryNotice) + Send),
    rng: &mut (dyn Rng + Send),
) -> Result<ModelStream, ProviderError> {
    let begun = Instant::now();
    let attempts = policy.retries.saturating_add(1);
    let mut attempt = 1;
    loop {
        let error = match first_event(provider, request.clone()).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if !error.retryable() || attempt >= attempts {
            return Err(error);
        }
        let Some(wait) = wait(policy, attempt, error.retry_after, rng) else { return Err(error) };
        if begun.elapsed().saturating_add(wait) > policy.total {
            return Err(error);
        }
        tracing::debug!(
            model = provider.model(),
            attempt,
            wait_ms = wait.as_millis() as u64,
            kind = ?error.kind,
            "the model request is tried again"
        );
        on_retry(RetryNotice { attempt, attempts, wait, error });
        tokio::time::sleep(wait).await;
        attempt += 1;
    }
}

/// Sends the request once and waits for its first event, which stays in the stream.
async fn first_event(
    provider: &dyn Provider,
    request: ModelRequest,
) -> Result<ModelStream, ProviderError> {
    let mut stream = provider.request(request).await?;
    match stream.next().await {
        Some(Ok(event)) => {
            Ok(futures::stream::once(std::future::ready(Ok(event))).chain(stream).boxed())
        }
        Some(Err(error)) => Err(error),
        None => Err(ProviderError {
            kind: ProviderErrorKind::Unavailable,
            message: format!("{} sent an answer without an end", provider.model()),
            retry_after: None,
        }),
    }
}

/// How long to wait after this many failed tries; nothing where the provider asks for too much.
fn wait(
    policy: &RetryPolicy,
    failed: u32,
    asked: Option<Duration>,
    rng: &mut (dyn Rng + Send),
) -> Option<Duration> {
    let up_to = |limit: Duration, rng: &mut (dyn Rng + Send)| {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(rng.random_range(0..=nanos))
    };
    match asked {
        Some(asked) if asked > policy.retry_after_cap => None,
        // Whoever was turned away together would come back together: spread over the base.
        Some(asked) => Some(asked.saturating_add(up_to(policy.base, rng))),
        None => {
            let factor = 2_u32.saturating_pow(failed.saturating_sub(1));
            Some(up_to(policy.base.saturating_mul(factor).min(policy.cap), rng))
        }
    }
}

#[cfg(test)]
#[path = "retry/tests.rs"]
mod tests;
