//! `everturn serve`, and the command line through it.

use everturn_sim::server::Home;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{QUICK, SLOW, SLOW_TEXT, ended, everturn, json, stdout, times_run};

/// The command line finds the server, and its tools work where the server's do.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_uses_the_running_server() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let server = home.serve(&model).unwrap().start().await.unwrap();
    let said: Value =
        serde_json::from_str(&std::fs::read_to_string(home.path().join("server.json")).unwrap())
            .unwrap();
    assert_eq!(said["address"], server.address.as_str());
    assert_eq!(said["pid"], server.process.pid());
    let ran = ended(&home, &["run", "--session", "s", "--model", "script/demo", "hello"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "You said hello.\n"), "{ran:?}");
    assert!(ran.stderr.contains("--model does nothing here"), "{ran:?}");
    // A prompt that nobody can be asked is denied by the command line, or allowed by `--allow`.
    let denied = ended(&home, &["run", "use the tool"]).await;
    assert_eq!((denied.code, times_run(&home)), (Some(0), 0), "{denied:?}");
    assert!(denied.stderr.contains("nobody can be asked here: denied"), "{denied:?}");
    let allowed = ended(&home, &["run", "--allow", "shell", "use the tool"]).await;
    assert_eq!((allowed.code, times_run(&home)), (Some(0), 1), "{allowed:?}");
    assert_eq!(json(&home, &["sessions", "list", "--json"]).await.as_array().unwrap().len(), 3);
}

/// P7: the server is killed in the middle and comes back on another port; the command line sees
/// everything once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_elsewhere_is_found_again() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let run = everturn(&home, &["run", "--session", "s", "count"]).start().unwrap();
    run.out.wait_for_text("five").await.unwrap();
    server.restart().await.unwrap();
    let ran = run.ended().await.unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
    for word in ["lost contact", "back in contact", "This turn was interrupted", "going on"] {
        assert_eq!(ran.stderr.matches(word).count(), 1, "{word}: {ran:?}");
    }
}

/// 5: the server does not come back. The input is safe, and its id is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_away_ends_with_five() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let words = ["run", "--session", "s", "--request-id", "r", "--reconnect", "1", "count"];
    let run = everturn(&home, &words).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    server.kill();
    let ran = run.ended().await.unwrap();
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("(lost_contact)") && ran.stderr.contains("inp_"), "{ran:?}");
    // What it left behind says server, and is none: the same command does the work itself.
    assert!(home.path().join("server.json").exists());
    let words = ["run", "--model", &model, "--session", "s", "--request-id", "r", "count"];
    let ran = ended(&home, &words).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
}

/// 4 through a server: the session's policy continues nothing by itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_that_policy_leaves_ends_with_four() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let policy = json!({ "id": "s", "policy": { "auto_continue": { "enabled": false } } });
    home.client().unwrap().post("/v1/sessions", &policy).await.unwrap().expect(201).unwrap();
    let run = everturn(&home, &["run", "--session", "s", "count"]).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    server.restart().await.unwrap();
    let ran = run.ended().await.unwrap();
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stdout.starts_with("one two three") && !ran.stdout.contains("twenty"), "{ran:?}");
}

/// SIGTERM: the turn ends, reads are answered meanwhile, and it leaves with 0.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_drains_and_then_leaves() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let run = everturn(&home, &["run", "--session", "s", "count"]).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    server.process.signal(Signal::TERM).unwrap();
    server.process.err.wait_for_text("draining: 1 turn is running").await.unwrap();
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["state"], "running", "{shown}");
    let refused = ended(&home, &["run", "--session", "t", "--reconnect", "0", "hello"]).await;
    assert!(refused.stderr.contains("(draining)"), "{refused:?}");
    let ran = run.ended().await.unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), SLOW_TEXT), "{ran:?}");
    assert!(server.process.wait().await.unwrap().success());
    assert!(!home.path().join("server.json").exists());
}

/// A second signal ends it at once, and nothing is lost by that.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    let accepted = client.say("s", "r", "hang").await.unwrap();
    let run = everturn(&home, &["attach", "s", "--after", "0"]).start().unwrap();
    run.out.wait_for_text("So far, ").await.unwrap();
    server.process.signal(Signal::TERM).unwrap();
    server.process.err.wait_for_text("draining").await.unwrap();
    server.process.signal(Signal::TERM).unwrap();
    let status = server.process.wait().await.unwrap();
    assert_eq!(status.code(), Some(143));
    server.restart().await.unwrap();
    let input = home.client().unwrap().outcome(&accepted.input_id).await.unwrap();
    assert_eq!(input["outcome"], "completed");
}

/// What cannot work is refused at the start, with a code and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_at_the_start() {
    let home = Home::new().unwrap();
    let serve =
        |words: &[&str]| everturn(&home, &[&["serve", "--model", "script/demo"], words].concat());
    let file = home.work().join("a-file");
    std::fs::write(&file, "").unwrap();
    let file = file.display().to_string();
    for (words, code) in [
        (&["--listen", "0.0.0.0:0"][..], "(open_bind)"),
        (&["--listen", "127.0.0.1:0", "--workspace", "/nowhere"], "(workspace_unusable)"),
        (&["--listen", "127.0.0.1:0", "--home", &file], "(home_unusable)"),
        (&["--listen", "127.0.0.1:0", "--store", &file], "(storage_unavailable)"),
        (&["--listen", "127.0.0.1:0", "--store", "/proc/nowhere"], "(storage_unavailable)"),
        (&["--listen", "127.0.0.1:0", "--model", "script/nowhere"], "(script_unreadable)"),
    ] {
        let refused = serve(words).run().await.unwrap();
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (Some(1), ""),
            "{words:?}: {refused:?}"
        );
        assert!(refused.stderr.contains(code), "{words:?}: {refused:?}");
        assert!(refused.stderr.contains("hint: "), "{words:?}: {refused:?}");
    }
    let first = home.serve("script/demo").unwrap().start().await.unwrap();
    let taken = first.address.strip_prefix("http://").unwrap();
    let refused = serve(&["--listen", taken]).run().await.unwrap();
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("(listen_failed)"), "{refused:?}");
}

/// Two servers on one home: the command line keeps to the first, and finds the second when the first
/// is gone, also without a word from it.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_home_are_found_one_after_the_other() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let mut first = home.serve(&model).unwrap().start().await.unwrap();
    let second = home.serve(&model).unwrap().start().await.unwrap();
    second.process.err.wait_for_text("another server of this home is running").await.unwrap();
    let address = || {
        let text = std::fs::read_to_string(home.path().join("server.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&text).ok()?["address"].as_str().map(str::to_owned)
    };
    assert_eq!(address().as_ref(), Some(&first.address));
    assert_eq!(stdout(&home, &["run", "hello"]).await, "You said hello.\n");
    first.kill();
    everturn_sim::wait::until("the second server's announcement", || async {
        Ok((address().as_ref() == Some(&second.address)).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(stdout(&home, &["run", "hello"]).await, "You said hello.\n");
}
