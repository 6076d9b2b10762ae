//! Journal append: token events through the store, as the engine writes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use everturn_core::event::Record;

use super::fixture::Writer;
use super::stats::{per_second, rate};
use super::table::{Row, Table};
use super::{Scale, raw};

/// Turns that stream at the same time.
const TURNS: usize = 64;
/// Deltas of one write: what a fast model says while the last commit was under way.
const DELTAS: usize = 8;

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let time = Duration::from_millis(scale.of(4_000, 200) as u64);
    let writer = Arc::new(Writer::open(&folder.path().join("home")).await?);
    let mut tasks = tokio::task::JoinSet::new();
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let key = Writer::key(&format!("bench-{turn}"))?;
        writer.admit(&key, "r", "go").await?;
        turns.push(writer.claim(&key).await?);
    }
    let before = writer.store.stats();
    let begun = Instant::now();
    for mut turn in turns {
        tasks.spawn(async move {
            let mut count = 0;
            while begun.elapsed() < time {
                let deltas = (0..DELTAS).map(|_| Record::TextDelta(" word".to_owned())).collect();
                turn.write(deltas).await?;
                count += DELTAS;
            }
            anyhow::Ok(count)
        });
    }
    let mut events = 0;
    while let Some(count) = tasks.join_next().await {
        events += count??;
    }
    let ours = rate(events, begun.elapsed());
    let after = writer.store.stats();
    let commits = (after.commits - before.commits).max(1) as usize;
    let batch = (events / commits).max(1);
    drop(writer);

    let folder = folder.path().to_owned();
    let (sqlite, files, python) = tokio::task::spawn_blocking(move || {
        let folder = &folder;
        let sqlite = raw::sqlite_inserts(folder, batch, time)?;
        let files = raw::file_journal(folder, time)?;
        anyhow::Ok((sqlite, files, raw::python_journal(folder, time)))
    })
    .await??;
    table.add(Row {
        what: "journal append".to_owned(),
        measured: format!("{} ({batch} to a commit)", per_second(ours)),
        beside: format!(
            "raw SQLite, as many to a commit: {}; {:.0} %",
            per_second(sqlite),
            ours / sqlite * 100.0
        ),
        budget: "≥ 50 % of raw SQLite".to_owned(),
        met: Some(ours >= 0.5 * sqlite),
    });
    // The peer is the journal of a web interface in Python; where there is none, its bare system
    // calls, which nothing that stores an event can beat twentyfold.
    let peer = python.unwrap_or(files);
    let named = match python {
        Some(python) => {
            format!("in Python, as the earlier web interface did: {}", per_second(python))
        }
        None => "no Python here".to_owned(),
    };
    table.add(Row {
        what: "journal append, file journal".to_owned(),
        measured: per_second(ours),
        beside: format!("{named}; {:.1} ×; its bare calls: {}", ours / peer, per_second(files)),
        budget: "≥ 20 × the file journal".to_owned(),
        met: Some(ours >= 20.0 * peer),
    });
    Ok(())
}
