//! One home, from the first start of its server to the verdict.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use everturn_crash::{LAST_WORDS, Point, VARIABLE};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::timeout;

use super::plan::{Death, Fsync, Plan};
use super::scene::{self, PATIENCE, Scene, Told};
use crate::check::{Checker, Effects, Power, lines};
use crate::client::Client;
use crate::follow::Follower;
use crate::history::{self, SessionHistory};
use crate::load::{self, Load};
use crate::process::Ended;
use crate::server::{Home, Server, ServerSpec};

/// Records of one transaction; none has more.
const RECORDS_MAX: u32 = 200;
/// Records that the smallest transaction with such a place writes.
const RECORDS_MIN: u32 = 2;
/// Kills, or leaves, of one home.
const KILLS: u32 = 3;
/// How long an input may take before a paused process is taken to hold the store's lock. Much less
/// than a lease: the turn is still its own then.
const HELD: Duration = Duration::from_secs(1);
/// Seconds of a lease that is to run out.
const LEASE_S: u32 = 3;

/// What one home came to.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Processes that died.
    pub deaths: u32,
    /// Inputs that clients had accepted.
    pub inputs: u32,
    /// Their outcomes.
    pub outcomes: BTreeMap<String, u32>,
    /// Runs that were recorded as interrupted.
    pub interrupted: u32,
    /// What was wrong.
    pub violations: Vec<String>,
    /// Where it is, if it was left behind.
    pub kept: Option<PathBuf>,
    /// The place was passed, and the process died there.
    reached: bool,
}

/// All homes of one death in one mode, one cycle of them.
///
/// # Errors
/// The machine lacks something.
pub async fn all(plan: &Plan, death: Death, fsync: Fsync, seed: u64) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    if !death.is_by_record() {
        // The first piece of text, and one in the middle; anything else once.
        let passings = if death.name().starts_with("delta.") { 2 } else { 1 };
        for nth in 1..=passings {
            let mut verdict = one(plan, death, fsync, seed, nth).await?;
            if !verdict.reached && verdict.violations.is_empty() {
                verdict.violations.push(format!("the place was never passed ({nth})"));
            }
            verdicts.push(verdict);
        }
        return Ok(verdicts);
    }
    for nth in 1..=RECORDS_MAX {
        let mut verdict = one(plan, death, fsync, seed, nth).await?;
        if verdict.reached {
            verdicts.push(verdict);
            continue;
        }
        if nth <= RECORDS_MIN && verdict.violations.is_empty() {
            verdict.violations.push(format!("the place was never passed ({nth})"));
        }
        // With nothing wrong in it, this is the home that had no record left.
        if !verdict.violations.is_empty() {
            verdicts.push(verdict);
        }
        break;
    }
    Ok(verdicts)
}

/// One home.
async fn one(plan: &Plan, death: Death, fsync: Fsync, seed: u64, nth: u32) -> Result<Verdict> {
    let home = Home::of(&plan.program)?;
    let mut verdict = Verdict::default();
    let lived = match death {
        Death::Point(point) => at_point(&home, point, nth, fsync, &mut verdict).await,
        Death::Kill | Death::Terminate => under_load(&home, death, fsync, seed, &mut verdict).await,
        Death::Pause => paused(&home, fsync, &mut verdict).await,
    };
    let judged = match lived {
        Ok((server, told)) => judge(plan, &home, server, told, death, &mut verdict).await,
        Err(error) => Err(error),
    };
    if let Err(error) = judged {
        verdict.violations.push(format!("{}: {error:#}", death.name()));
    }
    if plan.keep && !verdict.violations.is_empty() {
        verdict.kept = Some(home.keep());
    }
    Ok(verdict)
}

/// How the servers of a home are started: nothing stands in the way of a continuation, so that what
/// can be finished is.
fn serve(home: &Home, fsync: Fsync) -> Result<ServerSpec> {
    let model = home.script(scene::SCRIPT)?;
    Ok(home
        .serve(&model)?
        .env("EVERTURN_JOURNAL_FSYNC", fsync.name())
        .env("EVERTURN_LIMITS_MIN_FREE_BYTES", "0")
        .env("EVERTURN_RECOVERY_LOOP_BREAKER_STARTS", "1000"))
}

/// Dies at a named place.
async fn at_point(
    home: &Home,
    point: Point,
    nth: u32,
    fsync: Fsync,
    verdict: &mut Verdict,
) -> Result<(Server, Told)> {
    let scene = Scene::of(point);
    let mut plain = serve(home, fsync)?;
    if scene == Scene::Prune {
        plain = plain.env("EVERTURN_RETENTION_TOKEN_EVENTS_S", "1");
    }
    let armed = plain.clone().env(VARIABLE, format!("{}:{nth}", point.name()));
    let client = home.client()?;
    let playing = client.clone();
    let may_answer = watch::Sender::new(scene != Scene::Leave);
    let answering = may_answer.subscribe();
    let mut clients = tokio::spawn(async move { scene::play(&playing, scene, answering).await });
    if scene == Scene::Interrupted {
        let mut first = plain.start().await?;
        let follower = Follower::feed(&client, "s");
        follower.wait_for_event("text.delta", 2).await?;
        first.kill();
        verdict.deaths += 1;
    }
    let mut server = match armed.try_start("127.0.0.1:0").await? {
        Ok(server) => server,
        Err(ended) => {
            died_there(&ended, point)?;
            verdict.deaths += 1;
            verdict.reached = true;
            let server = plain.start().await?;
            let told = clients.await??;
            return Ok((server, told));
        }
    };
    if scene == Scene::Leave {
        client.open_prompt("s").await?;
        server.process.signal(Signal::TERM)?;
    }
    let told = tokio::select! {
        told = &mut clients => {
            // Over, and nobody died: the place was not passed, or not often enough.
            return Ok((server, told??));
        }
        ended = server.process.wait_for(PATIENCE) => {
            ended?;
            let ended = server.process.end().await?;
            if ended.code == Some(0) && scene == Scene::Leave {
                // It left without passing the place.
            } else {
                died_there(&ended, point)?;
                verdict.reached = true;
            }
            verdict.deaths += 1;
            server = plain.start().await?;
            may_answer.send_replace(true);
            clients.await??
        }
    };
    Ok((server, told))
}

/// A process that died, and there.
fn died_there(ended: &Ended, point: Point) -> Result<()> {
    let words = format!("{LAST_WORDS}{}\n", point.name());
    ensure!(
        ended.code.is_none() && ended.stderr.contains(&words),
        "the process was to die at {} and ended otherwise: {ended:?}",
        point.name()
    );
    Ok(())
}

/// Many clients; the server goes at moments that nobody chose.
async fn under_load(
    home: &Home,
    death: Death,
    fsync: Fsync,
    seed: u64,
    verdict: &mut Verdict,
) -> Result<(Server, Told)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = serve(home, fsync)?.start().await?;
    let client = home.client()?;
    let plan = load::Plan {
        clients: 8,
        sessions: 4,
        inputs: 48,
        name: "t".to_owned(),
        text: |number| match number % 3 {
            0 => format!("write w{number}"),
            1 => format!("ask {number}"),
            _ => format!("say {number}"),
        },
    };
    for number in 0..plan.sessions {
        client.create_open_session(&format!("t-{number}")).await?;
    }
    let load = Load::start(&client, &plan);
    for _ in 0..KILLS {
        let moment = Duration::from_micros(random.random_range(0..600_000));
        tokio::time::sleep(moment).await;
        if death == Death::Terminate {
            server.terminate().await?;
        }
        server.restart().await?;
        verdict.deaths += 1;
    }
    verdict.reached = true;
    let told = load.finish(&client).await?;
    let mut outcomes = Vec::new();
    for one in &told.accepted {
        let input = client.outcome_within(&one.input_id, PATIENCE).await?;
        outcomes.push(input["outcome"].as_str().unwrap_or_default().to_owned());
    }
    Ok((server, Told { accepted: told.accepted, seen: told.seen, outcomes }))
}

/// Paused for longer than its lease, while another server of the same home is there.
async fn paused(home: &Home, fsync: Fsync, verdict: &mut Verdict) -> Result<(Server, Told)> {
    let spec = serve(home, fsync)?
        .env("EVERTURN_LEASE_S", LEASE_S.to_string())
        .env("EVERTURN_RENEW_S", "1");
    let first = spec.start().await?;
    let at_first = first.client()?;
    // From here on the home's clients speak to the second one.
    let second = spec.start().await?;
    let client = home.client()?;
    let follower = Follower::feed(&client, "s");
    let one = at_first.say("s", "r0", "slow 1").await?;
    follower.wait_for_event("text.delta", 2).await?;
    let two = loop {
        first.process.signal(Signal::STOP)?;
        // Stopped within a commit it holds the lock of SQLite, and nobody can go on: that is no pause
        // but a store that is away. It is let go then, and stopped at another moment.
        match timeout(HELD, client.say_until_accepted("s", "r1", "say 2", PATIENCE)).await {
            Ok(two) => break two?,
            Err(_) => first.process.signal(Signal::CONT)?,
        }
    };
    verdict.deaths += 1;
    verdict.reached = true;
    for input in [&one, &two] {
        client.outcome_within(&input.input_id, PATIENCE).await?;
    }
    first.process.signal(Signal::CONT)?;
    // It works again, for the same session, beside the other one.
    let three = at_first.say_until_accepted("s", "r2", "say 3", PATIENCE).await?;
    let accepted = vec![one, two, three];
    let mut outcomes = Vec::new();
    for input in &accepted {
        let input = client.outcome_within(&input.input_id, PATIENCE).await?;
        outcomes.push(input["outcome"].as_str().unwrap_or_default().to_owned());
    }
    let offset = load::settled_offset(&client, "s").await?;
    follower.wait_for(|record| (record.cursor() >= offset).then_some(())).await?;
    drop(first);
    let seen = vec![("s".to_owned(), follower.stop())];
    Ok((second, Told { accepted, seen, outcomes }))
}

/// Reads everything and looks at it.
async fn judge(
    plan: &Plan,
    home: &Home,
    mut server: Server,
    told: Told,
    death: Death,
    verdict: &mut Verdict,
) -> Result<()> {
    verdict.inputs = u32::try_from(told.accepted.len()).unwrap_or(u32::MAX);
    for outcome in told.outcomes {
        *verdict.outcomes.entry(outcome).or_default() += 1;
    }
    if let Some(plant) = plan.plant {
        server.terminate().await?;
        plant.damage(home).with_context(|| format!("planting a violation of {}", plant.name()))?;
        server.restart().await?;
    }
    let client = home.client()?;
    let names: Vec<String> = told.accepted.iter().map(|one| one.session.clone()).collect();
    let sessions = history::read(&client, names).await?;
    verdict.interrupted = count_interrupted(&sessions);
    let effects = Effects { lines: lines(&home.work().join("effects"))?, line_of: scene::line_of };
    let checker = Checker {
        sessions,
        accepted: told.accepted,
        accepted_all: true,
        seen: told.seen,
        effects: Some(&effects),
        answer: Some(scene::answer),
        power: Power::Stayed,
    };
    let found = checker.violations();
    let words =
        found.into_iter().map(|one| format!("{} {}: {}", one.promise, one.session, one.what));
    verdict.violations.extend(words);
    if let Death::Point(point) = death
        && verdict.reached
    {
        row(point, verdict, &client).await?;
    }
    // A server that came through all of this still leaves as it should.
    if server.process.is_running() {
        server.terminate().await?;
    }
    Ok(())
}

/// What was found at the next start is what the list of points says.
async fn row(point: Point, verdict: &mut Verdict, client: &Client) -> Result<()> {
    use everturn_crash::Row;
    let interrupted = verdict.interrupted;
    let said = match point.row() {
        Row::Continue => interrupted > 0,
        Row::Cancel => interrupted == 0 && verdict.outcomes.contains_key("cancelled"),
        // Whatever else ran in the home may have been interrupted; here nothing else did.
        Row::Nothing | Row::Waits | Row::Ended => true,
    };
    if !said {
        let session = client.session("s").await?;
        bail!(
            "the list of points says {:?} and {interrupted} runs were interrupted: {:?}, {session}",
            point.row(),
            verdict.outcomes
        );
    }
    Ok(())
}

fn count_interrupted(sessions: &[SessionHistory]) -> u32 {
    let runs = sessions.iter().flat_map(|session| &session.runs);
    let interrupted = runs.filter(|run| run.run["terminal_state"] == "interrupted").count();
    u32::try_from(interrupted).unwrap_or(u32::MAX)
}
