//! The command line on what the tests above leave behind.

use everturn_sim::openai::{OpenAi, Reply};
use everturn_sim::server::Home;
use serde_json::Value;

use crate::common::{command, run, serve_openai, stdout, text};

/// What `run` answers with when it completes (0), fails (1) or is used wrongly (2). The codes for what
/// others do to it meanwhile (3 to 6) are proved in the tests of the command line itself.
#[tokio::test(flavor = "multi_thread")]
async fn run_tells_by_its_exit_code_how_it_ended() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    openai.push(Reply::new().text("Fine."));
    assert_eq!(run(&home, &openai, &["hello"]).run().await.unwrap().code, Some(0));
    openai.push(Reply::status(400).message("no"));
    let failed = run(&home, &openai, &["hello"]).run().await.unwrap();
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(!failed.stderr.is_empty());
    let usage = run(&home, &openai, &["--no-such-flag", "hello"]).run().await.unwrap();
    assert_eq!(usage.code, Some(2), "{usage:?}");
    let empty = run(&home, &openai, &[""]).run().await.unwrap();
    assert_eq!(empty.code, Some(2), "{empty:?}");
    let conflict = ["--session", "s", "--request-id", "r1"];
    openai.push(Reply::new().text("Fine."));
    let first = run(&home, &openai, &conflict).args(["one"]).run().await.unwrap();
    assert_eq!(first.code, Some(0), "{first:?}");
    let other = run(&home, &openai, &conflict).args(["other"]).run().await.unwrap();
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.stderr.contains("input_conflict"), "{other:?}");
}

/// stdout is data: JSON lines are the events, byte for byte; the flight record tells the whole turn.
#[tokio::test(flavor = "multi_thread")]
async fn json_lines_are_the_events_and_turn_show_tells_the_turn() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    std::fs::write(home.work().join("note.txt"), "milk\n").unwrap();
    openai.push(Reply::new().text("Let me look. ").call(
        "a",
        "read_file",
        r#"{"path":"note.txt"}"#,
    ));
    openai.push(Reply::new().pieces(["It says ", "milk."]).usage(10, 5));
    let ended =
        run(&home, &openai, &["--session", "s", "--json", "what is in it?"]).run().await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let events: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: String = events
        .iter()
        .filter(|event| event["event"] == "text.delta")
        .map(|event| text(event, "text"))
        .collect();
    assert_eq!(said, "Let me look. It says milk.");
    let exported = stdout(&home, "sessions", &["export", "s", "--events"]).await;
    for line in ended.stdout.lines().filter(|line| line.contains("\"seq\"")) {
        assert!(exported.lines().any(|stored| stored == line), "{line}");
    }
    let run_id = events.iter().find_map(|event| event["run_id"].as_str()).unwrap();
    let shown = stdout(&home, "turn", &["show", run_id]).await;
    for word in ["read_file", "completed"] {
        assert!(shown.contains(word), "{word} is not in: {shown}");
    }
    let list: Value =
        serde_json::from_str(&stdout(&home, "sessions", &["list", "--json"]).await).unwrap();
    assert!(list.to_string().contains("\"s\""), "{list}");
    let unknown = command(&home, "turn", &["show", "run_nothing"]).await;
    assert!(!matches!(unknown.code, Some(0) | None) && !unknown.stderr.is_empty(), "{unknown:?}");
}

/// `attach` follows a feed from a place, over a restart, and says everything once.
#[tokio::test(flavor = "multi_thread")]
async fn attach_follows_over_a_restart() {
    let openai = OpenAi::start().await.unwrap();
    let home = Home::new().unwrap();
    let mut server = serve_openai(&home, &openai).start().await.unwrap();
    let client = home.client().unwrap();
    let first = client.say("s", "r1", "first").await.unwrap();
    client.outcome(&first.input_id).await.unwrap();
    let spec = home.everturn("attach").unwrap().args(["s", "--after", "0", "--json"]);
    let attached = spec.start().unwrap();
    attached.out.wait_for_text("run.completed").await.unwrap();
    server.restart().await.unwrap();
    let second = client.say("s", "r2", "second").await.unwrap();
    client.outcome(&second.input_id).await.unwrap();
    let offset = client.session("s").await.unwrap()["offset"].as_u64().unwrap();
    let last = format!("\"offset\":{offset},");
    attached.out.wait_for_text(&last).await.unwrap();
    let offsets: Vec<u64> = attached
        .out
        .text()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["offset"].as_u64())
        .collect();
    assert_eq!(offsets, (1..=offset).collect::<Vec<_>>());
}
