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
    for row in everturn_sim_rows() {
        let line = ended.stdout.lines().find(|line| line.starts_with(row));
        assert!(line.is_some_and(|line| line.contains("met")), "{row}: {}", ended.stdout);
    }
}

/// What DESIGN §9 has a budget for and this issue measures.
fn everturn_sim_rows() -> [&'static str; 9] {
    [
        "journal append",
        "admission, 1 client",
        "admission, 8 clients",
        "admission, 64 clients",
        "first token, 100 turns",
        "replay",
        "first page",
        "start with interrupted turns",
        "memory",
    ]
}
