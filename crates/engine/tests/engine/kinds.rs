//! Faults that several other systems had, each on its own: what happens around a death, and at the
//! edges of a turn (P3–P6, P8, P9, P13).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use everturn_agent::provider::{
    ModelEvent, ModelReply, ModelRequest, ModelStream, Provider, ProviderError,
};
use everturn_core::digest;
use everturn_core::event::Record;
use everturn_core::{
    AutoContinue, CallState, Content, Effect, Failure, InputKind, LeaseExpiry, Mode, NodeId,
    Outcome, Principal, PromptState, RequestId, RunState, TerminalState,
};
use everturn_engine::live::{Item, RunCursor};
use everturn_engine::{Config, Engine, EngineError, Models};
use everturn_store::memory::MemoryStore;
use everturn_store::op::{Admit, Claimer};
use everturn_store::read::StoredEvent;
use everturn_store::{
    OpError, Read, Refusal, Signal, StorageError, StorageErrorKind, Store, SystemClock, TurnLease,
    execute,
};
use tokio::sync::mpsc;

use crate::bench::{Model, Node, OneModel, Say, dies_after, event, key, open, tool, within};

/// A model that notices when it is asked twice at the same time for one conversation.
#[derive(Default)]
struct Alone {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Provider for Alone {
    fn model(&self) -> &str {
        "test/model"
    }

    async fn request(&self, _: ModelRequest) -> Result<ModelStream, ProviderError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Box::pin(futures::stream::iter([
            Ok(ModelEvent::Text("ok".to_owned())),
            Ok(ModelEvent::Done(ModelReply::default())),
        ])))
    }
}

struct AloneModels(Arc<Alone>);

#[async_trait]
impl Models for AloneModels {
    async fn provider(&self, _: &str) -> Result<Arc<dyn Provider>, Failure> {
        Ok(self.0.clone())
    }

    fn default_model(&self) -> String {
        "test/model".to_owned()
    }
}

fn admit(session: &str, request: &str, claimer: Option<Claimer>) -> Admit {
    let content = Content::text(request);
    Admit {
        key: key(session),
        request_id: RequestId::new(request).unwrap(),
        digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
        mode: Mode::Queue,
        content,
        metadata: None,
        queue_max: 1_000,
        sessions_max: 1_000,
        auto_continue: AutoContinue::default(),
        claimer,
    }
}

/// A turn that was begun by a node which is gone: its records are written as that node would.
async fn abandoned(store: &Arc<MemoryStore>, session: &str, records: Vec<Record>) {
    let node = NodeId::new("node_dead").unwrap();
    let boot = store.clock().boot();
    let expiry = LeaseExpiry { boot_ms: boot.boot_ms + 3_600_000, ..boot };
    let (sender, claimed) = std::sync::mpsc::channel();
    store.set_sink(Arc::new(move |committed| {
        for signal in committed.signals {
            if let Signal::Claimed(turn) = signal {
                sender.send(turn.fence.clone()).unwrap();
            }
        }
    }));
    let default_model = "test/model".to_owned();
    let claimer = Claimer { node: node.clone(), expiry, default_model, workspace: String::new() };
    execute(&**store, admit(session, "r0", Some(claimer))).await.unwrap();
    let fence = claimed.try_recv().unwrap();
    let lease = TurnLease::new(store.clone() as Arc<dyn Store>, fence);
    for (number, record) in (1..).zip(records) {
        lease.write(number, vec![record]).await.unwrap();
    }
    store.set_sink(Arc::new(|_| {}));
    store.set_gone(&node, Some(true));
}

/// Recovery races with an input that comes in, on two nodes that open at once: a thousand times, never
/// two turns at once, never a turn twice, and each input has its one outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_races_with_an_input_and_neither_is_run_twice() {
    for round in 0..1_000 {
        let first = Arc::new(MemoryStore::new(Arc::new(SystemClock::new().unwrap())));
        abandoned(&first, "s", vec![Record::TextDelta("half ".to_owned())]).await;
        let second = Arc::new(first.another(Arc::new(SystemClock::new().unwrap())));
        let third = first.another(Arc::new(SystemClock::new().unwrap()));
        let model = Arc::new(Alone::default());
        let engine = |store: &Arc<MemoryStore>, name: &str| {
            let models = Arc::new(AloneModels(Arc::clone(&model)));
            let node = NodeId::new(name).unwrap();
            let mut config = Config::new(node, "/home".to_owned(), "serve", models);
            config.poll = Duration::from_millis(5);
            // The loop breaker counts starts; it is not what this is about.
            config.loop_breaker = (100, Duration::from_secs(1));
            let store: Arc<dyn Store> = store.clone();
            tokio::spawn(async move { Engine::open(store, config).await.unwrap() })
        };
        let (one, two) = (engine(&first, "node_one"), engine(&second, "node_two"));
        let said = execute(&third, admit("s", "r1", None)).await.unwrap();
        let (one, two) = (one.await.unwrap(), two.await.unwrap());
        let (ended, _) =
            within(one.wait_input(&said.input.id, Duration::from_secs(20))).await.unwrap().unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Completed), "round {round}");
        assert_eq!(model.most.load(Ordering::SeqCst), 1, "round {round}: two agents at once");
        let runs = third.runs(&key("s"), None, 9).await.unwrap();
        let continued = runs.iter().filter(|run| run.continues.is_some()).count();
        assert!(continued <= 1 && runs.len() == 2 + continued, "round {round}: {runs:#?}");
        let mut running = false;
        for stored in third.feed(&key("s"), 0, 1_000).await.unwrap() {
            let StoredEvent::Good(row) = stored else { panic!("{stored:?}") };
            match row.head.name.as_str() {
                "run.started" => assert!(!std::mem::replace(&mut running, true), "round {round}"),
                name if everturn_core::event::is_terminal(name) => {
                    assert!(std::mem::replace(&mut running, false), "round {round}");
                }
                _ => {}
            }
        }
        one.close().await;
        two.close().await;
    }
}

/// An approval that was open when its process died blocks nothing: it is withdrawn, an answer to it
/// is told so and does not count for the next, and what comes later runs.
#[tokio::test]
async fn an_orphaned_approval_blocks_nothing() {
    let home = tempfile::tempdir().unwrap();
    let set = |config: &mut Config| {
        config.auto_continue.enabled = false;
        tool(&mut config.tools, "work", Effect::Write, false);
    };
    let orphan = dies_after(home.path(), set, |node| async move {
        node.model.says(Say::Calls("", vec![("work", "{}")]));
        let mut feed = node.feed("s", Some(0)).await;
        node.say("s", "r1", "go").await;
        event(&mut feed, "prompt.opened").await;
        let open = node.engine.read().prompts(&key("s"), PromptState::Open, None, 9).await.unwrap();
        open[0].0.clone()
    })
    .await;
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "work", Effect::Write, false));
    })
    .await;
    let read = node.engine.read();
    let (prompt, call) = read.prompt(&orphan.id).await.unwrap().unwrap();
    assert_eq!((prompt.state, call.unwrap().state), (PromptState::Withdrawn, CallState::NotRun));
    // The next turn asks for the same, and the late answer is not its.
    node.model.says(Say::Calls("", vec![("work", "{}")]));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r2", "again").await;
    let question = within(async {
        loop {
            let opened = event(&mut feed, "prompt.opened").await["prompt"].clone();
            if opened["id"] != orphan.id.as_str() {
                return opened;
            }
        }
    })
    .await;
    let yes = Some(everturn_core::Choice::Once);
    let by = Principal::local();
    let late =
        node.engine.answer(by.clone(), orphan.id.clone(), orphan.generation, yes, None).await;
    assert!(matches!(late, Err(EngineError::Op(OpError::Refused(_)))), "{late:?}");
    let watch = watch.unwrap();
    assert_eq!(watch.count(), 0);
    let id = everturn_core::PromptId::new(question["id"].as_str().unwrap()).unwrap();
    node.engine.answer(by, id, 2, yes, None).await.unwrap();
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.count(), 1);
    node.engine.close().await;
}

/// A call that was approved and under way: its question does not come again, its outcome is unknown,
/// it is not run again, and the queue moves on. The wait for the person spent no attempt.
#[tokio::test]
async fn an_approved_call_under_way_at_a_death_is_of_unknown_outcome() {
    let home = tempfile::tempdir().unwrap();
    let set = |config: &mut Config| {
        let watch = tool(&mut config.tools, "work", Effect::Write, true);
        // It never ends.
        std::mem::forget(watch);
    };
    let later = dies_after(home.path(), set, |node| async move {
        node.model.says(Say::Calls("I work.", vec![("work", "{}")]));
        let mut feed = node.feed("s", Some(0)).await;
        node.say("s", "r1", "go").await;
        let later = node.say("s", "r2", "and then").await;
        let question = event(&mut feed, "prompt.opened").await["prompt"].clone();
        let id = everturn_core::PromptId::new(question["id"].as_str().unwrap()).unwrap();
        let yes = Some(everturn_core::Choice::Once);
        node.engine.answer(Principal::local(), id, 1, yes, None).await.unwrap();
        event(&mut feed, "tool.output").await;
        later
    })
    .await;
    let mut watch = None;
    let node = open(home.path(), |config: &mut Config| {
        watch = Some(tool(&mut config.tools, "work", Effect::Write, false));
    })
    .await;
    assert_eq!(node.ended(&later.id).await.outcome, Some(Outcome::Completed));
    assert_eq!(watch.unwrap().count(), 0, "at most once");
    let read = node.engine.read();
    let runs = read.runs(&key("s"), None, 9).await.unwrap();
    let told: Vec<_> = runs.iter().rev().map(|run| (run.attempt, run.terminal_state)).collect();
    let (completed, interrupted) =
        (Some(TerminalState::Completed), Some(TerminalState::Interrupted));
    assert_eq!(told, [(0, interrupted), (1, completed), (0, completed)]);
    let calls = read.run_calls(&runs[2].id).await.unwrap();
    assert_eq!(calls[0].state, CallState::Unknown);
    let settled = read.prompts(&key("s"), PromptState::Settled, None, 9).await.unwrap();
    assert_eq!(settled.len(), 1);
    assert!(read.prompts(&key("s"), PromptState::Open, None, 9).await.unwrap().is_empty());
    let asked = format!("{:?}", node.model.request(0).messages);
    assert!(asked.contains("Nobody knows whether") && asked.contains("work {}"), "{asked}");
    node.engine.close().await;
}

/// A message comes at every point of a turn, its end included: it is accepted, waits, and is answered
/// by a turn of its own; the turn under way never sees it.
#[tokio::test]
async fn a_message_may_come_at_every_point_of_a_turn() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        config.coalesce = Duration::ZERO;
        tool(&mut config.tools, "look", Effect::Read, false);
    })
    .await;
    let mut point = 0;
    loop {
        let session = format!("s{point}");
        node.model.says(Say::Calls("I look. ", vec![("look", "{}")]));
        node.model.says(Say::Text(vec!["Here ", "it ", "is."]));
        let mut feed = node.feed(&session, Some(0)).await;
        let asked = node.model.requests.lock().unwrap().len();
        let first = node.say(&session, "r1", "one").await;
        let mut frames = 0;
        let mut over = false;
        let second = loop {
            if frames == point {
                break node.say(&session, "r2", "two").await;
            }
            if let Item::Frame(frame) = within(feed.next()).await.unwrap() {
                frames += 1;
                over |= everturn_core::event::is_terminal(&frame.head.name);
            }
        };
        let (first, second) = (node.ended(&first.id).await, node.ended(&second.id).await);
        assert_eq!(
            (first.outcome, second.outcome),
            (Some(Outcome::Completed), Some(Outcome::Completed)),
            "at point {point}"
        );
        assert_eq!((first.generation, second.generation), (Some(1), Some(2)));
        for number in asked..asked + 2 {
            let request = format!("{:?}", node.model.request(number).messages);
            assert!(!request.contains("\"two\""), "seen early at point {point}");
        }
        // Until the end was seen, and a little beyond.
        if over {
            break;
        }
        point += 1;
    }
    assert!(point > 10, "the turn had only {point} points");
    node.engine.close().await;
}

/// A run that is over before anything would be flushed by time has all its text and its end.
#[tokio::test]
async fn a_run_that_is_faster_than_any_timer_is_whole() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path(), |config: &mut Config| {
        config.coalesce = Duration::from_secs(3_600);
        config.poll = Duration::from_secs(3_600);
    })
    .await;
    node.model.says(Say::Text(vec!["a", "b", "c", "d"]));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "go").await;
    event(&mut feed, "run.completed").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    let text: String = node
        .journal(&run)
        .await
        .iter()
        .filter(|(_, name, _)| name == "text.delta")
        .map(|(_, _, bytes)| {
            let body: serde_json::Value = serde_json::from_str(bytes).unwrap();
            body["text"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(text, "abcd");
    assert_eq!(node.rows("s").await[1], ("assistant".to_owned(), "abcd".to_owned()));
    node.engine.close().await;
}

/// Who attaches between the acceptance and the first event gets the whole turn, once.
#[tokio::test]
async fn who_attaches_before_the_first_event_gets_the_whole_turn() {
    let home = tempfile::tempdir().unwrap();
    // It accepts and runs nothing.
    let front = open(home.path(), |config: &mut Config| config.turns_max = 0).await;
    let input = front.say("s", "r1", "go").await;
    let mut feed = front.feed("s", Some(0)).await;
    let mut behind = front.feed("s", None).await;
    let worker = open(home.path(), |_| {}).await;
    for stream in [&mut feed, &mut behind] {
        let mut names = Vec::new();
        loop {
            let Item::Frame(frame) = within(stream.next()).await.unwrap() else { continue };
            names.push(frame.head.name.clone());
            if frame.head.name == "run.completed" {
                break;
            }
        }
        for once in ["turn.started", "run.started", "run.completed"] {
            assert_eq!(names.iter().filter(|name| *name == once).count(), 1, "{names:?}");
        }
    }
    assert_eq!(worker.ended(&input.id).await.outcome, Some(Outcome::Completed));
    front.engine.close().await;
    worker.engine.close().await;
}

/// The store is away for longer than three leases under a turn that is well: nothing is published, and
/// the turn goes on as its own when the store is back.
#[tokio::test]
async fn a_store_that_is_away_for_three_leases_ends_no_healthy_turn() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new().unwrap())));
    let model = Arc::new(Model::default());
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let id = NodeId::new("node_test").unwrap();
    let mut config = Config::new(id, "/home".to_owned(), "serve", models);
    config.poll = Duration::from_millis(10);
    config.lease = Duration::from_millis(200);
    config.renew = Duration::from_millis(50);
    let shared: Arc<dyn Store> = store.clone();
    let node = Node { engine: Engine::open(shared, config).await.unwrap(), model };
    let (pieces, receiver) = mpsc::channel(8);
    node.model.says(Say::Stream(receiver));
    let mut feed = node.feed("s", Some(0)).await;
    let input = node.say("s", "r1", "go").await;
    pieces.send("one ".to_owned()).await.unwrap();
    event(&mut feed, "text.delta").await;
    let away = || Some(StorageError::new(StorageErrorKind::Unavailable, "away".to_owned()));
    store.set_failure(away());
    let until = store.clock().boot().boot_ms + 3 * 200 + 50;
    pieces.send("two".to_owned()).await.unwrap();
    while store.clock().boot().boot_ms < until {
        // A reader whose store is away hears nothing.
        let heard = tokio::time::timeout(Duration::from_millis(20), feed.next()).await;
        assert!(!matches!(heard, Ok(Ok(Item::Frame(_)))), "{heard:?}");
    }
    store.set_failure(None);
    assert_eq!(event(&mut feed, "text.delta").await["text"], "two");
    drop(pieces);
    event(&mut feed, "run.completed").await;
    assert_eq!(node.ended(&input.id).await.outcome, Some(Outcome::Completed));
    let run = node.last_run("s").await;
    assert_eq!((run.generation, run.attempt, run.state), (1, 0, RunState::Ended));
    node.engine.close().await;
}

/// A journal whose unfinished step is larger than what is rebuilt: recovery goes on, the row says
/// that it was cut, and the rest is in the journal.
#[tokio::test]
async fn a_tail_that_is_too_large_is_cut_and_recovery_goes_on() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new().unwrap())));
    let piece = "x".repeat(512 << 10);
    let records = (0..10).map(|_| Record::TextDelta(piece.clone())).collect();
    abandoned(&store, "s", records).await;
    let model = Arc::new(Model::default());
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let id = NodeId::new("node_test").unwrap();
    let config = Config::new(id, "/home".to_owned(), "serve", models);
    let shared: Arc<dyn Store> = store.clone();
    let node = Node { engine: Engine::open(shared, config).await.unwrap(), model };
    let mut feed = node.feed("s", Some(0)).await;
    event(&mut feed, "run.completed").await;
    let rows = node.transcript("s").await;
    let recovered = rows.iter().find(|row| row.recovered).unwrap().content.plain();
    assert!(recovered.ends_with("[the rest is in the run's journal]"));
    assert!(recovered.len() > 4 << 20 && recovered.len() < 6 << 20, "{}", recovered.len());
    let runs = node.engine.read().runs(&key("s"), None, 9).await.unwrap();
    assert_eq!(node.journal(&runs[1]).await.len(), 12, "begun, ten pieces, interrupted");
    node.engine.close().await;
}

/// A client that simply joins deltas has, over a crash, one answer in each message: a continuation is
/// another run, and the one before it has its end.
#[tokio::test]
async fn joined_deltas_are_one_answer_in_each_message() {
    let home = tempfile::tempdir().unwrap();
    dies_after(
        home.path(),
        |_| {},
        |node| async move {
            let (pieces, receiver) = mpsc::channel(8);
            node.model.says(Say::Stream(receiver));
            let mut feed = node.feed("s", Some(0)).await;
            node.say("s", "r1", "go").await;
            pieces.send("The answer ".to_owned()).await.unwrap();
            event(&mut feed, "text.delta").await;
            std::mem::forget(pieces);
        },
    )
    .await;
    let node = open(home.path(), |_| {}).await;
    let mut feed = node.feed("s", Some(0)).await;
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let Item::Frame(frame) = within(feed.next()).await.unwrap() else { continue };
        let Some((run, _)) = &frame.head.run else { continue };
        assert!(!ended.contains(&run.to_string()), "{} after its end", frame.head.name);
        if frame.head.name == "text.delta" {
            let body: serde_json::Value = serde_json::from_slice(&frame.bytes).unwrap();
            joined.entry(run.to_string()).or_default().push_str(body["text"].as_str().unwrap());
        }
        if everturn_core::event::is_terminal(&frame.head.name) {
            ended.push(run.to_string());
        }
    }
    let rows = node.transcript("s").await;
    let said: BTreeMap<String, String> = rows
        .iter()
        .filter(|row| row.role == everturn_core::Role::Assistant)
        .map(|row| (row.run_id.as_ref().unwrap().to_string(), row.content.plain()))
        .collect();
    assert_eq!(joined, said);
    assert_eq!(said.len(), 2);
    // The same from a run's own stream: it ends with its interruption.
    let runs = node.engine.read().runs(&key("s"), None, 9).await.unwrap();
    let mut first = node.engine.run_stream(runs[1].clone(), RunCursor::After(0)).await.unwrap();
    event(&mut first, "run.interrupted").await;
    assert!(matches!(within(first.next()).await.unwrap(), Item::End));
    let refused = node.engine.decide(key("s"), 1, everturn_store::op::Decision::Continue).await;
    assert_eq!(refused.unwrap_err(), EngineError::Op(OpError::Refused(Refusal::Superseded)));
    node.engine.close().await;
}
