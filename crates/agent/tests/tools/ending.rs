//! `shell`: everything that a command started ends with it, whatever ends it.

use std::time::Duration;

use everturn_agent::supervisor::boot_ms;
use everturn_agent::tool::ToolOutcome;
use serde_json::json;

use crate::bench::{Bench, PATIENCE, Process};
use crate::server;

/// Starts, detached as far as a process can be, something that ends for nothing but SIGKILL.
const STUBBORN: &str = r#"(setsid bash -c 'trap "" TERM HUP INT; echo "stubborn $BASHPID";
    while :; do sleep 1000; done' &)"#;

pub async fn the_time_limit_ends_what_left_the_session() {
    let bench = Bench::new();
    let command = format!("{STUBBORN}; echo main $$; sleep 1000");
    let mut call = bench.start("shell", json!({"command": command, "timeout_s": 2}));
    let stubborn = call.process("stubborn ").await;
    let main = call.process("main ").await;
    let outcome = call.end().await;
    let ToolOutcome::Failed(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("[ended at its time limit of 2 s"), "{text}");
    stubborn.assert_gone_already();
    main.assert_gone_already();
}

pub async fn a_stop_lets_the_command_say_goodbye() {
    let bench = Bench::new();
    let command = "trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut call = bench.start("shell", json!({"command": command}));
    call.line("ready").await;
    call.cancel.cancel();
    let outcome = call.end().await;
    let ToolOutcome::Unknown(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("goodbye\n[stopped after "), "{text}");
}

/// Promise P9: what is known not to have run says so, and leaves no trace.
pub async fn a_stop_before_the_start_runs_nothing() {
    let bench = Bench::new();
    for (tool, arguments) in [
        ("shell", json!({"command": "touch ran"})),
        ("write_file", json!({"path": "ran", "content": ""})),
    ] {
        let call = bench.start_cancelled(tool, arguments);
        let outcome = call.end().await;
        let ToolOutcome::NotRun(text) = outcome else { panic!("{tool}: {outcome:?}") };
        assert_eq!(text, "nothing was done: the turn was stopped", "{tool}");
        assert!(!bench.root.join("ran").exists(), "{tool}");
    }
}

/// Promise P11: no grace, because a successor may be at work already.
pub async fn the_deadline_kills_at_once() {
    let bench = Bench::new();
    let command = format!("{STUBBORN}; trap 'touch graced' TERM; echo main $$; sleep 1000 & wait");
    let mut call = bench.start("shell", json!({"command": command}));
    let stubborn = call.process("stubborn ").await;
    let main = call.process("main ").await;
    call.lease.send(boot_ms() + 50).unwrap();
    let outcome = call.end().await;
    let ToolOutcome::Unknown(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("about to lose this session"), "{text}");
    stubborn.assert_gone_already();
    main.assert_gone_already();
    assert!(!bench.root.join("graced").exists());
}

pub async fn a_moved_deadline_keeps_it_alive() {
    let bench = Bench::new();
    let first = boot_ms() + 3_000;
    let command = "echo up; sleep 4; echo still here";
    let mut call = bench.start_with("shell", json!({"command": command}), first, 8);
    call.line("up").await;
    call.lease.send(first + 60_000).unwrap();
    let outcome = call.end().await;
    assert!(boot_ms() > first);
    let ToolOutcome::Succeeded(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("still here"), "{text}");
}

/// Also while the command is held back because nobody takes its output, which it is long before
/// it says so.
pub async fn a_deadline_moves_while_viewers_are_slow() {
    let bench = Bench::new();
    bench.pipe("held");
    bench.pipe("late");
    let first = boot_ms() + 5_000;
    let command = "(sleep 1; echo >held; sleep 5; echo late >late) & yes | head -c 300000; wait";
    let call = bench.start_with("shell", json!({"command": command}), first, 1);
    bench.read_pipe("held").await;
    call.lease.send(first + 60_000).unwrap();
    assert_eq!(bench.read_pipe("late").await, "late\n");
    assert!(boot_ms() > first);
    let outcome = call.end().await;
    assert!(matches!(outcome, ToolOutcome::Succeeded(_)), "{outcome:?}");
}

pub async fn a_deadline_in_the_past_runs_nothing() {
    let bench = Bench::new();
    for tool in ["shell", "write_file"] {
        let arguments = match tool {
            "shell" => json!({"command": "touch ran"}),
            _ => json!({"path": "ran", "content": ""}),
        };
        let outcome = bench.start_with(tool, arguments, boot_ms(), 1).end().await;
        let ToolOutcome::NotRun(text) = outcome else { panic!("{outcome:?}") };
        assert!(text.starts_with("nothing was done"), "{text}");
        assert!(!bench.root.join("ran").exists());
    }
}

pub async fn a_dropped_call_ends_at_once() {
    let bench = Bench::new();
    let command = format!("{STUBBORN}; echo main $$; echo parent $PPID; sleep 1000");
    let mut call = bench.start("shell", json!({"command": command}));
    let stubborn = call.process("stubborn ").await;
    let main = call.process("main ").await;
    let parent = call.process("parent ").await;
    call.task.abort();
    stubborn.assert_gone();
    main.assert_gone();
    parent.assert_gone();
}

pub async fn a_child_left_behind_does_not_hold_the_call() {
    let bench = Bench::new();
    let command = format!("{STUBBORN}; sleep 1000 & echo child $!; echo over");
    let mut call = bench.start("shell", json!({"command": command}));
    let child = call.process("child ").await;
    let outcome = call.end().await;
    let ToolOutcome::Succeeded(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("over\n"), "{text}");
    assert!(text.contains("still running in the background were ended with it]"), "{text}");
    child.assert_gone_already();
    if let Some(pid) = text.lines().find_map(|line| line.strip_prefix("stubborn ")) {
        Process::of(pid).assert_gone_already();
    }
}

pub async fn a_child_that_is_nearly_done_may_finish() {
    let bench = Bench::new();
    let text = bench.succeed("shell", json!({"command": "seq 1 10000 > >(tail -n 1)"})).await;
    assert!(text.starts_with("10000\n[exit code 0"), "{text}");
    assert!(!text.contains("background"), "{text}");
}

/// Promise P9: the outcome is unknown, and says so.
pub async fn a_killed_supervisor_is_reported_and_cleaned_up_after() {
    let bench = Bench::new();
    let command = format!("{STUBBORN}; echo main $$; echo parent $PPID; sleep 1000");
    let mut call = bench.start("shell", json!({"command": command}));
    let stubborn = call.process("stubborn ").await;
    let main = call.process("main ").await;
    let parent = call.process("parent ").await;
    parent.kill();
    let outcome = call.end().await;
    let ToolOutcome::Unknown(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("the supervisor vanished"), "{text}");
    assert!(text.contains("outcome of the command is unknown"), "{text}");
    stubborn.assert_gone_already();
    main.assert_gone_already();
    parent.assert_gone_already();
}

pub async fn a_suspended_supervisor_is_woken_for_a_stop() {
    let bench = Bench::new();
    bench.pipe("held");
    let command = "echo main $$; until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; \
                   echo held >held; sleep 1000";
    let mut call = bench.start("shell", json!({"command": command}));
    let main = call.process("main ").await;
    bench.put("go", "");
    assert_eq!(bench.read_pipe("held").await, "held\n");
    call.cancel.cancel();
    let outcome = call.end().await;
    assert!(matches!(outcome, ToolOutcome::Unknown(_)), "{outcome:?}");
    main.assert_gone_already();
}

/// One that is suspended again and again is given up, and the deadline holds all the same.
pub async fn a_supervisor_that_cannot_act_is_overruled() {
    let bench = Bench::new();
    bench.pipe("held");
    let command = format!(
        "{STUBBORN}; echo main $$; until [ -e go ]; do sleep 0.01; done; \
         while :; do kill -STOP $PPID; [ -e said ] || echo held >held; touch said; done"
    );
    let mut call = bench.start("shell", json!({"command": command}));
    let stubborn = call.process("stubborn ").await;
    let main = call.process("main ").await;
    bench.put("go", "");
    assert_eq!(bench.read_pipe("held").await, "held\n");
    call.lease.send(boot_ms()).unwrap();
    let outcome = call.end().await;
    // Between two of those signals it may well have had its moment.
    assert!(!matches!(outcome, ToolOutcome::Succeeded(_)), "{outcome:?}");
    stubborn.assert_gone_already();
    main.assert_gone_already();
}

/// A process that replaces itself by a child in a new session, again and again, is at no time the
/// one that was looked at a moment ago.
pub async fn a_command_that_keeps_changing_its_id_is_caught() {
    let bench = Bench::new();
    bench.put(
        "hop",
        "#!/bin/bash\ntrap '' TERM\n[ -e stop ] && exit\necho x >>hops\nsetsid ./hop &\n",
    );
    let command = "chmod +x hop; ./hop & until [ -s hops ]; do sleep 0.01; done; echo hopping; \
                   sleep 1000";
    let mut call = bench.start("shell", json!({"command": command}));
    call.line("hopping").await;
    call.cancel.cancel();
    let outcome = call.end().await;
    let ToolOutcome::Unknown(text) = outcome else { panic!("{outcome:?}") };
    let hops = bench.text("hops").len();
    bench.put("stop", "");
    assert!(!text.contains("could not be ended"), "{text}");
    assert!(hops > 2, "it did not hop");
    assert_eq!(bench.text("hops").len(), hops, "it still hops");
}

pub async fn orphans_are_reaped_while_it_runs() {
    let bench = Bench::new();
    // Each inner shell leaves a child to the supervisor; none may remain as a zombie.
    let command = r#"for i in $(seq 30); do (sleep 0.01 & ); done
        for round in $(seq 1000); do
            left=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c "^[0-9]* (sleep) [A-Z] $PPID ")
            [ "$left" = 0 ] && echo reaped && exit 0
            sleep 0.01
        done; exit 1"#;
    let text = bench.succeed("shell", json!({"command": command})).await;
    assert!(text.starts_with("reaped\n"), "{text}");
}

/// DESIGN §5: no orphan works beside its successor.
pub async fn the_death_of_the_server_ends_everything() {
    let command = format!("{STUBBORN}; echo main $$; echo parent $PPID; sleep 1000");
    let mut server = server::Server::start(&command);
    let stubborn = Process::of(&server.line("stubborn "));
    let main = Process::of(&server.line("main "));
    let parent = Process::of(&server.line("parent "));
    assert!(!main.gone_within(Duration::ZERO) && !stubborn.gone_within(Duration::ZERO));
    server.kill();
    assert!(main.gone_within(PATIENCE) && stubborn.gone_within(PATIENCE));
    parent.assert_gone();
}
