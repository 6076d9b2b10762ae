//! Leaving: SIGTERM ends turns or hands them over, and loses nothing.

use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::Home;
use everturn_sim::wait;
use rustix::process::Signal;
use serde_json::json;

use crate::common::{
    count_lines, fifo, let_go, runs, seen, serve_openai, text, verify, wait_for_lines,
};

/// P4, P9: the tool under way ends, the run is handed over at the step boundary, and the next process
/// goes on with the same run: no interruption, no attempt spent, no second command.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_server_hands_its_turn_over_at_a_step_boundary() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let (gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    let command = "echo once >> effects; read line < gate; echo \"got $line\"";
    openai.push(Reply::new().call("a", "shell", &json!({ "command": command }).to_string()));
    openai.push(Reply::new().text("Done."));
    let spec = serve_openai(&home, &openai);
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "do it").await.unwrap();
    let second = client.say("s", "r2", "and then").await.unwrap();
    wait_for_lines(&effects, 1).await;
    server.process.signal(Signal::TERM).unwrap();
    // Until the signal is seen, inputs are still taken.
    let mut accepted = vec![first, second];
    let refused = loop {
        let name = format!("r{}", accepted.len() + 1);
        let answer = client.submit("s", &name, "more").await.unwrap();
        if answer.status == 503 {
            break answer;
        }
        answer.expect(202).unwrap();
        accepted.push(client.say("s", &name, "more").await.unwrap());
    };
    assert_eq!(refused.problem(503).unwrap(), "draining");
    assert!(refused.retry_after.is_some());
    // Reads and what is known already are answered.
    assert_eq!(client.get("/v1/sessions/s").await.unwrap().status, 200);
    let known = client.submit("s", "r2", "and then").await.unwrap().expect(202).unwrap();
    assert_eq!(known["input_id"], accepted[1].input_id.as_str());
    assert_eq!(client.get("/readyz").await.unwrap().status, 503);
    assert_eq!(client.get("/healthz").await.unwrap().status, 200);
    let_go(&gate).await;
    let status = server.process.wait().await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(openai.requests().len(), 1, "nothing is asked that would not be heard");

    let _server = spec.start().await.unwrap();
    for one in &accepted {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert_eq!(input["outcome"], "completed", "{input}");
    }
    follower.wait_for_event("run.completed", accepted.len()).await.unwrap();
    let record = follower.record();
    assert_eq!(record.count("run.handed_over"), 1);
    assert_eq!(record.count("run.interrupted"), 0);
    assert_eq!(runs(&record).len(), accepted.len(), "one run for each input");
    assert_eq!(client.run(&runs(&record)[0]).await.unwrap()["attempt"], 0);
    assert_eq!(count_lines(&effects), 1);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], accepted, vec![seen(follower)]).await;
}

/// An answer under way is heard to its end before the server leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_server_hears_the_answer_under_way_to_its_end() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Nearly ").gate(&gate).text("there."));
    let home = Home::new().unwrap();
    let spec = serve_openai(&home, &openai);
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "go").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    server.process.signal(Signal::TERM).unwrap();
    wait::until("draining", || async {
        Ok((client.get("/readyz").await?.status == 503).then_some(()))
    })
    .await
    .unwrap();
    gate.open();
    assert!(server.process.wait().await.unwrap().success());
    let _server = spec.start().await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 1).await.unwrap();
    assert_eq!(follower.record().text(), "Nearly there.");
    assert_eq!(openai.requests().len(), 1);
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// P5: a step that does not end within `drain_timeout` is interrupted honestly, and continued by the
/// next process.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_does_not_end_in_time_is_interrupted() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Stuck ").gate(&gate).text("never"));
    openai.push(Reply::new().text("and free."));
    let home = Home::new().unwrap();
    let spec = serve_openai(&home, &openai).env("EVERTURN_DRAIN_TIMEOUT_S", "1");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "go").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    server.terminate().await.unwrap();
    let log = server.process.err.text();
    assert!(log.contains("the turn was ended, because this node leaves"), "{log}");
    assert!(!log.contains("another node"), "{log}");
    let _server = spec.start().await.unwrap();
    let interrupted = follower.wait_for_event("run.interrupted", 1).await.unwrap();
    assert_eq!(interrupted["cause"], "lease_lost");
    assert_eq!(interrupted["evidence"]["drain_timeout_s"], 1);
    let why = text(&interrupted["evidence"], "text");
    assert!(why.contains("was leaving, and the step under way did not end within 1 s"), "{why}");
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 1).await.unwrap();
    let record = follower.record();
    assert_eq!((record.count("run.interrupted"), record.text().as_str()), (1, "Stuck and free."));
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// A question that waits for a person is handed over with its run: it stays open, and the answer given
/// to the next process lets the call go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_question_is_handed_over_with_its_run() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let effects = home.work().join("effects");
    let shell = json!({ "command": "echo once >> effects" }).to_string();
    openai.push(Reply::new().call("a", "shell", &shell));
    openai.push(Reply::new().text("Done."));
    let spec = serve_openai(&home, &openai);
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    let question = client.open_prompt("s").await.unwrap();
    server.terminate().await.unwrap();
    let _server = spec.start().await.unwrap();
    let same = client.open_prompt("s").await.unwrap();
    assert_eq!(same["id"], question["id"]);
    assert_eq!(count_lines(&effects), 0);
    let path = format!("/v1/prompts/{}/answer", text(&same, "id"));
    let once = json!({ "generation": same["generation"], "choice": "once" });
    client.post(&path, &once).await.unwrap().expect(200).unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 1).await.unwrap();
    let record = follower.record();
    assert_eq!((record.count("prompt.opened"), record.count("prompt.settled")), (1, 1));
    assert_eq!((record.count("run.interrupted"), runs(&record).len()), (0, 1));
    assert_eq!(count_lines(&effects), 1);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}
