//! Fan-out: many viewers of turns that stream, and how far behind any of them is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use everturn_sim::server::Home;

use super::Scale;
use super::bare::Bare;
use super::reading::cpu_time;
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
    let (bare, bare_us) = limit(viewers, seconds).await?;
    let words = "word ".repeat(PACE * seconds);
    let home = Home::new()?;
    let script = format!(
        "words_per_second = {PACE}\n[[rule]]\nreply = [{{ text = \"{}\" }}]\n",
        words.trim_end()
    );
    let server = home.serve(&home.script(&script)?)?.start().await?;
    let mut line = Line::open(&server.address).await?;
    for session in 0..SESSIONS {
        let body = format!(r#"{{"id":"s{session}"}}"#);
        line.ask("POST", "/v1/sessions", "", &body).await?.expect(201)?;
    }
    let path = |session: usize| format!("/v1/sessions/s{session}/events?after=0");
    let streams = attach(&server.address, viewers, path).await?;
    let pid = server.process.pid();
    let cpu = cpu_time(pid)?;
    let begun = std::time::Instant::now();
    let tasks = watch(streams);
    for session in 0..SESSIONS {
        let path = format!("/v1/sessions/s{session}/inputs");
        line.ask("POST", &path, "Idempotency-Key: r\r\n", r#"{"text":"go"}"#).await?.expect(202)?;
    }
    let lags = all(tasks).await?;
    let took = begun.elapsed();
    let each_us = (cpu_time(pid)? - cpu).as_secs_f64() * 1e6 / lags.len() as f64;
    table.add(Row {
        what: format!("fan-out, {viewers} viewers"),
        measured: format!(
            "behind by {}; {} deliveries, {each_us:.1} µs of the server for each",
            lags.shown(),
            per_second(rate(lags.len(), took)),
        ),
        beside: format!(
            "a bare axum handler: behind by {}, {bare_us:.1} µs for each of {PACE} × {viewers}",
            bare.shown()
        ),
        budget: "p99 ≤ 250 ms".to_owned(),
        met: Some(lags.p99() <= Duration::from_millis(250)),
    });
    Ok(())
}

/// The same with a server that does nothing else: how far behind, and its time for each delivery.
async fn limit(viewers: usize, seconds: usize) -> Result<(Times, f64)> {
    let server = Bare::start(SESSIONS, PACE).await?;
    let streams = attach(&server.address, viewers, |topic| format!("/{topic}")).await?;
    let cpu = cpu_time(server.pid()?)?;
    let tasks = watch(streams);
    let path = format!("/go/{}", PACE * seconds);
    Line::open(&server.address).await?.ask("POST", &path, "", "").await?.expect(200)?;
    let lags = all(tasks).await?;
    let each_us = (cpu_time(server.pid()?)? - cpu).as_secs_f64() * 1e6 / lags.len() as f64;
    Ok((lags, each_us))
}

async fn attach(
    address: &str,
    viewers: usize,
    path: impl Fn(usize) -> String,
) -> Result<Vec<Streamed>> {
    let mut streams = Vec::new();
    for viewer in 0..viewers {
        let mut stream = Line::open(address)
            .await?
            .stream("GET", &path(viewer % SESSIONS), "Accept: text/event-stream\r\n", "")
            .await?;
        stream.wait_within(Duration::from_secs(30), "event: caught_up").await?;
        streams.push(stream);
    }
    Ok(streams)
}

type Watching = tokio::task::JoinSet<Result<Vec<Duration>>>;

fn watch(streams: Vec<Streamed>) -> Watching {
    streams.into_iter().map(lags).collect()
}

async fn all(mut tasks: Watching) -> Result<Times> {
    let mut all = Vec::new();
    while let Some(lags) = tasks.join_next().await {
        all.extend(lags??);
    }
    Ok(Times::of(all))
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
