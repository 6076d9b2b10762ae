//! Fan-out: many viewers of turns that stream, and how far behind any of them is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use everturn_sim::server::Home;

use super::Scale;
use super::stats::{Times, per_second, rate};
use super::table::{Row, Table};
use super::wire::{Line, Streamed};

/// Sessions that stream, each watched by its share of the viewers.
const SESSIONS: usize = 10;
/// Events per second of each.
const PACE: usize = 50;

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let viewers = scale.of(1_000, 50);
    let seconds = scale.of(10, 1);
    let words = "word ".repeat(PACE * seconds);
    let home = Home::new()?;
    let script = format!(
        "words_per_second = {PACE}\n[[rule]]\nreply = [{{ text = \"{}\" }}]\n",
        words.trim_end()
    );
    let server = home.serve(&home.script(&script)?)?.start().await?;
    let mut line = Line::open(&server.address).await?;
    let mut streams = Vec::new();
    for session in 0..SESSIONS {
        let body = format!(r#"{{"id":"s{session}"}}"#);
        line.ask("POST", "/v1/sessions", "", &body).await?.expect(201)?;
    }
    for viewer in 0..viewers {
        let path = format!("/v1/sessions/s{}/events?after=0", viewer % SESSIONS);
        let mut stream = Line::open(&server.address)
            .await?
            .stream("GET", &path, "Accept: text/event-stream\r\n", "")
            .await?;
        stream.wait_within(Duration::from_secs(30), "event: caught_up").await?;
        streams.push(stream);
    }
    let begun = std::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for stream in streams {
        tasks.spawn(lags(stream));
    }
    for session in 0..SESSIONS {
        let path = format!("/v1/sessions/s{session}/inputs");
        line.ask("POST", &path, "Idempotency-Key: r\r\n", r#"{"text":"go"}"#).await?.expect(202)?;
    }
    let mut all = Vec::new();
    while let Some(lags) = tasks.join_next().await {
        all.extend(lags??);
    }
    let lags = Times::of(all);
    table.add(Row {
        what: format!("fan-out, {viewers} viewers"),
        measured: format!("behind by {}", lags.shown()),
        beside: format!(
            "{} deliveries of {PACE} × {viewers} = {}/s",
            per_second(rate(lags.len(), begun.elapsed())),
            PACE * viewers
        ),
        budget: "p99 ≤ 250 ms".to_owned(),
        met: Some(lags.p99() <= Duration::from_millis(250)),
    });
    Ok(())
}

/// How long after its commit each delta arrived.
async fn lags(mut stream: Streamed) -> Result<Vec<Duration>> {
    const DELTA: &[u8] = b"\"event\":\"text.delta\",\"at\":\"";
    let mut lags = Vec::new();
    let mut rest: Vec<u8> = Vec::new();
    loop {
        let bytes = stream.take().await?;
        if bytes.is_empty() {
            anyhow::bail!("a viewer's stream ended");
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        rest.extend(bytes);
        let mut from = 0;
        while let Some(at) = position(&rest[from..], DELTA) {
            let time = from + at + DELTA.len();
            // `2026-01-01T00:00:00.000Z` and the quote behind it.
            let Some(text) = rest.get(time..time + 24) else { break };
            lags.push(now.saturating_sub(since_epoch(text)?));
            from = time + 24;
        }
        if position(&rest[from..], b"event: run.completed").is_some() {
            return Ok(lags);
        }
        // Keep what may be the beginning of something.
        let keep = rest.len().saturating_sub(64).max(from);
        rest.drain(..keep);
    }
}

fn position(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// Reads a time as the wire has it.
fn since_epoch(text: &[u8]) -> Result<Duration> {
    let text = std::str::from_utf8(text)?;
    let time: jiff::Timestamp = text.parse()?;
    Ok(Duration::from_millis(u64::try_from(time.as_millisecond())?))
}
