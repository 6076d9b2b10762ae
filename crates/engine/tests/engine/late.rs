//! What is settled after an interruption was recorded: late records, parked turns, continuations that
//! could not begin (P5, P8, P11).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn_agent::provider::{ProviderError, ProviderErrorKind};
use everturn_core::recovery::Parked;
use everturn_core::{
    AutoContinue, CallState, Cause, Effect, MessageKind, Outcome, Role, TerminalState,
};
use everturn_engine::engine::NewSession;
use everturn_engine::{Config, Scope};
use everturn_store::{Clock, SystemClock};
use tokio::sync::mpsc;

use crate::bench::{Node, Say, Shifted, event, key, open, open_with, tool, within};

/// A node that never renews: its lease runs out under it while it works.
fn never_renews(config: &mut Config) {
    config.lease = Duration::from_millis(300);
    config.renew = Duration::from_secs(3_600);
}

async fn session(node: &Node, auto_continue: bool) {
    let mut new = NewSession::default();
    new.policy.auto_continue = AutoContinue { enabled: auto_continue, ..AutoContinue::default() };
    node.engine.create_session(key("s"), new).await.unwrap();
}

/// P8, P11: what a cut-off node still held changes nothing of its run, and comes to the transcript
/// above the marker, once, through whoever owns the session.
#[tokio::test]
async fn what_a_cut_off_node_still_held_is_put_above_the_marker() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), never_renews).await;
    session(&first, false).await;
    let (pieces, receiver) = mpsc::channel(8);
    first.model.says(Say::Stream(receiver));
    first.say("s", "r1", "go").await;
    let mut here = first.feed("s", Some(0)).await;
    pieces.send("one ".to_owned()).await.unwrap();
    event(&mut here, "text.delta").await;

    let second = open(home.path(), |_| {}).await;
    let mut viewer = second.engine.session_stream(&key("s"), Some(0), true).await.unwrap();
    event(&mut viewer, "run.interrupted").await;
    let run = second.last_run("s").await;
    assert_eq!((run.cause, run.late.is_some()), (Some(Cause::SplitBrain), true));
    let journal = second.journal(&run).await;

    pieces.send("two".to_owned()).await.unwrap();
    let row = event(&mut viewer, "message.updated").await["message"].clone();
    assert_eq!((row["text"].as_str(), row["recovered"].as_bool()), (Some("one two"), Some(true)));
    let marker = event(&mut viewer, "message.updated").await["message"].clone();
    assert_eq!(marker["kind"], "interruption");
    assert_eq!(second.journal(&run).await, journal, "the run has its end and nothing after it");
    let rows = second.transcript("s").await;
    let kinds: Vec<_> = rows.iter().map(|row| (row.role, row.kind)).collect();
    assert_eq!(
        kinds,
        [
            (Role::User, MessageKind::Message),
            (Role::Assistant, MessageKind::Message),
            (Role::System, MessageKind::Interruption),
        ]
    );
    assert_eq!(second.last_run("s").await.late, None);
    // The model knows what was said.
    let input = second.say("s", "r2", "and?").await;
    second.ended(&input.id).await;
    assert!(format!("{:?}", second.model.request(0).messages).contains("one two"));
    first.engine.close().await;
    second.engine.close().await;
}

/// P9: a call whose outcome was unknown gets it when the cut-off node can tell.
#[tokio::test]
async fn what_a_cut_off_tool_returned_becomes_known() {
    let home = tempfile::tempdir().unwrap();
    let mut watch = None;
    let first = open(home.path(), |config: &mut Config| {
        never_renews(config);
        config.allowed_tools.insert("work".to_owned());
        watch = Some(tool(&mut config.tools, "work", Effect::Write, true));
    })
    .await;
    let watch = watch.unwrap();
    session(&first, false).await;
    first.model.says(Say::Calls("I work.", vec![("work", "{}")]));
    first.say("s", "r1", "go").await;
    within(watch.began.notified()).await;

    let second = open(home.path(), |_| {}).await;
    let mut viewer = second.engine.session_stream(&key("s"), Some(0), true).await.unwrap();
    event(&mut viewer, "run.interrupted").await;
    let run = second.last_run("s").await;
    let calls = second.engine.read().run_calls(&run.id).await.unwrap();
    assert_eq!(calls[0].state, CallState::Unknown);
    watch.gate.add_permits(1);
    let card = event(&mut viewer, "message.updated").await["message"]["tool_calls"][0].clone();
    assert_eq!(
        (card["state"].as_str(), card["result"].as_str()),
        (Some("succeeded"), Some("run 1"))
    );
    assert_eq!(watch.count(), 1, "and it ran once");
    first.engine.close().await;
    second.engine.close().await;
}

/// Counterpart of `test_concurrent_get_session_serializes_lazy_journal_retry`: readers never wait,
/// and one look serves all who ask meanwhile. A sealed journal that is empty counts the looks.
#[tokio::test]
async fn readers_ask_for_one_look_at_a_time_and_never_wait() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), never_renews).await;
    session(&first, false).await;
    let (pieces, receiver) = mpsc::channel(8);
    first.model.says(Say::Stream(receiver));
    first.say("s", "r1", "go").await;
    first.model.asked(1).await;
    let second = open(home.path(), |_| {}).await;
    let mut feed = second.feed("s", Some(0)).await;
    event(&mut feed, "run.interrupted").await;
    // It has nothing more to say, and says so. (Its end is what it cannot write.)
    drop(pieces);
    within(async {
        while first.engine.turns() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let attempts = async || second.last_run("s").await.late.map(|late| late.attempts);
    let before = attempts().await.unwrap();
    // This task does not yield while it asks: whatever is asked meanwhile is one look.
    for _ in 0..100 {
        second.engine.look_late(&key("s"));
    }
    within(async {
        while attempts().await == Some(before) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(attempts().await.unwrap() <= before + 2, "a look for each reader");
    // In the end it is given up, and the marker says what is not known.
    within(async {
        while attempts().await.is_some() {
            second.engine.look_late(&key("s"));
            tokio::task::yield_now().await;
        }
    })
    .await;
    let marker = second.transcript("s").await.pop().unwrap().content.plain();
    assert!(marker.contains("did not arrive"), "{marker}");
    first.engine.close().await;
    second.engine.close().await;
}

/// Leaves session `s` in the middle of a turn.
async fn left(home: &Path, set: impl FnOnce(&mut Config)) {
    let node = open(home, |config: &mut Config| {
        config.drain_timeout = Duration::from_millis(1);
        set(config);
    })
    .await;
    let (_pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    node.say("s", "r1", "go").await;
    node.model.asked(1).await;
    node.engine.close().await;
}

/// Counterpart of `test_failed_agent_build_leaves_marker_for_retry`: the continuation fails visibly,
/// spends no attempt, and is tried again later.
#[tokio::test]
async fn a_continuation_that_cannot_begin_is_tried_again() {
    let home = tempfile::tempdir().unwrap();
    // Admitted here and never claimed: this node leaves.
    left(home.path(), |_| {}).await;
    let refuses = ProviderError {
        kind: ProviderErrorKind::Unauthorized,
        message: "no key".to_owned(),
        retry_after: None,
    };
    let node = refusing(home.path(), refuses).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.failed").await;
    let failed = node.last_run("s").await;
    assert_eq!((failed.attempt, failed.terminal_state), (1, Some(TerminalState::Failed)));
    assert_eq!(failed.error.as_ref().map(|error| error.code.as_str()), Some("model_unauthorized"));
    let view = node.engine.read().session(&key("s")).await.unwrap().unwrap();
    let interrupted = view.interrupted.unwrap();
    assert_eq!(interrupted.parked, Some(Parked::Unprepared));
    assert_eq!(failed.continues.as_ref(), Some(&interrupted.id));
    node.engine.close().await;
    // The key is there when the server starts again, a little later.
    let later: Arc<dyn Clock> = Arc::new(Shifted(SystemClock::new().unwrap(), 61_000));
    let node = open_with(home.path(), later, |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    let run = node.last_run("s").await;
    assert_eq!((run.attempt, run.continues), (1, Some(interrupted.id)));
    node.engine.close().await;
}

/// A node whose model refuses its first request.
async fn refusing(home: &Path, error: ProviderError) -> Node {
    let model = Arc::new(crate::bench::Model::default());
    model.says(Say::Break(Vec::new(), error));
    let models = Arc::new(crate::bench::OneModel(Arc::clone(&model)));
    let mut node = open(home, |config: &mut Config| config.models = models).await;
    node.model = model;
    node
}

/// What a process that serves one conversation found, and may not continue, a server does.
#[tokio::test]
async fn a_server_continues_what_another_process_had_to_leave() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), never_renews).await;
    let (_pieces, receiver) = mpsc::channel(8);
    first.model.says(Say::Stream(receiver));
    first.say("s", "r1", "go").await;
    first.model.asked(1).await;
    let chat = open(home.path(), |config: &mut Config| config.scope = Scope::Only(key("s"))).await;
    let mut feed = chat.feed("s", Some(0)).await;
    event(&mut feed, "run.interrupted").await;
    let run = chat.last_run("s").await;
    assert_eq!(run.parked, Some(Parked::NotHere));
    chat.engine.close().await;
    first.engine.close().await;
    let server = open(home.path(), |_| {}).await;
    let mut feed = server.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    assert_eq!(server.last_run("s").await.continues, Some(run.id.clone()));
    assert_eq!(server.engine.read().run(&run.id).await.unwrap().unwrap().parked, None);
    server.engine.close().await;
}

/// A day without a decision closes the matter, and says so.
#[tokio::test]
async fn what_nobody_decides_about_is_closed_after_a_day() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        config.drain_timeout = Duration::from_millis(1);
    })
    .await;
    session(&node, false).await;
    let (_pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    node.say("s", "r1", "go").await;
    node.model.asked(1).await;
    node.engine.close().await;
    let later: Arc<dyn Clock> = Arc::new(Shifted(SystemClock::new().unwrap(), 86_400_000 + 60_000));
    let node = open_with(home.path(), later, |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    within(async {
        loop {
            if event(&mut feed, "message.added").await["message"]["kind"] == "note" {
                return;
            }
        }
    })
    .await;
    let view = node.engine.read().session(&key("s")).await.unwrap().unwrap();
    assert!(view.interrupted.is_none());
    let input = node.say("s", "r2", "hello").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    node.engine.close().await;
}

/// A start is not stopped by a session whose holder turns out to live: it renewed its lease between the
/// look and the record.
#[tokio::test]
async fn a_lease_that_is_renewed_during_a_start_is_left_to_its_holder() {
    for _ in 0..20 {
        let home = tempfile::tempdir().unwrap();
        let first = open(home.path(), |config: &mut Config| {
            // It is late again and again, and comes back.
            config.lease = Duration::from_millis(30);
            config.renew = Duration::from_millis(60);
            config.poll = Duration::from_millis(1);
        })
        .await;
        let mut sent = Vec::new();
        for number in 0..20 {
            let (pieces, receiver) = mpsc::channel(8);
            first.model.says(Say::Stream(receiver));
            first.say(&format!("s{number}"), "r1", "go").await;
            sent.push(pieces);
        }
        first.model.asked(20).await;
        let second = open(home.path(), |_| {}).await;
        drop(sent);
        first.engine.close().await;
        second.engine.close().await;
    }
}
