//! The limit for fan-out: a web server that does nothing but send texts to viewers.
//!
//! One broadcast for each topic, one event for each text, nothing stored, no ids, no places to go on
//! from. It is this program started again, so that its processors' time can be told from the viewers'.

use std::convert::Infallible;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{get, post};
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::broadcast;

/// Texts that a slow viewer may be behind.
const BEHIND: usize = 4_096;

type Topics = std::sync::Arc<Vec<broadcast::Sender<String>>>;

/// Serves until it is killed: `GET /N` is the stream of topic N, `POST /go/COUNT` sends that many
/// texts on each.
pub(crate) async fn serve(topics: usize, pace: usize) -> Result<()> {
    let topics: Topics =
        std::sync::Arc::new((0..topics).map(|_| broadcast::Sender::new(BEHIND)).collect());
    let go = move |State(topics): State<Topics>, Path(count): Path<usize>| async move {
        for (number, topic) in topics.iter().cloned().enumerate() {
            tokio::spawn(async move {
                let mut timer =
                    tokio::time::interval(Duration::from_micros(1_000_000 / pace as u64));
                for seq in 1..=count {
                    timer.tick().await;
                    let name = if seq == count { "run.completed" } else { "text.delta" };
                    let at = jiff::Timestamp::now();
                    // As large as an event of ours, and its time at the same place.
                    let _ = topic.send(format!(
                        r#"{{"session_id":"s{number}","offset":{seq},"run_id":"run_0199f3c47b1e7c5a9d0e5f6a7b8c9d0e","seq":{seq},"event":"{name}","at":"{at:.3}","text":"word "}}"#
                    ));
                }
            });
        }
    };
    let app = Router::new()
        .route("/{topic}", get(stream))
        .route("/go/{count}", post(go))
        .with_state(topics);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    #[allow(clippy::print_stdout, reason = "the address is its answer")]
    {
        println!("{}", listener.local_addr()?);
    }
    axum::serve(listener, app).await?;
    Ok(())
}

async fn stream(
    State(topics): State<Topics>,
    Path(topic): Path<usize>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let texts = topics[topic % topics.len()].subscribe();
    let events = futures::stream::unfold(texts, async |mut texts| {
        let text = texts.recv().await.ok()?;
        let name = if text.contains("run.completed") { "run.completed" } else { "text.delta" };
        Some((Ok(Event::default().event(name).data(text)), texts))
    });
    let opened = futures::stream::iter([Ok(Event::default().event("caught_up").data("{}"))]);
    Sse::new(opened.chain(events)).keep_alive(KeepAlive::default())
}

/// Such a server as a process of its own; it ends with this value.
pub(crate) struct Bare {
    child: tokio::process::Child,
    /// `http://HOST:PORT`.
    pub(crate) address: String,
}

impl Bare {
    pub(crate) async fn start(topics: usize, pace: usize) -> Result<Self> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--bare-sse", &format!("{topics},{pace}")])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("no stdout")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let address = format!("http://{}", line.context("it did not start")?);
        Ok(Self { child, address })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Result<u32> {
        self.child.id().context("it has ended")
    }
}
