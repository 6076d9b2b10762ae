//! Runs whose token events were pruned: what a reader is told, from every cursor, on every stream
//! (promises P6, P7 and P12).

use std::time::Duration;

use everturn_core::Timestamp;
use everturn_engine::Config;
use everturn_server::ServerConfig;
use everturn_store::execute;
use everturn_store::op::PruneEvents;
use serde_json::Value;

use crate::sse::{Event, Events, ask, names, stored};
use crate::world::World;

/// Each piece of the model is an event of its own, and nothing is pruned but by the test.
fn by_hand(config: &mut Config, _: &mut ServerConfig) {
    config.coalesce = Duration::ZERO;
    config.retention = None;
}

/// Prunes everything that is over.
async fn prune(world: &World) {
    let before = Timestamp(i64::MAX);
    let mut after = None;
    loop {
        let done = execute(&*world.any_store, PruneEvents { before, after }).await.unwrap();
        after = done.after;
        if !done.more {
            return;
        }
    }
}

/// First number that an event stands for, as a reader tells from the event alone, of its `seq` or
/// `offset`.
fn first(event: &Value, number: &str) -> u64 {
    let own = event[number].as_u64().unwrap();
    match event["event"].as_str() {
        Some("text.snapshot") => {
            assert_eq!(event["to"], event["seq"]);
            own - (event["to"].as_u64().unwrap() - event["from"].as_u64().unwrap())
        }
        _ => own,
    }
}

/// What a reader has of a run's text, piece by piece under the number where it begins.
#[derive(Clone, Default)]
struct Read(Vec<(u64, String)>);

impl Read {
    /// Takes an event, as the interface says: a snapshot takes the place of what it covers.
    fn take(&mut self, event: &Value, number: &str) {
        if !matches!(event["event"].as_str(), Some("text.delta" | "text.snapshot")) {
            return;
        }
        let from = first(event, number);
        self.0.retain(|piece| piece.0 < from);
        self.0.push((from, event["text"].as_str().unwrap().to_owned()));
    }

    fn text(&self) -> String {
        self.0.iter().map(|piece| piece.1.as_str()).collect()
    }
}

/// What a reader of `all` has after the number `cursor`, and then reads `rest`.
fn joined(all: &[Event], cursor: u64, rest: &[Event], number: &str) -> String {
    let mut read = Read::default();
    for event in all.iter().filter(|event| event.data[number].as_u64().unwrap() <= cursor) {
        read.take(&event.data, number);
    }
    for event in rest {
        read.take(&event.data, number);
    }
    read.text()
}

/// The events of `rest` stand for every number behind `cursor`, in order.
fn complete(cursor: u64, rest: &[Event], latest: u64, number: &str) {
    let mut known = cursor;
    for event in rest {
        let own = event.data[number].as_u64().unwrap();
        let from = first(&event.data, number);
        assert!(
            own > known && from <= known + 1,
            "{number} {known} is followed by {from} to {own}"
        );
        known = own;
    }
    assert_eq!(known, latest, "everything behind {number} {cursor}");
}

async fn a_reader_of_a_pruned_run_gets_the_rest_from_every_cursor(world: World) {
    world.say_and_wait("s", "many 12").await;
    world.say_and_wait("s", "say and goodbye").await;
    let runs = world.get("/v1/sessions/s/turns").await.ok();
    let runs = runs["data"].as_array().unwrap();
    let id = runs.iter().find(|run| run["generation"] == 1).unwrap()["run_id"].as_str().unwrap();
    let path = format!("/v1/runs/{id}/events");
    let unpruned = stored(&Events::open(&world, &path).await.rest().await);
    let deltas = unpruned.iter().filter(|event| event.name == "text.delta").count();
    assert_eq!(deltas, 12);
    let mut feed = Events::open(&world, "/v1/sessions/s/events?after=0").await;
    let unpruned_feed = stored(&feed.through("caught_up").await);
    let text: String = (0..12).map(|n| format!("{n} ")).collect();

    prune(&world).await;

    let run = world.get(&format!("/v1/runs/{id}")).await.ok();
    let last = unpruned.len() as u64;
    assert_eq!((&run["last_seq"], &run["terminal"]), (&last.into(), &true.into()));
    for cursor in 0..last {
        let id = format!("{id}:{cursor}");
        let seen = Events::open_with(&world, &path, &[("last-event-id", &id)]).await.rest().await;
        assert_eq!(names(&seen)[0], "opened");
        assert_eq!((&seen[0].data["from"], &seen[0].data["earliest"]), (&cursor.into(), &1.into()));
        assert!(!names(&seen).contains(&"reset") && !names(&seen).contains(&"text.delta"));
        let rest = stored(&seen);
        complete(cursor, &rest, last, "seq");
        assert_eq!(rest.last().unwrap().name, "run.completed");
        assert_eq!(joined(&unpruned, cursor, &rest, "seq"), text, "from {cursor}");
        // The same in JSON, and in windows of any size, which together hold every event once.
        let json = world.get(&format!("{path}?after={cursor}")).await.ok();
        let bodies: Vec<&Value> = rest.iter().map(|event| &event.data).collect();
        assert_eq!(json["events"].as_array().unwrap().iter().collect::<Vec<_>>(), bodies);
        for size in [1, 3, 7] {
            let mut windows = Vec::new();
            for after in (cursor..last).step_by(size) {
                let max = after + size as u64;
                let json = world.get(&format!("{path}?after={after}&max={max}")).await.ok();
                windows.extend(json["events"].as_array().unwrap().clone());
            }
            assert_eq!(windows.iter().collect::<Vec<_>>(), bodies, "windows of {size}");
        }
    }
    assert_eq!(ask(&world, &format!("{path}?after={last}"), &[]).await.status(), 204);

    // The feed, alone and among others.
    let latest = unpruned_feed.last().unwrap().data["offset"].as_u64().unwrap();
    for cursor in 0..=latest {
        let mut feed = Events::open(&world, &format!("/v1/sessions/s/events?after={cursor}")).await;
        let seen = feed.through("caught_up").await;
        assert_eq!(
            (&seen[0].data["earliest"], &seen[0].data["latest"]),
            (&1.into(), &latest.into())
        );
        assert_eq!(seen.last().unwrap().data["at"], latest);
        let rest = stored(&seen);
        complete(cursor, &rest, latest, "offset");
        let both = format!("{text}and goodbye");
        assert_eq!(joined(&unpruned_feed, cursor, &rest, "offset"), both, "from {cursor}");
    }
    let mut many = Events::open(&world, "/v1/events?session=s&after=0").await;
    complete(0, &stored(&many.through("caught_up").await), latest, "offset");

    // What comes now is numbered on, and is there live.
    let path = format!("/v1/sessions/s/events?after={latest}");
    let mut live = Events::open(&world, &path).await;
    live.through("caught_up").await;
    world.say("s", "say more").await;
    assert_eq!(live.next().await.unwrap().data["offset"], latest + 1);
    assert_eq!(live.until("text.delta").await.data["text"], "more");
}

#[tokio::test]
async fn a_reader_of_a_pruned_run_gets_the_rest_in_memory() {
    let world = World::with(by_hand).await;
    a_reader_of_a_pruned_run_gets_the_rest_from_every_cursor(world).await;
}

#[tokio::test]
async fn a_reader_of_a_pruned_run_gets_the_rest_on_sqlite() {
    let world = World::sqlite_with(by_hand).await;
    a_reader_of_a_pruned_run_gets_the_rest_from_every_cursor(world).await;
}

/// A serving node prunes by itself, also what ends while it runs, and counts it; a turn that runs
/// keeps its events.
#[tokio::test]
async fn a_serving_node_prunes_in_the_background() {
    let world = World::sqlite_with(|config, _| {
        config.coalesce = Duration::ZERO;
        config.retention = Some(Duration::ZERO);
    })
    .await;
    let running = world.held_turn("running").await;
    for session in ["one", "two"] {
        let input = world.say_and_wait(session, "many 5").await;
        let run = input["run_id"].as_str().unwrap();
        let is_pruned = |seen: &Value| {
            let events = seen["events"].as_array().unwrap();
            let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
            named("text.snapshot") == 1 && named("text.delta") == 0
        };
        let seen = world.when(&format!("/v1/runs/{run}/events"), is_pruned).await;
        let snapshot = &seen["events"][1];
        assert_eq!(snapshot["text"], "0 1 2 3 4 ");
        assert_eq!((&snapshot["from"], &snapshot["to"]), (&2.into(), &6.into()));
    }
    let seen = world.get(&format!("/v1/runs/{running}/events")).await.ok();
    assert!(seen["events"].as_array().unwrap().iter().any(|event| event["event"] == "text.delta"));
    let figures = world.get("/metrics").await.text;
    let pruned =
        figures.lines().find_map(|line| line.strip_prefix("everturn_events_pruned_total "));
    assert!(pruned.unwrap().parse::<u64>().unwrap() >= 10, "{figures}");
    world.puppet.release();
}

/// A store that fails while it is pruned harms nothing: it is said, counted and tried again.
#[tokio::test]
async fn pruning_is_tried_again_after_a_failure() {
    use everturn_store::{StorageError, StorageErrorKind};
    let world = World::with(|config, _| {
        config.coalesce = Duration::ZERO;
        config.retention = Some(Duration::ZERO);
    })
    .await;
    let failures = |figures: &str| -> u64 {
        let name = "everturn_prune_failures_total ";
        let line = figures.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse().unwrap())
    };
    let before = failures(&world.get("/metrics").await.text);
    world.store.set_failure(Some(StorageError::new(StorageErrorKind::Full, "no space")));
    let deadline = tokio::time::Instant::now() + crate::world::PATIENCE;
    while failures(&world.get("/metrics").await.text) == before {
        assert!(tokio::time::Instant::now() < deadline, "no failure was counted");
        tokio::task::yield_now().await;
    }
    world.store.set_failure(None);
    let input = world.say_and_wait("s", "many 5").await;
    let path = format!("/v1/runs/{}/events", input["run_id"].as_str().unwrap());
    world.when(&path, |seen| seen["events"][1]["event"] == "text.snapshot").await;
}
