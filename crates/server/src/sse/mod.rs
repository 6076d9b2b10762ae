//! Streams of events: `text/event-stream` bodies that are written as they are read.
//!
//! A body is pulled: hyper asks for more only while the peer takes what it was given, so that a slow
//! viewer holds back nobody but itself. What it has not taken stays in the store.

mod frame;
mod many;
mod one;
mod pace;

use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use everturn_api::Code;
use everturn_store::StorageError;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::time::Sleep;

use crate::access::Caller;
use crate::problem::{Answer, Refused};
use crate::state::Server;
use crate::streams::Slot;
pub(crate) use many::Many;
pub(crate) use one::One;
pub(crate) use pace::Pace;

/// Bytes written at once, about.
const CHUNK_BYTES: usize = 64 << 10;
/// How long a stream waits before it asks a store again that failed, and how often it does.
const RETRY: Duration = Duration::from_millis(500);
const RETRIES: u32 = 20;

/// Where a stream's events come from.
pub(crate) trait Feed: Send + 'static {
    /// Waits for something and writes it. `false`: nothing follows what was written. Can be dropped
    /// and called again without losing anything.
    fn next(
        &mut self,
        out: &mut BytesMut,
    ) -> impl Future<Output = Result<bool, StorageError>> + Send;
}

struct Writer<F> {
    feed: F,
    /// What is sent first.
    prelude: BytesMut,
    server: Server,
    caller: Caller,
    timer: Pin<Box<Sleep>>,
    checked_at: Instant,
    failures: u32,
    has_ended: bool,
    step: pace::Step,
    /// Until then it gathers.
    gathers_until: tokio::time::Instant,
    _slot: Slot,
}

impl<F: Feed> Writer<F> {
    /// The next bytes; `None` at the end.
    async fn chunk(&mut self) -> Option<Bytes> {
        let heartbeat = self.server.config().heartbeat;
        if !self.prelude.is_empty() {
            return Some(std::mem::take(&mut self.prelude).freeze());
        }
        if self.has_ended {
            return None;
        }
        if self.gathers_until > tokio::time::Instant::now() {
            self.timer.as_mut().reset(self.gathers_until);
            tokio::select! {
                () = &mut self.timer => {}
                () = self.server.stopping().cancelled() => {}
            }
        }
        self.timer.as_mut().reset(tokio::time::Instant::now() + heartbeat);
        let mut out = BytesMut::new();
        while out.is_empty() {
            // Whoever may no longer read is let go, however much there is to read.
            if self.checked_at.elapsed() >= heartbeat {
                self.checked_at = Instant::now();
                if !self.server.access().is_still_welcome(&self.caller).await {
                    return None;
                }
            }
            tokio::select! {
                biased;
                // Before the end, so that a viewer gets the last word of a turn that ended while the
                // server drained.
                result = self.feed.next(&mut out) => match result {
                    Ok(goes_on) => {
                        self.failures = 0;
                        self.has_ended = !goes_on;
                        if self.has_ended && out.is_empty() {
                            return None;
                        }
                        let wait = self.server.pace().wrote(&mut self.step, out.len());
                        self.gathers_until = tokio::time::Instant::now() + wait;
                    }
                    Err(error) => {
                        self.failures += 1;
                        tracing::warn!(%error, failures = self.failures, "a stream cannot be read");
                        self.server.health().store_failed(error.kind);
                        if self.failures > RETRIES {
                            return None;
                        }
                        tokio::time::sleep(RETRY).await;
                        frame::comment(&mut out, "the store does not answer, trying again");
                    }
                },
                () = self.server.stopping().cancelled() => return None,
                () = &mut self.timer => frame::comment(&mut out, "heartbeat"),
            }
        }
        Some(out.freeze())
    }
}

/// A response that streams a feed. `prelude` has the events that are there already.
pub(crate) fn response<F: Feed>(
    server: &Server,
    caller: Caller,
    slot: Slot,
    feed: F,
    prelude: &BytesMut,
) -> Response {
    let heartbeat = server.config().heartbeat;
    let mut first = BytesMut::from("retry: 1000\n");
    frame::comment(&mut first, &format!("a heartbeat follows {heartbeat:?} of silence"));
    first.extend_from_slice(prelude);
    let writer = Writer {
        feed,
        prelude: first,
        server: server.clone(),
        caller,
        timer: Box::pin(tokio::time::sleep(heartbeat)),
        checked_at: Instant::now(),
        failures: 0,
        has_ended: false,
        step: pace::Step::default(),
        gathers_until: tokio::time::Instant::now(),
        _slot: slot,
    };
    let chunks = futures::stream::unfold(writer, async |mut writer| {
        let bytes = writer.chunk().await?;
        Some((Ok::<_, Infallible>(bytes), writer))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    // Proxies that would gather bytes before they pass them on are asked not to.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Whether the client asks for a stream by name.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    accepted(headers).any(|kind| kind == "text/event-stream")
}

/// Refuses a client that takes no stream.
pub(crate) fn require_accepted(headers: &HeaderMap) -> Answer<()> {
    let takes = |kind: String| matches!(&*kind, "text/event-stream" | "text/*" | "*/*");
    if headers.contains_key(header::ACCEPT) && !accepted(headers).any(takes) {
        return Err(Refused::new(Code::NotAcceptable, "this route answers text/event-stream only")
            .hint("send Accept: text/event-stream"));
    }
    Ok(())
}

fn accepted(headers: &HeaderMap) -> impl Iterator<Item = String> {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .map(|kind| kind.trim().to_ascii_lowercase())
}
