//! The benchmark program works: a short run of all of it gives a complete table.

use everturn_sim::process::{Spec, binary};

#[tokio::test(flavor = "multi_thread")]
async fn a_short_run_of_the_benchmarks_gives_a_complete_table() {
    let spec = Spec::new(env!("CARGO_BIN_EXE_bench"))
        .arg("--quick")
        .env("EVERTURN_BIN", binary().unwrap());
    let mut process = spec.start().unwrap();
    let status = process.wait_for(std::time::Duration::from_secs(150)).await.unwrap();
    let ended = process.ended().await.unwrap();
    assert!(status.success(), "{ended:?}");
    for (row, judged) in everturn_sim_rows() {
        let lines: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with(row)).collect();
        assert!(!lines.is_empty(), "{row}: {}", ended.stdout);
        for line in lines {
            let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [_, measured, beside, budget, verdict] = cells[..] else {
                panic!("{line:?} in {}", ended.stdout)
            };
            let numbers = measured.contains(|c: char| c.is_ascii_digit());
            assert!(numbers && !beside.is_empty() && !budget.is_empty(), "{line}");
            // A short run says nothing about speed: which of the two it is is not its business.
            // A row without a budget of its own is not judged, and says so.
            let expected: &[&str] = if judged { &["met", "NOT met"] } else { &["–"] };
            assert!(expected.contains(&verdict), "{line}");
        }
    }
}

/// What is measured, and whether it is judged.
fn everturn_sim_rows() -> [(&'static str, bool); 10] {
    [
        ("journal append", true),
        ("admission, 1 client ", false),
        ("admission, 8 clients", false),
        ("admission, 64 clients", true),
        ("first token, 1 turn ", false),
        ("first token, 100 turns", true),
        ("replay", true),
        ("first page", true),
        ("start with interrupted turns", true),
        ("memory", true),
    ]
}
