//! Inputs that were only just accepted, and several at once.

use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::Home;
use everturn_sim::wait;

use crate::common::{seen, serve_openai, text, verify, verify_with};

/// P1, P3: an input onto an idle session whose model has not said a word is as safe as a queued one,
/// and later inputs stay behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_safe_from_its_receipt_on_and_later_ones_stay_behind_it() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    let closed = gate.clone();
    openai.otherwise(move |request| {
        let said = request.last_user_text();
        let word = ["first", "second", "third"].into_iter().find(|word| said.contains(word));
        Reply::new().gate(&closed).text(format!("Answer to {}.", word.unwrap_or("nothing")))
    });
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();

    let first = client.say("s", "r1", "first").await.unwrap();
    server.kill();
    server.restart().await.unwrap();
    let follower = Follower::feed(&client, "s");
    let second = client.say("s", "r2", "second").await.unwrap();
    server.kill();
    server.restart().await.unwrap();
    let third = client.say("s", "r3", "third").await.unwrap();
    let input = client.get(&format!("/v1/inputs/{}", second.input_id)).await.unwrap();
    assert_eq!(input.expect(200).unwrap()["status"], "queued");
    gate.open();
    for one in [&first, &second, &third] {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert_eq!(input["outcome"], "completed", "{input}");
    }
    let asked = client.texts("s", "user", "message").await.unwrap();
    assert_eq!(asked, ["first", "second", "third"]);
    // Whatever was interrupted before it was said was said by the continuation.
    let said = client.texts("s", "assistant", "message").await.unwrap();
    assert_eq!(said, ["Answer to first.", "Answer to second.", "Answer to third."]);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![first, second, third], vec![seen(follower)]).await;
}

/// P1: whatever the moment of the kill behind a receipt, the input is there. Each is the first one of
/// a session that nobody has seen before.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_killed_right_after_its_receipt_is_never_lost() {
    let script = "[[rule]]\nreply = [{ text = \"You said {{input}}.\" }]\n";
    let home = Home::new().unwrap();
    // Enough attempts for what was begun: this is about the input, not about continuing.
    let spec = home
        .serve(&home.script(script).unwrap())
        .unwrap()
        .env("EVERTURN_RECOVERY_LOOP_BREAKER_STARTS", "1000");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let mut accepted = Vec::new();
    let rounds = everturn_sim::tier::count(6, 40);
    for round in 0..rounds {
        let session = format!("s{round}");
        accepted.push(client.say(&session, "r", &format!("word {round}")).await.unwrap());
        server.restart().await.unwrap();
    }
    for one in &accepted {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert_eq!(input["outcome"], "completed", "{input}");
    }
    let names: Vec<String> = (0..rounds).map(|round| format!("s{round}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    verify_with(&client, &names, accepted, vec![], |checker| {
        checker.accepted_all = true;
        checker.answer = Some(|input| format!("You said {input}."));
    })
    .await;
}

/// P3: three inputs at once onto an idle session are answered each by its own turn, which does not
/// see the later ones.
#[tokio::test(flavor = "multi_thread")]
async fn inputs_at_once_onto_an_idle_session_are_answered_one_by_one() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    let closed = gate.clone();
    openai.otherwise(move |request| {
        Reply::new().gate(&closed).text(format!("Answer to {}.", request.last_user_text()))
    });
    let home = Home::new().unwrap();
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let (a, b, c) = tokio::join!(
        client.say("s", "ra", "alpha"),
        client.say("s", "rb", "beta"),
        client.say("s", "rc", "gamma"),
    );
    let accepted = vec![a.unwrap(), b.unwrap(), c.unwrap()];
    // All three wait or run before anything is answered.
    openai.wait_for_requests(1).await;
    gate.open();
    for one in &accepted {
        assert_eq!(client.outcome(&one.input_id).await.unwrap()["outcome"], "completed");
    }
    let order = client.texts("s", "user", "message").await.unwrap();
    let mut sorted = order.clone();
    sorted.sort();
    assert_eq!(sorted, ["alpha", "beta", "gamma"]);
    let requests = openai.requests();
    assert_eq!(requests.len(), 3);
    for (turn, request) in requests.iter().enumerate() {
        let told: Vec<String> = request
            .messages()
            .iter()
            .filter(|message| message["role"] == "user")
            .map(|message| text(message, "content").to_owned())
            .collect();
        assert_eq!(
            told,
            order[..=turn],
            "turn {turn} saw what came later, or not what came before"
        );
    }
    let runs = follower.record().count("run.started");
    assert_eq!(runs, 3);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], accepted, vec![seen(follower)]).await;
}

/// P2: the same identity answers the same receipt in any state, over restarts and after deletion;
/// with another payload it is a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_identity_is_one_input_for_ever() {
    let script = "[[rule]]\nreply = [{ text = \"Yes.\" }]\n";
    let home = Home::new().unwrap();
    let mut server = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let first = client.submit("s", "r1", "hello").await.unwrap().expect(202).unwrap();
    assert_eq!(first["replayed"], false);
    client.outcome(text(&first, "input_id")).await.unwrap();
    for restart in [false, true] {
        if restart {
            server.restart().await.unwrap();
        }
        let again = client.submit("s", "r1", "hello").await.unwrap().expect(202).unwrap();
        assert_eq!((&again["input_id"], &again["replayed"]), (&first["input_id"], &true.into()));
        assert_eq!(
            (&again["status"], &again["outcome"]),
            (&"terminal".into(), &"completed".into())
        );
        let other = client.submit("s", "r1", "hello!").await.unwrap();
        assert_eq!(other.problem(409).unwrap(), "input_conflict");
    }
    wait::until("an idle session", || async {
        Ok((client.session("s").await?["state"] == "idle").then_some(()))
    })
    .await
    .unwrap();
    let deleted = client.delete("/v1/sessions/s").await.unwrap();
    assert!((200..300).contains(&deleted.status), "{deleted:?}");
    server.restart().await.unwrap();
    let again = client.submit("s", "r1", "hello").await.unwrap().expect(202).unwrap();
    assert_eq!((&again["input_id"], &again["outcome"]), (&first["input_id"], &"completed".into()));
    let other = client.submit("s", "r1", "hello!").await.unwrap();
    assert_eq!(other.problem(409).unwrap(), "input_conflict");
    let fresh = client.submit("s", "r2", "hello").await.unwrap();
    assert_eq!(fresh.problem(410).unwrap(), "session_deleted");
}

/// P2: however many send the same identity at the same moment, it is one input, and one of them is
/// told that it was the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_identity_from_many_at_once_is_one_input() {
    let script = "[[rule]]\nreply = [{ text = \"Yes.\" }]\n";
    let home = Home::new().unwrap();
    let a = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let b = home.serve(&home.script(script).unwrap()).unwrap().start().await.unwrap();
    let (at_a, at_b) = (a.client().unwrap(), b.client().unwrap());
    for round in 0..10 {
        let name = format!("r{round}");
        // At both servers of the home.
        let receipts = futures::future::join_all((0..16).map(|number| {
            let client = if number % 2 == 0 { &at_a } else { &at_b };
            let name = &name;
            async move { client.submit("s", name, "hello").await.unwrap().expect(202).unwrap() }
        }))
        .await;
        let first = receipts.iter().filter(|receipt| receipt["replayed"] == false).count();
        assert_eq!(first, 1, "{receipts:?}");
        assert!(receipts.iter().all(|one| one["input_id"] == receipts[0]["input_id"]));
        at_a.outcome(text(&receipts[0], "input_id")).await.unwrap();
    }
    assert_eq!(at_b.texts("s", "user", "message").await.unwrap().len(), 10);
    verify(&at_b, &["s"], vec![], vec![]).await;
}
