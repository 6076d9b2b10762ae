//! `everturn run` without a server: exit codes, what is printed, dying and going on.

use everturn_sim::server::Home;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{QUICK, SLOW, SLOW_TEXT, ended, everturn, json, shell, times_run};
use crate::terminal::Terminal;

/// 0: the text on stdout, and nothing else.
#[tokio::test]
async fn an_answer_is_the_text_and_ends_with_zero() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let ran = ended(&home, &["run", "--model", &model, "hello"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "You said hello.\n"), "{ran:?}");
    // A conversation of its own, whose name is told.
    let session = ran.stderr.trim().strip_prefix("session ").unwrap().to_owned();
    let ran = ended(&home, &["run", "--model", &model, "--session", &session, "again"]).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("You said again.\n", ""), "{ran:?}");
    let shown = json(&home, &["sessions", "show", &session, "--json"]).await;
    assert_eq!(shown["generation"], 2);
}

/// 1: the provider refuses for good.
#[tokio::test]
async fn a_failure_is_told_with_its_code_and_hint() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let ran = ended(&home, &["run", "--model", &model, "please fail"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("error: the key is refused (model_unauthorized)"), "{ran:?}");
    assert!(ran.stderr.contains("hint: "), "{ran:?}");
    let ran = ended(&home, &["run", "--model", "openai/x", "hello"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("(model_key_missing)"), "{ran:?}");
}

/// 3: Ctrl-C stops the turn, durably.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_the_turn() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let run = everturn(&home, &["run", "--model", &model, "--session", "s", "count"]);
    let run = run.start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    run.signal(Signal::INT).unwrap();
    let ran = run.ended().await.unwrap();
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(SLOW_TEXT.starts_with(ran.stdout.trim_end()) && ran.stdout.len() < SLOW_TEXT.len());
    assert!(ran.stderr.contains("stopped by local"), "{ran:?}");
    let turn = json(&home, &["turn", "show", "s:1", "--json"]).await;
    assert_eq!(turn["runs"][0]["terminal_state"], "cancelled-by-user");
    assert_eq!(turn["input"]["outcome"], "cancelled");
}

/// P5, P6: killed in the middle, the same command goes on with the same turn, once. What was printed
/// is printed again by the new process, and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn killed_and_repeated_it_goes_on_once() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r1", "count"];
    // Twice, so that a continuation is continued as well.
    for _ in 0..2 {
        let mut run = everturn(&home, &words).start().unwrap();
        run.out.wait_for_text("three").await.unwrap();
        run.kill();
    }
    let ran = ended(&home, &words).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
    assert!(ran.stderr.contains("This turn was interrupted"), "{ran:?}");
    assert!(ran.stderr.contains("going on (attempt 2)"), "{ran:?}");
    // Known and finished: the same answer once more, and no new turn.
    let again = ended(&home, &words).await;
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), SLOW_TEXT), "{again:?}");
    let turn = json(&home, &["turn", "show", "s:3", "--json"]).await;
    let input = turn["runs"][0]["input_id"].as_str().unwrap();
    assert_ne!(input, turn["runs"][0]["run_id"].as_str().unwrap());
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!((&shown["generation"], &shown["state"]), (&Value::from(3), &Value::from("idle")));
    let said: String = json(&home, &["sessions", "messages", "s", "--json"])
        .await
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "assistant")
        .filter_map(|message| message["text"].as_str())
        .collect();
    assert_eq!(said, SLOW_TEXT.trim_end());
}

/// 4: its executor went away and it was not continued: here another process, that was not started
/// for it, found it.
#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_that_nobody_continues_ends_with_four() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r1", "count"];
    let mut run = everturn(&home, &words).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    run.kill();
    let other = ended(&home, &["run", "--model", &model, "--session", "s", "something else"]).await;
    assert_eq!(other.code, Some(0), "{other:?}");
    let ran = ended(&home, &words).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stdout.starts_with("one two three"), "{ran:?}");
    assert!(!ran.stdout.contains("twenty"), "{ran:?}");
    assert!(ran.stderr.contains("error: the turn was interrupted; "), "{ran:?}");
    assert!(ran.stderr.contains("(turn_interrupted)\nhint: "), "{ran:?}");
}

/// 4: the same answer was interrupted more often than it is continued. The last words are the reason
/// and the next command.
#[tokio::test(flavor = "multi_thread")]
async fn the_third_death_of_one_answer_is_left_to_the_person() {
    let home = Home::new().unwrap();
    let model = home.script(&SLOW.replace("20\n", "5\n")).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r1", "count"];
    for death in 0..3 {
        let mut run = everturn(&home, &words).start().unwrap();
        if death > 0 {
            run.err.wait_for_text(&format!("going on (attempt {death})")).await.unwrap();
        }
        run.out.wait_for_text("two").await.unwrap();
        run.kill();
    }
    let ran = ended(&home, &words).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let reason = "as many continuations as the policy allows were interrupted as well";
    let error = format!(
        "error: the turn was interrupted; it was not continued by itself: {reason} (turn_interrupted)"
    );
    assert!(ran.stderr.contains(&error), "{ran:?}");
    assert!(ran.stderr.contains("hint: `everturn chat --session s`, then /continue"), "{ran:?}");
}

/// SIGTERM: it leaves in order, and the same command goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_hands_the_turn_over() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r1", "count"];
    let run = everturn(&home, &words).env("EVERTURN_DRAIN_TIMEOUT_S", "0").start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    run.signal(Signal::TERM).unwrap();
    let left = run.ended().await.unwrap();
    assert_eq!(left.code, Some(4), "{left:?}");
    assert!(left.stderr.contains("the input is safe: inp_"), "{left:?}");
    let ran = ended(&home, &words).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
}

/// 6: another process runs this conversation. It is said, and said again when it is free.
#[tokio::test(flavor = "multi_thread")]
async fn behind_another_process_it_waits_and_then_gives_up() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let mut first =
        everturn(&home, &["run", "--model", &model, "--session", "s", "hang"]).start().unwrap();
    first.out.wait_for_text("So far, ").await.unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r2"];
    let short = ended(&home, &[&words[..], &["--wait", "1", "hello"]].concat()).await;
    assert_eq!((short.code, short.stdout.as_str()), (Some(6), ""), "{short:?}");
    assert!(short.stderr.contains("another Everturn process is running this conversation"));
    assert!(short.stderr.contains("is still queued (still_queued)"), "{short:?}");
    assert!(short.stderr.contains("the input is safe: inp_"), "{short:?}");
    // The same input, with more patience, and the other process dies.
    let long = everturn(&home, &[&words[..], &["hello"]].concat()).start().unwrap();
    long.err.wait_for_text("another Everturn process is running").await.unwrap();
    first.kill();
    let long = long.ended().await.unwrap();
    assert_eq!((long.code, long.stdout.as_str()), (Some(0), "You said hello.\n"), "{long:?}");
    assert_eq!(long.stderr.matches("another Everturn process").count(), 1, "{long:?}");
    assert_eq!(long.stderr.matches("the conversation is free again").count(), 1, "{long:?}");
}

/// Without a terminal what asks is denied, `--allow` opens it, and only what it names.
#[tokio::test]
async fn a_tool_that_asks_is_denied_without_a_terminal() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let ran = ended(&home, &["run", "--model", &model, "use the tool"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("* shell") && ran.stderr.contains("= denied"), "{ran:?}");
    assert_eq!(times_run(&home), 0);
    let other = ["run", "--model", &model, "--allow", "write_file", "use the tool"];
    assert_eq!(ended(&home, &other).await.code, Some(0));
    assert_eq!(times_run(&home), 0);
    let ran = ended(&home, &["run", "--model", &model, "--allow", "shell", "use the tool"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(times_run(&home), 1);
    assert!(ran.stdout.starts_with("I will look.\nThe tool said: from the shell"), "{ran:?}");
    assert!(ran.stderr.contains("  | from the shell\n"), "{ran:?}");
}

/// `-` reads stdin, and a session's events come as JSON lines.
#[tokio::test]
async fn text_comes_from_stdin_and_events_go_out_as_json() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let line = format!("printf 'from a pipe\\n' | \"$EVERTURN\" run --json --model '{model}' -");
    let ran = shell(&home, &line).run().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"receipt"));
    assert_eq!(names.last(), Some(&"input.ended"));
    for name in ["input.accepted", "turn.started", "run.started", "text.delta", "run.completed"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert_eq!(lines.last().unwrap()["outcome"], "completed");
    let said = lines.iter().find(|line| line["event"] == "input.accepted").unwrap();
    assert_eq!(said["text"], "from a pipe");
    let line = format!("printf 'bad \\377' | \"$EVERTURN\" run --model '{model}' -");
    let bad = shell(&home, &line).run().await.unwrap();
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(bad.stderr.contains("stdin is not UTF-8"), "{bad:?}");
}

/// In a terminal it asks, whoever does the work; what is no answer is asked about again.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_terminal_it_asks() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let words = ["run", "--model", &model, "use the tool"];
    let mut run = Terminal::start(&home, &words);
    run.wait_for("? may shell run?");
    run.press("n\n");
    run.wait_for("= denied");
    run.wait_for("The tool said:");
    assert_eq!((run.ended(), times_run(&home)), (Some(0), 0));
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    let mut run = Terminal::start(&home, &words);
    run.wait_for("[y] once");
    run.press("perhaps\n");
    run.wait_for("[y] once");
    run.press("y\n");
    run.wait_for("The tool said: from the shell");
    assert_eq!((run.ended(), times_run(&home)), (Some(0), 1));
}

/// P5: until somebody records it, whoever reads is told that nobody works on a turn, and on what
/// evidence; nothing of that is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_nobody_works_on_is_shown_as_interrupted() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r", "count"];
    let mut run = everturn(&home, &words).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["state"], "running", "{shown}");
    run.kill();
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["state"], "interrupted", "{shown}");
    assert_eq!(shown["interrupted"]["cause"], "lost_worker", "{shown}");
    let turn = json(&home, &["turn", "show", "s:1", "--json"]).await;
    assert_eq!(turn["runs"][0]["interrupted_virtually"], true, "{turn}");
    assert_eq!(turn["runs"][0]["terminal"], false, "{turn}");
    let ran = ended(&home, &words).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
}

/// P13: a limit on file sizes is a storage failure with a code, not the end of the process.
#[tokio::test]
async fn a_limit_on_file_sizes_is_a_storage_failure() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let line = format!(
        "head -c 900000 /dev/zero | tr '\\0' 'b' | (ulimit -f 1000; \"$EVERTURN\" run --session s --model '{model}' -)"
    );
    let full = shell(&home, &line).run().await.unwrap();
    assert_eq!(full.code, Some(1), "{}", full.stderr);
    assert!(full.stderr.contains("(storage_"), "{}", full.stderr);
    // Nothing was accepted, nothing is damaged.
    let ran = ended(&home, &["run", "--session", "s", "--model", &model, "hello"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "You said hello.\n"), "{ran:?}");
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["generation"], 1, "{shown}");
}
