//! Streams of one session and of one run, at every boundary (promises P6 and P7).

use serde_json::json;

use crate::sse::{Event, Events, ask, names, stored};
use crate::world::World;

/// A session with two turns: its feed from the beginning, as it is replayed.
async fn two_turns(world: &World) -> Vec<Event> {
    world.say_and_wait("s", "many 5").await;
    world.say_and_wait("s", "say second").await;
    let mut events = Events::open(world, "/v1/sessions/s/events?after=0").await;
    stored(&events.through("caught_up").await)
}

/// P7: from every cursor a reader gets every later event once, in order, with the same bytes.
async fn a_feed_can_be_read_from_every_cursor(world: World) {
    let all = two_turns(&world).await;
    let latest = all.len() as u64;
    let offsets: Vec<u64> =
        all.iter().map(|event| event.data["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, (1..=latest).collect::<Vec<_>>(), "offsets have no gap");
    for event in &all {
        assert_eq!(event.id.as_deref(), Some(event.data["offset"].to_string().as_str()));
        assert_eq!(event.data["session_id"], "s");
        assert_eq!(event.data["event"], event.name.as_str());
        assert!(event.data["at"].is_string());
    }
    for after in 0..=latest {
        let by_query = format!("/v1/sessions/s/events?after={after}");
        let mut events = Events::open(&world, &by_query).await;
        let seen = events.through("caught_up").await;
        assert_eq!(seen[0].name, "opened");
        assert_eq!(seen[0].data["from"], after);
        assert_eq!(seen[0].data["earliest"], 1);
        assert_eq!(seen[0].data["latest"], latest);
        assert_eq!(seen.last().unwrap().data["at"], latest);
        assert_eq!(stored(&seen), all[usize::try_from(after).unwrap()..]);

        // A browser that comes back still has its old address.
        let id = after.to_string();
        let headers = [("last-event-id", id.as_str())];
        let mut events = Events::open_with(&world, "/v1/sessions/s/events?after=0", &headers).await;
        assert_eq!(stored(&events.through("caught_up").await), stored(&seen));
    }
}

/// P7: a cursor ahead of the feed is answered with a reset, and the feed goes on live.
async fn a_cursor_ahead_is_reset(world: World) {
    let all = two_turns(&world).await;
    let latest = all.len() as u64;
    for ahead in [latest + 1, i64::MAX as u64] {
        let mut events =
            Events::open(&world, &format!("/v1/sessions/s/events?after={ahead}")).await;
        let seen = events.through("caught_up").await;
        assert_eq!(names(&seen), ["opened", "reset", "caught_up"]);
        assert_eq!(seen[1].data["reason"], "ahead");
        assert_eq!(seen[1].data["latest"], latest);
        assert!(seen.iter().all(|event| event.id.is_none()));
    }
    let path = format!("/v1/sessions/s/events?after={}", latest + 1);
    let mut events = Events::open(&world, &path).await;
    events.through("caught_up").await;
    world.say("s", "say third").await;
    assert_eq!(events.next().await.unwrap().data["offset"], latest + 1);
}

/// Without a cursor a feed begins with one snapshot and goes on from the snapshot's offset.
async fn a_feed_without_a_cursor_begins_with_a_snapshot(world: World) {
    let all = two_turns(&world).await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    let seen = events.through("caught_up").await;
    assert_eq!(names(&seen), ["opened", "session.updated", "caught_up"]);
    let snapshot = &seen[1];
    assert_eq!(snapshot.id, None);
    assert_eq!(snapshot.data["session"]["offset"], all.len());
    assert_eq!(snapshot.data["offset"], all.len());
    assert_eq!(snapshot.data["session"]["viewers"], 1);
    world.say("s", "say third").await;
    assert_eq!(events.next().await.unwrap().data["offset"], all.len() as u64 + 1);
}

/// P6 and P7: what was seen live is what is replayed, byte for byte.
async fn live_and_replayed_events_are_the_same_bytes(world: World) {
    world.post("/v1/sessions", json!({ "id": "s" })).await.ok();
    let mut live = Events::open(&world, "/v1/sessions/s/events?after=0").await;
    live.through("caught_up").await;
    let mut watched = Vec::new();
    let input = world.say("s", "many 50").await;
    watched.extend(live.through("run.completed").await);
    world.ended(input["input_id"].as_str().unwrap()).await;
    let first = watched[0].data["offset"].as_u64().unwrap();
    let path = format!("/v1/sessions/s/events?after={}", first - 1);
    let mut replayed = Events::open(&world, &path).await;
    let replayed = stored(&replayed.through("run.completed").await);
    assert_eq!(watched, replayed);

    let run = input["input_id"].as_str().unwrap();
    let run = world.get(&format!("/v1/inputs/{run}")).await.ok()["run_id"].clone();
    let run = run.as_str().unwrap();
    let journal = Events::open(&world, &format!("/v1/runs/{run}/events")).await;
    let journal = stored(&journal.rest().await);
    let in_feed: Vec<&Event> =
        watched.iter().filter(|event| event.data.get("seq").is_some()).collect();
    assert_eq!(journal.len(), in_feed.len());
    for (of_run, of_feed) in journal.iter().zip(in_feed) {
        assert_eq!(of_run.raw, of_feed.raw);
    }
    let window = world.get(&format!("/v1/runs/{run}/events")).await;
    for event in &journal {
        assert!(window.text.contains(&event.raw), "{} is not in {}", event.raw, window.text);
    }
}

/// P7: a run's journal from every cursor; the stream closes after the last event, and asked again
/// from there it has nothing to say.
async fn a_run_can_be_read_from_every_cursor_and_closes(world: World) {
    let input = world.say_and_wait("s", "many 4").await;
    let run = input["run_id"].as_str().unwrap();
    let path = format!("/v1/runs/{run}/events");
    let all = stored(&Events::open(&world, &path).await.rest().await);
    let last = all.len();
    assert_eq!(all[0].name, "run.started");
    assert_eq!(all[last - 1].name, "run.completed");
    for (index, event) in all.iter().enumerate() {
        let seq = index + 1;
        assert_eq!(event.data["seq"], seq);
        assert_eq!(event.data["run_id"], run);
        assert_eq!(event.id.as_deref(), Some(format!("{run}:{seq}").as_str()));
    }
    for after in 0..last {
        let events = Events::open(&world, &format!("{path}?after={after}")).await;
        let seen = events.rest().await;
        assert_eq!(stored(&seen), all[after..], "after {after}");
        let id = format!("{run}:{after}");
        let headers = [("last-event-id", id.as_str())];
        let events = Events::open_with(&world, &path, &headers).await;
        assert_eq!(stored(&events.rest().await), all[after..]);
        let window = world.get(&format!("{path}?after={after}")).await.ok();
        assert_eq!(window["events"].as_array().unwrap().len(), last - after);
    }
    for end in [format!("{path}?after={last}"), format!("{path}?after={run}:{last}")] {
        let answer = ask(&world, &end, &[]).await;
        assert_eq!(answer.status(), 204, "{end}");
        let window = world.get(&end).await.ok();
        assert_eq!(window["events"], json!([]));
        assert_eq!((&window["terminal"], &window["last_seq"]), (&json!(true), &json!(last)));
        assert_eq!(window["terminal_state"], "completed");
    }
}

/// P7: an unusable cursor of a run is never skipped in silence: a reset, then everything.
async fn an_unusable_cursor_of_a_run_is_reset(world: World) {
    let one = world.say_and_wait("s", "many 4").await["run_id"].as_str().unwrap().to_owned();
    let two = world.say_and_wait("s", "many 4").await["run_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{one}/events");
    let all = stored(&Events::open(&world, &path).await.rest().await);
    for (id, reason) in [(format!("{two}:2"), "foreign"), (format!("{one}:999"), "ahead")] {
        let headers = [("last-event-id", id.as_str())];
        let seen = Events::open_with(&world, &path, &headers).await.rest().await;
        assert_eq!(names(&seen)[..2], ["opened", "reset"]);
        assert_eq!(seen[1].data["reason"], reason);
        assert_eq!(seen[1].data["latest"], all.len());
        assert_eq!(stored(&seen), all);
        let request = world.request(reqwest::Method::GET, &path).header("last-event-id", id);
        let window = world.send(request).await;
        assert_eq!(window.refusal(), (400, "bad_cursor".to_owned()), "as JSON it is refused");
    }
}

/// A run's stream follows the run to its end.
async fn a_running_run_is_followed_to_its_end(world: World) {
    let run = world.held_turn("s").await;
    let mut events = Events::open(&world, &format!("/v1/runs/{run}/events")).await;
    let before = events.through("caught_up").await;
    let window = world.get(&format!("/v1/runs/{run}/events")).await.ok();
    assert_eq!(window["terminal"], false);
    assert_eq!(window.get("terminal_state"), None);
    world.puppet.release();
    let after = events.rest().await;
    assert_eq!(after.last().unwrap().name, "run.completed");
    let seqs: Vec<u64> = stored(&[before, after].concat())
        .iter()
        .map(|event| event.data["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

/// A window has a bound in events; `max` bounds window and stream.
#[tokio::test]
async fn a_window_of_a_run_is_bounded_and_goes_on_where_it_ended() {
    let world = World::with(|config, _| config.coalesce = std::time::Duration::ZERO).await;
    let input = world.say_and_wait("s", "many 1500").await;
    let run = input["run_id"].as_str().unwrap();
    let path = format!("/v1/runs/{run}/events");
    let mut seqs = Vec::new();
    loop {
        let window = world.get(&format!("{path}?after={}", seqs.len())).await.ok();
        let events = window["events"].as_array().unwrap();
        assert!(events.len() <= 1_000);
        seqs.extend(events.iter().map(|event| event["seq"].as_u64().unwrap()));
        assert!(!events.is_empty());
        if window["last_seq"].as_u64() == seqs.last().copied() {
            break;
        }
    }
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());

    let window = world.get(&format!("{path}?after=1&max=3")).await.ok();
    let events = window["events"].as_array().unwrap();
    let of: Vec<_> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(of, [2, 3]);
    let streamed = Events::open(&world, &format!("{path}?after=1&max=3")).await.rest().await;
    assert_eq!(stored(&streamed).len(), 2);
}

/// Reading a feed makes the client a viewer, unless it says otherwise.
async fn viewers_are_counted_while_they_read(world: World) {
    world.say_and_wait("s", "say hi").await;
    let viewers = |count: u64| {
        let world = &world;
        async move { world.session_when("s", |seen| seen["viewers"] == count).await }
    };
    let mut one = Events::open(&world, "/v1/sessions/s/events").await;
    one.through("caught_up").await;
    let mut two = Events::open(&world, "/v1/sessions/s/events?viewer=true").await;
    two.through("caught_up").await;
    let mut reader = Events::open(&world, "/v1/sessions/s/events?viewer=false").await;
    reader.through("caught_up").await;
    viewers(2).await;
    drop(one);
    viewers(1).await;
    drop(two);
    viewers(0).await;
    drop(reader);
}

/// A deleted session's feed ends.
async fn the_feed_of_a_deleted_session_ends(world: World) {
    world.say_and_wait("s", "say hi").await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    events.through("caught_up").await;
    assert_eq!(world.delete("/v1/sessions/s").await.status, 204);
    assert!(events.rest().await.iter().all(|event| event.name != "reset"));
}

/// Streams end when the server stops.
async fn a_server_that_stops_ends_its_streams(mut world: World) {
    world.say_and_wait("s", "say hi").await;
    let mut events = Events::open(&world, "/v1/sessions/s/events").await;
    events.through("caught_up").await;
    world.stop().await;
    assert_eq!(events.rest().await, []);
}

on_both_stores! {
    a_feed_can_be_read_from_every_cursor
    a_cursor_ahead_is_reset
    a_feed_without_a_cursor_begins_with_a_snapshot
    live_and_replayed_events_are_the_same_bytes
    a_run_can_be_read_from_every_cursor_and_closes
    an_unusable_cursor_of_a_run_is_reset
    a_running_run_is_followed_to_its_end
    viewers_are_counted_while_they_read
    the_feed_of_a_deleted_session_ends
    a_server_that_stops_ends_its_streams
}
