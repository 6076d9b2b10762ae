//! What clients do while a server dies: enough of it that each place is passed, and no more.

use std::time::Duration;

use anyhow::{Result, bail};
use everturn_crash::Point;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::client::{Accepted, Client};
use crate::follow::{Follower, Record};
use crate::load::settled_offset;
use crate::wait;

/// How long one thing may take while the server comes and goes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an input that fills SQLite's log; and how many of them do.
const BIG_BYTES: usize = 400_000;
const BIG_INPUTS: usize = 14;

/// The model's script of every scene.
pub(super) const SCRIPT: &str = r#"
words_per_second = 400
[[rule]]
contains = "big"
reply = [{ text = "That was big." }]
[[rule]]
contains = "slow"
continuation = false
reply = [{ text = "One two three four five six seven eight " }, { stall = true }]
[[rule]]
contains = "slow"
reply = [{ text = "One two three four five six seven eight nine ten eleven twelve." }]
[[rule]]
matches = 'write (\w+)'
round = 0
reply = [
  { text = "I will write. " },
  { call = "shell", arguments = { command = "echo {{1}} >> effects; echo {{1}} is written" } },
]
[[rule]]
reply = [{ text = "That was {{input}}, in a few words." }]
"#;

/// The whole answer to an input.
pub(super) fn answer(text: &str) -> String {
    const SLOW: &str = "One two three four five six seven eight nine ten eleven twelve.";
    if text.starts_with("big") {
        return "That was big.".to_owned();
    }
    if text.starts_with("slow") {
        return SLOW.to_owned();
    }
    let first = if text.starts_with("write") { "I will write. " } else { "" };
    format!("{first}That was {text}, in a few words.")
}

/// The line that a call leaves.
pub(super) fn line_of(arguments: &Value) -> Option<String> {
    let rest = arguments["command"].as_str()?.strip_prefix("echo ")?;
    Some(rest.split(' ').next()?.to_owned())
}

/// What happens in a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scene {
    /// Two inputs, answered in words.
    Talk,
    /// A command that leaves a line and says something, and an input behind it.
    Call,
    /// The same, and a person is asked first.
    Ask,
    /// An answer that stands still, and is stopped.
    Stop,
    /// As `Ask`; the server is told to leave while the question is open.
    Leave,
    /// An answer that stands still, whose server is killed; it is the next one that dies at the place.
    Interrupted,
    /// Words, until they are old enough to be pruned.
    Prune,
    /// Inputs that fill SQLite's log.
    Fill,
}

impl Scene {
    /// The one that passes a place.
    pub(super) fn of(point: Point) -> Self {
        match point {
            Point::StepRecord
            | Point::StepApplied
            | Point::StepCommitted
            | Point::StepPublished
            | Point::CallAllowed
            | Point::CallStarted
            | Point::CallSpawned
            | Point::OutputCommitted
            | Point::OutputPublished
            | Point::CallReturned
            | Point::CallFinishedApplied
            | Point::CallFinishedCommitted
            | Point::CallFinishedPublished => Self::Call,
            Point::AskedApplied
            | Point::AskedCommitted
            | Point::AskedPublished
            | Point::AnsweredApplied
            | Point::AnsweredCommitted
            | Point::AnsweredPublished => Self::Ask,
            Point::StopApplied | Point::StopCommitted | Point::StopPublished => Self::Stop,
            Point::HandOverApplied | Point::HandOverCommitted | Point::HandOverPublished => {
                Self::Leave
            }
            Point::InterruptionRecord
            | Point::InterruptionApplied
            | Point::InterruptionCommitted
            | Point::InterruptionPublished
            | Point::ContinuationRecord
            | Point::ContinuationApplied
            | Point::ContinuationBegun => Self::Interrupted,
            Point::PruneRecord | Point::PruneApplied | Point::PruneCommitted => Self::Prune,
            Point::CheckpointBegin | Point::CheckpointDone => Self::Fill,
            _ => Self::Talk,
        }
    }

    fn inputs(self) -> Vec<(String, String)> {
        let of = |texts: &[&str]| -> Vec<(String, String)> {
            texts.iter().map(|text| ("s".to_owned(), (*text).to_owned())).collect()
        };
        match self {
            Self::Talk | Self::Prune => of(&["say 1", "say 2"]),
            Self::Call => of(&["write w1", "say 2"]),
            Self::Ask | Self::Leave => of(&["write w1"]),
            Self::Stop => of(&["slow 1"]),
            Self::Interrupted => of(&["slow 1", "say 2"]),
            // Sessions of their own, so that no conversation grows.
            Self::Fill => (0..BIG_INPUTS)
                .map(|number| (format!("s{number}"), format!("big {}", "x".repeat(BIG_BYTES))))
                .collect(),
        }
    }
}

/// What the clients know when all is over.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) accepted: Vec<Accepted>,
    pub(super) seen: Vec<(String, Record)>,
    pub(super) outcomes: Vec<String>,
}

/// Plays a scene to its end, whatever happens to the server: inputs are sent until there is a receipt,
/// each twice; readers attach again; people repeat what got no answer. `may_answer` turns true when
/// people begin to answer what they are asked.
///
/// # Errors
/// A client was told something that no patience helps against, or ran out of patience.
pub(super) async fn play(
    client: &Client,
    scene: Scene,
    may_answer: watch::Receiver<bool>,
) -> Result<Told> {
    let inputs = scene.inputs();
    let mut sessions: Vec<&String> = inputs.iter().map(|(session, _)| session).collect();
    sessions.dedup();
    if scene == Scene::Call {
        open_session(client, sessions[0]).await?;
    }
    let followers: Vec<Follower> =
        sessions.iter().map(|session| Follower::feed(client, session)).collect();
    let follower = &followers[0];
    let talk = async {
        let mut accepted = Vec::new();
        for (number, (session, text)) in inputs.iter().enumerate() {
            let name = format!("r{number}");
            let one = client.say_until_accepted(session, &name, text, PATIENCE).await?;
            // A careful client that lost its receipt asks again, and is told the same.
            let again = client.say_until_accepted(session, &name, text, PATIENCE).await?;
            if one.input_id != again.input_id {
                bail!("P2 {session}: {name} was accepted twice");
            }
            accepted.push(one);
        }
        let mut outcomes = Vec::new();
        for one in &accepted {
            let input = client.outcome_within(&one.input_id, PATIENCE).await?;
            outcomes.push(input["outcome"].as_str().unwrap_or_default().to_owned());
        }
        anyhow::Ok((accepted, outcomes))
    };
    let (accepted, outcomes) = match scene {
        Scene::Ask | Scene::Leave => beside(talk, answer_prompts(client, "s", may_answer)).await?,
        Scene::Stop => beside(talk, stop(client, follower)).await?,
        _ => talk.await?,
    };
    if scene == Scene::Prune {
        pruned(client, &accepted).await?;
    }
    let mut told = Told { accepted, outcomes, seen: Vec::new() };
    for follower in followers {
        let session = follower.session().to_owned();
        let offset = settled_offset(client, &session).await?;
        follower.wait_for(|record| (record.cursor() >= offset).then_some(())).await?;
        told.seen.push((session, follower.stop()));
    }
    Ok(told)
}

/// Does the first thing to its end, and the other as long as it takes.
async fn beside<T>(
    first: impl Future<Output = Result<T>>,
    other: impl Future<Output = Result<()>>,
) -> Result<T> {
    let mut first = std::pin::pin!(first);
    tokio::select! {
        done = &mut first => done,
        other = other => {
            other?;
            first.await
        }
    }
}

/// A session in which every tool may run, however often that has to be said.
async fn open_session(client: &Client, id: &str) -> Result<()> {
    let policy = json!({ "id": id, "policy": { "tools": { "*": "allow" } } });
    wait::until_for(PATIENCE, "a session", || async {
        match client.post("/v1/sessions", &policy).await {
            // It exists: the answer to an earlier try was lost.
            Ok(answer) if matches!(answer.status, 201 | 409) => Ok(Some(())),
            _ => Ok(None),
        }
    })
    .await
}

/// Says yes to whatever is asked, until it is not needed any more.
async fn answer_prompts(
    client: &Client,
    session: &str,
    mut may_answer: watch::Receiver<bool>,
) -> Result<()> {
    may_answer.wait_for(|may| *may).await?;
    let path = format!("/v1/sessions/{session}/prompts");
    loop {
        let open = client.get(&path).await.map(|answer| answer.json()).unwrap_or_default();
        for prompt in open["data"].as_array().into_iter().flatten() {
            let Some(id) = prompt["id"].as_str() else { continue };
            let once = json!({ "generation": prompt["generation"], "choice": "once" });
            // Without an answer it is open still, or was taken: the next look tells.
            let _ = client.post(&format!("/v1/prompts/{id}/answer"), &once).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Stops the turn once it has begun to speak, and again until there is an answer.
async fn stop(client: &Client, follower: &Follower) -> Result<()> {
    let speaks = |record: &Record| (record.count("text.delta") > 0).then_some(());
    follower.wait_within(PATIENCE, speaks).await?;
    wait::until_for(PATIENCE, "a stop", || async {
        match client.post("/v1/sessions/s/stop", &json!({})).await {
            // 409: it is over, stopped by a try whose answer was lost or by itself.
            Ok(answer) => Ok(matches!(answer.status, 200 | 202 | 409).then_some(())),
            Err(_) => Ok(None),
        }
    })
    .await
}

/// Waits until no piece of text of the session is left as an event of its own.
async fn pruned(client: &Client, accepted: &[Accepted]) -> Result<()> {
    for one in accepted {
        let input = client.outcome_within(&one.input_id, PATIENCE).await?;
        let Some(run) = input["run_id"].as_str() else { bail!("a run without an id: {input}") };
        wait::until_for(PATIENCE, "pruned runs", || async {
            let Ok(answer) = client.get(&format!("/v1/runs/{run}/events")).await else {
                return Ok(None);
            };
            let events = answer.json();
            let events = events["events"].as_array().cloned().unwrap_or_default();
            let whole = events.iter().any(|event| event["event"] == "text.delta");
            Ok((!events.is_empty() && !whole).then_some(()))
        })
        .await?;
    }
    Ok(())
}
