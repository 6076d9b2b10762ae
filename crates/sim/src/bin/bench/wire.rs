//! HTTP as bytes. A client library would take as much of the two cores as the server that is measured.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Lets this process and those that it starts have as many connections as the system allows.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal shows later, as a connection that cannot be opened.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A connection that is kept open between requests.
pub(crate) struct Line {
    stream: TcpStream,
    host: String,
    buffer: Vec<u8>,
}

/// An answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Fails unless it has this status.
    pub(crate) fn expect(self, status: u16) -> Result<Self> {
        if self.status == status {
            return Ok(self);
        }
        bail!("{status} was expected and it is {}: {}", self.status, self.text());
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

impl Line {
    /// Connects to `http://HOST:PORT`.
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let host = address.strip_prefix("http://").unwrap_or(address).to_owned();
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host, buffer: Vec::with_capacity(16 << 10) })
    }

    async fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Result<()> {
        let host = &self.host;
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}");
        if !body.is_empty() {
            let length = body.len();
            request.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            ));
        }
        request.push_str("\r\n");
        request.push_str(body);
        self.stream.write_all(request.as_bytes()).await?;
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            bail!("the connection ended");
        }
        Ok(())
    }

    /// Reads the head of an answer; gives the status and the head, and leaves what follows.
    async fn head(&mut self) -> Result<(u16, String)> {
        let end = loop {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more().await?,
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        self.buffer.drain(..end);
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok((status.context("no status")?, head))
    }

    /// A request with a whole answer.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Result<Reply> {
        self.send(method, path, headers, body).await?;
        let (status, head) = self.head().await?;
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        if let Some(length) = field("content-length:") {
            let length: usize = length.trim().parse()?;
            while self.buffer.len() < length {
                self.more().await?;
            }
            let body = self.buffer.drain(..length).collect();
            return Ok(Reply { status, body });
        }
        if field("transfer-encoding:").is_some_and(|kind| kind.contains("chunked")) {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk().await? {
                body.extend(chunk);
            }
            return Ok(Reply { status, body });
        }
        Ok(Reply { status, body: Vec::new() })
    }

    /// One chunk of a chunked body; `None` at its end.
    async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let end = loop {
            match find(&self.buffer, b"\r\n") {
                Some(end) => break end,
                None => self.more().await?,
            }
        };
        let size = std::str::from_utf8(&self.buffer[..end])?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)?;
        while self.buffer.len() < end + 2 + size + 2 {
            self.more().await?;
        }
        let chunk = self.buffer[end + 2..end + 2 + size].to_vec();
        self.buffer.drain(..end + 2 + size + 2);
        Ok((size > 0).then_some(chunk))
    }

    /// Begins a streamed answer.
    pub(crate) async fn stream(
        mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Result<Streamed> {
        self.send(method, path, headers, body).await?;
        let (status, _) = self.head().await?;
        if status != 200 {
            bail!("{status} was answered to {method} {path}");
        }
        Ok(Streamed { line: self })
    }
}

/// A streamed answer, as bytes. Frames of chunks lie between events and are passed over by whoever
/// looks for a text.
pub(crate) struct Streamed {
    line: Line,
}

impl Streamed {
    /// Reads until this text came, and forgets everything before its end. Gives when it came.
    pub(crate) async fn wait_for(&mut self, text: &str) -> Result<Instant> {
        loop {
            if let Some(at) = find(&self.line.buffer, text.as_bytes()) {
                self.line.buffer.drain(..at + text.len());
                return Ok(Instant::now());
            }
            // The text may lie across two pieces.
            let keep = self.line.buffer.len().saturating_sub(text.len() - 1);
            self.line.buffer.drain(..keep);
            self.line.more().await?;
        }
    }

    /// Takes what came, waiting for something; nothing at the end.
    pub(crate) async fn take(&mut self) -> Result<Vec<u8>> {
        if self.line.buffer.is_empty()
            && self.line.stream.read_buf(&mut self.line.buffer).await? == 0
        {
            return Ok(Vec::new());
        }
        Ok(std::mem::take(&mut self.line.buffer))
    }

    /// As [`Streamed::wait_for`], with a limit.
    pub(crate) async fn wait_within(&mut self, limit: Duration, text: &str) -> Result<Instant> {
        tokio::time::timeout(limit, self.wait_for(text))
            .await
            .with_context(|| format!("{text:?} did not come within {limit:?}"))?
    }
}
