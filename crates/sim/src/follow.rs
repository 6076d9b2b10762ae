//! A reader of a stream that keeps its cursor and attaches again after a cut, as a good client does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Client;
use crate::wait::LIMIT;

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A session's feed.
    Feed(String),
    /// One run's stream, which closes behind the terminal event.
    Run(String),
}

impl Source {
    fn path(&self, after: u64) -> String {
        match self {
            Self::Feed(session) => format!("/v1/sessions/{session}/events?after={after}"),
            Self::Run(run) => format!("/v1/runs/{run}/events?after={after}"),
        }
    }

    /// The number that an id on the wire stands for, if it is one of this stream.
    fn number(&self, id: &str) -> Option<u64> {
        match self {
            Self::Feed(_) => id.parse().ok(),
            Self::Run(run) => id.strip_prefix(run.as_str())?.strip_prefix(':')?.parse().ok(),
        }
    }
}

/// One numbered event as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Offset or seq, from the id.
    pub number: u64,
    /// Its name.
    pub event: String,
    /// Its bytes.
    pub data: String,
}

impl Seen {
    /// Its bytes as JSON; `null` if they are none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }

    /// How many numbers it stands for, its own the last of them: a snapshot stands for a range.
    #[must_use]
    pub fn span(&self) -> u64 {
        if self.event == "text.snapshot" { span(&self.json()) } else { 1 }
    }
}

/// How many numbers an event with this body stands for.
#[must_use]
pub fn span(body: &Value) -> u64 {
    let range = body["from"].as_u64().zip(body["to"].as_u64());
    match range.filter(|_| body["event"] == "text.snapshot") {
        Some((from, to)) => to.saturating_sub(from) + 1,
        None => 1,
    }
}

/// Everything that a reader saw.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The cursor that it began with.
    pub began_after: u64,
    /// Numbered events, in order of arrival.
    pub events: Vec<Seen>,
    /// How often a stream was opened.
    pub attached: usize,
    /// How often one said that it goes on live.
    pub caught_up: usize,
    /// Reasons of `reset`s.
    pub resets: Vec<String>,
    /// What it had seen before each of them, with the place that it had begun behind: it dropped that
    /// and went on from where the server said.
    pub earlier: Vec<(u64, Vec<Seen>)>,
    /// Whatever a stream did that it may not do.
    pub faults: Vec<String>,
    /// Those of the faults that are a number too far ahead: after a power loss, and only then, that is
    /// no fault.
    pub jumps: Vec<String>,
    /// A run's stream has ended behind its terminal event.
    pub complete: bool,
}

impl Record {
    /// The place to go on from.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.events.last().map_or(self.began_after, |last| last.number)
    }

    /// All text of the model, of all runs.
    #[must_use]
    pub fn text(&self) -> String {
        let deltas = self.events.iter().filter(|seen| seen.event == "text.delta");
        deltas.map(|seen| seen.json()["text"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// How many events of this name there are.
    #[must_use]
    pub fn count(&self, event: &str) -> usize {
        self.events.iter().filter(|seen| seen.event == event).count()
    }

    /// The first event of this name.
    #[must_use]
    pub fn first(&self, event: &str) -> Option<Value> {
        self.events.iter().find(|seen| seen.event == event).map(Seen::json)
    }

    /// Takes an event in, and notes what is wrong with it.
    fn take(&mut self, source: &Source, sse: &Sse, connection: &mut Connection) {
        let event = sse.event.clone().unwrap_or_default();
        let data = sse.data.clone().unwrap_or_default();
        if event.is_empty() && data.is_empty() {
            return;
        }
        let cursor = self.cursor();
        match (event.as_str(), &sse.id) {
            ("opened", None) => {
                if connection.opened || connection.caught_up {
                    self.faults.push(format!("`opened` is not the first thing: {data}"));
                }
                connection.opened = true;
                return;
            }
            ("caught_up", None) => {
                let at = serde_json::from_str::<Value>(&data).unwrap_or_default()["at"].as_u64();
                if connection.caught_up {
                    self.faults.push("`caught_up` came twice on one stream".to_owned());
                } else if at != Some(cursor) {
                    self.faults.push(format!("`caught_up` at {at:?} and the cursor is {cursor}"));
                }
                connection.caught_up = true;
                self.caught_up += 1;
                return;
            }
            ("reset", None) => {
                let latest = serde_json::from_str::<Value>(&data).unwrap_or_default()["latest"]
                    .as_u64()
                    .unwrap_or_default();
                self.earlier.push((self.began_after, std::mem::take(&mut self.events)));
                self.began_after = if matches!(source, Source::Feed(_)) { latest } else { 0 };
                self.resets.push(data);
                return;
            }
            (_, None) => {
                self.faults.push(format!("an event without an id: {event} {data}"));
                return;
            }
            _ => {}
        }
        if !connection.opened {
            self.faults.push(format!("an event before `opened`: {event} {data}"));
        }
        let id = sse.id.as_deref().unwrap_or_default();
        let Some(number) = source.number(id) else {
            self.faults.push(format!("the id {id:?} is none of {source:?}"));
            return;
        };
        let seen = Seen { number, event, data };
        let first = (number + 1).saturating_sub(seen.span());
        if number <= cursor || first > cursor + 1 {
            let fault = format!("{number} follows {cursor}: {} {}", seen.event, seen.data);
            if first > cursor {
                self.jumps.push(fault.clone());
            }
            self.faults.push(fault);
        }
        self.check(source, number, &seen.event, &seen.data);
        self.events.push(seen);
    }

    /// What an event says of itself must be what the stream says of it.
    fn check(&mut self, source: &Source, number: u64, event: &str, data: &str) {
        let Ok(body) = serde_json::from_str::<Value>(data) else {
            self.faults.push(format!("{number} is not JSON: {data}"));
            return;
        };
        let (field, session) = match source {
            Source::Feed(session) => ("offset", Some(session)),
            Source::Run(run) => {
                if body["run_id"] != run.as_str() {
                    self.faults.push(format!("{number} is another run's: {data}"));
                }
                ("seq", None)
            }
        };
        if body[field] != number || body["event"] != event || body["at"].as_str().is_none() {
            self.faults.push(format!("{number}, {event}, says something else of itself: {data}"));
        }
        if session.is_some_and(|session| body["session_id"] != session.as_str()) {
            self.faults.push(format!("{number} is another session's: {data}"));
        }
    }
}

/// What is expected of one connection.
#[derive(Default)]
struct Connection {
    opened: bool,
    caught_up: bool,
}

/// Whether a run's event is its last one.
#[must_use]
pub fn is_terminal(event: &str) -> bool {
    matches!(event, "run.completed" | "run.failed" | "run.cancelled" | "run.interrupted")
}

/// A reader that works in the background until it is stopped.
pub struct Follower {
    source: Source,
    record: Arc<Mutex<Record>>,
    changed: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Follower {
    /// Reads a stream from behind `after`.
    #[must_use]
    pub fn start(client: &Client, source: Source, after: u64) -> Self {
        let record = Record { began_after: after, ..Record::default() };
        let record = Arc::new(Mutex::new(record));
        let changed = watch::Sender::new(());
        let reader = Reader {
            client: client.clone(),
            source: source.clone(),
            record: Arc::clone(&record),
            changed: changed.clone(),
        };
        Self { source, record, changed, task: tokio::spawn(reader.read()) }
    }

    /// Reads a session's whole feed.
    #[must_use]
    pub fn feed(client: &Client, session: &str) -> Self {
        Self::start(client, Source::Feed(session.to_owned()), 0)
    }

    /// Reads a whole run.
    #[must_use]
    pub fn run(client: &Client, run: &str) -> Self {
        Self::start(client, Source::Run(run.to_owned()), 0)
    }

    /// The session or the run that is read.
    #[must_use]
    pub fn session(&self) -> &str {
        let (Source::Feed(name) | Source::Run(name)) = &self.source;
        name
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the record is as `found` wants it, and gives what that makes of it.
    ///
    /// # Errors
    /// It is not in time; the error shows what came.
    pub async fn wait_for<T>(&self, found: impl Fn(&Record) -> Option<T>) -> Result<T> {
        self.wait_within(LIMIT, found).await
    }

    /// As [`Follower::wait_for`], with a limit of its own.
    ///
    /// # Errors
    /// As [`Follower::wait_for`].
    pub async fn wait_within<T>(
        &self,
        limit: Duration,
        found: impl Fn(&Record) -> Option<T>,
    ) -> Result<T> {
        let mut changed = self.changed.subscribe();
        let look = async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = found(&self.lock()) {
                    return Some(found);
                }
                if changed.changed().await.is_err() {
                    return None;
                }
            }
        };
        match timeout(limit, look).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => bail!("the reader is gone"),
            Err(_) => bail!("{:?} did not show it within {limit:?}: {}", self.source, self.shown()),
        }
    }

    /// Waits until this many events of a name came, and gives the last one of these.
    ///
    /// # Errors
    /// They do not come in time.
    pub async fn wait_for_event(&self, event: &str, count: usize) -> Result<Value> {
        self.wait_for(|record| {
            let mut found = record.events.iter().filter(|seen| seen.event == event);
            found.nth(count.saturating_sub(1)).map(Seen::json)
        })
        .await
        .with_context(|| format!("waiting for {event}, the {count}. time"))
    }

    fn shown(&self) -> String {
        let record = self.lock();
        let lines = record.events.iter().rev().take(30).rev();
        let lines: Vec<String> =
            lines.map(|seen| format!("{} {} {}", seen.number, seen.event, seen.data)).collect();
        format!("attached {} times, {:?}\n{}", record.attached, record.faults, lines.join("\n"))
    }

    /// What came so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    /// Ends the reading.
    #[must_use]
    pub fn stop(self) -> Record {
        self.task.abort();
        self.record()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Reader {
    client: Client,
    source: Source,
    record: Arc<Mutex<Record>>,
    changed: watch::Sender<()>,
}

impl Reader {
    async fn read(self) {
        let mut pause = Duration::from_millis(5);
        loop {
            let before = self.lock().events.len();
            // The server may be away; that is what attaching again is for.
            let _ = self.attach().await;
            if self.lock().complete {
                return;
            }
            let moved = self.lock().events.len() > before;
            pause = if moved { Duration::from_millis(5) } else { pause * 2 };
            pause = pause.min(Duration::from_millis(100));
            tokio::time::sleep(pause).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One connection, to its end.
    async fn attach(&self) -> Result<()> {
        let after = self.lock().cursor();
        let request = self
            .client
            .request(Method::GET, &self.source.path(after))
            .header("Accept", "text/event-stream");
        let response = request.send().await?;
        let status = response.status().as_u16();
        match status {
            200 => {}
            204 => {
                let mut record = self.lock();
                let ended = record.events.last().is_some_and(|last| is_terminal(&last.event));
                if !ended || self.is_feed() {
                    record.faults.push(format!("204 although there is more after {after}"));
                }
                record.complete = true;
                drop(record);
                self.changed.send_replace(());
                return Ok(());
            }
            // Not there yet.
            404 => return Ok(()),
            _ => {
                let text = response.text().await.unwrap_or_default();
                if !matches!(status, 429 | 503) {
                    self.lock().faults.push(format!("attaching after {after}: {status} {text}"));
                    self.changed.send_replace(());
                }
                bail!("not attached");
            }
        }
        self.lock().attached += 1;
        let mut connection = Connection::default();
        let mut stream = SseStream::from_bytes_stream(response.bytes_stream());
        while let Some(sse) = stream.next().await {
            self.lock().take(&self.source, &sse?, &mut connection);
            self.changed.send_replace(());
        }
        // The body ended as it should: for a run that means behind its terminal event.
        let mut record = self.lock();
        let ended = record.events.last().is_some_and(|last| is_terminal(&last.event));
        record.complete = !self.is_feed() && ended;
        drop(record);
        self.changed.send_replace(());
        Ok(())
    }

    fn is_feed(&self) -> bool {
        matches!(self.source, Source::Feed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sse(event: &str, id: Option<&str>, data: &str) -> Sse {
        let sse = Sse::default().event(event).data(data);
        match id {
            Some(id) => sse.id(id),
            None => sse,
        }
    }

    fn feed(events: &[Sse]) -> Record {
        let mut record = Record::default();
        let mut connection = Connection::default();
        for event in events {
            record.take(&Source::Feed("s".to_owned()), event, &mut connection);
        }
        record
    }

    fn body(offset: u64) -> String {
        format!(r#"{{"session_id":"s","offset":{offset},"event":"x","at":"t"}}"#)
    }

    #[test]
    fn a_good_stream_has_no_faults() {
        let record = feed(&[
            sse("opened", None, "{}"),
            sse("x", Some("1"), &body(1)),
            sse("x", Some("2"), &body(2)),
            sse("caught_up", None, r#"{"at":2}"#),
            sse("x", Some("3"), &body(3)),
        ]);
        assert_eq!((record.faults, record.events.len(), record.caught_up), (vec![], 3, 1));
    }

    /// A snapshot goes on where its range begins, or within it, and nowhere behind it.
    #[test]
    fn a_snapshot_stands_for_its_range() {
        let snapshot = |first_missing: bool| {
            let body =
                r#"{"session_id":"s","offset":4,"event":"text.snapshot","at":"t","from":7,"to":9}"#;
            let mut events = vec![sse("opened", None, "{}")];
            if !first_missing {
                events.push(sse("x", Some("1"), &self::body(1)));
            }
            events.push(sse("text.snapshot", Some("4"), body));
            feed(&events)
        };
        assert_eq!(snapshot(false).faults, Vec::<String>::new());
        let record = snapshot(true);
        assert!(record.faults[0].starts_with("4 follows 0"), "{record:?}");
        assert_eq!(record.jumps, record.faults);
    }

    #[test]
    fn every_fault_of_a_stream_is_noted() {
        let opened = || sse("opened", None, "{}");
        for (events, told) in [
            (vec![sse("x", Some("1"), &body(1))], "before `opened`"),
            (vec![opened(), sse("x", Some("2"), &body(2))], "2 follows 0"),
            (
                vec![opened(), sse("x", Some("1"), &body(1)), sse("x", Some("1"), &body(1))],
                "1 follows 1",
            ),
            (vec![opened(), sse("x", Some("1"), &body(2))], "something else of itself"),
            (vec![opened(), sse("y", Some("1"), &body(1))], "something else of itself"),
            (vec![opened(), sse("x", Some("1"), "{")], "not JSON"),
            (vec![opened(), sse("x", Some("s:1"), &body(1))], "is none of"),
            (vec![opened(), sse("x", None, &body(1))], "without an id"),
            (vec![opened(), sse("caught_up", None, r#"{"at":7}"#)], "the cursor is 0"),
            (vec![opened(), opened()], "not the first thing"),
            (
                vec![
                    opened(),
                    sse("caught_up", None, r#"{"at":0}"#),
                    sse("caught_up", None, r#"{"at":0}"#),
                ],
                "twice",
            ),
        ] {
            let faults = feed(&events).faults;
            assert!(faults.iter().any(|fault| fault.contains(told)), "{told}: {faults:?}");
        }
    }

    #[test]
    fn an_event_of_another_session_or_run_is_a_fault() {
        let other = r#"{"session_id":"t","offset":1,"event":"x","at":"t"}"#;
        let record = feed(&[sse("opened", None, "{}"), sse("x", Some("1"), other)]);
        assert!(record.faults[0].contains("another session"), "{:?}", record.faults);
        let mut record = Record::default();
        let mut connection = Connection { opened: true, ..Connection::default() };
        let data = r#"{"run_id":"q","seq":1,"event":"x","at":"t"}"#;
        let source = Source::Run("r".to_owned());
        record.take(&source, &sse("x", Some("r:1"), data), &mut connection);
        assert!(record.faults[0].contains("another run"), "{:?}", record.faults);
    }
}
