//! `everturn torture`, as a person reads it.

use everturn_sim::process::Spec;

/// A small run of it: the table, the sum, and exit code 0. (That it fails where something is wrong is
/// shown beside the harness, in `crates/sim/tests/e2e/torture.rs`.)
#[tokio::test]
async fn a_run_ends_with_a_table_that_can_be_read() {
    let args = ["torture", "--points", "settle.committed,stop.committed", "--seed", "7"];
    let ended = Spec::everturn().unwrap().args(args).run().await.unwrap();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+\.\d s", "[TIME]");
    settings.bind(|| insta::assert_snapshot!("torture", ended.stdout));
}
