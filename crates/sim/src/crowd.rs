//! Many viewers at once, each of which keeps no more than its place and a digest of what it read.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use reqwest::Method;
use sse_stream::SseStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::Client;

/// What a viewer watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// A session's feed.
    Feed(String),
    /// One run.
    Run(String),
}

/// What a viewer read: how much, and the digest of all bytes in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// Events.
    pub count: u64,
    /// Of their bytes.
    pub digest: u64,
}

/// Takes events in, in order.
#[derive(Default)]
struct Taken {
    count: u64,
    hasher: DefaultHasher,
}

impl Taken {
    fn add(&mut self, data: &str) {
        self.count += 1;
        self.hasher.write(data.as_bytes());
        self.hasher.write_u8(b'\n');
    }

    fn digest(&self) -> Digest {
        Digest { count: self.count, digest: self.hasher.finish() }
    }
}

/// The digest of these events.
#[must_use]
pub fn digest<'e>(events: impl Iterator<Item = &'e str>) -> Digest {
    let mut taken = Taken::default();
    events.for_each(|event| taken.add(event));
    taken.digest()
}

/// How far all of them are.
#[derive(Debug, Default)]
struct Progress {
    events: AtomicU64,
    attached: AtomicUsize,
}

/// Viewers at work.
#[derive(Debug)]
pub struct Crowd {
    tasks: JoinSet<Result<(Watched, Digest)>>,
    progress: Arc<Progress>,
}

impl Crowd {
    /// Sends them off. Each reads until its run has ended, or until a run of its session has ended
    /// well, over whatever happens to the server.
    #[must_use]
    pub fn start(client: &Client, watched: impl IntoIterator<Item = Watched>) -> Self {
        let progress = Arc::new(Progress::default());
        let mut tasks = JoinSet::new();
        for watched in watched {
            let viewer = Viewer {
                client: client.clone(),
                watched,
                progress: Arc::clone(&progress),
                taken: Taken::default(),
                is_over: false,
            };
            tasks.spawn(viewer.read());
        }
        Self { tasks, progress }
    }

    /// Events that came so far, of all viewers together.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.progress.events.load(Ordering::Relaxed)
    }

    /// Connections that were opened so far.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.progress.attached.load(Ordering::Relaxed)
    }

    /// Waits for all of them, and gives what each read.
    ///
    /// # Errors
    /// One met a gap, a double or a reset, or did not come to the end within `limit`.
    pub async fn finish(mut self, limit: Duration) -> Result<Vec<(Watched, Digest)>> {
        let all = async {
            let mut done = Vec::new();
            while let Some(one) = self.tasks.join_next().await {
                done.push(one??);
            }
            anyhow::Ok(done)
        };
        match timeout(limit, all).await {
            Ok(done) => done,
            Err(_) => bail!("{} viewers did not end within {limit:?}", self.tasks.len()),
        }
    }
}

struct Viewer {
    client: Client,
    watched: Watched,
    progress: Arc<Progress>,
    taken: Taken,
    is_over: bool,
}

impl Viewer {
    async fn read(mut self) -> Result<(Watched, Digest)> {
        while !self.is_over {
            self.attach().await.with_context(|| format!("{:?}", self.watched))?;
            // The server may be away: not all of them at it all the time.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok((self.watched, self.taken.digest()))
    }

    /// One connection. An error is a fault of the stream, not a cut.
    async fn attach(&mut self) -> Result<()> {
        let count = self.taken.count;
        let path = match &self.watched {
            Watched::Feed(session) => format!("/v1/sessions/{session}/events?after={count}"),
            Watched::Run(run) => format!("/v1/runs/{run}/events?after={count}"),
        };
        let request = self.client.request(Method::GET, &path).header("Accept", "text/event-stream");
        let Ok(response) = request.send().await else { return Ok(()) };
        match response.status().as_u16() {
            200 => {}
            // Started a moment ago, or busy.
            429 | 503 => return Ok(()),
            204 if matches!(self.watched, Watched::Run(_)) => {
                self.is_over = true;
                return Ok(());
            }
            status => bail!("{path} is answered with {status}"),
        }
        self.progress.attached.fetch_add(1, Ordering::Relaxed);
        let mut stream = SseStream::from_bytes_stream(response.bytes_stream());
        while let Some(sse) = stream.next().await {
            // Cut off.
            let Ok(sse) = sse else { return Ok(()) };
            let Some(event) = sse.event.as_deref() else { continue };
            let Some(id) = sse.id.as_deref() else {
                ensure!(matches!(event, "opened" | "caught_up"), "{event} {:?}", sse.data);
                continue;
            };
            let number = match &self.watched {
                Watched::Feed(_) => id,
                Watched::Run(run) => {
                    let of_run = id.strip_prefix(run.as_str());
                    of_run.and_then(|id| id.strip_prefix(':')).context("another run's id")?
                }
            };
            let wanted = self.taken.count + 1;
            ensure!(number.parse() == Ok(wanted), "{id} came in place of {wanted}");
            self.taken.add(sse.data.as_deref().unwrap_or_default());
            self.progress.events.fetch_add(1, Ordering::Relaxed);
            let is_last = match &self.watched {
                Watched::Feed(_) => event == "run.completed",
                Watched::Run(_) => crate::follow::is_terminal(event),
            };
            if is_last {
                self.is_over = true;
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_what_came_and_in_which_order() {
        let of = |events: &[&str]| digest(events.iter().copied());
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        for other in [&["b", "a"][..], &["ab"], &["a"], &["a", "b", "b"], &["a", "", "b"]] {
            assert_ne!(of(&["a", "b"]), of(other), "{other:?}");
        }
    }
}
