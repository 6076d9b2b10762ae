//! Tool calls and kills: what was done is not done again, what may be repeated is.

use everturn_sim::check::{Effects, lines};
use everturn_sim::follow::Follower;
use everturn_sim::openai::{OpenAi, Reply};
use everturn_sim::server::{Home, processes_with};
use everturn_sim::wait;
use serde_json::{Value, json};

use crate::common::{
    count_lines, fifo, let_go, seen, serve_openai, text, verify_with, wait_for_lines,
};

fn command(text: &str) -> String {
    json!({ "command": text }).to_string()
}

/// The line that a test's command appends to `effects`.
fn line_of(arguments: &Value) -> Option<String> {
    let (_, rest) = arguments["command"].as_str()?.split_once("echo ")?;
    Some(rest.split_once(" >> effects")?.0.to_owned())
}

/// P9: killed after a tool call finished and before the next model request, the command is not run a
/// second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_command_is_not_run_again() {
    let openai = OpenAi::start().await.unwrap();
    let address = openai.address();
    openai.push(Reply::new().text("Let me. ").call(
        "call_1",
        "shell",
        &command("echo once >> effects; read line < gate; echo \"got $line\""),
    ));
    let home = Home::new().unwrap();
    let (gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    wait_for_lines(&effects, 1).await;
    // The model goes away, so that the next request cannot be made, and then the command ends.
    let before = openai.requests();
    drop(openai);
    let_go(&gate).await;
    let finished = follower.wait_for_event("tool.finished", 1).await.unwrap();
    assert_eq!(finished["call"]["state"], "succeeded");
    server.kill();

    let openai = OpenAi::start_on(address).await.unwrap();
    openai.push(Reply::new().text("Done."));
    server.restart().await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(count_lines(&effects), 1);
    // The continuation's model was told the result.
    let requests = openai.requests();
    assert_eq!((before.len(), requests.len()), (1, 1));
    let results: Vec<&Value> =
        requests[0].messages().iter().filter(|message| message["role"] == "tool").collect();
    assert!(results.len() == 1 && text(results[0], "content").contains("got go"), "{results:?}");
    assert_eq!(openai.violations(), Vec::<String>::new());
    let calls = client.calls("s").await.unwrap();
    assert_eq!((calls.len(), &calls[0]["state"]), (1, &"succeeded".into()));
    let effects = Effects { lines: lines(&effects).unwrap(), line_of };
    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.effects = Some(Box::leak(Box::new(effects)));
    })
    .await;
}

/// P9: killed while a `write` tool runs, the tool is not run again; its outcome is unknown, the model
/// and the person are told so, and nothing of it lives on.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_tool_that_was_cut_off_is_of_unknown_outcome() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let (_gate, effects) = (fifo(&home, "gate"), home.work().join("effects"));
    // A child in the background, too: all of it has to go. The mark tells it from other tests' own.
    let mark = format!("mark-{}", home.path().display());
    let cut_off = format!("echo begun >> effects; (: {mark}; read a < gate) & read b < gate");
    openai.push(Reply::new().call("call_1", "shell", &command(&cut_off)));
    openai.push(Reply::new().text("I do not know whether it worked."));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    wait_for_lines(&effects, 1).await;
    let running = client.calls("s").await.unwrap();
    assert_eq!(running[0]["state"], "running");
    assert!(processes_with(&mark).unwrap().len() >= 2, "the command and its child");
    server.kill();
    wait::until("the end of the command", || async {
        Ok(processes_with(&mark)?.is_empty().then_some(()))
    })
    .await
    .unwrap();

    server.restart().await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    assert_eq!(count_lines(&effects), 1);
    let calls = client.calls("s").await.unwrap();
    assert_eq!((calls.len(), &calls[0]["state"]), (1, &"unknown".into()));
    // The person is told in the transcript, the model in what it is sent.
    let notes = client.texts("s", "system", "continuation").await.unwrap();
    assert!(notes.len() == 1 && notes[0].contains("echo begun"), "{notes:?}");
    let requests = openai.requests();
    assert_eq!(requests.len(), 2);
    let result = requests[1].messages().iter().find(|message| message["role"] == "tool").unwrap();
    assert!(text(result, "content").contains("unknown"), "{result}");
    assert!(requests[1].last_user_text().contains("echo begun"), "{:?}", requests[1].body);
    assert_eq!(openai.violations(), Vec::<String>::new());
    let effects = Effects { lines: lines(&effects).unwrap(), line_of };
    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.effects = Some(Box::leak(Box::new(effects)));
    })
    .await;
}

/// P9: a command whose supervisor is lost is of unknown outcome, for the person and for the model, and
/// the turn goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_lost_its_supervisor_is_of_unknown_outcome() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let effects = home.work().join("effects");
    let lost = command("echo done >> effects; kill -9 $PPID; sleep 1000");
    openai.push(Reply::new().call("call_1", "shell", &lost));
    openai.push(Reply::new().text("I do not know whether it worked."));
    let _server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "do it").await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    let calls = client.calls("s").await.unwrap();
    assert_eq!((calls.len(), &calls[0]["state"]), (1, &"unknown".into()), "{calls:?}");
    let finished = follower.wait_for_event("tool.finished", 1).await.unwrap();
    assert_eq!(finished["call"]["state"], "unknown");
    let requests = openai.requests();
    let result = requests[1].messages().iter().find(|message| message["role"] == "tool").unwrap();
    assert!(text(result, "content").contains("the supervisor vanished; the outcome"), "{result}");
    assert_eq!(openai.violations(), Vec::<String>::new());
    let effects = Effects { lines: lines(&effects).unwrap(), line_of };
    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.effects = Some(Box::leak(Box::new(effects)));
    })
    .await;
}

/// P9: killed while a `read` tool runs, the tool is run again, and its result is what the model gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_tool_that_was_cut_off_is_run_again() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    // Many names for one large file make a search that takes long until they are gone.
    let haystack = home.work().join("0");
    let line = "nothing to see in this line, nor in the one after it\n";
    std::fs::write(&haystack, line.repeat((24 << 20) / line.len())).unwrap();
    let folder = home.work().join("many");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..2_000 {
        std::fs::hard_link(&haystack, folder.join(number.to_string())).unwrap();
    }
    std::fs::write(home.work().join("found.txt"), "the needle is here\n").unwrap();
    openai.push(Reply::new().call("call_1", "search_files", r#"{"regex": "n[e]+dle is"}"#));
    openai.push(Reply::new().text("Found."));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "find the needle").await.unwrap();
    client.wait_for_call("s", |call| call["state"] == "running").await.unwrap();
    server.kill();
    assert_eq!(follower.record().count("tool.finished"), 0, "the search was over too soon");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::remove_file(&haystack).unwrap();

    server.restart().await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    let calls = client.calls("s").await.unwrap();
    assert_eq!((calls.len(), &calls[0]["state"]), (1, &"succeeded".into()), "{calls:?}");
    let requests = openai.requests();
    assert_eq!(requests.len(), 2);
    let result = requests[1].messages().iter().find(|message| message["role"] == "tool").unwrap();
    assert!(text(result, "content").contains("found.txt:1:the needle is here"), "{result}");
    assert_eq!(openai.violations(), Vec::<String>::new());
    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |_| {}).await;
}

/// P9: of several calls of one step, a kill in the second one leaves the first one's result, the
/// second of unknown outcome, and lets the third, which never began, begin.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_calls_each_has_the_fate_that_its_record_says() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let _gate = fifo(&home, "gate");
    let effects = home.work().join("effects");
    openai.push(
        Reply::new()
            .call("a", "shell", &command("echo one >> effects"))
            .call("b", "shell", &command("echo two >> effects; read line < gate"))
            .call("c", "shell", &command("echo three >> effects")),
    );
    openai.push(Reply::new().text("Two is in doubt."));
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    client.create_open_session("s").await.unwrap();
    let follower = Follower::feed(&client, "s");
    let accepted = client.say("s", "r1", "three things").await.unwrap();
    wait_for_lines(&effects, 2).await;
    server.restart().await.unwrap();
    assert_eq!(client.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    let calls = client.calls("s").await.unwrap();
    let states: Vec<&str> = calls.iter().map(|call| text(call, "state")).collect();
    assert_eq!(states, ["succeeded", "unknown", "succeeded"]);
    assert_eq!(openai.violations(), Vec::<String>::new());
    let effects = Effects { lines: lines(&effects).unwrap(), line_of };
    assert_eq!(effects.lines.values().sum::<usize>(), 3);
    verify_with(&client, &["s"], vec![accepted], vec![seen(follower)], |checker| {
        checker.effects = Some(Box::leak(Box::new(effects)));
    })
    .await;
}
