//! Durable admission: what a receipt costs, over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use everturn_sim::server::Home;

use super::fixture::Writer;
use super::stats::{Times, per_second, rate};
use super::table::{Row, Table};
use super::wire::Line;
use super::{Scale, raw};

/// Its turn never ends, so that every input only waits: nothing but admission is measured.
const SCRIPT: &str = "[[rule]]\nreply = [{ stall = true }]\n";

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let time = Duration::from_millis(scale.of(4_000, 200) as u64);
    let folder = tempfile::tempdir()?;
    let (synced, one_each) = {
        let folder = folder.path().to_owned();
        tokio::task::spawn_blocking(move || {
            let synced = raw::Syncer::new(&folder)?.for_a_while(time)?;
            anyhow::Ok((synced, raw::sqlite_commits(&folder, time)?))
        })
        .await??
    };
    let syncs = rate(synced.len(), time);
    let home = Home::new()?;
    let model = home.script(SCRIPT)?;
    let server = home
        .serve(&model)?
        .env("EVERTURN_LIMITS_QUEUE", "100000")
        .env("EVERTURN_LIMITS_RATE", "10000000")
        .env("EVERTURN_LIMITS_BURST", "10000000")
        .start()
        .await?;
    for clients in [1, 8, 64] {
        let own = store(&folder.path().join(format!("home-{clients}")), clients, time).await?;
        let (count, took, times) = http(&server.address, clients, time).await?;
        let ours = rate(count, took);
        let group = format!("store alone: {}; {:.0} %", per_second(own), ours / own * 100.0);
        let single = format!("one commit each: {}; {:.1} ×", per_second(one_each), ours / one_each);
        let judged = clients == 64;
        let s = if clients == 1 { "" } else { "s" };
        table.add(Row {
            what: format!("admission, {clients} client{s}"),
            measured: format!("{}, {}", per_second(ours), times.shown()),
            beside: format!("{group}; fdatasync: {} ({})", per_second(syncs), synced.shown()),
            budget: if judged { "≥ 50 % of the store alone" } else { "(64 clients)" }.to_owned(),
            met: judged.then_some(ours >= 0.5 * own),
        });
        if judged {
            table.add(Row {
                what: "admission, 64 clients, grouped".to_owned(),
                measured: per_second(ours),
                beside: single,
                budget: "≥ 20 × one commit each".to_owned(),
                met: Some(ours >= 20.0 * one_each),
            });
        }
    }
    Ok(())
}

/// The store's own rate of synced admissions.
async fn store(home: &std::path::Path, clients: usize, time: Duration) -> Result<f64> {
    let writer = Arc::new(Writer::open(home).await?);
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for client in 0..clients {
        let writer = writer.clone();
        tasks.spawn(async move {
            let key = Writer::key(&format!("bench-{client}"))?;
            let mut count = 0;
            while begun.elapsed() < time {
                writer.admit(&key, &format!("r{count}"), "a question of a usual length").await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut all = 0;
    while let Some(count) = tasks.join_next().await {
        all += count??;
    }
    Ok(rate(all, begun.elapsed()))
}

/// Inputs over HTTP, each client with a session and a connection of its own.
async fn http(address: &str, clients: usize, time: Duration) -> Result<(usize, Duration, Times)> {
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for client in 0..clients {
        let mut line = Line::open(address).await?;
        let path = format!("/v1/sessions/bench-{clients}-{client}/inputs");
        tasks.spawn(async move {
            let body = r#"{"text":"a question of a usual length"}"#;
            // The first one begins the turn that the others wait behind.
            line.ask("POST", &path, "Idempotency-Key: first\r\n", body).await?.expect(202)?;
            let mut times = Vec::new();
            while begun.elapsed() < time {
                let header = format!("Idempotency-Key: r{}\r\n", times.len());
                let asked = Instant::now();
                line.ask("POST", &path, &header, body).await?.expect(202)?;
                times.push(asked.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut all = Vec::new();
    while let Some(times) = tasks.join_next().await {
        all.extend(times??);
    }
    Ok((all.len(), begun.elapsed(), Times::of(all)))
}
