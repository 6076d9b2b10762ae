//! `everturn chat`, over a pipe and in a terminal.

use everturn_sim::server::Home;

use crate::support::{QUICK, SLOW, SLOW_TEXT, json, shell, stdout, times_run};
use crate::terminal::Terminal;

/// Every line is one input; each is answered, in order; approvals are denied.
#[tokio::test]
async fn lines_of_a_pipe_are_inputs() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let line = format!(
        "printf 'one\\n\\nuse the tool\\n//three\\nfour' | \"$EVERTURN\" chat --session s --model '{model}'"
    );
    let ran = shell(&home, &line).run().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"You said one."), "{ran:?}");
    assert_eq!(lines[lines.len() - 2..], ["You said /three.", "You said four."], "{ran:?}");
    assert_eq!(times_run(&home), 0);
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["generation"], 4);
}

/// A pipe is told how it went by the exit code, and goes on after a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_over_a_pipe_is_the_exit_code() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    let line = "printf 'fail\\nthen\\n' | \"$EVERTURN\" chat";
    let ran = shell(&home, line).run().await.unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "You said then.\n"), "{ran:?}");
    assert!(ran.stderr.contains("(model_unauthorized)"), "{ran:?}");
}

/// P7: the server is killed under a chat and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_survives_its_server() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let line = "printf 'first\\nsecond\\n' | \"$EVERTURN\" chat --session s";
    let run = shell(&home, line).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    server.restart().await.unwrap();
    let ran = run.ended().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout, format!("{SLOW_TEXT}{SLOW_TEXT}"), "{ran:?}");
}

/// The whole of it: streaming, queueing while busy, a tool card, an approval, Ctrl-C, leaving.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_in_a_terminal() {
    let home = Home::new().unwrap();
    const COUNTING: &str = r#"
[[rule]]
contains = "count"
reply = [{ text = "one two three four five six seven eight nine ten", words_per_second = 5 }]
"#;
    let model = home.script(&format!("{COUNTING}{QUICK}")).unwrap();
    let mut chat = Terminal::start(&home, &["chat", "--session", "s", "--model", &model]);
    chat.wait_for("in this process");
    chat.wait_for("> ");
    chat.press("please count\r");
    chat.wait_for("one two ");
    // Typed while the answer streams: it is queued, and the answer goes on.
    chat.press("next\r");
    chat.wait_for("queued, place 1");
    chat.wait_for("ten");
    chat.wait_for("You said next.");
    chat.wait_for("> ");
    chat.press("use the tool\r");
    chat.wait_for("* shell");
    chat.wait_for("? may shell run?");
    chat.wait_for("[y] once");
    chat.press("y\r");
    chat.wait_for("= done");
    chat.wait_for("The tool said: from the shell");
    assert_eq!(times_run(&home), 1);
    chat.press("now hang\r");
    chat.wait_for("So far, ");
    chat.interrupt();
    chat.wait_for("stopping");
    chat.wait_for("stopped by local");
    chat.press("/quit\r");
    chat.wait_for("go on with: everturn chat --session s");
    assert_eq!(chat.ended(), Some(0));
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!((&shown["generation"], &shown["state"]), (&4.into(), &"idle".into()));
}

/// An interrupted turn waits for the person in a chat, and goes on by their word.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_turn_waits_for_the_person() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let words = ["chat", "--session", "s", "--model", &model];
    let mut chat = Terminal::start(&home, &words);
    chat.wait_for("> ");
    chat.press("now hang\r");
    chat.wait_for("So far, ");
    drop(chat);
    let mut chat = Terminal::start(&home, &words);
    chat.wait_for("waits for you; it was not continued by itself: ");
    chat.wait_for("type /continue, /discard or /resend");
    chat.press("/continue\r");
    chat.wait_for("going on with it");
    chat.wait_for("going on, as you asked");
    chat.wait_for("You said now hang.");
    chat.press("/quit\r");
    assert_eq!(chat.ended(), Some(0));
}

/// One that is interrupted while the chat is open is told of at once, with the reason and what can be
/// done about it; leaving it is confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_live_that_an_interrupted_turn_waits() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let server = home.serve(&model).unwrap().env("EVERTURN_RECOVERY_AUTO_CONTINUE", "off");
    let mut server = server.start().await.unwrap();
    let mut chat = Terminal::start(&home, &["chat", "--session", "s"]);
    chat.wait_for("> ");
    chat.press("now hang\r");
    chat.wait_for("So far, ");
    server.restart().await.unwrap();
    chat.wait_for("This turn was interrupted: ");
    chat.wait_for("not continued by itself: the session's policy leaves that to people");
    chat.wait_for("type /continue, /discard or /resend");
    let shown = stdout(&home, &["sessions", "show", "s"]).await;
    assert!(shown.contains("for you; it was not continued by itself: the session's"), "{shown}");
    assert!(shown.contains("/continue, /discard or /resend"), "{shown}");
    chat.press("/discard\r");
    chat.wait_for("left as it is; what it had said and done stays");
    chat.press("/quit\r");
    assert_eq!(chat.ended(), Some(0));
}

/// A question of the model is answered by a number, by any other text, or not at all: a command stays
/// a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_the_model_is_answered_in_a_terminal() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let mut chat = Terminal::start(&home, &["chat", "--session", "s", "--model", &model]);
    chat.wait_for("> ");
    chat.press("ask me\r");
    chat.wait_for("? Which colour?");
    chat.wait_for("[1] red");
    chat.wait_for("[2] dark blue");
    chat.wait_for("any other answer");
    chat.press("2\r");
    chat.wait_for("You want dark blue.");
    chat.press("ask me more\r");
    chat.wait_for("any other answer");
    chat.press("green\r");
    chat.wait_for("You want green.");
    chat.press("ask me once more\r");
    chat.wait_for("any other answer");
    chat.press("/stop\r");
    chat.wait_for("stopped by local");
    chat.press("/quit\r");
    assert_eq!(chat.ended(), Some(0));
}

/// Without a terminal nobody can be asked, and the model is told so at once: by a process of its own,
/// and by a command that goes through a server.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_a_question_is_answered_by_nobody() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let line = format!("printf 'ask me\\n' | \"$EVERTURN\" chat --model '{model}'");
    let ran = shell(&home, &line).run().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("You want Nobody can be asked here"), "{ran:?}");
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    for line in ["printf 'ask me\\n' | \"$EVERTURN\" chat", "\"$EVERTURN\" run 'ask me' </dev/null"]
    {
        let ran = shell(&home, line).run().await.unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("You want (Nobody is there to answer"), "{ran:?}");
        assert!(ran.stderr.contains("nobody can be asked here: Which colour?"), "{ran:?}");
    }
    // A denial does not pass for a person's, either.
    for line in [
        "printf 'use the tool\\n' | \"$EVERTURN\" chat",
        "\"$EVERTURN\" run 'use the tool' </dev/null",
    ] {
        let ran = shell(&home, line).run().await.unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("The answer said: Nobody could be asked"), "{ran:?}");
        assert!(!ran.stdout.contains("A person"), "{ran:?}");
    }
}
