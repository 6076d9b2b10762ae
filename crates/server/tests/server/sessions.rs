//! Sessions: creating, listing, reading, changing, closing, deleting.

use serde_json::{Value, json};

use crate::world::World;

async fn a_session_is_created_read_and_changed(world: World) {
    let body = json!({
        "id": "s", "title": "A title", "model": "puppet/two", "system": "Be kind.",
        "policy": { "queue": "batch", "tools": { "touch": "deny" } },
        "metadata": { "a": 1, "b": "two" },
    });
    let answer = world.post("/v1/sessions", body).await;
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("location"), "/v1/sessions/s");
    let session = answer.json();
    assert_eq!(session["state"], "idle");
    assert_eq!(session["policy"]["queue"], "batch");
    assert_eq!(session["policy"]["tools"], json!({ "touch": "deny" }));
    assert_eq!(session["policy"]["auto_continue"]["max_attempts"], 2);
    assert_eq!(session["metadata"], json!({ "a": 1, "b": "two" }));
    assert_eq!(world.get("/v1/sessions/s").await.ok(), session);

    let revision = session["revision"].as_u64().unwrap();
    let change = json!({
        "title": null, "policy": { "queue": "one" }, "metadata": { "a": null, "c": [1] },
        "expected_revision": revision,
    });
    let changed = world.patch("/v1/sessions/s", change.clone()).await.ok();
    assert_eq!(changed["title"], Value::Null);
    assert_eq!(changed["model"], "puppet/two", "what is not named stays");
    assert_eq!(changed["policy"]["queue"], "one");
    assert_eq!(changed["policy"]["tools"], json!({ "touch": "deny" }));
    assert_eq!(changed["metadata"], json!({ "b": "two", "c": [1] }));
    assert_eq!(changed["revision"], revision + 1);
    let again = world.patch("/v1/sessions/s", change).await;
    assert_eq!(again.refusal(), (409, "revision_conflict".to_owned()));
}

async fn a_session_without_an_id_gets_one_and_a_body_may_be_left_out(world: World) {
    let request = world.request(reqwest::Method::POST, "/v1/sessions");
    let session = world.send(request).await.ok();
    assert!(session["id"].as_str().unwrap().starts_with("ses_"), "{session}");
}

/// Every session is on exactly one page, the last changed first.
async fn sessions_are_listed_page_by_page(world: World) {
    for n in 0..7 {
        let title = if n % 2 == 0 { "an even one" } else { "an odd one" };
        world.post("/v1/sessions", json!({ "id": format!("s{n}"), "title": title })).await.ok();
    }
    world.post("/v1/sessions/s3/end", json!({ "reason": "enough" })).await.ok();

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = world.get(&format!("/v1/sessions?limit=3{cursor}")).await.ok();
        let data = page["data"].as_array().unwrap();
        assert!(data.len() <= 3);
        seen.extend(data.iter().map(|session| session["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 7, "{seen:?}");

    let ids = |page: Value| {
        let rows = page["data"].as_array().unwrap().clone();
        let mut ids: Vec<String> =
            rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(world.get("/v1/sessions?state=ended").await.ok()), ["s3"]);
    assert_eq!(ids(world.get("/v1/sessions?q=ODD").await.ok()), ["s1", "s3", "s5"]);
    assert_eq!(ids(world.get("/v1/sessions?q=odd&state=idle").await.ok()), ["s1", "s5"]);
    assert_eq!(ids(world.get("/v1/sessions?q=none").await.ok()), [""; 0]);
}

async fn the_transcript_is_read_in_windows(world: World) {
    for n in 0..3 {
        world.say_and_wait("s", &format!("say answer {n}")).await;
    }
    let all = world.get("/v1/sessions/s/messages").await.ok();
    assert_eq!(all["has_more"], false);
    let rows = all["data"].as_array().unwrap().clone();
    let texts: Vec<_> = rows.iter().map(|row| row["text"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        ["say answer 0", "answer 0", "say answer 1", "answer 1", "say answer 2", "answer 2"]
    );
    assert!(rows.windows(2).all(|two| two[0]["position"].as_str() < two[1]["position"].as_str()));

    let id = |n: usize| rows[n]["id"].as_u64().unwrap();
    let page = async |path: String| world.get(&path).await.ok();
    let last = page("/v1/sessions/s/messages?limit=2".to_owned()).await;
    assert_eq!((&last["data"], &last["has_more"]), (&json!(rows[4..]), &json!(true)));
    let before = page(format!("/v1/sessions/s/messages?limit=2&before={}", id(2))).await;
    assert_eq!((&before["data"], &before["has_more"]), (&json!(rows[..2]), &json!(false)));
    let after = page(format!("/v1/sessions/s/messages?limit=3&after={}", id(1))).await;
    assert_eq!((&after["data"], &after["has_more"]), (&json!(rows[2..5]), &json!(true)));
}

/// A closed session is opened again by a person's input.
async fn a_session_is_closed_and_opened_again(world: World) {
    world.say_and_wait("s", "say hi").await;
    let closed = world.post("/v1/sessions/s/end", json!({ "reason": "done" })).await.ok();
    assert_eq!((&closed["state"], &closed["end_reason"]), (&json!("ended"), &json!("done")));
    let again = world.post("/v1/sessions/s/end", json!({ "reason": "other" })).await.ok();
    assert_eq!(again, closed, "closing a closed one changes nothing");
    world.say_and_wait("s", "say hi").await;
    let session = world.get("/v1/sessions/s").await.ok();
    assert_eq!(session["state"], "idle");
    assert_eq!(session["ended_at"], Value::Null);
}

/// P2: everything on a deleted session is gone for good, but a known input still gets its receipt.
async fn a_deleted_session_leaves_a_tombstone(world: World) {
    let submit = json!({ "text": "say hi", "request_id": "r1" });
    let receipt = world.post("/v1/sessions/s/inputs", submit.clone()).await.ok();
    let input = receipt["input_id"].as_str().unwrap();
    let run = world.ended(input).await["run_id"].as_str().unwrap().to_owned();

    let stale = world.delete("/v1/sessions/s?expected_generation=7").await;
    assert_eq!(stale.refusal(), (409, "stale_generation".to_owned()));
    for _ in 0..2 {
        let deleted = world.delete("/v1/sessions/s?expected_generation=1").await;
        assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    }
    let gone = (410, "session_deleted".to_owned());
    for path in [
        "/v1/sessions/s",
        "/v1/sessions/s/messages",
        "/v1/sessions/s/inputs",
        "/v1/sessions/s/turns",
        "/v1/sessions/s/prompts",
        "/v1/sessions/s/events",
        "/v1/events?session=s",
        &format!("/v1/inputs/{input}"),
        &format!("/v1/runs/{run}"),
        &format!("/v1/runs/{run}/events"),
    ] {
        assert_eq!(world.get(path).await.refusal(), gone, "{path}");
    }
    for path in ["/v1/sessions/s/stop", "/v1/sessions/s/end", &format!("/v1/runs/{run}/stop")] {
        assert_eq!(world.post(path, json!({})).await.refusal(), gone, "{path}");
    }
    assert_eq!(world.post("/v1/sessions", json!({ "id": "s" })).await.refusal(), gone);
    assert_eq!(
        world
            .patch("/v1/sessions/s", json!({ "title": "t", "expected_revision": 0 }))
            .await
            .refusal(),
        gone
    );
    assert_eq!(world.delete(&format!("/v1/inputs/{input}")).await.refusal(), gone);
    let fresh = world.post("/v1/sessions/s/inputs", json!({ "text": "say more" })).await;
    assert_eq!(fresh.refusal(), gone);

    let known = world.post("/v1/sessions/s/inputs", submit).await.ok();
    assert_eq!(known["input_id"], receipt["input_id"]);
    assert_eq!(known["replayed"], true);
    let other = json!({ "text": "say something else", "request_id": "r1" });
    let conflict = world.post("/v1/sessions/s/inputs", other).await;
    assert_eq!(conflict.refusal(), (409, "input_conflict".to_owned()));
}

async fn a_busy_session_is_deleted_by_force_only(world: World) {
    world.held_turn("s").await;
    let busy = world.delete("/v1/sessions/s").await;
    assert_eq!(busy.refusal(), (409, "session_busy".to_owned()));
    assert_eq!(busy.json()["permanent"], false);
    assert_eq!(world.delete("/v1/sessions/s?force=true").await.status, 204);
    assert_eq!(world.get("/v1/sessions/s").await.status, 410);
}

on_both_stores! {
    a_session_is_created_read_and_changed
    a_session_without_an_id_gets_one_and_a_body_may_be_left_out
    sessions_are_listed_page_by_page
    the_transcript_is_read_in_windows
    a_session_is_closed_and_opened_again
    a_deleted_session_leaves_a_tombstone
    a_busy_session_is_deleted_by_force_only
}
