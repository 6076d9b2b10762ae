//! Two real processes on one home (P3, P11).

use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::Home;
use everturn_sim::wait;

use crate::common::{run, runs, seen, serve_openai, text, verify};

/// P3: two servers take inputs for the same sessions at the same time; every session's turns come one
/// after the other, whichever process runs them, and each reader sees all of it at either.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_one_home_never_run_two_turns_of_a_session_at_once() {
    let script =
        "words_per_second = 200\n[[rule]]\nreply = [{ text = \"one two three four {{input}}\" }]\n";
    let home = Home::new().unwrap();
    let model = home.script(script).unwrap();
    let a = home.serve(&model).unwrap().start().await.unwrap();
    let b = home.serve(&model).unwrap().start().await.unwrap();
    let (at_a, at_b) = (a.client().unwrap(), b.client().unwrap());
    let (seen_a, seen_b) = (Follower::feed(&at_a, "s"), Follower::feed(&at_b, "s"));
    let mut accepted = Vec::new();
    let rounds = everturn_sim::tier::count(15, 100);
    for round in 0..rounds {
        let (name_a, name_b) = (format!("a{round}"), format!("b{round}"));
        let (one, other) =
            tokio::join!(at_a.say("s", &name_a, &name_a), at_b.say("s", &name_b, &name_b),);
        accepted.extend([one.unwrap(), other.unwrap()]);
        // The same input at the other one is the same input.
        let again = at_b.submit("s", &name_a, &name_a).await.unwrap().expect(202).unwrap();
        assert_eq!(text(&again, "input_id"), accepted[accepted.len() - 2].input_id);
    }
    for one in &accepted {
        assert_eq!(at_b.outcome(&one.input_id).await.unwrap()["outcome"], "completed");
    }
    let offset = at_a.session("s").await.unwrap()["offset"].as_u64().unwrap();
    for follower in [&seen_a, &seen_b] {
        follower.wait_for(|record| (record.cursor() >= offset).then_some(())).await.unwrap();
    }
    verify(&at_a, &["s"], accepted, vec![seen(seen_a), seen(seen_b)]).await;
}

/// P5, P11: of two servers one is killed in the middle of a turn; the other one takes the session
/// over at once, with the evidence, and continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_over_from_one_that_was_killed() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Half ").gate(&gate).text("never"));
    openai.push(Reply::new().text("and half."));
    let home = Home::new().unwrap();
    let mut a = serve_openai(&home, &openai).start().await.unwrap();
    let at_a = a.client().unwrap();
    let first = at_a.say("s", "r1", "go").await.unwrap();
    let reader = Follower::feed(&at_a, "s");
    reader.wait_for_event("text.delta", 1).await.unwrap();
    let b = serve_openai(&home, &openai).start().await.unwrap();
    let at_b = b.client().unwrap();
    let follower = Follower::feed(&at_b, "s");
    follower.wait_for_event("text.delta", 1).await.unwrap();
    // While it lives, its turn is its own; what is queued at the other one waits for it.
    let second = at_b.say("s", "r2", "and then").await.unwrap();
    let waits = at_b.get(&format!("/v1/inputs/{}", second.input_id)).await.unwrap();
    assert_eq!(waits.expect(200).unwrap()["status"], "queued");
    assert_eq!(openai.requests().len(), 1);
    a.kill();
    for one in [&first, &second] {
        assert_eq!(at_b.outcome(&one.input_id).await.unwrap()["outcome"], "completed");
    }
    let record = follower.record();
    let end = record.first("run.interrupted").unwrap();
    assert_eq!(end["evidence"]["holder_gone"], true);
    assert!(["process_restart", "lost_worker"].contains(&text(&end, "cause")), "{end}");
    assert_eq!(runs(&record).len(), 3);
    assert!(record.text().starts_with("Half and half."));
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&at_b, &["s"], vec![first, second], vec![seen(follower), seen(reader)]).await;
}

/// P3, P11: a `run` that does not know of the server shares the home with it. Its input waits behind
/// the server's turn; when the server is killed, it runs; the server's turn it does not continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_beside_a_server_waits_for_its_turn_and_takes_over() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("The server's ").gate(&gate).text("never"));
    openai.push(Reply::new().text("The command's."));
    let home = Home::new().unwrap();
    // With this in the way, the server cannot leave word of where it is.
    std::fs::create_dir(home.path().join("server.json")).unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = server.client().unwrap();
    let first = client.say("s", "r1", "to the server").await.unwrap();
    let reader = Follower::feed(&client, "s");
    reader.wait_for_event("text.delta", 1).await.unwrap();
    let args = ["--session", "s", "--request-id", "r2", "to the command"];
    let process = run(&home, &openai, &args).start().unwrap();
    let second = wait::until("the command's input", || async {
        let inputs = client.get("/v1/sessions/s/inputs?status=queued").await?.expect(200)?;
        Ok(inputs["data"].as_array().and_then(|list| list.first().cloned()))
    })
    .await
    .unwrap();
    assert_eq!(second["request_id"], "r2");
    assert_eq!(openai.requests().len(), 1);
    server.kill();
    let ended = process.ended().await.unwrap();
    assert_eq!((ended.code, ended.stdout.trim_end()), (Some(0), "The command's."), "{ended:?}");

    server.restart().await.unwrap();
    let client = home.client().unwrap();
    assert_eq!(client.outcome(&first.input_id).await.unwrap()["outcome"], "interrupted");
    assert_eq!(openai.requests().len(), 2);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![first], vec![seen(reader)]).await;
}

/// P3, P5: a server that is started beside a `run` leaves its turn alone, lets inputs wait behind it,
/// and takes over once the command is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_beside_a_run_waits_for_its_turn_and_takes_over() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("The command's ").gate(&gate).text("never"));
    openai.push(Reply::new().text("answer."));
    openai.push(Reply::new().text("The server's."));
    let home = Home::new().unwrap();
    let args = ["--session", "s", "--request-id", "r1", "to the command"];
    let mut process = run(&home, &openai, &args).start().unwrap();
    process.out.wait_for_text("The command's ").await.unwrap();
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let second = client.say("s", "r2", "to the server").await.unwrap();
    let receipt = client.get(&format!("/v1/inputs/{}", second.input_id)).await.unwrap();
    let receipt = receipt.expect(200).unwrap();
    assert_eq!(receipt["status"], "queued");
    assert!(receipt["waiting_for"]["node"].is_string(), "{receipt}");
    assert_eq!(client.session("s").await.unwrap()["state"], "running");
    assert_eq!(openai.requests().len(), 1);
    process.kill();
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    let said = client.texts("s", "assistant", "message").await.unwrap();
    assert_eq!(said, ["The command's ", "answer.", "The server's."]);
    let end = follower.wait_for_event("run.interrupted", 1).await.unwrap();
    assert_eq!(end["evidence"]["holder_gone"], true);
    follower.wait_for_event("run.completed", 2).await.unwrap();
    // The same command again is told how its input ended.
    let again = run(&home, &openai, &args).run().await.unwrap();
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(openai.requests().len(), 3);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![second], vec![seen(follower)]).await;
}
