//! What the store says afterwards, read through the HTTP API.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::follow::{Follower, Seen};

/// Requests at the same time.
const CONCURRENT: usize = 8;

/// One run and its journal.
#[derive(Debug, Clone)]
pub struct RunHistory {
    /// The run as the API tells it.
    pub run: Value,
    /// The bytes of its events, from the first one.
    pub events: Vec<String>,
}

impl RunHistory {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.run["run_id"].as_str().unwrap_or_default()
    }
}

/// One session, with everything in it.
#[derive(Debug, Clone)]
pub struct SessionHistory {
    /// Its id.
    pub id: String,
    /// The session as the API tells it.
    pub session: Value,
    /// Its transcript in order.
    pub messages: Vec<Value>,
    /// Its inputs, continuations among them.
    pub inputs: Vec<Value>,
    /// Its runs in the order in which they began.
    pub runs: Vec<RunHistory>,
    /// Its feed from the first event.
    pub feed: Vec<Seen>,
    /// What is wrong with the stream that the feed was read from.
    pub faults: Vec<String>,
    /// Those of the faults that are numbers which nothing has: after a power loss, they are none.
    pub jumps: Vec<String>,
}

impl SessionHistory {
    /// Reads a session. What it says is consistent only while nothing happens in it.
    ///
    /// # Errors
    /// Something cannot be read.
    pub async fn read(client: &Client, id: &str) -> Result<Self> {
        let session = client.session(id).await?;
        let offset = session["offset"].as_u64().context("a session without an offset")?;
        let follower = Follower::feed(client, id);
        follower
            .wait_for(|record| (record.caught_up > 0 && record.cursor() >= offset).then_some(()))
            .await?;
        let record = follower.stop();
        let (feed, jumps) = (record.events, record.jumps);
        let mut faults = record.faults;
        faults.extend(record.resets.into_iter().map(|reset| format!("reset: {reset}")));
        let messages = client.messages(id).await?;
        let inputs = futures::stream::iter(names(&feed, "input.accepted", "input_id"))
            .map(|id| async move { read_input(client, &id).await })
            .buffered(CONCURRENT)
            .try_filter_map(|input| async move { Ok(input) })
            .try_collect()
            .await?;
        let runs = futures::stream::iter(names(&feed, "turn.started", "run_id"))
            .map(|id| async move { read_run(client, &id).await })
            .buffered(CONCURRENT)
            .try_collect()
            .await?;
        Ok(Self { id: id.to_owned(), session, messages, inputs, runs, feed, faults, jumps })
    }
}

/// Reads sessions, several at a time.
///
/// # Errors
/// Something cannot be read.
pub async fn read(
    client: &Client,
    ids: impl IntoIterator<Item = String>,
) -> Result<Vec<SessionHistory>> {
    let ids: BTreeSet<String> = ids.into_iter().collect();
    futures::stream::iter(ids)
        .map(|id| async move {
            SessionHistory::read(client, &id).await.with_context(|| format!("reading {id}"))
        })
        .buffered(4)
        .try_collect()
        .await
}

/// What this field says in events of this name, in their order, each once.
fn names(feed: &[Seen], event: &str, field: &str) -> Vec<String> {
    let mut known = BTreeSet::new();
    feed.iter()
        .filter(|seen| seen.event == event)
        .filter_map(|seen| seen.json()[field].as_str().map(str::to_owned))
        .filter(|name| known.insert(name.clone()))
        .collect()
}

/// An input, if it is there: that it is not is for the checker to say.
async fn read_input(client: &Client, id: &str) -> Result<Option<Value>> {
    let answer = client.get(&format!("/v1/inputs/{id}")).await?;
    if answer.status == 404 { Ok(None) } else { answer.expect(200).map(Some) }
}

async fn read_run(client: &Client, id: &str) -> Result<RunHistory> {
    #[derive(Deserialize)]
    struct Page {
        events: Vec<Box<RawValue>>,
        malformed: Vec<Value>,
        last_seq: u64,
    }
    let run = client.run(id).await?;
    let mut events: Vec<String> = Vec::new();
    let mut after = 0;
    loop {
        let answer = client.get(&format!("/v1/runs/{id}/events?after={after}")).await?;
        answer.expect(200)?;
        let page: Page = serde_json::from_str(&answer.body)?;
        if !page.malformed.is_empty() {
            bail!("run {id} has events that cannot be read: {:?}", page.malformed);
        }
        let none = page.events.is_empty();
        events.extend(page.events.iter().map(|event| event.get().to_owned()));
        let last = events.last().and_then(|event| serde_json::from_str::<Value>(event).ok());
        after = last.and_then(|event| event["seq"].as_u64()).unwrap_or(after);
        if none || after >= page.last_seq {
            return Ok(RunHistory { run, events });
        }
    }
}
