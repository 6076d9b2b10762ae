//! What several tests need.

use std::path::{Path, PathBuf};

use everturn_sim::check::Checker;
use everturn_sim::client::{Accepted, Client};
use everturn_sim::follow::{Follower, Record};
use everturn_sim::history;
use everturn_sim::openai::OpenAi;
use everturn_sim::process::{Ended, Spec};
use everturn_sim::server::{Home, ServerSpec};
use rustix::fs::{CWD, Mode};
use serde_json::Value;

/// The model that the OpenAI-compatible test server answers as.
pub(crate) const OPENAI: &str = "openai/test-model";

/// A process whose model is the test server.
pub(crate) fn with_openai(spec: Spec, openai: &OpenAi) -> Spec {
    spec.env("OPENAI_API_KEY", "test-key").env("OPENAI_BASE_URL", openai.base_url())
}

/// A server whose model is the test server.
pub(crate) fn serve_openai(home: &Home, openai: &OpenAi) -> ServerSpec {
    home.serve(OPENAI)
        .unwrap()
        .env("OPENAI_API_KEY", "test-key")
        .env("OPENAI_BASE_URL", openai.base_url())
}

/// `everturn run`, with what else is said.
pub(crate) fn run(home: &Home, openai: &OpenAi, args: &[&str]) -> Spec {
    with_openai(home.everturn("run").unwrap().args(["--model", OPENAI]), openai)
        .args(args.iter().copied())
}

/// A command of the binary, run to its end.
pub(crate) async fn command(home: &Home, name: &str, args: &[&str]) -> Ended {
    home.everturn(name).unwrap().args(args.iter().copied()).run().await.unwrap()
}

/// A command that must succeed; what it wrote to stdout.
pub(crate) async fn stdout(home: &Home, name: &str, args: &[&str]) -> String {
    let ended = command(home, name, args).await;
    assert_eq!(ended.code, Some(0), "{name} {args:?}: {ended:?}");
    ended.stdout
}

/// The seed of a test with random choices: `EVERTURN_SEED`, else a new one; said in either case.
#[allow(clippy::print_stdout, reason = "a failure is repeated with it")]
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is not a number"),
        Err(_) => u64::from(rand::random::<u32>()),
    };
    println!("EVERTURN_SEED={seed}");
    seed
}

/// Checks these sessions, with what clients know of them.
pub(crate) async fn verify(
    client: &Client,
    sessions: &[&str],
    accepted: Vec<Accepted>,
    seen: Vec<(String, Record)>,
) {
    verify_with(client, sessions, accepted, seen, |_| {}).await;
}

/// As [`verify`], with more to check.
pub(crate) async fn verify_with(
    client: &Client,
    sessions: &[&str],
    accepted: Vec<Accepted>,
    seen: Vec<(String, Record)>,
    more: impl FnOnce(&mut Checker<'_>),
) {
    let names = sessions.iter().map(|name| (*name).to_owned());
    let sessions = history::read(client, names).await.unwrap();
    let mut checker = Checker { sessions, accepted, seen, ..Checker::default() };
    more(&mut checker);
    checker.verify().unwrap();
}

/// What a follower saw, for the checker.
pub(crate) fn seen(follower: Follower) -> (String, Record) {
    let session = follower.session().to_owned();
    (session, follower.stop())
}

/// A named pipe in the tools' workspace. A command that reads from it waits until something is
/// written; [`let_go`] does.
pub(crate) fn fifo(home: &Home, name: &str) -> PathBuf {
    let path = home.work().join(name);
    rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    path
}

/// Writes a line into a named pipe, once somebody reads it.
pub(crate) async fn let_go(fifo: &Path) {
    let fifo = fifo.to_owned();
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "go\n").unwrap()).await.unwrap();
}

/// Waits until a file has this many lines.
pub(crate) async fn wait_for_lines(path: &Path, count: usize) {
    everturn_sim::wait::until(&format!("{count} lines in {}", path.display()), || async {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Ok((text.lines().count() >= count).then_some(()))
    })
    .await
    .unwrap();
}

/// Lines of a file.
pub(crate) fn count_lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// The ids of a session's runs, oldest first.
pub(crate) fn runs(record: &Record) -> Vec<String> {
    let started = record.events.iter().filter(|seen| seen.event == "run.started");
    started.map(|seen| seen.json()["run_id"].as_str().unwrap().to_owned()).collect()
}

/// A text in JSON.
pub(crate) fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}
