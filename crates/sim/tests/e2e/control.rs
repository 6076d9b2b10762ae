//! People's controls: stop, cancel, approve. Each names what it aims at.

use everturn_sim::check::{Effects, lines};
use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::{Home, processes_with};
use everturn_sim::wait;
use serde_json::json;

use crate::common::{count_lines, fifo, seen, serve_openai, text, verify, wait_for_lines};

/// P4: a stop in the middle of a tool ends everything that the command started; the run is cancelled,
/// and so is what people had queued. A late stop does not touch the next turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_tool_the_run_and_what_is_queued() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let (_gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    let mark = format!("mark-{}", home.path().display());
    let command = format!("echo begun >> effects; (: {mark}; read a < gate) & read b < gate");
    openai.push(Reply::new().call("a", "shell", &json!({ "command": command }).to_string()));
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "do it").await.unwrap();
    let second = client.say("s", "r2", "and then").await.unwrap();
    wait_for_lines(&effects, 1).await;
    assert!(!processes_with(&mark).unwrap().is_empty());
    let generation = client.session("s").await.unwrap()["generation"].as_u64().unwrap();

    let stale = json!({ "generation": generation + 1 });
    let answer = client.post("/v1/sessions/s/stop", &stale).await.unwrap();
    assert_eq!(answer.problem(409).unwrap(), "stale_generation");
    let stop = json!({ "generation": generation });
    client.post("/v1/sessions/s/stop", &stop).await.unwrap().expect(200).unwrap();
    for one in [&first, &second] {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert_eq!(input["outcome"], "cancelled", "{input}");
    }
    wait::until("the end of the command", || async {
        Ok(processes_with(&mark)?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    let end = follower.wait_for_event("run.cancelled", 1).await.unwrap();
    assert_eq!(end["by"], "local");
    assert_eq!(follower.record().count("input.cancelled"), 1);
    assert_eq!(count_lines(&effects), 1);
    let again = client.post("/v1/sessions/s/stop", &json!({})).await.unwrap();
    assert_eq!(again.problem(409).unwrap(), "not_running");

    // The next turn is not touched, and its model is told what became of the call.
    let gate = Gate::new();
    openai.push(Reply::new().gate(&gate).text("As you like."));
    let third = client.say("s", "r3", "never mind").await.unwrap();
    openai.wait_for_requests(2).await;
    let late = client.post("/v1/sessions/s/stop", &stop).await.unwrap();
    assert_eq!(late.problem(409).unwrap(), "stale_generation");
    gate.open();
    assert_eq!(client.outcome(&third.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![first, second, third], vec![seen(follower)]).await;
}

/// P4: a stop whose server is killed before the turn could obey it still wins.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_survives_a_kill() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("I go ").gate(&gate).text("on"));
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "go on").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    client.post("/v1/sessions/s/stop", &json!({})).await.unwrap().expect(200).unwrap();
    server.restart().await.unwrap();
    let input = client.outcome(&accepted.input_id).await.unwrap();
    assert_eq!(input["outcome"], "cancelled");
    assert_eq!(openai.requests().len(), 1, "a stopped turn is not continued");
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// P3: a queued input that is withdrawn never runs, one that runs cannot be withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_input_never_runs() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().gate(&gate).text("One."));
    let home = Home::new().unwrap();
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let first = client.say("s", "r1", "first").await.unwrap();
    openai.wait_for_requests(1).await;
    let second = client.say("s", "r2", "second").await.unwrap();
    let third = client.say("s", "r3", "third").await.unwrap();
    let path = |id: &str| format!("/v1/inputs/{id}");
    let running = client.delete(&path(&first.input_id)).await.unwrap();
    assert_eq!(running.problem(409).unwrap(), "input_not_queued");
    let withdrawn = client.delete(&path(&second.input_id)).await.unwrap();
    assert!((200..300).contains(&withdrawn.status), "{withdrawn:?}");
    gate.open();
    assert_eq!(client.outcome(&third.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "cancelled");
    let asked = client.texts("s", "user", "message").await.unwrap();
    assert_eq!(asked, ["first", "third"]);
    verify(&client, &["s"], vec![first, second, third], vec![]).await;
}

/// Approvals: what asks waits, an answer lets it go on, a late or wrong answer is told so and never
/// consumes the next question.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_for_one_call() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let effects = home.work().join("effects");
    let shell = |word: &str| json!({ "command": format!("echo {word} >> effects") }).to_string();
    openai.push(Reply::new().call("a", "shell", &shell("one")).call("b", "shell", &shell("two")));
    openai.push(Reply::new().text("One was allowed and two was not."));
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do two things").await.unwrap();
    let first = client.open_prompt("s").await.unwrap();
    assert_eq!(client.session("s").await.unwrap()["state"], "waiting");
    assert_eq!(count_lines(&effects), 0);
    let path = |prompt: &serde_json::Value| format!("/v1/prompts/{}/answer", text(prompt, "id"));
    let generation = first["generation"].as_u64().unwrap();
    let stale = json!({ "generation": generation + 1, "choice": "once" });
    let answer = client.post(&path(&first), &stale).await.unwrap();
    assert_eq!(answer.problem(409).unwrap(), "stale_generation");
    let once = json!({ "generation": generation, "choice": "once" });
    client.post(&path(&first), &once).await.unwrap().expect(200).unwrap();
    wait_for_lines(&effects, 1).await;
    let second = wait::until("the second question", || async {
        let prompt = client.open_prompt("s").await?;
        Ok((prompt["id"] != first["id"]).then_some(prompt))
    })
    .await
    .unwrap();
    let late = client.post(&path(&first), &once).await.unwrap();
    assert_eq!(late.problem(409).unwrap(), "already_resolved");
    let open = client.get("/v1/sessions/s/prompts").await.unwrap().expect(200).unwrap();
    assert_eq!(open["data"][0]["id"], second["id"], "a late answer took the next question");
    let deny = json!({ "generation": generation, "choice": "deny" });
    client.post(&path(&second), &deny).await.unwrap().expect(200).unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    let calls = client.calls("s").await.unwrap();
    let states: Vec<&str> = calls.iter().map(|call| text(call, "state")).collect();
    assert_eq!(states, ["succeeded", "denied"]);
    assert_eq!(openai.violations(), Vec::<String>::new());
    let checked = Effects {
        lines: lines(&effects).unwrap(),
        line_of: |arguments| {
            let word = arguments["command"].as_str()?.strip_prefix("echo ")?;
            Some(word.strip_suffix(" >> effects")?.to_owned())
        },
    };
    crate::common::verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.effects = Some(Box::leak(Box::new(checked)));
    })
    .await;
}

/// The question of an interrupted run is withdrawn, and its call, which never began, is asked about
/// again by the continuation: an old answer does not open the new question.
#[tokio::test(flavor = "multi_thread")]
async fn the_question_of_an_interrupted_run_is_withdrawn() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let effects = home.work().join("effects");
    let shell = json!({ "command": "echo one >> effects" }).to_string();
    openai.push(Reply::new().call("a", "shell", &shell));
    openai.push(Reply::new().text("Done."));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    let old = client.open_prompt("s").await.unwrap();
    server.restart().await.unwrap();
    follower.wait_for_event("run.interrupted", 1).await.unwrap();
    let once = json!({ "generation": old["generation"], "choice": "once" });
    let path = format!("/v1/prompts/{}/answer", text(&old, "id"));
    let late = client.post(&path, &once).await.unwrap();
    assert!(matches!(late.status, 409 | 410), "{late:?}");
    let code = late.problem(late.status).unwrap();
    assert!(["already_resolved", "expired", "stale_generation"].contains(&code.as_str()), "{code}");
    let withdrawn = client.get("/v1/sessions/s/prompts?state=withdrawn").await.unwrap();
    assert_eq!(withdrawn.expect(200).unwrap()["data"][0]["id"], old["id"]);

    let new = client.open_prompt("s").await.unwrap();
    assert_ne!(new["id"], old["id"]);
    assert_eq!(count_lines(&effects), 0);
    let once = json!({ "generation": new["generation"], "choice": "once" });
    let path = format!("/v1/prompts/{}/answer", text(&new, "id"));
    client.post(&path, &once).await.unwrap().expect(200).unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(count_lines(&effects), 1);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// P3: an input that interrupts stops the running turn and runs next; the rest of the queue stays, in
/// its order, over a kill as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupting_input_runs_next_and_the_queue_stays() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Never ").gate(&gate).text("finished"));
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "first").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    let second = client.say("s", "r2", "second").await.unwrap();
    // Whatever follows stands at the gate, so that the kill meets it.
    let closed = gate.clone();
    openai.otherwise(move |request| {
        Reply::new().gate(&closed).text(format!("Answer to {}.", request.last_user_text()))
    });
    let body = json!({ "text": "urgent", "mode": "interrupt", "request_id": "r3" });
    let receipt = client.post("/v1/sessions/s/inputs", &body).await.unwrap().expect(202).unwrap();
    let again = client.post("/v1/sessions/s/inputs", &body).await.unwrap().expect(202).unwrap();
    assert_eq!((&again["input_id"], &again["replayed"]), (&receipt["input_id"], &true.into()));
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "cancelled");
    openai.wait_for_requests(2).await;
    server.restart().await.unwrap();
    gate.open();
    let urgent = text(&receipt, "input_id");
    assert_eq!(client.outcome(urgent).await.unwrap()["outcome"], "completed");
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    let asked = client.texts("s", "user", "message").await.unwrap();
    assert_eq!(asked, ["first", "urgent", "second"]);
    let runs = follower.record().count("run.cancelled");
    assert_eq!(runs, 1);
    assert_eq!(openai.violations(), Vec::<String>::new());
}

/// A stop that keeps the queue lets what waits run.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_may_keep_the_queue() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().gate(&gate).text("never"));
    openai.push(Reply::new().text("Second."));
    let home = Home::new().unwrap();
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let first = client.say("s", "r1", "first").await.unwrap();
    let second = client.say("s", "r2", "second").await.unwrap();
    openai.wait_for_requests(1).await;
    let stop = json!({ "queue": "keep" });
    client.post("/v1/sessions/s/stop", &stop).await.unwrap().expect(200).unwrap();
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "cancelled");
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![first, second], vec![]).await;
}

/// P4: a session that is deleted by force while its turn runs takes its tools with it, and is gone for
/// good, over a restart as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_deleted_by_force_takes_its_tools_with_it() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let (_gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    let mark = format!("mark-{}", home.path().display());
    let command = format!("echo begun >> effects; : {mark}; read line < gate");
    openai.push(Reply::new().call("a", "shell", &json!({ "command": command }).to_string()));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    wait_for_lines(&effects, 1).await;
    let busy = client.delete("/v1/sessions/s").await.unwrap();
    assert_eq!(busy.problem(409).unwrap(), "session_busy");
    let deleted = client.delete("/v1/sessions/s?force=true").await.unwrap();
    assert!((200..300).contains(&deleted.status), "{deleted:?}");
    wait::until("the end of the command", || async {
        Ok(processes_with(&mark)?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    for restart in [false, true] {
        if restart {
            server.restart().await.unwrap();
        }
        let path = format!("/v1/inputs/{}", accepted.input_id);
        for path in ["/v1/sessions/s", "/v1/sessions/s/messages", &path] {
            let gone = client.get(path).await.unwrap();
            assert_eq!(gone.problem(410).unwrap(), "session_deleted", "{path}");
        }
        let receipt = client.submit("s", "r1", "do it").await.unwrap().expect(202).unwrap();
        assert_eq!(receipt["input_id"], accepted.input_id.as_str());
        assert_eq!(receipt["outcome"], "cancelled");
    }
    assert_eq!(openai.requests().len(), 1);
}
