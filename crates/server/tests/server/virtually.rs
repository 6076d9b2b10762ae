//! Two processes on one store: what one says about what the other does or did.

use everturn_engine::Scope as Work;
use everturn_store::{Read as _, SystemClock};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::fleet::Booted;
use crate::sse::Events;
use crate::world::{World, key, memory};

/// A process that runs a turn of the session `s` without end, and one that works on nothing.
async fn two() -> (World, World, String) {
    let store = memory();
    let works = World::on(store.clone(), |_, _| {}).await;
    let run = works.held_turn("s").await;
    let other = Arc::new(store.another(Arc::new(SystemClock::new().unwrap())));
    let watches = World::on(other, |config, _| config.scope = Work::Only(key("nothing"))).await;
    (works, watches, run)
}

/// A receipt names the process that the input waits for.
#[tokio::test]
async fn an_input_says_which_process_it_waits_for() {
    let (works, watches, _) = two().await;
    let receipt = watches.say("s", "say later").await;
    assert_eq!(receipt["waiting_for"]["node"], works.engine.node().as_str());
    assert!(receipt["waiting_for"]["since"].is_string());
    let own = works.say("s", "say later").await;
    assert_eq!(own.get("waiting_for"), None, "it does not wait for itself");
    works.puppet.release();
    let ended = watches.ended(receipt["input_id"].as_str().unwrap()).await;
    assert_eq!(ended["outcome"], "completed");
}

/// P5: until an interruption is recorded, a reader is told what can be seen, and nothing is stored.
#[tokio::test]
async fn an_interruption_is_told_before_it_is_recorded() {
    let (works, watches, run) = two().await;
    let alive = watches.get("/v1/sessions/s").await.ok();
    assert_eq!((&alive["state"], &alive["running"]["run_id"]), (&json!("running"), &json!(run)));
    let before = watches.counts().await;

    watches.store.set_gone(works.engine.node(), Some(true));
    let session = watches.get("/v1/sessions/s").await.ok();
    assert_eq!(session["state"], "interrupted");
    assert_eq!(session.get("running"), None);
    let interrupted = &session["interrupted"];
    assert_eq!(interrupted["run_id"], run.as_str());
    assert_eq!(interrupted["generation"], 1);
    let evidence = &interrupted["evidence"];
    assert_eq!(evidence["holder"], works.engine.node().as_str());
    assert_eq!(evidence["holder_gone"], true);
    assert!(evidence["text"].as_str().unwrap().starts_with("This turn was interrupted"));
    let seen = watches.get(&format!("/v1/runs/{run}")).await.ok();
    assert_eq!((&seen["interrupted_virtually"], &seen["terminal"]), (&json!(true), &json!(false)));
    assert_eq!(seen["evidence"]["holder_gone"], true);
    let window = watches.get(&format!("/v1/runs/{run}/events")).await.ok();
    assert_eq!(window["interrupted_virtually"], true);
    assert_eq!(window["evidence"], seen["evidence"]);
    let mut stream = Events::open(&watches, &format!("/v1/runs/{run}/events")).await;
    let said = stream.through("caught_up").await.pop().unwrap();
    assert_eq!(said.data["interrupted_virtually"], true);
    assert_eq!(said.data["evidence"]["holder_gone"], true);
    assert!(said.data["evidence"]["last_event"].is_string(), "{said:?}");
    assert_eq!(said.id, None, "what is stored nowhere has no id");
    let list = watches.get("/v1/sessions").await.ok();
    assert_eq!(list["data"][0]["state"], "interrupted");
    assert_eq!(watches.counts().await, before, "nothing is stored");

    watches.store.set_gone(works.engine.node(), Some(false));
    assert_eq!(watches.get("/v1/sessions/s").await.ok()["state"], "running");
    let seen = watches.get(&format!("/v1/runs/{run}")).await.ok();
    assert_eq!(seen.get("interrupted_virtually"), None);
    let mut stream = Events::open(&watches, &format!("/v1/runs/{run}/events")).await;
    let said = stream.through("caught_up").await.pop().unwrap();
    assert_eq!(said.data.get("interrupted_virtually"), None);
}

/// P7: a reader on one process sees live what another one writes.
#[tokio::test]
async fn a_turn_elsewhere_is_followed_here() {
    let (works, watches, run) = two().await;
    let mut feed = Events::open(&watches, "/v1/sessions/s/events?after=0").await;
    feed.through("caught_up").await;
    let journal = Events::open(&watches, &format!("/v1/runs/{run}/events")).await;
    works.puppet.release();
    feed.until("run.completed").await;
    assert_eq!(journal.rest().await.last().unwrap().name, "run.completed");
}

/// Viewers of other living processes count.
#[tokio::test]
async fn viewers_elsewhere_count() {
    let (works, watches, _) = two().await;
    let mut feed = Events::open(&works, "/v1/sessions/s/events").await;
    feed.through("caught_up").await;
    watches.session_when("s", |seen: &Value| seen["viewers"] == 1).await;
    let mut own = Events::open(&watches, "/v1/sessions/s/events").await;
    own.through("caught_up").await;
    watches.session_when("s", |seen| seen["viewers"] == 2).await;
    drop(feed);
    watches.session_when("s", |seen| seen["viewers"] == 1).await;
}

/// P6, P7: whoever saw what went with the power is told so on every feed, and nobody else is.
#[tokio::test]
async fn whoever_saw_what_was_lost_with_the_power_is_told_so() {
    let store = memory();
    let works = World::on(store.clone(), |_, _| {}).await;
    let run = works.held_turn("s").await;
    store.set_gone(works.engine.node(), Some(true));
    let other = Arc::new(store.another(Booted::after(1)));
    let again = World::on(other, |_, _| {}).await;
    again.store.set_gone(works.engine.node(), Some(true));
    let gap = loop {
        let gaps = again.store.gaps(&key("s")).await.unwrap();
        if let Some(gap) = gaps.first() {
            break gap.clone();
        }
        tokio::task::yield_now().await;
    };
    let told = async |path: String| {
        let mut stream = Events::open(&again, &path).await;
        let events = stream.through("caught_up").await;
        let resets = events.iter().filter(|event| event.name == "reset");
        resets.map(|event| event.data["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    for lost in [gap.from_offset, gap.to_offset] {
        assert_eq!(told(format!("/v1/sessions/s/events?after={lost}")).await, ["lost"]);
    }
    for kept in [0, gap.from_offset - 1, gap.to_offset + 1] {
        assert_eq!(told(format!("/v1/sessions/s/events?after={kept}")).await, none, "{kept}");
    }
    for lost in [gap.from_seq, gap.to_seq] {
        let path = format!("/v1/runs/{run}/events?after={lost}");
        let stream = Events::open(&again, &path).await;
        let events = stream.rest().await;
        assert_eq!((events[1].name.as_str(), &events[1].data["reason"]), ("reset", &json!("lost")));
        assert_eq!(events[2].data["seq"], 1, "from the beginning");
        assert_eq!(events.last().unwrap().name, "run.interrupted");
        assert_eq!(again.get(&path).await.refusal(), (400, "bad_cursor".to_owned()));
    }
    for kept in [0, gap.from_seq - 1] {
        let path = format!("/v1/runs/{run}/events?after={kept}");
        let events = Events::open(&again, &path).await.rest().await;
        assert!(events.iter().all(|event| event.name != "reset"), "{kept}");
        assert_eq!(again.get(&path).await.status, 200);
    }
}
