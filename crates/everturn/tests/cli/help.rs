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
        &["serve", "--listen", "nowhere"],
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

/// Nothing typed: the help, and the exit code of a question that was not understood.
#[tokio::test]
async fn nothing_typed_is_answered_with_the_help() {
    let ended = bare(&[]).run().await.unwrap();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("everturn serve"), "{}", ended.stderr);
}
