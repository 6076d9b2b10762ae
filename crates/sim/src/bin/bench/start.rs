//! Starting: how long interrupted turns keep a home from being ready.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use everturn_core::event::Record;
use everturn_sim::server::Home;
use futures::StreamExt as _;

use super::Scale;
use super::fixture::{Writer, copy, fast_folder};
use super::stats::{ms, thousands};
use super::table::{Row, Table};

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let turns = scale.of(1_000, 50);
    let folder = fast_folder()?;
    let (none, many) = (folder.path().join("none"), folder.path().join("many"));
    {
        let writer = Writer::open(&none).await?;
        writer.turn(&Writer::key("s")?, "r", "Yes.").await?;
    }
    {
        // Begun, streamed a little, and never ended: their process is gone.
        let writer = Writer::open(&many).await?;
        for turn in 0..turns {
            let key = Writer::key(&format!("s{turn}"))?;
            writer.admit(&key, "r", "go").await?;
            let mut begun = writer.claim(&key).await?;
            let words = (0..20).map(|_| Record::TextDelta("word ".to_owned())).collect();
            begun.write(words).await?;
        }
    }
    let rounds = scale.of(5, 1);
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        quiet.push(ready(&none).await?);
        busy.push(ready(&many).await?);
    }
    quiet.sort_unstable();
    busy.sort_unstable();
    let (quiet, busy) = (quiet[rounds / 2], busy[rounds / 2]);
    let added = busy.saturating_sub(quiet);
    table.add(Row {
        what: "start with interrupted turns".to_owned(),
        measured: format!("ready in {} with {}", ms(busy), thousands(turns as u64)),
        beside: format!("{} with none; {} for them", ms(quiet), ms(added)),
        budget: "1 000 in ≤ 1 s".to_owned(),
        met: Some(added <= Duration::from_secs(1)),
    });
    Ok(())
}

/// Messages of each session of the large home: a question and answers.
const MESSAGES: usize = 10;
/// Sessions that are written at the same time, so that they share commits.
const AT_ONCE: usize = 256;

/// How long a home with much in it, of which nothing is unfinished, keeps its server from being ready.
pub(crate) async fn measure_large(scale: Scale, table: &mut Table) -> Result<()> {
    let sessions = scale.of(100_000, 1_000);
    let folder = fast_folder()?;
    let large = folder.path().join("large");
    {
        let writer = Writer::open(&large).await?;
        let mut written = futures::stream::iter(0..sessions)
            .map(|number| conversation(&writer, number))
            .buffer_unordered(AT_ONCE);
        while written.next().await.transpose()?.is_some() {}
    }
    let bytes: u64 = std::fs::read_dir(&large)?
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|file| file.len())
        .sum();
    // Its files are copied once; each start is one of the same home.
    let home = Home::new()?;
    copy(&large, &home.path())?;
    let model = home.script("[[rule]]\nreply = [{ text = \"word\" }]\n")?;
    let spec = home.serve(&model)?;
    let mut times = Vec::new();
    for _ in 0..scale.of(5, 1) {
        let begun = Instant::now();
        let server = spec.start().await?;
        times.push(begun.elapsed());
        drop(server);
    }
    times.sort_unstable();
    let took = times[times.len() / 2];
    let none = folder.path().join("none");
    Writer::open(&none).await?.turn(&Writer::key("s")?, "r", "Yes.").await?;
    let beside = format!("{} with one session", ms(ready(&none).await?));
    table.add(Row {
        what: "start with much in the store".to_owned(),
        measured: format!(
            "ready in {} with {} sessions, {} messages, {} MiB",
            ms(took),
            thousands(sessions as u64),
            thousands((sessions * MESSAGES) as u64),
            thousands(bytes >> 20),
        ),
        beside,
        budget: "100 000 sessions, 1 000 000 messages in ≤ 0.5 s".to_owned(),
        met: Some(took <= Duration::from_millis(500)),
    });
    Ok(())
}

/// One finished turn of several steps.
async fn conversation(writer: &Writer, number: usize) -> Result<()> {
    let key = Writer::key(&format!("s{number:06}"))?;
    writer.admit(&key, "r", "a question of a usual length, more or less").await?;
    let mut turn = writer.claim(&key).await?;
    let answer = "an answer that is a little longer than the question it belongs to";
    let step = || Record::Step {
        text: answer.to_owned(),
        reasoning: None,
        calls: Vec::new(),
        usage: None,
    };
    turn.write((0..MESSAGES - 2).map(|_| step()).collect()).await?;
    turn.complete(answer).await
}

/// From the start of the process to its saying that it listens.
async fn ready(built: &Path) -> Result<Duration> {
    let home = Home::new()?;
    copy(built, &home.path())?;
    let model =
        home.script("words_per_second = 5\n[[rule]]\nreply = [{ text = \"word word word\" }]\n")?;
    let spec = home.serve(&model)?;
    let begun = Instant::now();
    let server = spec.start().await?;
    let took = begun.elapsed();
    drop(server);
    Ok(took)
}
