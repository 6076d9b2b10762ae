//! Added time to the first token: the same question to the provider, and through Everturn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use everturn_sim::openai::{OpenAi, Reply};
use everturn_sim::server::Home;

use super::stats::{Times, signed_ms};
use super::table::{Row, Table};
use super::wire::Line;
use super::{Scale, raw};

/// Callers that ask the provider directly beside the turns, so that both meet the same load.
const DIRECT: usize = 4;

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    for turns in [1, 100] {
        let rounds = scale.of(if turns == 1 { 200 } else { 20 }, 2);
        one(turns, rounds, table).await?;
    }
    Ok(())
}

async fn one(turns: usize, rounds: usize, table: &mut Table) -> Result<()> {
    let openai = OpenAi::start().await?;
    // A first word at once, then others at the pace of a usual model.
    openai.otherwise(|_| {
        let words = ["word "; 20];
        Reply::new().text("first ").every(Duration::from_millis(20)).pieces(words)
    });
    let home = Home::new()?;
    let server = home
        .serve("openai/test-model")?
        .env("OPENAI_API_KEY", "bench")
        .env("OPENAI_BASE_URL", openai.base_url())
        .start()
        .await?;
    let stop = Arc::new(AtomicBool::new(false));
    let folder = tempfile::tempdir()?;
    let syncs = raw::Syncer::new(folder.path())?.beside(stop.clone());
    let left = Arc::new(AtomicUsize::new(turns));
    let mut through = tokio::task::JoinSet::new();
    for turn in 0..turns {
        let address = server.address.clone();
        let left = left.clone();
        // Not all at the same moment: that would measure the crowd and not the way.
        let pause = Duration::from_millis(400) * turn as u32 / turns as u32;
        through.spawn(async move {
            tokio::time::sleep(pause).await;
            let times = ask_everturn(&address, &format!("bench-{turn}"), rounds).await;
            left.fetch_sub(1, Ordering::Relaxed);
            times
        });
    }
    let mut direct = tokio::task::JoinSet::new();
    for _ in 0..DIRECT {
        let (address, left) = (format!("http://{}", openai.address()), left.clone());
        direct.spawn(async move {
            let mut times = Vec::new();
            while left.load(Ordering::Relaxed) > 0 {
                times.push(ask_provider(&address).await?);
            }
            anyhow::Ok(times)
        });
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while let Some(times) = through.join_next().await {
        ours.extend(times??);
    }
    while let Some(times) = direct.join_next().await {
        theirs.extend(times??);
    }
    stop.store(true, Ordering::Relaxed);
    let syncs = tokio::task::spawn_blocking(move || syncs.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the disk's measure broke down"))??;
    let (ours, theirs) = (Times::of(ours), Times::of(theirs));
    let beyond = |share: f64| {
        let part = |times: &Times| times.quantile(share).as_secs_f64() * 1e3;
        part(&ours) - part(&theirs) - part(&syncs)
    };
    let (p50, p99) = (beyond(0.5), beyond(0.99));
    let s = if turns == 1 { "" } else { "s" };
    let judged = turns > 1;
    table.add(Row {
        what: format!("first token, {turns} turn{s}"),
        measured: format!("added p50 {}, p99 {}", signed_ms(p50), signed_ms(p99)),
        beside: format!(
            "through: {}; direct: {}; fdatasync: {}",
            ours.shown(),
            theirs.shown(),
            syncs.shown()
        ),
        budget: if judged { "p50 ≤ 1 ms, p99 ≤ 5 ms" } else { "(100 turns)" }.to_owned(),
        met: judged.then_some(p50 <= 1.0 && p99 <= 5.0),
    });
    Ok(())
}

/// From sending an input to its first word on the feed.
async fn ask_everturn(address: &str, session: &str, rounds: usize) -> Result<Vec<Duration>> {
    let mut line = Line::open(address).await?;
    let path = format!("/v1/sessions/{session}/inputs");
    line.ask("POST", "/v1/sessions", "", &format!(r#"{{"id":"{session}"}}"#)).await?.expect(201)?;
    let feed = format!("/v1/sessions/{session}/events?after=0");
    let mut feed = Line::open(address)
        .await?
        .stream("GET", &feed, "Accept: text/event-stream\r\n", "")
        .await?;
    feed.wait_for("event: caught_up").await?;
    let limit = Duration::from_secs(60);
    let mut times = Vec::new();
    for round in 0..rounds {
        let header = format!("Idempotency-Key: r{round}\r\n");
        let begun = Instant::now();
        let (receipt, first) = tokio::join!(
            line.ask("POST", &path, &header, r#"{"text":"say a few words"}"#),
            feed.wait_within(limit, "event: text.delta"),
        );
        receipt?.expect(202)?;
        times.push(first? - begun);
        feed.wait_within(limit, "event: run.completed").await?;
    }
    Ok(times)
}

/// From sending the request to the first word of the answer, and on to the end of it.
async fn ask_provider(address: &str) -> Result<Duration> {
    let body = r#"{"model":"test-model","stream":true,"messages":[{"role":"user","content":"say a few words"}]}"#;
    let line = Line::open(address).await?;
    let begun = Instant::now();
    let mut answer = line.stream("POST", "/v1/chat/completions", "", body).await?;
    let first = answer.wait_within(Duration::from_secs(60), "\"content\"").await?;
    answer.wait_within(Duration::from_secs(60), "[DONE]").await?;
    Ok(first - begun)
}
