//! A machine that loses its power, whose disk fails, and whose clock jumps (P1 to P9, P13).

use std::time::Duration;

use everturn_sim::check::{Checker, Power};
use everturn_sim::client::Client;
use everturn_sim::follow::Follower;
use everturn_sim::load::{Load, Plan};
use everturn_sim::server::{Home, ServerSpec};
use everturn_sim::shim::Shim;
use everturn_sim::{history, tier};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::io::Errno;

use crate::common::{seed, seen, verify_with};

const SCRIPT: &str = r#"
words_per_second = 200
[[rule]]
contains = "still"
continuation = false
reply = [{ text = "Before and " }, { stall = true }]
[[rule]]
contains = "still"
reply = [{ text = "Before and after." }]
[[rule]]
reply = [{ text = "The answer to {{input}} is as long as eight words." }]
"#;

fn answer(text: &str) -> String {
    if text == "still" {
        return "Before and after.".to_owned();
    }
    format!("The answer to {text} is as long as eight words.")
}

fn serve(home: &Home, shim: &Shim, fsync: &str) -> ServerSpec {
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    shim.over(spec)
        .env("EVERTURN_JOURNAL_FSYNC", fsync)
        .env("EVERTURN_RECOVERY_LOOP_BREAKER_STARTS", "1000")
}

/// Takes the power away at random moments under load. Returns how many bytes were not there afterwards.
async fn power_losses(fsync: &str, torn: bool) -> usize {
    let mut dice = StdRng::seed_from_u64(seed());
    let home = Home::new().unwrap();
    let mut shim = Shim::new().unwrap();
    let mut server = serve(&home, &shim, fsync).start().await.unwrap();
    shim.installed(&home).unwrap();
    let client = home.client().unwrap();
    let plan = Plan {
        clients: 8,
        sessions: 4,
        inputs: 48,
        name: "p".to_owned(),
        text: |number| format!("input {number}"),
    };
    let load = Load::start(&client, &plan);
    let sessions = load.sessions().to_vec();
    let mut lost = 0;
    for _ in 0..tier::count(3, 30) {
        tokio::time::sleep(Duration::from_micros(dice.random_range(50_000..600_000))).await;
        server.kill();
        lost += shim.lose_power(&home, torn.then_some(&mut dice)).unwrap();
        server.restart().await.unwrap();
    }
    let told = load.finish(&client).await.unwrap();
    let power = if fsync == "eager" { Power::LostSynced } else { Power::LostUnsynced };
    let checker = Checker {
        sessions: history::read(&client, sessions).await.unwrap(),
        accepted: told.accepted,
        accepted_all: true,
        seen: told.seen,
        effects: None,
        answer: Some(answer),
        power,
    };
    checker.verify().unwrap();
    let report = home.everturn("doctor").unwrap().run().await.unwrap();
    let sound = report.stdout.lines().any(|line| line.starts_with("ok") && line.contains("whole"));
    assert!(sound, "{report:?}");
    lost
}

/// P1 to P8: whatever was not synced is gone: nothing that was acknowledged is among it, what of the
/// text is gone is told, and no number is given to anything else.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_takes_nothing_but_pieces_of_text() {
    let lost = power_losses("terminal-only", false).await;
    assert!(lost > 0, "nothing was unsynced: this proves nothing");
}

/// The same where some of the unsynced sectors had reached the disk and others had not.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_that_tears_what_was_under_way_takes_nothing_else() {
    power_losses("terminal-only", true).await;
}

/// P6: with `journal.fsync = "eager"` nothing that anybody saw is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_takes_nothing_at_all_where_everything_is_synced() {
    power_losses("eager", false).await;
}

/// The same with sectors torn.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_that_tears_takes_nothing_at_all_where_everything_is_synced() {
    power_losses("eager", true).await;
}

/// A turn that stands still, and then the disk fails in one way or another: what is sent is refused
/// with a typed error, the process stays, reads are answered; once the disk is well the turn goes on
/// and everything is there.
async fn failing_disk(fail: impl Fn(&Shim, bool), kinds: &[&str]) {
    let home = Home::new().unwrap();
    let shim = Shim::new().unwrap();
    let mut server = serve(&home, &shim, "terminal-only").start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let mut accepted = vec![client.say("s", "r1", "still").await.unwrap()];
    follower.wait_for_event("text.delta", 1).await.unwrap();
    fail(&shim, true);
    for number in 0..3 {
        let answer = client.submit("s", "r2", "more").await.unwrap();
        let code = answer.problem(answer.status).unwrap();
        assert!(matches!(answer.status, 503 | 507), "{number}: {answer:?}");
        assert!(kinds.contains(&code.as_str()), "{answer:?}");
        assert_eq!(answer.json()["permanent"], false);
        assert_eq!(client.session("s").await.unwrap()["state"], "running");
        assert_eq!(client.texts("s", "user", "message").await.unwrap(), ["still"]);
        assert_eq!(client.get("/healthz").await.unwrap().status, 200);
    }
    let follower_late = Follower::feed(&client, "s");
    follower_late.wait_for(|record| (record.caught_up > 0).then_some(())).await.unwrap();
    assert!(server.process.is_running());
    fail(&shim, false);
    let limit = Duration::from_secs(30);
    accepted.push(client.say_until_accepted("s", "r2", "more", limit).await.unwrap());
    assert_eq!(follower.record().count("run.interrupted"), 0, "the turn only waited");
    // And it all is on the disk, not only in memory.
    server.restart().await.unwrap();
    for one in &accepted {
        assert_eq!(client.outcome(&one.input_id).await.unwrap()["outcome"], "completed");
    }
    finish(&client, accepted, vec![follower, follower_late]).await;
}

async fn finish(
    client: &Client,
    accepted: Vec<everturn_sim::client::Accepted>,
    followers: Vec<Follower>,
) {
    let offset = everturn_sim::load::settled_offset(client, "s").await.unwrap();
    let mut all = Vec::new();
    for follower in followers {
        follower.wait_for(|record| (record.cursor() >= offset).then_some(())).await.unwrap();
        all.push(seen(follower));
    }
    verify_with(client, &["s"], accepted, all, |checker| {
        checker.accepted_all = true;
        checker.answer = Some(answer);
    })
    .await;
}

/// P13: writing fails with EIO.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_to_write_refuses_and_loses_nothing() {
    let fail = |shim: &Shim, on: bool| shim.fail_writes(on.then_some(Errno::IO)).unwrap();
    failing_disk(fail, &["storage_unavailable"]).await;
}

/// P1, P13: syncing fails with EIO: what may be in the page cache only is not acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_to_sync_refuses_and_loses_nothing() {
    let fail = |shim: &Shim, on: bool| shim.fail_syncs(on.then_some(Errno::IO)).unwrap();
    failing_disk(fail, &["storage_unavailable"]).await;
}

/// P13: the file system becomes read-only under the server, as it does when its disk fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_becomes_read_only_refuses_and_loses_nothing() {
    let fail = |shim: &Shim, on: bool| shim.fail_writes(on.then_some(Errno::ROFS)).unwrap();
    failing_disk(fail, &["storage_unavailable", "storage_read_only"]).await;
}

/// P3, P4, P6: the wall clock jumps a day ahead and a day back under running turns, and over kills:
/// order, leases and identities do not depend on it. What it decides is whether a turn that was
/// interrupted is still fresh: a day later it is not, and waits for a person.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_changes_no_order_and_loses_nothing() {
    const DAY_S: i64 = 86_400;
    let home = Home::new().unwrap();
    let shim = Shim::new().unwrap();
    let mut server = serve(&home, &shim, "terminal-only").start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let mut accepted = Vec::new();
    for (number, ahead) in [DAY_S, -DAY_S, 0, 2 * DAY_S, -2 * DAY_S].into_iter().enumerate() {
        let name = format!("r{number}");
        accepted.push(client.say("s", &name, &format!("say {number}")).await.unwrap());
        shim.clock_ahead(ahead).unwrap();
        let input = client.outcome(&accepted[number].input_id).await.unwrap();
        assert_eq!(input["outcome"], "completed", "{input}");
    }
    assert_eq!(follower.record().count("run.interrupted"), 0);
    // Back, over a kill: still fresh.
    shim.clock_ahead(0).unwrap();
    let before = follower.record().count("text.delta");
    accepted.push(client.say("s", "back", "still").await.unwrap());
    follower.wait_for_event("text.delta", before + 1).await.unwrap();
    shim.clock_ahead(-DAY_S).unwrap();
    server.restart().await.unwrap();
    let input = client.outcome(&accepted[5].input_id).await.unwrap();
    assert_eq!(input["outcome"], "completed", "{input}");
    // Ahead, over a kill: stale.
    shim.clock_ahead(0).unwrap();
    let before = follower.record().count("text.delta");
    accepted.push(client.say("s", "ahead", "still").await.unwrap());
    follower.wait_for_event("text.delta", before + 1).await.unwrap();
    shim.clock_ahead(DAY_S).unwrap();
    server.restart().await.unwrap();
    let input = client.outcome(&accepted[6].input_id).await.unwrap();
    assert_eq!(input["outcome"], "interrupted", "{input}");
    let markers = client.texts("s", "system", "interruption").await.unwrap();
    let why = "its last record is older than the policy's window.";
    assert!(markers.last().unwrap().ends_with(why), "{markers:?}");
    finish(&client, accepted, vec![follower]).await;
}
