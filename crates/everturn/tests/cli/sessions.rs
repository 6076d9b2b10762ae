//! `everturn sessions` and `everturn turn`, with a server and without.

use everturn_sim::server::Home;
use serde_json::Value;

use crate::support::{QUICK, ended, json, stdout};

async fn say(home: &Home, model: &str, session: &str, text: &str) {
    stdout(home, &["run", "--model", model, "--session", session, text]).await;
}

/// The same answers through a server and straight from the store.
#[tokio::test(flavor = "multi_thread")]
async fn reading_is_the_same_with_a_server_and_without() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    for (session, text) in [("a", "milk"), ("a", "honey"), ("b", "bread")] {
        say(&home, &model, session, text).await;
    }
    let commands: &[&[&str]] = &[
        &["sessions", "list", "--json"],
        &["sessions", "list", "--search", "honey", "--json"],
        &["sessions", "list", "--state", "idle"],
        &["sessions", "show", "a", "--json"],
        &["sessions", "show", "a"],
        &["sessions", "messages", "a", "--json"],
        &["sessions", "messages", "a", "--last", "1"],
        &["sessions", "export", "a"],
        &["sessions", "export", "a", "--events"],
        &["sessions", "export", "a", "--events", "--after", "5"],
        &["turn", "show", "a:2"],
        &["turn", "show", "a:2", "--all", "--json"],
    ];
    let mut without = Vec::new();
    for words in commands {
        without.push(stdout(&home, words).await);
    }
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    for (words, before) in commands.iter().zip(&without) {
        assert_eq!(&stdout(&home, words).await, before, "{words:?}");
    }
    let found: Value = serde_json::from_str(&without[1]).unwrap();
    assert_eq!((found[0]["id"].as_str(), found.as_array().unwrap().len()), (Some("a"), 1));
    let exported: Vec<Value> =
        without[7].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(exported.len(), 4);
    assert_eq!(exported[1]["text"], "You said milk.");
    let offsets: Vec<u64> = without[8]
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64().unwrap())
        .collect();
    assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
    assert!(without[8].ends_with(&without[9]) && without[9].len() < without[8].len());
}

/// Closing and deleting, and what then is said of it.
#[tokio::test]
async fn ended_and_deleted_sessions_say_so() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    say(&home, &model, "a", "milk").await;
    let ended_session = json(&home, &["sessions", "end", "a", "--reason", "done", "--json"]).await;
    assert_eq!(
        (&ended_session["state"], &ended_session["end_reason"]),
        (&"ended".into(), &"done".into())
    );
    let deleted = ended(&home, &["sessions", "delete", "a"]).await;
    assert_eq!((deleted.code, deleted.stdout.as_str()), (Some(0), ""), "{deleted:?}");
    assert!(deleted.stderr.contains("session a is deleted"), "{deleted:?}");
    for words in [
        &["sessions", "show", "a"][..],
        &["sessions", "messages", "a"],
        &["run", "--model", &model, "--session", "a", "again"],
    ] {
        let gone = ended(&home, words).await;
        assert_eq!((gone.code, gone.stdout.as_str()), (Some(1), ""), "{words:?}: {gone:?}");
        assert!(gone.stderr.contains("(session_deleted)"), "{words:?}: {gone:?}");
    }
    let missing = ended(&home, &["sessions", "show", "b"]).await;
    assert!(missing.stderr.contains("(session_not_found)"), "{missing:?}");
}

/// A running turn keeps its session, unless it is stopped first.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_session_is_deleted_by_force_only() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "hang"];
    let run = crate::support::everturn(&home, &words).start().unwrap();
    run.out.wait_for_text("So far, ").await.unwrap();
    let busy = ended(&home, &["sessions", "delete", "s"]).await;
    assert_eq!(busy.code, Some(1), "{busy:?}");
    assert!(busy.stderr.contains("(session_busy)\nhint: --force"), "{busy:?}");
    stdout(&home, &["sessions", "delete", "s", "--force"]).await;
    let ran = run.ended().await.unwrap();
    assert!(matches!(ran.code, Some(1 | 3)), "{ran:?}");
}

/// Where there is nothing, nothing is made.
#[tokio::test]
async fn reading_makes_no_home_and_no_store() {
    let home = Home::new().unwrap();
    let elsewhere = home.work().join("none");
    let words = ["sessions", "list", "--home", elsewhere.to_str().unwrap()];
    let missing = ended(&home, &words).await;
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("(home_not_found)"), "{missing:?}");
    assert!(!elsewhere.exists());
    let missing = ended(&home, &["sessions", "list"]).await;
    assert!(missing.stderr.contains("there is no store"), "{missing:?}");
    assert!(!home.database().exists());
}

/// The flight record, as people read it.
#[tokio::test]
async fn a_turn_is_told_from_beginning_to_end() {
    let home = Home::new().unwrap();
    let model = home
        .script(
            r#"
[[rule]]
contains = "list"
round = 0
reply = [{ text = "I will look." }, { call = "list_files", arguments = {} }]
usage = { input_tokens = 12, output_tokens = 3 }
[[rule]]
round = 1
contains = "list"
reply = [{ text = "There is " }, { text = "nothing." }]
usage = { input_tokens = 20, output_tokens = 4, cached_input_tokens = 12 }
"#,
        )
        .unwrap();
    stdout(&home, &["run", "--model", &model, "--session", "s", "list the files"]).await;
    let shown = stdout(&home, &["turn", "show", "s:1"]).await;
    let mut settings = insta::Settings::clone_current();
    for (from, to) in [
        (r"(run|inp|node|call|prm)_[0-9a-f]{32}", "${1}_ID"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+", "TIME"),
        (r"\+[0-9.]+ m?s {1,12}", "+T "),
        (r"(took|in) [0-9.]+ m?s", "$1 T"),
        (r"script//\S+", "script/PATH"),
    ] {
        settings.add_filter(from, to);
    }
    settings.bind(|| insta::assert_snapshot!("turn_show", shown));
}
