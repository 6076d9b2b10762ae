//! Reading: a long run replayed, the first page of a long session, the tail of a long journal.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use everturn_core::event::Record;
use everturn_sim::server::{Home, Server};
use serde_json::Value;

use super::fixture::{Writer, copy, fast_folder};
use super::stats::{Times, mib, ms, thousands};
use super::table::{Row, Table};
use super::wire::Line;
use super::{Scale, raw};

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let replayed = scale.of(100_000, 5_000);
    let long = scale.of(1_000_000, 20_000);
    let messages = scale.of(10_000, 400);
    let folder = fast_folder()?;
    let built = folder.path().join("home");
    {
        let writer = Writer::open(&built).await?;
        run_of(&writer, "small-run", 1_000).await?;
        run_of(&writer, "replayed", replayed).await?;
        run_of(&writer, "long-run", long).await?;
        session_of(&writer, "small", 100).await?;
        session_of(&writer, "large", messages).await?;
    }
    let home = Home::new()?;
    copy(&built, &home.path())?;
    drop(folder);
    let server = home.serve("script/demo")?.start().await?;
    let lines = tempfile::tempdir()?;
    let file = raw::Lines::write(&lines.path().join("run.jsonl"), long)?;
    let short = raw::Lines::write(&lines.path().join("short.jsonl"), replayed)?;
    replay(&server, replayed, &short, scale, table).await?;

    let small = page(&server, "/v1/sessions/small/messages?limit=50", scale).await?;
    let large = page(&server, "/v1/sessions/large/messages?limit=50", scale).await?;
    table.add(compared("first page", &small, 100, &large, messages, "messages"));
    let tail = async |session: &str, events: usize| -> Result<Times> {
        let run = run_id(&server, session).await?;
        page(&server, &format!("/v1/runs/{run}/events?after={}", events - 50), scale).await
    };
    let (small, large) = (tail("small-run", 1_000).await?, tail("long-run", long).await?);
    let mut row = compared("tail of a journal", &small, 1_000, &large, long, "events");
    let (peer, found) = file.read_after(long - 50)?;
    row.beside.push_str(&format!("; in a file of JSON lines: {}", ms(peer)));
    anyhow::ensure!(found == 50, "the file's tail has {found} events");
    table.add(row);
    on_disk(scale, table).await
}

/// What a token costs on the disk.
async fn on_disk(scale: Scale, table: &mut Table) -> Result<()> {
    let tokens = scale.of(100_000, 5_000);
    let folder = tempfile::tempdir()?;
    let size = async |events: usize| {
        let home = folder.path().join(format!("tokens-{events}"));
        let writer = Writer::open(&home).await?;
        let key = Writer::key("s")?;
        writer.admit(&key, "r", "say a lot").await?;
        let mut turn = writer.claim(&key).await?;
        for _ in 0..events / 8 {
            turn.write((0..8).map(|_| Record::TextDelta(" tokén".to_owned())).collect()).await?;
        }
        // Closing moves the log into the database.
        drop((turn, writer));
        anyhow::Ok(std::fs::metadata(home.join("everturn.db"))?.len())
    };
    let bytes = size(tokens).await?.saturating_sub(size(0).await?) as f64 / tokens as f64;
    let line = raw::Lines::bytes_per_token();
    table.add(Row {
        what: "disk, a token of 6 characters".to_owned(),
        measured: format!("{bytes:.0} bytes"),
        beside: format!("in a file of JSON lines: {line} bytes"),
        budget: "(less than the file)".to_owned(),
        met: Some(bytes < line as f64),
    });
    Ok(())
}

/// A page costs what the page costs: no more in a long one than in a short one.
fn compared(what: &str, small: &Times, few: usize, large: &Times, many: usize, of: &str) -> Row {
    let ratio = large.p50().as_secs_f64() / small.p50().as_secs_f64().max(1e-9);
    Row {
        what: what.to_owned(),
        measured: format!("{} in {} {of}", ms(large.p50()), thousands(many as u64)),
        beside: format!("{} in {} {of}; {ratio:.2} ×", ms(small.p50()), thousands(few as u64)),
        budget: "cost of the page only (≤ 1.5 ×)".to_owned(),
        met: Some(ratio <= 1.5),
    }
}

/// One run with this many deltas, less those that begin and end it.
async fn run_of(writer: &Writer, session: &str, events: usize) -> Result<()> {
    let key = Writer::key(session)?;
    writer.admit(&key, "r", "say a lot").await?;
    let mut turn = writer.claim(&key).await?;
    let mut left = events - 2;
    while left > 0 {
        let now = left.min(128);
        turn.write((0..now).map(|_| Record::TextDelta(" word".to_owned())).collect()).await?;
        left -= now;
    }
    turn.complete("a lot").await
}

/// A session with this many messages.
async fn session_of(writer: &Writer, session: &str, messages: usize) -> Result<()> {
    let key = Writer::key(session)?;
    for turn in 0..messages / 2 {
        writer
            .turn(&key, &format!("r{turn}"), "An answer of a usual length, more or less.")
            .await?;
    }
    Ok(())
}

async fn run_id(server: &Server, session: &str) -> Result<String> {
    let mut line = Line::open(&server.address).await?;
    let path = format!("/v1/sessions/{session}/turns");
    let turns = line.ask("GET", &path, "", "").await?.expect(200)?;
    let turns: Value = serde_json::from_slice(&turns.body)?;
    let id = turns["data"][0]["run_id"].as_str().context("a session without a run")?;
    Ok(id.to_owned())
}

async fn page(server: &Server, path: &str, scale: Scale) -> Result<Times> {
    let mut line = Line::open(&server.address).await?;
    let mut times = Vec::new();
    for _ in 0..scale.of(300, 20) {
        let begun = Instant::now();
        line.ask("GET", path, "", "").await?.expect(200)?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

async fn replay(
    server: &Server,
    events: usize,
    file: &raw::Lines,
    scale: Scale,
    table: &mut Table,
) -> Result<()> {
    let run = run_id(server, "replayed").await?;
    let path = format!("/v1/runs/{run}/events?after=0");
    let rounds = scale.of(5, 1);
    let pid = server.process.pid();
    let resident = peak_bytes(pid, true)?;
    let cpu = cpu_time(pid)?;
    let begun = Instant::now();
    for _ in 0..rounds {
        let mut stream = Line::open(&server.address)
            .await?
            .stream("GET", &path, "Accept: text/event-stream\r\n", "")
            .await?;
        stream.wait_within(Duration::from_secs(120), "event: run.completed").await?;
    }
    let all = (events * rounds) as f64;
    let wall_us = begun.elapsed().as_secs_f64() * 1e6 / all;
    let server_us = (cpu_time(pid)? - cpu).as_secs_f64() * 1e6 / all;
    let grown = peak_bytes(pid, false)?.saturating_sub(resident);
    table.add(Row {
        what: format!("replay of {} events", thousands(events as u64)),
        measured: format!("{server_us:.2} µs of the server per event"),
        beside: format!(
            "{wall_us:.2} µs until the client has it; a file of JSON lines, read and parsed: {:.2} µs",
            file.read_after(0)?.0.as_secs_f64() * 1e6 / events as f64
        ),
        budget: "≤ 1 µs in the server".to_owned(),
        met: Some(server_us <= 1.0),
    });
    table.add(Row {
        what: "replay, memory".to_owned(),
        measured: format!("{} more at its peak", mib(grown)),
        beside: format!("{} of events", mib((events * raw::EVENT.len()) as u64)),
        budget: "bounded by a page (≤ 4 MiB)".to_owned(),
        met: Some(grown <= 4 << 20),
    });
    Ok(())
}

/// Time that a process spent on the processors, all its threads together.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    for task in Path::new(&format!("/proc/{pid}/task")).read_dir()? {
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanos += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// The most memory that a process had resident; `reset` begins anew from what it has now.
fn peak_bytes(pid: u32, reset: bool) -> Result<u64> {
    if reset {
        // Not allowed everywhere; then the peak is that of the whole life.
        let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmHWM")?;
    Ok(kib.trim().parse::<u64>()? * 1_024)
}
