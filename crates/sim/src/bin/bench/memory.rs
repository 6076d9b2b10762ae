//! Memory: what a server takes, and what each idle viewer adds.

use std::time::Duration;

use anyhow::Result;
use everturn_sim::server::Home;

use super::Scale;
use super::stats::{mib, thousands};
use super::table::{Row, Table};
use super::wire::Line;

pub(crate) async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let viewers = scale.of(1_000, 50);
    let home = Home::new()?;
    let server = home.serve("script/demo")?.start().await?;
    let mut line = Line::open(&server.address).await?;
    let sessions = 100;
    for session in 0..sessions {
        let body = format!(r#"{{"id":"s{session}"}}"#);
        line.ask("POST", "/v1/sessions", "", &body).await?.expect(201)?;
    }
    let before = server.resident_bytes()?;
    let mut streams = Vec::new();
    for viewer in 0..viewers {
        let path = format!("/v1/sessions/s{}/events?after=0", viewer % sessions);
        let mut stream = Line::open(&server.address)
            .await?
            .stream("GET", &path, "Accept: text/event-stream\r\n", "")
            .await?;
        stream.wait_within(Duration::from_secs(30), "event: caught_up").await?;
        streams.push(stream);
    }
    let after = server.resident_bytes()?;
    let each = after.saturating_sub(before) / viewers as u64;
    table.add(Row {
        what: "memory".to_owned(),
        measured: format!("{} with {} idle viewers", mib(after), thousands(viewers as u64)),
        beside: format!("{} with none", mib(before)),
        budget: "≤ 64 MiB".to_owned(),
        met: Some(after <= 64 << 20),
    });
    table.add(Row {
        what: "memory per viewer".to_owned(),
        measured: format!("{:.1} KiB", each as f64 / 1_024.0),
        beside: format!("{} sessions", thousands(sessions as u64)),
        budget: "≤ 20 KiB".to_owned(),
        met: Some(each <= 20 << 10),
    });
    drop(streams);
    Ok(())
}
