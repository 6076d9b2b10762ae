//! Many clients at once, each input sent twice, over whatever happens to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;

use crate::client::{Accepted, Client};
use crate::follow::{Follower, Record, is_terminal};
use crate::{tier, wait};

/// How long one input may take to be accepted, or to end, while the server comes and goes.
fn patience() -> Duration {
    Duration::from_secs(tier::count(240, 1_500) as u64)
}

/// How much.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Clients, each with a reader of its session's feed.
    pub clients: usize,
    /// Sessions that they share.
    pub sessions: usize,
    /// Inputs, of all clients together.
    pub inputs: usize,
    /// How sessions are named.
    pub name: String,
    /// What an input says, by its number.
    pub text: fn(usize) -> String,
}

/// What the clients know afterwards.
#[derive(Debug, Default)]
pub struct Told {
    /// Their receipts.
    pub accepted: Vec<Accepted>,
    /// What they saw, each of its session.
    pub seen: Vec<(String, Record)>,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    tasks: JoinSet<Result<(Vec<Accepted>, Arc<Follower>)>>,
    progress: Arc<Progress>,
    sessions: Vec<String>,
}

#[derive(Debug, Default)]
struct Progress {
    accepted: AtomicUsize,
    ended: AtomicUsize,
}

impl Load {
    /// Sends them off.
    #[must_use]
    pub fn start(client: &Client, plan: &Plan) -> Self {
        let progress = Arc::new(Progress::default());
        let sessions: Vec<String> =
            (0..plan.sessions).map(|number| format!("{}-{number}", plan.name)).collect();
        let mut tasks = JoinSet::new();
        for number in 0..plan.clients {
            let session = sessions[number % sessions.len()].clone();
            let worker = Worker {
                client: client.clone(),
                follower: Arc::new(Follower::feed(client, &session)),
                session,
                progress: Arc::clone(&progress),
            };
            let texts: Vec<(String, String)> = (number..plan.inputs)
                .step_by(plan.clients)
                .map(|input| (format!("{}-{input}", plan.name), (plan.text)(input)))
                .collect();
            tasks.spawn(worker.work(texts));
        }
        Self { tasks, progress, sessions }
    }

    /// Names of the sessions.
    #[must_use]
    pub fn sessions(&self) -> &[String] {
        &self.sessions
    }

    /// Inputs that were accepted so far, and inputs whose end a client knows of.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let Progress { accepted, ended } = &*self.progress;
        (accepted.load(Ordering::Relaxed), ended.load(Ordering::Relaxed))
    }

    /// Waits until accepted and ended inputs together are this many, or all is done.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn reaches(&self, count: usize) -> Result<()> {
        wait::until_for(patience(), "progress", || async {
            let (accepted, ended) = self.progress();
            Ok((accepted + ended >= count).then_some(()))
        })
        .await
        .with_context(|| format!("it is {:?} and not {count}", self.progress()))
    }

    /// Waits until every input has its outcome and every client has seen the end of its feed.
    ///
    /// # Errors
    /// A client gave up.
    pub async fn finish(mut self, client: &Client) -> Result<Told> {
        let mut told = Told::default();
        let mut followers = Vec::new();
        while let Some(done) = self.tasks.join_next().await {
            let (accepted, follower) = done??;
            told.accepted.extend(accepted);
            followers.push(follower);
        }
        for follower in followers {
            let session = follower.session().to_owned();
            let offset = settled_offset(client, &session).await?;
            follower
                .wait_for(|record| (record.cursor() >= offset).then_some(()))
                .await
                .with_context(|| format!("the feed of {session} to {offset}"))?;
            told.seen.push((session, follower.record()));
        }
        Ok(told)
    }
}

/// Where a session's feed ends once nothing is left to do in it.
///
/// # Errors
/// It does not come to rest in time.
pub async fn settled_offset(client: &Client, session: &str) -> Result<u64> {
    wait::until_for(patience(), "a session at rest", || async {
        let view = client.session(session).await?;
        let rests = view["running"].is_null() && view["queue_length"] == 0;
        Ok(view["offset"].as_u64().filter(|_| rests))
    })
    .await
}

struct Worker {
    client: Client,
    session: String,
    follower: Arc<Follower>,
    progress: Arc<Progress>,
}

impl Worker {
    async fn work(self, texts: Vec<(String, String)>) -> Result<(Vec<Accepted>, Arc<Follower>)> {
        let mut accepted = Vec::with_capacity(texts.len());
        for (number, (name, text)) in texts.iter().enumerate() {
            // Both at the same time, or one after the other.
            let one = if number % 3 == 0 {
                let (one, other) = tokio::join!(self.say(name, text), self.say(name, text));
                let (one, other) = (one?, other?);
                ensure!(one.input_id == other.input_id, "{name} was accepted twice");
                one
            } else {
                let one = self.say(name, text).await?;
                let again = self.say(name, text).await?;
                ensure!(one.input_id == again.input_id, "{name} was accepted twice");
                one
            };
            self.progress.accepted.fetch_add(1, Ordering::Relaxed);
            accepted.push(one);
        }
        for one in &accepted {
            self.client.outcome_within(&one.input_id, patience()).await?;
            self.progress.ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok((accepted, self.follower))
    }

    async fn say(&self, name: &str, text: &str) -> Result<Accepted> {
        self.client.say_until_accepted(&self.session, name, text, patience()).await
    }
}

/// Ends of runs that a client saw.
#[must_use]
pub fn ends(record: &Record) -> usize {
    record.events.iter().filter(|seen| is_terminal(&seen.event)).count()
}
