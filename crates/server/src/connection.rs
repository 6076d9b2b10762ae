//! One connection's bytes: a deadline for peers that do not read, problems in place of the bare
//! answers that the HTTP library gives on its own, and an end that lets the peer read the last
//! answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::{Buf as _, Bytes};
use everturn_api::Code;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::config::HEADER_BYTES_MAX;
use crate::problem::Refused;

/// How long, and for how many bytes, a refused peer may go on sending before the connection is cut.
/// Cutting at once would make its kernel drop the answer unread.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 32 << 20;

/// What a connection's two ends tell each other: the one that handles requests, and the one that
/// moves bytes.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Requests whose answer is not complete.
    in_flight: AtomicUsize,
    /// The last answer was a refusal: the peer may still be sending what was refused.
    was_refused: AtomicBool,
}

impl Exchange {
    /// A request came.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.was_refused.store(false, Ordering::Release);
        InFlight(Arc::clone(self))
    }
}

/// Lives until an answer is complete.
pub(crate) struct InFlight(Arc<Exchange>);

impl InFlight {
    /// Ties it to an answer.
    pub(crate) fn answer(self, response: Response) -> Response {
        if response.status().is_client_error() || response.status().is_server_error() {
            self.0.was_refused.store(true, Ordering::Release);
        }
        response.map(|body| Body::new(Answering { body, _in_flight: self }))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A body that ends its request when it is dropped.
struct Answering {
    body: Body,
    _in_flight: InFlight,
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where the end of a connection is.
enum Ending {
    /// Not reached.
    No,
    /// Nothing more is sent; what still comes is thrown away until the peer has read.
    Lingering { timer: Pin<Box<Sleep>>, bytes: usize },
}

/// A connection's bytes.
pub(crate) struct Connection {
    stream: TcpStream,
    exchange: Arc<Exchange>,
    write_timeout: Duration,
    /// Runs while the peer takes nothing.
    blocked: Option<Pin<Box<Sleep>>>,
    /// Whether the last write was taken as a whole, so that the next one begins something.
    is_between_writes: bool,
    /// What is still to be written in place of what was given.
    instead: Option<Bytes>,
    ending: Ending,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, exchange: Arc<Exchange>, write_timeout: Duration) -> Self {
        Self {
            stream,
            exchange,
            write_timeout,
            blocked: None,
            is_between_writes: true,
            instead: None,
            ending: Ending::No,
        }
    }

    /// Passes on how a write went, and fails when the peer has taken nothing for too long.
    fn patiently<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let limit = self.write_timeout;
        let timer = self.blocked.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(timer.as_mut().poll(context));
        metrics::counter!("everturn_slow_peers_total").increment(1);
        tracing::debug!(?limit, "a peer took nothing for too long and is cut off");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Writes a problem in place of these bytes if they are an answer that the library made by
    /// itself; `None` if they are anything else.
    fn poll_instead(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            let is_free = self.exchange.in_flight.load(Ordering::Acquire) == 0;
            let (code, detail) = automatic(bytes).filter(|_| is_free && self.is_between_writes)?;
            self.exchange.was_refused.store(true, Ordering::Release);
            self.instead = Some(problem(code, detail));
        }
        while let Some(rest) = &mut self.instead {
            if rest.is_empty() {
                self.instead = None;
                // As far as the library knows, its own bytes went out.
                return Some(Poll::Ready(Ok(bytes.len())));
            }
            let written = Pin::new(&mut self.stream).poll_write(context, rest);
            match self.patiently(context, written) {
                Poll::Ready(Ok(count)) => {
                    if let Some(rest) = &mut self.instead {
                        rest.advance(count);
                    }
                }
                other => return Some(other),
            }
        }
        None
    }
}

/// Whether these bytes are an answer that the HTTP library made by itself, and the code to give
/// instead. It is one write, from the status line to the end of an empty body.
fn automatic(bytes: &[u8]) -> Option<(Code, &'static str)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (line, fields) = text.strip_prefix("HTTP/1.1 ")?.split_once("\r\n")?;
    let is_bare = fields.ends_with("\r\n\r\n")
        && fields.find("\r\n\r\n") == Some(fields.len() - 4)
        && fields.contains("content-length: 0\r\n")
        && !fields.contains("x-content-type-options");
    if !is_bare {
        return None;
    }
    match line.get(..3)? {
        "431" | "414" => Some((Code::HeadersTooLarge, "line and headers are too long or too many")),
        "400" => Some((Code::BadRequest, "this is not an HTTP/1.1 request")),
        _ => None,
    }
}

/// The problem in full, as it goes on the wire.
fn problem(code: Code, detail: &str) -> Bytes {
    let mut refused = Refused::new(code, detail);
    if code == Code::HeadersTooLarge {
        refused = refused.hint(format!("send at most {HEADER_BYTES_MAX} bytes of them"));
    }
    let body = serde_json::to_vec(refused.problem()).unwrap_or_default();
    let status = refused.into_response().status();
    let mut out = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n\
         x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        status.as_str(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(&body);
    out.into()
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(written) = this.poll_instead(context, bytes) {
            return written;
        }
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        let count = ready!(this.patiently(context, written))?;
        this.is_between_writes = count == bytes.len();
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let [only] = pieces
            && let Some(written) = this.poll_instead(context, only)
        {
            return written;
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        let count = ready!(this.patiently(context, written))?;
        this.is_between_writes = count == pieces.iter().map(|piece| piece.len()).sum::<usize>();
        Poll::Ready(Ok(count))
    }

    /// Pieces go out as they are: the library would otherwise gather them in a buffer that grows
    /// with the largest and is kept for as long as the connection.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.ending {
                Ending::No => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                    if !this.exchange.was_refused.load(Ordering::Acquire) {
                        return Poll::Ready(Ok(()));
                    }
                    let timer = Box::pin(tokio::time::sleep(LINGER));
                    this.ending = Ending::Lingering { timer, bytes: 0 };
                }
                Ending::Lingering { timer, bytes } => {
                    if timer.as_mut().poll(context).is_ready() || *bytes >= LINGER_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                    let mut space = [0_u8; 16 << 10];
                    let mut buffer = ReadBuf::new(&mut space);
                    match ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer)) {
                        Ok(()) if !buffer.filled().is_empty() => *bytes += buffer.filled().len(),
                        // The peer closed as well, or is gone: either way it reads no more.
                        _ => return Poll::Ready(Ok(())),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_answers_of_the_library_are_replaced() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
                     content-length: 0\r\ndate: Mon, 30 Nov 2026 06:00:00 GMT\r\n\r\n";
        assert_eq!(automatic(bare).map(|(code, _)| code), Some(Code::HeadersTooLarge));
        let bad = String::from_utf8_lossy(bare).replace("431 Request Header", "400 Bad Request");
        assert_eq!(automatic(bad.as_bytes()).map(|(code, _)| code), Some(Code::BadRequest));
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-content-type-options: nosniff\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nmore",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nmore\r\n\r\n",
            "HTTP/1.1 400",
            "",
        ] {
            assert_eq!(automatic(other.as_bytes()).map(|(code, _)| code), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_written_instead_is_a_complete_answer() {
        let bytes = problem(Code::HeadersTooLarge, "too long");
        let text = String::from_utf8_lossy(&bytes);
        let parts = text.split_once("\r\n\r\n");
        assert!(parts.is_some_and(|(head, body)| {
            head.starts_with("HTTP/1.1 431 ")
                && head.contains(&format!("content-length: {}", body.len()))
                && body.contains("\"code\":\"headers_too_large\"")
        }));
    }
}
