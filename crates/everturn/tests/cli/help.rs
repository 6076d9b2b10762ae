//! Help and errors, as people read them.

use everturn_sim::server::Home;

use crate::support::{bare, ended};

/// Every help text, so that a change of one is seen.
#[tokio::test]
async fn help_says_what_each_command_does() {
    let commands: &[&[&str]] = &[
        &["--help"],
        &["serve", "--help"],
        &["run", "--help"],
        &["chat", "--help"],
        &["attach", "--help"],
        &["sessions", "--help"],
        &["sessions", "list", "--help"],
        &["sessions", "show", "--help"],
        &["sessions", "messages", "--help"],
        &["sessions", "export", "--help"],
        &["sessions", "end", "--help"],
        &["sessions", "delete", "--help"],
        &["turn", "show", "--help"],
        &["turn", "export", "--help"],
        &["import", "journal", "--help"],
        &["doctor", "--help"],
        &["config", "show", "--help"],
        &["token", "--help"],
        &["token", "create", "--help"],
        &["token", "list", "--help"],
        &["token", "revoke", "--help"],
        &["grant", "list", "--help"],
        &["grant", "revoke", "--help"],
        &["torture", "--help"],
    ];
    let mut all = String::new();
    for words in commands {
        let help = bare(words).run().await.unwrap();
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""), "{words:?}");
        all.push_str(&format!("$ everturn {}\n\n{}\n", words.join(" "), help.stdout));
    }
    insta::assert_snapshot!("help", all);
}

/// What cannot be understood ends with 2 and says why, on stderr alone.
#[tokio::test]
async fn usage_errors_end_with_two() {
    let home = Home::new().unwrap();
    let lines: &[&[&str]] = &[
        &["fly"],
        &["run"],
        &["run", ""],
        &["run", "  \n"],
        &["run", "--request-id", "r", "hello"],
        &["run", "--session", "../x", "hello"],
        &["run", "--session", "s", "--request-id", "two words", "hello"],
        &["run", "--wait", "soon", "hello"],
        &["run", "--allow", "teleport", "--model", "script/demo", "hello"],
        &["run", "--model", "foo", "hello"],
        &["run", "--model", "foo/bar", "hello"],
        &["sessions", "list", "--state", "foo"],
        &["sessions", "list", "--limit", "0"],
        &["sessions", "list", "--limit", "9999"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--log", "foo"],
        &["serve", "--config", "/nowhere.toml"],
        &["serve", "--store", "postgres://localhost/x"],
        &["serve", "--store", "mysql://localhost/x"],
        &["sessions", "show", ".hidden"],
        &["turn", "show", "what"],
        &["turn", "show", "s:x"],
        &["token", "create", "--principal", "a b"],
        &["token", "create", "--principal", "ann", "--scope", "fly"],
        &["token", "create", "--principal", "ann", "--expires", "yesterday"],
        &["import", "hermes", "/somewhere", "--follow"],
        &["torture", "--points", "claim,clam"],
        &["torture", "--fsync", "never"],
        &["torture", "--plant", "P10"],
        &["torture", "--cycles", "0"],
    ];
    let mut all = String::new();
    for words in lines {
        let ended = ended(&home, words).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{words:?}: {ended:?}");
        all.push_str(&format!("$ everturn {}\n{}\n", words.join(" "), ended.stderr));
    }
    insta::assert_snapshot!("usage_errors", all);
}

/// What is not there is named, with what to do.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_named_with_what_to_do() {
    let home = Home::new().unwrap();
    let run = ["run", "--model", "script/demo", "--session", "s", "hello"];
    assert_eq!(ended(&home, &run).await.code, Some(0));
    let journal = home.work().join("nowhere.jsonl");
    let journal = journal.to_str().unwrap();
    let lines: &[(&[&str], &str)] = &[
        (&["sessions", "show", "nope"], "there is no session nope (session_not_found)"),
        (&["sessions", "messages", "nope"], "there is no session nope (session_not_found)"),
        (&["sessions", "export", "nope"], "there is no session nope (session_not_found)"),
        (&["sessions", "end", "nope"], "there is no session nope (session_not_found)"),
        (&["sessions", "delete", "nope"], "there is no session nope (session_not_found)"),
        (&["attach", "nope"], "there is no session nope (session_not_found)"),
        (&["turn", "show", "nope:1"], "there is no session nope (session_not_found)"),
        (&["turn", "show", "s:9"], "session s has no turn 9 (run_not_found)"),
        (&["turn", "show", "run_nope"], "there is no run run_nope (run_not_found)"),
        (&["turn", "export", "inp_nope"], "there is no input inp_nope (input_not_found)"),
        (&["import", "journal", journal], "(io_failed)"),
        (&["import", "journal", "-"], "(io_failed)"),
    ];
    let mut server = None;
    for with_server in [false, true] {
        if with_server {
            server = Some(home.serve("script/demo").unwrap().start().await.unwrap());
        }
        for (words, error) in lines {
            let ended = ended(&home, words).await;
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{words:?}: {ended:?}");
            let said: Vec<_> = ended.stderr.lines().collect();
            assert!(said[0].starts_with("error: ") && said[0].ends_with(error), "{ended:?}");
            assert!(said[1].starts_with("hint: "), "{words:?}: {ended:?}");
        }
    }
    drop(server);
}

/// A model that is none makes no home.
#[tokio::test]
async fn a_model_that_is_none_leaves_no_home_behind() {
    let home = Home::new().unwrap();
    let none = home.work().join("none");
    let words = ["run", "--home", none.to_str().unwrap(), "--model", "foo", "hello"];
    let ended = ended(&home, &words).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("(model_name_invalid)"), "{ended:?}");
    assert!(!none.exists());
}

/// Nothing typed: the help, and the exit code of a question that was not understood.
#[tokio::test]
async fn nothing_typed_is_answered_with_the_help() {
    let ended = bare(&[]).run().await.unwrap();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("everturn serve"), "{}", ended.stderr);
}
