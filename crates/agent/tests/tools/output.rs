//! `shell`: output that is long, strange, or that nobody takes.

use everturn_agent::supervisor::{STREAM_BYTES_MAX, boot_ms};
use everturn_agent::tool::{OUTPUT_CHUNK_BYTES, RESULT_BYTES_MAX, ToolOutcome};
use serde_json::json;

use crate::bench::{Bench, PATIENCE};

/// Promise P12.
pub async fn a_long_output_keeps_head_and_tail() {
    let bench = Bench::new();
    for last in [20_000_u64, 160_000, 1_000_000] {
        let text = bench.succeed("shell", json!({"command": format!("seq 1 {last}")})).await;
        assert!(text.len() <= RESULT_BYTES_MAX, "{}", text.len());
        assert!(text.starts_with("1\n2\n3\n"));
        let (output, _) = text.rsplit_once("[exit code 0").unwrap();
        assert!(output.ends_with(&format!("\n{}\n{last}\n", last - 1)), "{last}");
        let (head, rest) = output.split_once("\n[… ").unwrap();
        let (left_out, tail) = rest.split_once(" bytes left out here …]\n").unwrap();
        let total: usize = (1..=last).map(|number| number.to_string().len() + 1).sum();
        assert_eq!(head.len() + left_out.parse::<usize>().unwrap() + tail.len(), total);
    }
}

/// Promise P12.
pub async fn pieces_are_small_and_their_sum_is_bounded() {
    let bench = Bench::new();
    let call = bench.start("shell", json!({"command": "seq 1 1000000"}));
    let (outcome, pieces) = call.end_with_shown().await;
    assert!(matches!(outcome, ToolOutcome::Succeeded(_)));
    assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= OUTPUT_CHUNK_BYTES));
    let shown = pieces.concat();
    let (numbers, note) = shown.split_once("\n[… there is more output").unwrap();
    assert!(note.len() < 200);
    assert!(numbers.len() as u64 <= STREAM_BYTES_MAX);
    assert!(numbers.len() as u64 > STREAM_BYTES_MAX - 4_096, "{}", numbers.len());
    assert!(numbers.starts_with("1\n2\n"));
}

/// Promise P12. The supervisor's peak is read by the command itself, after its output.
pub async fn a_gibibyte_takes_no_memory() {
    let bench = Bench::new();
    let command = "yes | head -c 1073741824; echo; grep VmHWM /proc/$PPID/status";
    let text = bench.succeed("shell", json!({"command": command, "timeout_s": 600})).await;
    let (_, peak) = text.rsplit_once("VmHWM:").unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 32 << 10, "the supervisor took {kib} KiB");
    assert!(text.len() <= RESULT_BYTES_MAX);
}

pub async fn a_character_cut_in_two_is_whole_again() {
    let bench = Bench::new();
    let command = r"echo begin; printf 'a\342\202'; until [ -e go ]; do sleep 0.01; done;
        printf '\254 b\377c\360\237'";
    let mut call = bench.start("shell", json!({"command": command}));
    call.line("begin").await;
    // The first half has left the command once "a" is shown; the second half comes after.
    while !call.so_far.ends_with('a') {
        let piece = call.shown.recv().await.unwrap();
        call.so_far.push_str(&piece);
    }
    bench.put("go", "");
    let so_far = call.so_far.clone();
    let (outcome, pieces) = call.end_with_shown().await;
    let ToolOutcome::Succeeded(text) = outcome else { panic!("{outcome:?}") };
    let want = "begin\na€ b\u{fffd}c\u{fffd}";
    assert_eq!(so_far + &pieces.concat(), want);
    assert!(text.starts_with(&format!("{want}\n[exit code 0")), "{text}");
}

/// 100 MB take a fraction of a second if somebody takes them; here nobody does, so the command is
/// still at it when its time is up, and the time limit works all the same.
pub async fn slow_viewers_hold_the_command_back() {
    let bench = Bench::new();
    let arguments = json!({"command": "yes | head -c 100000000", "timeout_s": 2});
    let call = bench.start_with("shell", arguments, boot_ms() + 600_000, 1);
    let outcome = call.task.await.unwrap();
    let ToolOutcome::Failed(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("[ended at its time limit of 2 s"), "{text}");
    drop(call.shown);
}

/// The command can end while what it wrote is still on its way.
pub async fn a_late_viewer_misses_nothing() {
    let bench = Bench::new();
    let arguments = json!({"command": "echo pid $$; seq 1 18000"});
    let mut call = bench.start_with("shell", arguments, boot_ms() + 600_000, 1);
    let process = call.process("pid ").await;
    assert!(process.gone_within(PATIENCE));
    let so_far = call.so_far.clone();
    let (outcome, pieces) = call.end_with_shown().await;
    assert!(matches!(outcome, ToolOutcome::Succeeded(_)), "{outcome:?}");
    let shown = so_far + &pieces.concat();
    let numbers = shown.lines().skip(1).map(|line| line.parse::<u32>().unwrap());
    assert!(numbers.eq(1..=18_000));
}

pub async fn a_stop_does_not_wait_for_viewers() {
    let bench = Bench::new();
    let arguments = json!({"command": "echo pid $$; exec yes"});
    let mut call = bench.start_with("shell", arguments, boot_ms() + 600_000, 1);
    let process = call.process("pid ").await;
    call.cancel.cancel();
    let outcome = call.task.await.unwrap();
    assert!(matches!(outcome, ToolOutcome::Unknown(_)), "{outcome:?}");
    process.assert_gone_already();
    drop(call.shown);
}

pub async fn viewers_that_leave_hold_nothing_back() {
    let bench = Bench::new();
    let mut call = bench.start_with(
        "shell",
        json!({"command": "yes | head -c 100000000"}),
        boot_ms() + 600_000,
        1,
    );
    call.shown.recv().await.unwrap();
    call.shown.close();
    drop(call.shown);
    let outcome = call.task.await.unwrap();
    assert!(matches!(outcome, ToolOutcome::Succeeded(_)), "{outcome:?}");
}

pub async fn a_closed_output_is_not_the_end() {
    let bench = Bench::new();
    let command = "echo before; exec >/dev/null 2>&1; until [ -e go ]; do sleep 0.01; done; exit 7";
    let mut call = bench.start("shell", json!({"command": command}));
    call.line("before").await;
    bench.put("go", "");
    let outcome = call.end().await;
    let ToolOutcome::Failed(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.starts_with("before\n[exit code 7"), "{text}");
}
