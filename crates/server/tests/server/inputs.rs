//! Inputs: receipts, the queue, waiting, withdrawing, stopping.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{World, read_answer};

/// P1: the receipt says where the input is, and an id nobody has seen becomes a session.
async fn an_input_gets_a_receipt_and_makes_its_session(world: World) {
    let answer = world.post("/v1/sessions/new/inputs", json!({ "text": "say hi" })).await;
    assert_eq!(answer.status, 202);
    let receipt = answer.json();
    assert_eq!(receipt["session_id"], "new");
    assert_eq!(receipt["delivery"], "queued");
    // On an idle session the turn may be claimed with the admission.
    match receipt["status"].as_str().unwrap() {
        "queued" => assert_eq!(receipt["position"], 1),
        "started" => assert_eq!(receipt["generation"], 1),
        other => panic!("{other}"),
    }
    assert_eq!(receipt["replayed"], false);
    assert!(receipt["request_id"].as_str().unwrap().starts_with("req_"), "{receipt}");
    assert_eq!(receipt.get("waiting_for"), None);

    let input = world.ended(receipt["input_id"].as_str().unwrap()).await;
    assert_eq!(input["outcome"], "completed");
    assert_eq!(input["text"], "say hi");
    assert_eq!(input["generation"], 1);
    let session = world.get("/v1/sessions/new").await.ok();
    assert_eq!((&session["title"], &session["generation"]), (&json!("say hi"), &json!(1)));
}

/// P2: one identity, whether it is in the header or in the body.
async fn the_same_identity_gets_the_same_receipt(world: World) {
    let path = "/v1/sessions/s/inputs";
    let body = json!({ "text": "say hi", "request_id": "one" });
    let first = world.post(path, body.clone()).await.ok();
    let request = world.request(Method::POST, path).header("Idempotency-Key", "one");
    let second = world.send(request.json(&json!({ "text": "say hi" }))).await.ok();
    assert_eq!(second["input_id"], first["input_id"]);
    assert_eq!((&second["replayed"], &second["delivery"]), (&json!(true), &json!("duplicate")));
    world.ended(first["input_id"].as_str().unwrap()).await;
    let third = world.post(path, body).await.ok();
    assert_eq!(third["input_id"], first["input_id"]);
    assert_eq!((&third["status"], &third["outcome"]), (&json!("terminal"), &json!("completed")));
    let other = world.post(path, json!({ "text": "say ho", "request_id": "one" })).await;
    assert_eq!(other.refusal(), (409, "input_conflict".to_owned()));
    let all = world.get(path).await.ok();
    assert_eq!(all["data"].as_array().unwrap().len(), 1);
}

async fn content_lists_and_any_text_are_kept_as_they_are(world: World) {
    let image = json!({ "type": "image", "media_type": "image/png", "data": "aGVsbG8=" });
    let parts = json!([{ "type": "text", "text": "say \u{0} ü 🦀" }, image]);
    let receipt = world.post("/v1/sessions/s/inputs", json!({ "content": parts })).await.ok();
    let input = world.ended(receipt["input_id"].as_str().unwrap()).await;
    assert_eq!(input["content"], parts);
    // Whoever lives from the feed sees all of it at once.
    let mut feed = crate::sse::Events::open(&world, "/v1/sessions/s/events?after=0").await;
    let accepted = feed.until("input.accepted").await.data;
    assert_eq!((&accepted["content"], &accepted["text"]), (&parts, &input["text"]));
    let messages = world.get("/v1/sessions/s/messages").await.ok();
    assert_eq!(messages["data"][0]["content"], parts);
}

async fn the_largest_text_is_taken_and_one_byte_more_is_not(world: World) {
    let text = |bytes: usize| json!({ "text": format!("say {}", "a".repeat(bytes - 4)) });
    let most = world.post("/v1/sessions/s/inputs", text(1 << 20)).await;
    assert_eq!(most.status, 202, "{}", most.text);
    let more = world.post("/v1/sessions/s/inputs", text((1 << 20) + 1)).await;
    assert_eq!(more.refusal(), (413, "text_too_large".to_owned()));
}

/// P3: what waits is listed in its order, and can be withdrawn.
async fn the_queue_is_listed_and_an_input_that_waits_is_withdrawn(world: World) {
    world.held_turn("s").await;
    let mut waiting = Vec::new();
    for n in 1..=3 {
        let receipt = world.say("s", &format!("say {n}")).await;
        assert_eq!(receipt["position"], n);
        waiting.push(receipt["input_id"].as_str().unwrap().to_owned());
    }
    let queue = world.get("/v1/sessions/s/inputs?status=queued").await.ok();
    let rows = queue["data"].as_array().unwrap();
    let ids: Vec<_> = rows.iter().map(|row| row["input_id"].as_str().unwrap()).collect();
    assert_eq!(ids, waiting);
    let positions: Vec<_> = rows.iter().map(|row| row["position"].as_u64().unwrap()).collect();
    assert_eq!(positions, [1, 2, 3]);
    let page = world.get("/v1/sessions/s/inputs?status=queued&limit=2").await.ok();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (2, &json!(true)));
    // The next page goes on behind the last row, with the places that the rows have.
    let next = format!("/v1/sessions/s/inputs?status=queued&limit=2&after={}", waiting[1]);
    let page = world.get(&next).await.ok();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (1, &json!(false)));
    assert_eq!(
        (&page["data"][0]["input_id"], &page["data"][0]["position"]),
        (&json!(waiting[2]), &json!(3))
    );
    let elsewhere = world.say("t", "say elsewhere").await;
    for after in [elsewhere["input_id"].as_str().unwrap(), "inp_nobody"] {
        let path = format!("/v1/sessions/s/inputs?after={after}");
        assert_eq!(world.get(&path).await.refusal(), (400, "bad_cursor".to_owned()));
    }

    let withdrawn = world.delete(&format!("/v1/inputs/{}", waiting[1])).await.ok();
    assert_eq!(
        (&withdrawn["status"], &withdrawn["outcome"]),
        (&json!("terminal"), &json!("cancelled"))
    );
    let again = world.delete(&format!("/v1/inputs/{}", waiting[1])).await;
    assert_eq!(again.refusal(), (409, "input_not_queued".to_owned()));
    let third = world.get(&format!("/v1/inputs/{}", waiting[2])).await.ok();
    assert_eq!(third["position"], 2);

    world.puppet.release();
    for id in [&waiting[0], &waiting[2]] {
        assert_eq!(world.ended(id).await["outcome"], "completed");
    }
}

/// Waiting ends with the input, and no later than asked.
async fn a_wait_ends_with_the_input_or_with_its_time(world: World) {
    world.held_turn("s").await;
    let queued = world.say("s", "say later").await;
    let path = format!("/v1/inputs/{}", queued["input_id"].as_str().unwrap());
    let at_once = world.get(&path).await.ok();
    assert_eq!(at_once["status"], "queued");
    let after_a_second = world.get(&format!("{path}?wait=1")).await.ok();
    assert_eq!(after_a_second["status"], "queued");

    let waiting_path = format!("{path}?wait=30");
    let waiting = world.get(&waiting_path);
    let releasing = async {
        world.puppet.release();
    };
    let (answer, ()) = tokio::join!(waiting, releasing);
    assert_eq!(answer.ok()["outcome"], "completed");
}

async fn a_turn_is_stopped_and_its_queue_with_it_or_not(world: World) {
    let run = world.held_turn("s").await;
    let queued = world.say("s", "say later").await;
    let stale = world.post("/v1/sessions/s/stop", json!({ "generation": 9 })).await;
    assert_eq!(stale.refusal(), (409, "stale_generation".to_owned()));
    let stopped = world.post("/v1/sessions/s/stop", json!({ "generation": 1 })).await.ok();
    assert_eq!(stopped["run_id"], run.as_str());
    assert_eq!(world.ended(queued["input_id"].as_str().unwrap()).await["outcome"], "cancelled");
    let run_after = world.when(&format!("/v1/runs/{run}"), |seen| seen["terminal"] == true).await;
    assert_eq!(run_after["terminal_state"], "cancelled-by-user");

    let run = world.held_turn("s").await;
    let queued = world.say("s", "say later").await;
    let body = json!({ "queue": "keep" });
    world.post(&format!("/v1/runs/{run}/stop"), body).await.ok();
    assert_eq!(world.ended(queued["input_id"].as_str().unwrap()).await["outcome"], "completed");
    let over = world.post(&format!("/v1/runs/{run}/stop"), json!({})).await;
    assert_eq!(over.refusal(), (409, "not_running".to_owned()));
}

async fn reject_and_interrupt_are_for_busy_sessions(world: World) {
    let idle = world
        .post("/v1/sessions/t/inputs", json!({ "text": "say hi", "mode": "reject" }))
        .await
        .ok();
    assert_eq!(world.ended(idle["input_id"].as_str().unwrap()).await["outcome"], "completed");

    world.held_turn("s").await;
    let waiting = world.say("s", "say last").await;
    let rejected =
        world.post("/v1/sessions/s/inputs", json!({ "text": "say no", "mode": "reject" })).await;
    assert_eq!(rejected.refusal(), (409, "session_busy".to_owned()));
    let body = json!({ "text": "say first", "mode": "interrupt" });
    let first = world.post("/v1/sessions/s/inputs", body).await.ok();
    assert_eq!((&first["delivery"], &first["position"]), (&json!("interrupted"), &json!(1)));
    let first = world.ended(first["input_id"].as_str().unwrap()).await;
    let last = world.ended(waiting["input_id"].as_str().unwrap()).await;
    assert!(first["generation"].as_u64() < last["generation"].as_u64(), "{first} {last}");
}

/// A failed turn says why, in its run and in its input.
async fn a_failed_turn_tells_its_error(world: World) {
    let input = world.say_and_wait("s", "fail").await;
    assert_eq!(input["outcome"], "failed");
    let run = world.get(&format!("/v1/runs/{}", input["run_id"].as_str().unwrap())).await.ok();
    assert_eq!(run["terminal_state"], "failed");
    assert_eq!(run["error"]["code"], "model_refused");
    assert_eq!(run["error"]["permanent"], true);
}

async fn turns_are_listed_from_the_newest(world: World) {
    for n in 0..3 {
        world.say_and_wait("s", &format!("say {n}")).await;
    }
    let generations = |page: &Value| -> Vec<u64> {
        let rows = page["data"].as_array().unwrap();
        rows.iter().map(|row| row["generation"].as_u64().unwrap()).collect()
    };
    let first = world.get("/v1/sessions/s/turns?limit=2").await.ok();
    assert_eq!((generations(&first), &first["has_more"]), (vec![3, 2], &json!(true)));
    let second = world.get("/v1/sessions/s/turns?limit=2&before=2").await.ok();
    assert_eq!((generations(&second), &second["has_more"]), (vec![1], &json!(false)));
    let usage = &first["data"][0]["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(3), &json!(5)));
}

/// A server that stops answers those who wait.
async fn a_server_that_stops_lets_nobody_wait(mut world: World) {
    world.held_turn("s").await;
    let queued = world.say("s", "say later").await;
    let input = queued["input_id"].as_str().unwrap();
    let mut stream = TcpStream::connect(world.addr).await.unwrap();
    // Both in one piece: once the first is answered, the second is being handled.
    let requests = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n\
         GET /v1/inputs/{input}?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    );
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut first = Vec::new();
    while !first.ends_with(b"{\"status\":\"ok\"}") {
        first.push(stream.read_u8().await.unwrap());
    }
    let (answer, ()) = tokio::join!(read_answer(&mut stream), world.stop());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["status"], "queued");
}

on_both_stores! {
    an_input_gets_a_receipt_and_makes_its_session
    the_same_identity_gets_the_same_receipt
    content_lists_and_any_text_are_kept_as_they_are
    the_largest_text_is_taken_and_one_byte_more_is_not
    the_queue_is_listed_and_an_input_that_waits_is_withdrawn
    a_wait_ends_with_the_input_or_with_its_time
    a_turn_is_stopped_and_its_queue_with_it_or_not
    reject_and_interrupt_are_for_busy_sessions
    a_failed_turn_tells_its_error
    turns_are_listed_from_the_newest
    a_server_that_stops_lets_nobody_wait
}
