//! A server that is killed in the middle of an answer.

use everturn_sim::follow::Follower;
use everturn_sim::server::Home;

use crate::common::{count_lines, runs, seen, text, verify_with, wait_for_lines};

const SLOW: &str = r#"
words_per_second = 25
[[rule]]
reply = [{ text = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen." }]
"#;
const WHOLE: &str = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen.";

/// P5: a turn is never continued on another model without a word. Where its own cannot be used it
/// waits and says why, and goes on where it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_continued_on_its_own_model_or_not_at_all() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "count").await.unwrap();
    follower.wait_for(|record| (record.count("text.delta") >= 4).then_some(())).await.unwrap();
    server.kill();

    let mut server = home.serve("script/demo").unwrap().start().await.unwrap();
    let input = client.outcome(&accepted.input_id).await.unwrap();
    assert_eq!(input["outcome"], "interrupted");
    let markers = client.texts("s", "system", "interruption").await.unwrap();
    assert_eq!(markers.len(), 1);
    let why = "the model that it is bound to cannot be used here.";
    assert!(markers[0].ends_with(why), "{markers:?}");
    let session = client.session("s").await.unwrap();
    assert_eq!(session["state"], "interrupted");
    server.terminate().await.unwrap();

    assert_eq!(session["interrupted"]["reason"], "model_missing");

    // Where it can be used it goes on.
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    follower.wait_for_event("run.completed", 1).await.unwrap();
    for run in runs(&follower.record()) {
        assert_eq!(client.run(&run).await.unwrap()["model"], model.as_str());
    }
}

/// P4, P5, P6: the text that was visible stays, the interruption is shown with its evidence, the turn
/// is continued once, and the answer completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_killed_in_mid_answer_is_continued_once() {
    let home = Home::new().unwrap();
    let mut server = home.serve(&home.script(SLOW).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let page = client.get("/").await.unwrap();
    assert!(page.status == 200 && page.content_type.starts_with("text/html"), "{page:?}");

    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "count").await.unwrap();
    follower.wait_for(|record| (record.count("text.delta") >= 4).then_some(())).await.unwrap();
    let visible = follower.record();
    let first_run = runs(&visible)[0].clone();
    let reader = Follower::run(&client, &first_run);
    reader.wait_for(|record| (record.count("text.delta") >= 4).then_some(())).await.unwrap();

    server.kill();
    let told = follower.record();
    assert_eq!(told.count("run.completed"), 0, "it was killed too late to prove anything");
    server.restart().await.unwrap();

    // The reader of the run is told of its end; its stream closes, and is empty from there on.
    let end = reader.wait_for_event("run.interrupted", 1).await.unwrap();
    assert_eq!(end["cause"], "process_restart");
    let evidence = text(&end["evidence"], "text");
    assert!(!evidence.is_empty());
    reader.wait_for(|record| record.complete.then_some(())).await.unwrap();
    let last = reader.record().cursor();
    let path = format!("/v1/runs/{first_run}/events?after={last}");
    let request = client.request(reqwest::Method::GET, &path).header("Accept", "text/event-stream");
    assert_eq!(client.send(request).await.unwrap().status, 204);

    follower.wait_for_event("run.completed", 1).await.unwrap();
    let input = client.outcome(&accepted.input_id).await.unwrap();
    assert_eq!(input["outcome"], "completed");
    let record = follower.record();
    assert!(record.attached >= 2, "the reader never had to attach again");
    assert_eq!(runs(&record).len(), 2, "continued once");
    assert_eq!(record.text(), WHOLE);
    // Whoever reads it only now is told the same as those who saw it before the kill.
    let late = Follower::feed(&client, "s");
    late.wait_for_event("run.completed", 1).await.unwrap();
    assert!(late.record().events.starts_with(&told.events));

    // In the transcript: what was visible, marked as recovered, directly above the interruption.
    let messages = client.messages("s").await.unwrap();
    let shape: Vec<(&str, &str, bool)> = messages
        .iter()
        .map(|m| (text(m, "role"), text(m, "kind"), m["recovered"].as_bool().unwrap()))
        .collect();
    assert_eq!(
        shape,
        [
            ("user", "message", false),
            ("assistant", "message", true),
            ("system", "interruption", false),
            ("system", "continuation", false),
            ("assistant", "message", false),
        ]
    );
    assert!(text(&messages[1], "text").starts_with(&visible.text()));
    let marker = text(&messages[2], "text");
    assert!(marker.starts_with(evidence) && marker.ends_with("stands above."), "{marker}");
    let session = client.session("s").await.unwrap();
    assert_eq!((&session["state"], &session["interrupted"]), (&"idle".into(), &().into()));
    let continued = client.run(&runs(&record)[1]).await.unwrap();
    assert_eq!((&continued["continues"], &continued["attempt"]), (&first_run.into(), &1.into()));

    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.accepted_all = true;
        checker.answer = Some(|_| WHOLE.to_owned());
    })
    .await;
}

/// P5: from the third interrupted start on nothing is continued by itself; a person decides, and an
/// interruption never holds later inputs back.
#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_is_interrupted_again_and_again_waits_for_a_person() {
    let home = Home::new().unwrap();
    let mut server = home.serve(&home.script(SLOW).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let mut accepted = Vec::new();
    for number in 1..=3 {
        // Another session each time, so that no turn runs out of attempts.
        let session = format!("s{number}");
        let follower = Follower::feed(&client, &session);
        accepted.push(client.say(&session, "r1", "count").await.unwrap());
        follower.wait_for_event("text.delta", 1).await.unwrap();
        server.restart().await.unwrap();
        let end = follower.wait_for_event("run.interrupted", 1).await.unwrap();
        assert_eq!(end["cause"], "process_restart");
    }
    let third = client.outcome(&accepted[2].input_id).await.unwrap();
    assert_eq!(third["outcome"], "interrupted");
    for one in &accepted[..2] {
        assert_ne!(client.outcome(&one.input_id).await.unwrap()["outcome"], "failed");
    }
    let session = client.session("s3").await.unwrap();
    assert_eq!(session["state"], "interrupted");
    let generation = session["interrupted"]["generation"].clone();

    let later = client.say("s2", "r2", "count").await.unwrap();
    assert_eq!(client.outcome(&later.input_id).await.unwrap()["outcome"], "completed");

    let decision = serde_json::json!({ "generation": generation, "decision": "continue" });
    let follower = Follower::feed(&client, "s3");
    client.post("/v1/sessions/s3/resolve", &decision).await.unwrap().expect(200).unwrap();
    follower.wait_for_event("run.completed", 1).await.unwrap();
    let again = client.post("/v1/sessions/s3/resolve", &decision).await.unwrap();
    assert_eq!(again.problem(409).unwrap(), "superseded");
    assert_eq!(follower.record().text(), WHOLE);
    accepted.push(later);
    verify_with(&client, &["s1", "s2", "s3"], accepted, vec![seen(follower)], |_| {}).await;
}

/// P5: as often as the policy allows a turn is continued, and never more; what was said in all of its
/// runs is the answer's beginning, said once.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_continued_as_often_as_its_policy_allows() {
    let home = Home::new().unwrap();
    let spec = home
        .serve(&home.script(SLOW).unwrap())
        .unwrap()
        .env("EVERTURN_RECOVERY_LOOP_BREAKER_STARTS", "1000");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "count").await.unwrap();
    let second = client.say("s", "r2", "count").await.unwrap();
    for kill in 1..=3 {
        // Some of each run is seen before it dies.
        follower
            .wait_for(|record| {
                let run = runs(record).get(kill - 1)?.clone();
                let of_run = record.events.iter().filter(|seen| {
                    seen.event == "text.delta" && seen.json()["run_id"] == run.as_str()
                });
                (of_run.count() >= 2).then_some(())
            })
            .await
            .unwrap();
        server.restart().await.unwrap();
        follower.wait_for_event("run.interrupted", kill).await.unwrap();
    }
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "interrupted");
    let of_first: Vec<String> = runs(&follower.record())[..3].to_vec();
    assert_eq!(client.run(&of_first[2]).await.unwrap()["attempt"], 2);
    // The next input runs, and the interruption that nobody resolved does not hold it back.
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    let record = follower.record();
    let said: String = record
        .events
        .iter()
        .filter(|seen| seen.event == "text.delta")
        .filter(|seen| of_first.iter().any(|run| seen.json()["run_id"] == run.as_str()))
        .map(|seen| text(&seen.json(), "text").to_owned())
        .collect();
    assert!(WHOLE.starts_with(&said) && said.split(' ').count() >= 6, "{said:?}");
    verify_with(&client, &["s"], vec![first, second], vec![seen(follower)], |_| {}).await;
}

/// P5, P9: a command that kills its own server is not run in an endless loop: each continuation may
/// try what the model asks for, as often as the policy allows, then the turn waits for a person with
/// its reason, and what others ask for runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_kills_its_server_is_bounded_and_then_parked() {
    let home = Home::new().unwrap();
    let record = home.path().join("server.json");
    let kill = format!(
        "echo killed >> effects; kill -9 $(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' '{}'); sleep 60",
        record.display()
    );
    // Whatever was called before, it calls that again.
    let mut script = String::new();
    for round in 0..4 {
        script.push_str(&format!(
            "[[rule]]\ncontains = 'kill yourself'\nround = {round}\nreply = [{{ text = 'I will. ' }}, {{ call = 'shell', arguments = {{ command = {kill:?} }} }}]\n"
        ));
    }
    script.push_str("[[rule]]\nreply = [{ text = 'Hello.' }]\n");
    let spec = home
        .serve(&home.script(&script).unwrap())
        .unwrap()
        .env("EVERTURN_RECOVERY_LOOP_BREAKER_STARTS", "1000");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let first = client.say("s", "r1", "kill yourself").await.unwrap();
    let second = client.say("s", "r2", "hello").await.unwrap();
    let effects = home.work().join("effects");
    for deaths in 1..=3 {
        wait_for_lines(&effects, deaths).await;
        server.wait_for_death().await.unwrap();
        server.restart().await.unwrap();
    }
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "interrupted");
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(count_lines(&effects), 3, "once, and once for each continuation");
    let runs = client.get("/v1/sessions/s/turns").await.unwrap().expect(200).unwrap();
    let parked: Vec<&str> =
        runs["data"].as_array().unwrap().iter().filter_map(|run| run["parked"].as_str()).collect();
    assert_eq!(parked, ["superseded"], "the next turn closed the matter");
    let markers = client.texts("s", "system", "interruption").await.unwrap();
    let why = "as many continuations as the policy allows were interrupted as well.";
    assert!(markers.len() == 3 && markers[2].ends_with(why), "{markers:?}");
    verify_with(&client, &["s"], vec![first, second], Vec::new(), |_| {}).await;
}

/// A person edits what an interrupted turn was asked and has it sent again, in one step and once; bad
/// texts are refused and decide nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_request_is_edited_and_sent_again_once() {
    let home = Home::new().unwrap();
    let spec = home
        .serve(&home.script(SLOW).unwrap())
        .unwrap()
        .env("EVERTURN_RECOVERY_AUTO_CONTINUE", "off");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "count").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    server.restart().await.unwrap();
    follower.wait_for_event("run.interrupted", 1).await.unwrap();
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "interrupted");
    let session = client.session("s").await.unwrap();
    assert_eq!(session["interrupted"]["reason"], "disabled");
    let resend =
        |text: &str| serde_json::json!({ "generation": 1, "decision": "resend", "text": text });
    let resolve = "/v1/sessions/s/resolve";
    let refused = client.post(resolve, &resend(" ")).await.unwrap();
    assert_eq!(refused.problem(400).unwrap(), "empty_input");
    let refused = client.post(resolve, &resend(&"x".repeat((1 << 20) + 1))).await.unwrap();
    assert_eq!(refused.problem(413).unwrap(), "text_too_large");
    assert_eq!(client.session("s").await.unwrap()["state"], "interrupted");
    client.post(resolve, &resend("count again")).await.unwrap().expect(200).unwrap();
    follower.wait_for_event("run.completed", 1).await.unwrap();
    let again = client.post(resolve, &resend("and again")).await.unwrap();
    assert_eq!(again.problem(409).unwrap(), "superseded");
    let asked = client.texts("s", "user", "message").await.unwrap();
    assert_eq!(asked, ["count", "count again"]);
    let runs = client.get("/v1/sessions/s/turns").await.unwrap().expect(200).unwrap();
    assert_eq!(runs["data"][1]["parked"], "resent");
    verify_with(&client, &["s"], vec![first], vec![seen(follower)], |_| {}).await;
}
