//! `shell`: what a command gets and what comes back.

use everturn_agent::supervisor::Supervised;
use everturn_agent::tool::{ToolOutcome, builtin};
use serde_json::json;

use crate::bench::Bench;
use crate::server;

pub async fn both_streams_and_the_exit_code_come_back() {
    let bench = Bench::new();
    let command = "echo one; echo two >&2; echo three; exit 3";
    let text = bench.fail("shell", json!({"command": command})).await;
    assert!(text.starts_with("one\ntwo\nthree\n[exit code 3, "), "{text}");
}

pub async fn a_success_is_one() {
    let bench = Bench::new();
    let text = bench.succeed("shell", json!({"command": "printf done"})).await;
    assert!(text.starts_with("done\n[exit code 0, "), "{text}");
    assert!(text.ends_with(" s]"), "{text}");
}

pub async fn there_is_no_input_and_no_terminal() {
    let bench = Bench::new();
    let command = "cat; (: </dev/tty) 2>/dev/null || echo no terminal";
    let text = bench.succeed("shell", json!({"command": command})).await;
    assert!(text.starts_with("no terminal\n"), "{text}");
}

pub async fn it_runs_where_it_is_told() {
    let bench = Bench::new();
    bench.put("sub/file", "");
    let real = bench.root.canonicalize().unwrap();
    for (cwd, want) in [
        (json!(null), real.clone()),
        (json!("sub"), real.join("sub")),
        (json!(bench.root.join("sub")), real.join("sub")),
    ] {
        let arguments = json!({"command": "pwd", "cwd": cwd});
        let text = bench.succeed("shell", arguments).await;
        assert_eq!(text.lines().next().unwrap(), want.to_str().unwrap());
    }
}

pub async fn a_folder_outside_is_refused() {
    let bench = Bench::new();
    std::os::unix::fs::symlink(&bench.outside, bench.root.join("link")).unwrap();
    bench.put("file", "");
    for (cwd, code) in [
        ("..", "path_outside_workspace"),
        ("link", "path_outside_workspace"),
        ("/", "path_outside_workspace"),
        ("none", "path_not_found"),
        ("file", "path_not_a_folder"),
    ] {
        let text = bench.fail("shell", json!({"command": "touch ran", "cwd": cwd})).await;
        assert!(text.contains(code), "{cwd}: {text}");
    }
    assert!(!bench.root.join("ran").exists() && !bench.outside.join("ran").exists());
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "shell",
            &[
                (json!({}), "missing field `command`"),
                (json!({"command": ["ls"]}), "`command`: invalid type: sequence"),
                (json!({"command": "ls", "cmd": "ls"}), "unknown field `cmd`"),
                (json!({"command": "  "}), "`command` is empty"),
                (json!({"command": "a\0b"}), "NUL"),
                (json!({"command": "x".repeat(65_537)}), "may have 65536"),
                (json!({"command": "ls", "timeout_s": 0}), "from 1 to 600"),
                (json!({"command": "ls", "timeout_s": 601}), "from 1 to 600"),
                (json!({"command": "ls", "timeout_s": -1}), "`timeout_s`: invalid value"),
                (json!({"command": "ls", "timeout_s": "9"}), "`timeout_s`: invalid type"),
                (json!("ls"), "must be a JSON object"),
                (json!(null), "must be a JSON object"),
            ],
        )
        .await;
    // The longest command that is taken does run.
    let command = format!("true {}", "x".repeat(65_536 - 5));
    bench.succeed("shell", json!({"command": command})).await;
}

pub async fn a_signal_is_named() {
    let bench = Bench::new();
    let text = bench.fail("shell", json!({"command": "kill -SEGV $$"})).await;
    assert!(text.starts_with("[ended by signal 11 (SIGSEGV), "), "{text}");
}

pub async fn the_idempotency_key_is_in_the_environment() {
    let bench = Bench::new();
    let text = bench.succeed("shell", json!({"command": "echo $EVERTURN_IDEMPOTENCY_KEY"})).await;
    assert!(text.starts_with("key-1\n"), "{text}");
}

/// Promise P14: neither in the command's environment nor in its supervisor's.
pub async fn secrets_are_not() {
    let command = r"env; tr '\0' '\n' </proc/$PPID/environ; echo $SERVER_HAS";
    let text = server::run_elsewhere(command, |server| {
        server
            .env("SERVER_TOKEN", "hidden-1")
            .env("OPENAI_API_KEY", "hidden-2")
            .env("EVERTURN_MODEL", "hidden-3")
            .env("MY_SECRET_NAME", "hidden-4")
            .env("HTTPS_PROXY", "http://me:hidden-5@proxy")
            .env("UNHEARD_OF", "hidden-6")
            .env("LC_MESSAGES", "visible-1");
    });
    assert!(text.contains("LC_MESSAGES=visible-1"), "{text}");
    assert!(text.contains("PATH="), "{text}");
    assert!(!text.contains("hidden-"), "{text}");
    assert!(text.contains("[exit code 0"), "{text}");
}

pub async fn many_run_at_once() {
    let bench = Bench::new();
    let calls: Vec<_> = (0..24)
        .map(|n| bench.start("shell", json!({"command": format!("echo number {n}")})))
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let ToolOutcome::Succeeded(text) = call.end().await else { panic!() };
        assert!(text.starts_with(&format!("number {n}\n")), "{text}");
    }
}

pub async fn a_missing_supervisor_is_an_error_with_a_hint() {
    let mut bench = Bench::new();
    bench.tools = builtin(bench.workspace.clone(), Supervised::new("/nonexistent/everturn"));
    let text = bench.fail("shell", json!({"command": "touch ran"})).await;
    assert!(text.contains("supervisor_unavailable") && text.contains("check its limits"), "{text}");
    assert!(!bench.root.join("ran").exists());
}

pub async fn a_helper_that_is_none_is_noticed() {
    for helper in ["/bin/cat", "/bin/true", "/bin/echo"] {
        let mut bench = Bench::new();
        bench.tools = builtin(bench.workspace.clone(), Supervised::new(helper));
        // What a stranger did with the command is not known; one that ended before it was told the
        // command did nothing with it. Which of them a stranger is that ends at once is a race.
        let text = match bench.run("shell", json!({"command": "touch ran"})).await {
            ToolOutcome::Unknown(text) => text,
            ToolOutcome::Failed(text) if text.contains("did not run") => text,
            outcome => panic!("{helper}: {outcome:?}"),
        };
        assert!(text.contains("supervisor"), "{helper}: {text}");
        assert!(!bench.root.join("ran").exists(), "{helper}");
    }
}
