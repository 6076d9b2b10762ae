//! `everturn run` and the server with a real OpenAI-compatible server that streams, stalls, cuts,
//! limits the rate and calls tools, and checks each request that it is sent.

use std::time::Duration;

use everturn_sim::follow::Follower;
use everturn_sim::openai::{Gate, OpenAi, Reply};
use everturn_sim::server::Home;
use serde_json::json;

use crate::common::{count_lines, run, seen, serve_openai, text, verify};

/// P5: `run` without a server is killed in mid-answer; the same command with the same request id goes
/// on where it was, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_goes_on_with_the_same_request_id() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().pieces(["One, ", "two, "]).gate(&gate).text("never"));
    openai.push(Reply::new().pieces(["three, ", "four."]));
    let home = Home::new().unwrap();
    let spec = run(&home, &openai, &["--session", "s", "--request-id", "r1", "count"]);
    let mut process = spec.start().unwrap();
    process.out.wait_for_text("One, two, ").await.unwrap();
    process.kill();

    let ended = spec.run().await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("three, four.\n"), "{ended:?}");
    assert!(!ended.stdout.contains("never"));
    let again = spec.run().await.unwrap();
    assert_eq!(again.code, Some(0), "{again:?}");
    let requests = openai.requests();
    assert_eq!(requests.len(), 2, "what has ended is not asked again");
    let told = requests[1].body.to_string();
    assert!(
        told.contains("One, two, ") && requests[1].last_user_text().contains("count"),
        "{told}"
    );
    assert_eq!(openai.violations(), Vec::<String>::new());

    // What a server of the same home says of it afterwards.
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let said = client.texts("s", "assistant", "message").await.unwrap();
    assert_eq!(said, ["One, two, ", "three, four."]);
    assert_eq!(client.texts("s", "system", "interruption").await.unwrap().len(), 1);
    verify(&client, &["s"], vec![], vec![]).await;
}

/// P5: what broke off is continued in the middle of the message where the server can, and told to the
/// model in the same turn where the server refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_answer_goes_on_in_the_middle_of_its_message() {
    for refuses in [false, true] {
        let openai = OpenAi::start().await.unwrap();
        let gate = Gate::new();
        openai.push(Reply::new().pieces(["One, ", "two, "]).gate(&gate).text("never"));
        if refuses {
            openai.push(Reply::status(400));
        }
        openai.push(Reply::new().pieces(["three, ", "four."]));
        let home = Home::new().unwrap();
        let spec = run(&home, &openai, &["--session", "s", "--request-id", "r1", "count"])
            .env("EVERTURN_PROVIDER_CONTINUE_PARTIAL", "auto,openai/test");
        let mut process = spec.start().unwrap();
        process.out.wait_for_text("One, two, ").await.unwrap();
        process.kill();
        let ended = spec.run().await.unwrap();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.ends_with("three, four.\n"), "{ended:?}");

        let requests = openai.requests();
        let partial = json!({ "role": "assistant", "content": "One, two, " });
        assert_eq!(requests[1].messages().last(), Some(&partial));
        assert_eq!(requests[1].body["continue_final_message"], true);
        assert_eq!(requests[1].body["add_generation_prompt"], false);
        assert_eq!(requests.len(), if refuses { 3 } else { 2 });
        if refuses {
            assert!(requests[2].last_user_text().contains("cannot be continued in place"));
            assert_eq!(requests[2].body.get("continue_final_message"), None);
        }
        assert_eq!(openai.violations(), Vec::<String>::new());

        // The next turn sees one message, or two with the reason between them.
        openai.push(Reply::new().text("Five."));
        let next = run(&home, &openai, &["--session", "s", "more"]);
        assert_eq!(next.run().await.unwrap().code, Some(0));
        let last = openai.requests().pop().unwrap();
        let said: Vec<_> = last
            .messages()
            .iter()
            .filter(|message| message["role"] == "assistant")
            .map(|message| text(message, "content").to_owned())
            .collect();
        match refuses {
            false => assert_eq!(said, ["One, two, three, four."]),
            true => assert_eq!(said, ["One, two, ", "three, four."]),
        }
        assert_eq!(openai.violations(), Vec::<String>::new());
    }
}

/// P5, P7: the server that `run` uses is killed in mid-answer; `run` finds its place again at the next
/// one, and what it prints has neither a gap nor a double.
#[tokio::test(flavor = "multi_thread")]
async fn run_finds_its_place_again_after_its_server_was_killed() {
    let openai = OpenAi::start().await.unwrap();
    let gate = Gate::new();
    openai.push(Reply::new().pieces(["One, ", "two, "]).gate(&gate).text("never"));
    openai.push(Reply::new().pieces(["three, ", "four."]));
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let process = run(&home, &openai, &["--session", "s", "count"]).start().unwrap();
    process.out.wait_for_text("One, two, ").await.unwrap();
    server.restart().await.unwrap();
    let ended = process.ended().await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for piece in ["One, ", "two, ", "three, ", "four."] {
        assert_eq!(ended.stdout.matches(piece).count(), 1, "{ended:?}");
    }
    assert_eq!(openai.requests().len(), 2);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![], vec![]).await;
}

/// Refusals before the first word are waited out, `Retry-After` included; they spend no attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_with_a_bad_minute_is_asked_again() {
    let openai = OpenAi::start().await.unwrap();
    openai.push(Reply::status(429).header("retry-after", "1"));
    openai.push(Reply::status(500));
    openai.push(Reply::new().text("Here I am."));
    let home = Home::new().unwrap();
    let ended = run(&home, &openai, &["--session", "s", "hello"]).run().await.unwrap();
    assert_eq!((ended.code, ended.stdout.trim_end()), (Some(0), "Here I am."), "{ended:?}");
    assert_eq!(openai.requests().len(), 3);
    assert_eq!(openai.violations(), Vec::<String>::new());
}

/// A connection that breaks after the first word, or an answer that ends without its end, fails visibly
/// and keeps what came; a stalled one times out. None says anything twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_or_stalled_answer_keeps_what_came() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let _server = serve_openai(&home, &openai)
        .env("EVERTURN_PROVIDER_BETWEEN_EVENTS_S", "2")
        .start()
        .await
        .unwrap();
    let client = home.client().unwrap();
    let breaks = [
        (Reply::new().pieces(["So ", "far, "]).cut(), "model_stream_broken"),
        (Reply::new().pieces(["So ", "far, "]).end(), "model_stream_broken"),
        (Reply::new().pieces(["So ", "far, "]).stall(), "model_stalled"),
    ];
    for (number, (reply, code)) in breaks.into_iter().enumerate() {
        let session = format!("s{number}");
        openai.push(reply);
        let follower = Follower::feed(&client, &session);
        let accepted = client.say(&session, "r1", "tell me").await.unwrap();
        let input = client.outcome(&accepted.input_id).await.unwrap();
        let failed = follower.wait_for_event("run.failed", 1).await.unwrap();
        assert_eq!(failed["error"]["code"], code);
        assert_eq!(input["outcome"], "failed");
        let record = follower.record();
        assert_eq!(record.text(), "So far, ");
        // The conversation goes on, on whatever came.
        openai.push(Reply::new().text("Fine."));
        let next = client.say(&session, "r2", "and now?").await.unwrap();
        assert_eq!(client.outcome(&next.input_id).await.unwrap()["outcome"], "completed");
        assert_eq!(openai.violations(), Vec::<String>::new());
        verify(&client, &[&session], vec![accepted, next], vec![seen(follower)]).await;
    }
}

/// Tools of every fate in one turn: allowed, denied because nobody can be asked, unknown, malformed.
/// Each call is answered, and in the order of the calls.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_answered_whatever_becomes_of_it() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    std::fs::write(home.work().join("note.txt"), "remember the milk\n").unwrap();
    let shell = json!({ "command": "echo ran >> effects; echo from the shell" }).to_string();
    let write = json!({ "path": "new.txt", "content": "x" }).to_string();
    openai.push(
        Reply::new()
            .text("Several things. ")
            .call("a", "read_file", r#"{"path": "note.txt"}"#)
            .call("b", "shell", &shell)
            .call("c", "write_file", &write)
            .call("d", "no_such_tool", "{}")
            .call("e", "read_file", r#"{"path": "note"#),
    );
    openai.push(Reply::new().text("Done.").usage(100, 20));
    let spec = run(&home, &openai, &["--session", "s", "--allow", "shell", "do several things"]);
    let ended = spec.run().await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("Several things. ") && ended.stdout.contains("Done."),
        "{ended:?}"
    );
    assert_eq!(count_lines(&home.work().join("effects")), 1);
    assert!(!home.work().join("new.txt").exists());
    let requests = openai.requests();
    assert_eq!(requests.len(), 2);
    let results = requests[1].tool_results();
    assert_eq!(results.len(), 5);
    assert!(results[0].contains("remember the milk"), "{results:?}");
    assert!(results[1].contains("from the shell"), "{results:?}");
    assert!(results[2].contains("approval"), "{results:?}");
    assert!(results[3].contains("no_such_tool"), "{results:?}");
    assert!(results[4].contains("JSON"), "{results:?}");
    assert_eq!(openai.violations(), Vec::<String>::new());

    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let calls = client.calls("s").await.unwrap();
    let states: Vec<&str> = calls.iter().map(|call| text(call, "state")).collect();
    assert_eq!(states, ["succeeded", "succeeded", "denied", "failed", "failed"]);
    verify(&client, &["s"], vec![], vec![]).await;
}

/// Text that comes split anywhere, even inside a letter, is the same text, on every way out.
#[tokio::test(flavor = "multi_thread")]
async fn text_split_anywhere_is_the_same_text() {
    let openai = OpenAi::start().await.unwrap();
    openai.split_every(3);
    let whole = "Grüße, 世界! \u{1F980} \u{0000}end";
    openai.push(Reply::new().every(Duration::from_millis(1)).pieces([
        "Grüße, ",
        "世界! ",
        "\u{1F980} ",
        "\u{0000}end",
    ]));
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "\u{0000}odd\u{feff} 世").await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    server.restart().await.unwrap();
    assert_eq!(client.texts("s", "assistant", "message").await.unwrap(), [whole]);
    assert_eq!(client.texts("s", "user", "message").await.unwrap(), ["\u{0000}odd\u{feff} 世"]);
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify(&client, &["s"], vec![accepted], vec![seen(follower)]).await;
}

/// P14: a key that the provider refuses, and quotes, is shown nowhere: not in the answer, not in the
/// log, not in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_is_shown_nowhere() {
    const KEY: &str = "sk-secret-0123456789abcdef";
    let openai = OpenAi::start().await.unwrap();
    openai.push(Reply::status(401).message(format!("Incorrect API key provided: {KEY}")));
    openai.push(Reply::status(400).message(format!("Something with {KEY} is wrong")));
    let home = Home::new().unwrap();
    let spec = home
        .serve(crate::common::OPENAI)
        .unwrap()
        .env("OPENAI_API_KEY", KEY)
        .env("OPENAI_BASE_URL", openai.base_url())
        .env("EVERTURN_LOG", "debug");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    for (number, code) in ["model_unauthorized", "model_refused"].into_iter().enumerate() {
        let one = client.say("s", &format!("r{number}"), "hello").await.unwrap();
        assert_eq!(client.outcome(&one.input_id).await.unwrap()["outcome"], "failed");
        let end = follower.wait_for_event("run.failed", number + 1).await.unwrap();
        assert_eq!(end["error"]["code"], code);
    }
    assert_eq!(openai.requests()[0].key.as_deref(), Some(KEY));
    let feed: String = follower.record().events.iter().map(|seen| seen.data.clone()).collect();
    assert!(!feed.contains(KEY));
    server.terminate().await.unwrap();
    assert!(!server.process.err.text().contains(KEY));
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
}
