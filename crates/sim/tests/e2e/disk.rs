//! A disk that fills up (P13).

use std::time::Duration;

use everturn_sim::disk::{SmallDisk, in_namespace};
use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::Home;

use crate::common::{seen, serve_openai, verify};

/// Disk full in the middle of a turn: a typed error, the process stays up, reads work, and after space
/// is freed the session goes on; nothing that was acknowledged is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_stays_up_and_goes_on_once_there_is_space() {
    if !in_namespace("disk::a_full_disk_refuses_stays_up_and_goes_on_once_there_is_space").unwrap()
    {
        return;
    }
    let home = Home::new().unwrap();
    let disk = SmallDisk::mount(&home.path(), 16 << 20).unwrap();
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Before. ").gate(&gate).pieces(["In between. ", "After."]));
    // Whichever turn asks next: the fillers are turns as well.
    openai.otherwise(|request| {
        let asked = request.last_user_text();
        Reply::new().text(match asked.split_whitespace().next() {
            Some("second") => "Second.",
            Some("third") => "Third.",
            _ => "Filler.",
        })
    });
    // The guard that refuses early is off: this is about the disk itself.
    let spec = serve_openai(&home, &openai).env("EVERTURN_LIMITS_MIN_FREE_BYTES", "0");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let first = client.say("s", "r1", "first").await.unwrap();
    let second = client.say("s", "r2", "second").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    disk.fill().unwrap();

    // Small writes may still fit into what the log holds; the disk is full when one is refused.
    let padding = "x".repeat(256 << 10);
    let mut accepted = Vec::new();
    let refused = loop {
        let number = accepted.len();
        let (session, text) = (format!("filler-{number}"), format!("filler {padding}"));
        let answer = client.submit(&session, "r", &text).await.unwrap();
        if answer.status != 202 {
            break answer;
        }
        accepted.push((session, text));
        assert!(number < 1_000, "the disk is never full");
    };
    assert_eq!(refused.problem(507).unwrap(), "storage_full");
    assert_eq!(refused.json()["permanent"], false);
    // The turn under way meets the full disk as well.
    gate.open();
    server.process.err.wait_for_text("the store is away").await.unwrap();
    assert!(server.process.is_running());
    assert_eq!(client.session("s").await.unwrap()["state"], "running");
    assert_eq!(client.texts("s", "user", "message").await.unwrap(), ["first"]);
    let reader = Follower::feed(&client, "s");
    reader.wait_for(|record| (record.caught_up > 0).then_some(())).await.unwrap();
    assert_eq!(reader.record().text(), follower.record().text());
    assert_eq!(client.get("/healthz").await.unwrap().status, 200);
    let again = client.submit("s", "r3", &padding).await.unwrap();
    assert_eq!(again.problem(507).unwrap(), "storage_full");

    disk.free().unwrap();
    let third =
        client.say_until_accepted("s", "r3", "third", Duration::from_secs(30)).await.unwrap();
    for one in [&first, &second, &third] {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert_eq!(input["outcome"], "completed", "{input}");
    }
    assert_eq!(follower.record().count("run.interrupted"), 0, "the turn only waited");
    let said = client.texts("s", "assistant", "message").await.unwrap();
    assert_eq!(said, ["Before. In between. After.", "Second.", "Third."]);
    // Whatever was acknowledged before it was full is there, and ends as well.
    let mut sessions = vec!["s"];
    let mut all = vec![first, second, third];
    for (session, text) in &accepted {
        let one = client.say(session, "r", text).await.unwrap();
        assert_eq!(client.outcome(&one.input_id).await.unwrap()["outcome"], "completed");
        sessions.push(session);
        all.push(one);
    }
    // And it all is on the disk, not only in memory.
    server.restart().await.unwrap();
    verify(&client, &sessions, all, vec![seen(follower), seen(reader)]).await;
}

/// P13: killed while the disk is full, the next start says so or works, and nothing is missing once
/// there is space.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_the_disk_is_full_loses_nothing() {
    if !in_namespace("disk::a_kill_while_the_disk_is_full_loses_nothing").unwrap() {
        return;
    }
    let home = Home::new().unwrap();
    let disk = SmallDisk::mount(&home.path(), 16 << 20).unwrap();
    let script = "words_per_second = 100\n[[rule]]\nreply = [{ text = \"one two three four five six seven eight\" }]\n";
    let spec = home
        .serve(&home.script(script).unwrap())
        .unwrap()
        .env("EVERTURN_LIMITS_MIN_FREE_BYTES", "0");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let mut accepted = vec![client.say("s", "r0", "input 0").await.unwrap()];
    follower.wait_for_event("text.delta", 2).await.unwrap();
    disk.fill().unwrap();
    for number in 1..200 {
        let text = format!("input {number} {}", "x".repeat(64 << 10));
        let answer = client.submit("s", &format!("r{number}"), &text).await.unwrap();
        if answer.status == 507 {
            break;
        }
        answer.expect(202).unwrap();
        // Known to the server; the client repeats it below to learn its name.
        accepted.push(client.say("s", &format!("r{number}"), &text).await.unwrap());
        assert!(number < 199, "the disk is never full");
    }
    server.kill();
    // A start on a full disk either works or is refused with a reason; it changes nothing.
    match spec.try_start("127.0.0.1:0").await.unwrap() {
        Ok(mut started) => started.kill(),
        Err(ended) => {
            assert_ne!(ended.code, Some(0));
            assert!(ended.stderr.contains("full"), "{ended:?}");
            assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        }
    }
    disk.free().unwrap();
    server.restart().await.unwrap();
    for one in &accepted {
        let input = client.outcome(&one.input_id).await.unwrap();
        assert!(
            ["completed", "interrupted"].contains(&input["outcome"].as_str().unwrap()),
            "{input}"
        );
    }
    verify(&client, &["s"], accepted, vec![seen(follower)]).await;
}

/// P12: with less than the configured space left, nothing new is accepted, while turns go on and what
/// is known keeps its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_nearly_full_disk_takes_nothing_new() {
    if !in_namespace("disk::a_nearly_full_disk_takes_nothing_new").unwrap() {
        return;
    }
    let home = Home::new().unwrap();
    let disk = SmallDisk::mount(&home.path(), 48 << 20).unwrap();
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().text("Before, ").gate(&gate).text("and after."));
    let _server = serve_openai(&home, &openai)
        .env("EVERTURN_LIMITS_MIN_FREE_BYTES", (16_u64 << 20).to_string())
        .start()
        .await
        .unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "hello").await.unwrap();
    follower.wait_for_event("text.delta", 1).await.unwrap();
    disk.take(36 << 20).unwrap();
    // Free space is looked at once a second.
    let count = std::sync::atomic::AtomicU32::new(0);
    let refused = everturn_sim::wait::until("a refusal", || async {
        // A new one each time: what is known already is never refused.
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let answer = client.submit("t", &format!("r{number}"), "hello").await?;
        Ok((answer.status != 202).then_some(answer))
    });
    assert_eq!(refused.await.unwrap().problem(507).unwrap(), "storage_full");
    let refused = client.submit("new", "r1", "hello").await.unwrap();
    assert_eq!(refused.problem(507).unwrap(), "storage_full");
    assert_eq!(client.get("/v1/sessions/new").await.unwrap().status, 404);
    let known = client.submit("s", "r1", "hello").await.unwrap().expect(202).unwrap();
    assert_eq!(known["input_id"], accepted.input_id.as_str());
    gate.open();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    follower.wait_for_event("run.completed", 1).await.unwrap();
    assert_eq!(follower.record().text(), "Before, and after.");
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}
