//! Starting: how long interrupted turns keep a home from being ready.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use everturn_core::event::Record;
use everturn_sim::server::Home;

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
