//! `everturn torture`, as a person reads it.

use everturn_sim::process::Spec;
use everturn_sim::server::processes_with;
use everturn_sim::wait;
use rustix::process::Signal;

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

/// Ctrl-C ends it with everything that it started: no server goes on, no folder is left.
#[tokio::test]
async fn whoever_stops_it_finds_nothing_of_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["torture", "--points", "kill", "--seconds", "600"];
    let process =
        Spec::everturn().unwrap().args(args).env("TMPDIR", folder.path()).start().unwrap();
    let here = folder.path().display().to_string();
    wait::until("a server", || async { Ok((processes_with(&here)?.len() > 1).then_some(())) })
        .await
        .unwrap();
    process.signal(Signal::INT).unwrap();
    let ended = process.ended().await.unwrap();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    // Commands of those servers end with them, a moment later.
    wait::until("nothing", || async { Ok(processes_with(&here)?.is_empty().then_some(())) })
        .await
        .unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
