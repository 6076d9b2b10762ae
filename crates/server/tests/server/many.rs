//! The multiplexed feed.

use std::collections::BTreeMap;

use serde_json::json;

use crate::sse::{Event, Events, names, stored};
use crate::world::World;

/// The stored events of one session, as bytes.
fn of(events: &[Event], session: &str) -> Vec<String> {
    let own = |event: &&Event| event.id.is_some() && event.data["session_id"] == session;
    events.iter().filter(own).map(|event| event.raw.clone()).collect()
}

async fn three(world: &World) -> String {
    for id in ["a", "b", "c"] {
        world.say_and_wait(id, "many 3").await;
    }
    "/v1/events?session=a&session=b&session=c".to_owned()
}

/// P7: every session's events are there once, in order, on one connection.
async fn many_sessions_share_one_stream(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, &format!("{path}&after=0")).await;
    let seen = events.through("caught_up").await;
    assert_eq!(seen[0].name, "opened");
    for id in ["a", "b", "c"] {
        let mut alone = Events::open(&world, &format!("/v1/sessions/{id}/events?after=0")).await;
        let alone = stored(&alone.through("caught_up").await);
        assert_eq!(seen[0].data["sessions"][id]["latest"], alone.len());
        let there: Vec<String> = alone.iter().map(|event| event.raw.clone()).collect();
        assert_eq!(of(&seen, id), there, "{id}");
    }
    assert_eq!(names(&seen).iter().filter(|name| **name == "caught_up").count(), 1);

    world.say("b", "say live").await;
    let live = events.through("run.completed").await;
    assert!(live.iter().all(|event| event.data["session_id"] == "b"));
}

/// P7: from the id of any event the feed goes on where it was, in every session.
async fn the_stream_goes_on_from_every_id(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, &format!("{path}&after=0")).await;
    let all = stored(&events.through("caught_up").await);
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    for event in &all {
        let session = event.data["session_id"].as_str().unwrap().to_owned();
        places.insert(session, event.data["offset"].as_u64().unwrap());
        let headers = [("last-event-id", event.id.as_deref().unwrap())];
        let mut resumed = Events::open_with(&world, &path, &headers).await;
        let resumed = resumed.through("caught_up").await;
        assert!(!names(&resumed).contains(&"reset"), "{resumed:?}");
        for id in ["a", "b", "c"] {
            let seen = places.get(id).copied().unwrap_or(0);
            let wanted = of(&all, id).split_off(usize::try_from(seen).unwrap());
            assert_eq!(of(&resumed, id), wanted, "{id} after {places:?}");
        }
    }
    // The places before anything was read are a cursor as well.
    let mut events = Events::open(&world, &format!("{path}&after=0")).await;
    let from = events.next().await.unwrap().data["from"].as_str().unwrap().to_owned();
    let mut events = Events::open(&world, &format!("{path}&after={from}")).await;
    assert_eq!(stored(&events.through("caught_up").await).len(), all.len());
}

/// Without a cursor: a snapshot of each session. A session that joins gets one as well.
async fn sessions_without_a_place_begin_with_a_snapshot(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, &path).await;
    let seen = events.through("caught_up").await;
    assert_eq!(
        names(&seen),
        ["opened", "session.updated", "session.updated", "session.updated", "caught_up"]
    );
    assert!(stored(&seen).is_empty());

    let two = "/v1/events?session=a&session=b";
    let mut events = Events::open(&world, two).await;
    let at = events.until("caught_up").await.data["at"].as_str().unwrap().to_owned();
    let mut events = Events::open(&world, &format!("{path}&after={at}")).await;
    let seen = events.through("caught_up").await;
    assert_eq!(names(&seen), ["opened", "session.updated", "caught_up"]);
    assert_eq!(seen[1].data["session_id"], "c");
}

/// P7: a cursor of other sessions, or one ahead, is answered with resets.
async fn unusable_places_are_reset(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, "/v1/events?session=a").await;
    let of_a = events.until("caught_up").await.data["at"].as_str().unwrap().to_owned();
    let path_bc = format!("/v1/events?session=b&session=c&after={of_a}");
    let mut events = Events::open(&world, &path_bc).await;
    let seen = events.through("caught_up").await;
    let resets: Vec<_> = seen.iter().filter(|event| event.name == "reset").collect();
    assert_eq!(resets.len(), 2);
    assert!(resets.iter().all(|event| event.data["reason"] == "foreign"));

    // Another store's cursor: the session exists here, and is not as long.
    let longer = World::new().await;
    for _ in 0..3 {
        longer.say_and_wait("a", "many 9").await;
    }
    let mut events = Events::open(&longer, "/v1/events?session=a").await;
    let ahead = events.until("caught_up").await.data["at"].as_str().unwrap().to_owned();
    let mut events = Events::open(&world, &format!("{path}&after={ahead}")).await;
    let seen = events.through("caught_up").await;
    let reset = seen.iter().find(|event| event.name == "reset").unwrap();
    assert_eq!((&reset.data["session_id"], &reset.data["reason"]), (&json!("a"), &json!("ahead")));
}

/// Only the sessions that are named are viewed.
async fn only_named_sessions_are_viewed(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, &format!("{path}&viewer=b")).await;
    events.through("caught_up").await;
    for (id, viewers) in [("a", 0), ("b", 1), ("c", 0)] {
        assert_eq!(world.get(&format!("/v1/sessions/{id}")).await.ok()["viewers"], viewers, "{id}");
    }
}

/// P12: at most 64, each once.
async fn sixty_four_sessions_at_most(world: World) {
    let mut path = "/v1/events?after=0".to_owned();
    for n in 0..65 {
        world.post("/v1/sessions", json!({ "id": format!("s{n}") })).await.ok();
        if n < 64 {
            path.push_str(&format!("&session=s{n}&session=s{n}"));
        }
    }
    let mut events = Events::open(&world, &path).await;
    let seen = events.through("caught_up").await;
    assert_eq!(stored(&seen).len(), 64, "each has one event");
    let answer = world.get(&format!("{path}&session=s64")).await;
    assert_eq!(answer.refusal(), (400, "bad_request".to_owned()));
}

/// A session that is deleted is told as lost; the others go on.
async fn one_deleted_session_does_not_end_the_others(world: World) {
    let path = three(&world).await;
    let mut events = Events::open(&world, &path).await;
    events.through("caught_up").await;
    assert_eq!(world.delete("/v1/sessions/a").await.status, 204);
    let reset = events.until("reset").await;
    assert_eq!((&reset.data["session_id"], &reset.data["reason"]), (&json!("a"), &json!("lost")));
    world.say("b", "say live").await;
    events.until("run.completed").await;
    assert_eq!(world.get(&path).await.refusal(), (410, "session_deleted".to_owned()));
}

on_both_stores! {
    many_sessions_share_one_stream
    the_stream_goes_on_from_every_id
    sessions_without_a_place_begin_with_a_snapshot
    unusable_places_are_reset
    only_named_sessions_are_viewed
    sixty_four_sessions_at_most
    one_deleted_session_does_not_end_the_others
}
