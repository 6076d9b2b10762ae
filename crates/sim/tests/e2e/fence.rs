//! A process that was paused beyond its lease (P11): it writes nothing more, and its tools are gone.

use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::{Home, ServerSpec, processes_with};
use everturn_sim::wait;
use rustix::process::Signal;
use serde_json::json;

use crate::common::{count_lines, fifo, seen, serve_openai, text, verify, wait_for_lines};

/// A server whose lease runs out within seconds.
fn short_lease(home: &Home, openai: &OpenAi) -> ServerSpec {
    serve_openai(home, openai).env("EVERTURN_LEASE_S", "3").env("EVERTURN_RENEW_S", "1")
}

/// P11: paused in mid-answer, a server loses its session to another one, which continues the turn. When
/// it wakes up and its model goes on, none of that is seen anywhere, and later turns are not touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_paused_beyond_its_lease_leaves_no_trace() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Half ").gate(&gate).pieces(["stale ", "words"]));
    openai.push(Reply::new().text("and half."));
    openai.push(Reply::new().text("Next."));
    let home = Home::new().unwrap();
    let a = short_lease(&home, &openai).start().await.unwrap();
    let b = short_lease(&home, &openai).start().await.unwrap();
    let (at_a, at_b) = (a.client().unwrap(), b.client().unwrap());
    let follower = Follower::feed(&at_b, "s");
    let first = at_a.say("s", "r1", "go").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    a.process.signal(Signal::STOP).unwrap();
    assert_eq!(at_b.outcome(&first.input_id).await.unwrap()["outcome"], "completed");
    let end = follower.wait_for_event("run.interrupted", 1).await.unwrap();
    // It is alive, and that is what the evidence says.
    assert_eq!(
        (text(&end, "cause"), &end["evidence"]["holder_gone"]),
        ("split_brain", &false.into())
    );
    a.process.signal(Signal::CONT).unwrap();
    gate.open();
    a.process.err.wait_for_text("another node").await.unwrap();
    // It works again, for the same session, beside the other one.
    let second = at_a.say("s", "r2", "and on").await.unwrap();
    assert_eq!(at_a.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 2).await.unwrap();
    assert_eq!(follower.record().text(), "Half and half.Next.");
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&at_b, &["s"], vec![first, second], vec![seen(follower)]).await;
}

/// P11: the command of a paused server ends when the lease does, by its supervisor, so that nothing
/// works beside the successor.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_paused_server_ends_with_its_lease() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let (_gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    let mark = format!("mark-{}", home.path().display());
    let command =
        format!("echo begun >> effects; : {mark}; read line < gate; echo late >> effects");
    openai.push(Reply::new().call("a", "shell", &json!({ "command": command }).to_string()));
    openai.push(Reply::new().text("Unknown."));
    let a = short_lease(&home, &openai).start().await.unwrap();
    let b = short_lease(&home, &openai).start().await.unwrap();
    let (at_a, at_b) = (a.client().unwrap(), b.client().unwrap());
    at_a.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&at_b, "s");
    let accepted = at_a.say("s", "r1", "do it").await.unwrap();
    wait_for_lines(&effects, 1).await;
    assert!(!processes_with(&mark).unwrap().is_empty());
    a.process.signal(Signal::STOP).unwrap();
    wait::until("the end of the command", || async {
        Ok(processes_with(&mark)?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(at_b.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    a.process.signal(Signal::CONT).unwrap();
    a.process.err.wait_for_text("another node").await.unwrap();
    assert_eq!(count_lines(&effects), 1);
    let calls = at_a.calls("s").await.unwrap();
    assert_eq!((calls.len(), text(&calls[0], "state")), (1, "unknown"));
    follower.wait_for_event("run.completed", 1).await.unwrap();
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&at_b, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// P13: paused beyond its lease with nobody else there, a server goes on as if nothing had been: a
/// sleeping laptop interrupts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_paused_alone_goes_on() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Before ").gate(&gate).text("and after."));
    let home = Home::new().unwrap();
    let a = short_lease(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "go").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    a.process.signal(Signal::STOP).unwrap();
    // The lease is three seconds; this is time itself that has to pass, not something to be observed.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    a.process.signal(Signal::CONT).unwrap();
    gate.open();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 1).await.unwrap();
    let record = follower.record();
    assert_eq!((record.text().as_str(), record.count("run.interrupted")), ("Before and after.", 0));
    assert_eq!(openai.requests().len(), 1);
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}
