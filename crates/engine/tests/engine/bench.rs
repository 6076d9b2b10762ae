//! The test bench: a home, a model that says what a test tells it to, tools that a test watches.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use everturn_agent::provider::{
    ModelEvent, ModelReply, ModelRequest, ModelStream, Provider, ProviderError, ProviderErrorKind,
    RequestedCall,
};
use everturn_agent::tool::{Registry, Tool, ToolInvocation, ToolOutcome, ToolSpec};
use everturn_core::view::ViewMessage;
use everturn_core::{
    Content, Effect, Failure, Input, InputId, InputStatus, Message, Mode, Principal, RequestId,
    Run, SessionId, SessionKey,
};
use everturn_engine::engine::Submission;
use everturn_engine::live::{Item, RunCursor, Stream};
use everturn_engine::{Config, Engine, Models};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::{Clock, Store, SystemClock};
use tokio::sync::{Notify, Semaphore, mpsc};

/// What the model does with one request.
pub enum Say {
    /// Sends these pieces and is done.
    Text(Vec<&'static str>),
    /// Sends a piece for each permit, and is done when the sender is dropped.
    Stream(mpsc::Receiver<String>),
    /// Says something and asks for tools: (name, arguments).
    Calls(&'static str, Vec<(&'static str, &'static str)>),
    /// Says something and is done with this reply.
    Reply(&'static str, ModelReply),
    /// Sends these pieces, then fails.
    Break(Vec<&'static str>, ProviderError),
}

#[derive(Default)]
pub struct Model {
    pub script: Mutex<VecDeque<Say>>,
    pub requests: Mutex<Vec<ModelRequest>>,
    pub asked: Notify,
    pub context_tokens: Mutex<Option<u64>>,
    /// Whether it says that it goes on writing its own last message.
    pub in_place: AtomicBool,
    /// How it refuses to, all the same.
    pub refuses: Mutex<Option<ProviderErrorKind>>,
}

impl Model {
    pub fn says(&self, say: Say) {
        self.script.lock().unwrap().push_back(say);
    }

    /// Waits until the model was asked `count` times.
    pub async fn asked(&self, count: usize) {
        within(async {
            loop {
                let mut asked = std::pin::pin!(self.asked.notified());
                asked.as_mut().enable();
                if self.requests.lock().unwrap().len() >= count {
                    return;
                }
                asked.await;
            }
        })
        .await;
    }

    pub fn request(&self, number: usize) -> ModelRequest {
        self.requests.lock().unwrap()[number].clone()
    }
}

#[async_trait]
impl Provider for Model {
    fn model(&self) -> &str {
        "test/model"
    }

    fn context_tokens(&self) -> Option<u64> {
        *self.context_tokens.lock().unwrap()
    }

    fn continues_partial(&self) -> bool {
        self.in_place.load(Ordering::Relaxed)
    }

    async fn request(&self, request: ModelRequest) -> Result<ModelStream, ProviderError> {
        let goes_on = request.continues_partial();
        assert!(!goes_on || self.continues_partial(), "ends with something to answer");
        assert_legal(&request.messages);
        let refusal = *self.refuses.lock().unwrap();
        if let Some(kind) = refusal.filter(|_| goes_on) {
            self.requests.lock().unwrap().push(request);
            self.asked.notify_waiters();
            return Err(ProviderError {
                kind,
                message: "the conversation must end with the user".to_owned(),
                retry_after: None,
            });
        }
        let last = request.messages.iter().rev().find_map(|message| match message {
            ViewMessage::User(content) => Some(content.plain()),
            _ => None,
        });
        // Its answer is taken before anybody is told that it asked: what is said then is for others.
        let say = self.script.lock().unwrap().pop_front();
        self.requests.lock().unwrap().push(request);
        self.asked.notify_waiters();
        let done = |calls| Ok(ModelEvent::Done(ModelReply { calls, usage: None, cut: None }));
        let text = |piece: &str| Ok(ModelEvent::Text(piece.to_owned()));
        let events: ModelStream = match say {
            None => {
                let answer = format!("you said: {}", last.unwrap_or_default());
                Box::pin(futures::stream::iter([text(&answer), done(Vec::new())]))
            }
            Some(Say::Text(pieces)) => {
                let mut events: Vec<_> = pieces.into_iter().map(text).collect();
                events.push(done(Vec::new()));
                Box::pin(futures::stream::iter(events))
            }
            Some(Say::Stream(pieces)) => {
                Box::pin(futures::stream::unfold(Some(pieces), |pieces| async {
                    let mut pieces = pieces?;
                    Some(match pieces.recv().await {
                        Some(piece) => (Ok(ModelEvent::Text(piece)), Some(pieces)),
                        None => (Ok(ModelEvent::Done(ModelReply::default())), None),
                    })
                }))
            }
            Some(Say::Calls(said, calls)) => {
                let calls = calls
                    .into_iter()
                    .map(|(name, arguments)| RequestedCall {
                        provider_id: "call_0".to_owned(),
                        name: name.to_owned(),
                        arguments: arguments.to_owned(),
                    })
                    .collect();
                Box::pin(futures::stream::iter([text(said), done(calls)]))
            }
            Some(Say::Reply(said, reply)) => {
                Box::pin(futures::stream::iter([text(said), Ok(ModelEvent::Done(reply))]))
            }
            Some(Say::Break(pieces, error)) => {
                let mut events: Vec<_> = pieces.into_iter().map(text).collect();
                events.push(Err(error));
                Box::pin(futures::stream::iter(events))
            }
        };
        Ok(events)
    }
}

/// Every request is a conversation that a strict provider would take.
fn assert_legal(messages: &[ViewMessage]) {
    assert!(matches!(messages.first(), Some(ViewMessage::User(_))), "begins with the user");
    let mut open: VecDeque<String> = VecDeque::new();
    let mut seen = std::collections::HashSet::new();
    let mut user_before = false;
    for message in messages {
        match message {
            ViewMessage::User(_) => {
                assert!(open.is_empty(), "a call is not answered");
                assert!(!user_before, "two user messages in a row");
                user_before = true;
            }
            ViewMessage::Assistant { calls, .. } => {
                assert!(open.is_empty(), "a call is not answered");
                user_before = false;
                for call in calls {
                    assert!(seen.insert(call.id.clone()), "a call id twice");
                    open.push_back(call.id.clone());
                }
            }
            ViewMessage::ToolResult { call_id, .. } => {
                assert_eq!(open.pop_front().as_ref(), Some(call_id), "an orphan result");
            }
        }
    }
    assert!(open.is_empty(), "a call is not answered");
}

pub struct OneModel(pub Arc<Model>);

#[async_trait]
impl Models for OneModel {
    async fn provider(&self, model: &str) -> Result<Arc<dyn Provider>, Failure> {
        if model == "test/model" {
            return Ok(self.0.clone());
        }
        Err(Failure {
            code: "model_misconfigured".to_owned(),
            message: format!("there is no {model}"),
            permanent: true,
            hint: None,
        })
    }

    fn default_model(&self) -> String {
        "test/model".to_owned()
    }
}

/// A tool that counts its runs and, if it has a gate, waits at it.
pub struct Counting {
    spec: ToolSpec,
    pub runs: Arc<Mutex<Vec<String>>>,
    gate: Option<Arc<Semaphore>>,
    began: Arc<Notify>,
}

#[async_trait]
impl Tool for Counting {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        self.runs.lock().unwrap().push(invocation.arguments.to_string());
        let _ = invocation.output.send("working".to_owned()).await;
        self.began.notify_one();
        if let Some(gate) = &self.gate {
            tokio::select! {
                () = invocation.cancel.cancelled() => {
                    return ToolOutcome::Unknown("ended".to_owned());
                }
                permit = gate.acquire() => permit.unwrap().forget(),
            }
        }
        ToolOutcome::Succeeded(format!("run {}", self.runs.lock().unwrap().len()))
    }
}

/// A tool that ends as its argument `how` says.
pub struct Ending(ToolSpec);

impl Default for Ending {
    fn default() -> Self {
        Self::of(Effect::Read)
    }
}

impl Ending {
    pub fn of(effect: Effect) -> Self {
        Self(ToolSpec {
            name: "end".to_owned(),
            description: "a test".to_owned(),
            parameters: serde_json::json!({ "type": "object" }),
            effect,
        })
    }
}

#[async_trait]
impl Tool for Ending {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let how = invocation.arguments["how"].as_str().unwrap().to_owned();
        match how.as_str() {
            "succeeded" => ToolOutcome::Succeeded(how),
            "failed" => ToolOutcome::Failed(how),
            "not_run" => ToolOutcome::NotRun(how),
            "unknown" => ToolOutcome::Unknown(how),
            _ => panic!("{how}"),
        }
    }
}

pub struct Watch {
    pub runs: Arc<Mutex<Vec<String>>>,
    pub gate: Arc<Semaphore>,
    pub began: Arc<Notify>,
}

impl Watch {
    pub fn count(&self) -> usize {
        self.runs.lock().unwrap().len()
    }
}

pub fn tool(registry: &mut Registry, name: &str, effect: Effect, gated: bool) -> Watch {
    let watch = Watch {
        runs: Arc::default(),
        gate: Arc::new(Semaphore::new(0)),
        began: Arc::new(Notify::new()),
    };
    registry.add(Counting {
        spec: ToolSpec {
            name: name.to_owned(),
            description: "a test".to_owned(),
            parameters: serde_json::json!({ "type": "object" }),
            effect,
        },
        runs: Arc::clone(&watch.runs),
        gate: gated.then(|| Arc::clone(&watch.gate)),
        began: Arc::clone(&watch.began),
    });
    watch
}

/// Ends a test that waits for something that does not come.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it did not come in time")
}

/// One open engine on a home.
pub struct Node {
    pub engine: Engine,
    pub model: Arc<Model>,
}

pub async fn open(home: &Path, set: impl FnOnce(&mut Config)) -> Node {
    open_with(home, Arc::new(SystemClock::new().unwrap()), set).await
}

pub async fn open_with(home: &Path, clock: Arc<dyn Clock>, set: impl FnOnce(&mut Config)) -> Node {
    open_store(home, clock, set).await.0
}

async fn open_store(
    home: &Path,
    clock: Arc<dyn Clock>,
    set: impl FnOnce(&mut Config),
) -> (Node, Arc<SqliteStore>) {
    let store = SqliteStore::open(OpenOptions::new(home, "library", clock)).unwrap();
    let model = Arc::new(Model::default());
    let models = Arc::new(OneModel(Arc::clone(&model)));
    let node = store.node_id().clone();
    let mut config = Config::new(node, home.display().to_string(), "serve", models);
    config.poll = Duration::from_millis(20);
    config.retry.base = Duration::from_millis(1);
    set(&mut config);
    let store = Arc::new(store);
    let engine = Engine::open(Arc::clone(&store) as Arc<dyn Store>, config).await.unwrap();
    (Node { engine, model }, store)
}

/// A node that dies once it has done this: its tasks end where they are, and its lock is free.
pub fn killed<T>(
    home: &Path,
    set: impl FnOnce(&mut Config),
    amid: impl AsyncFnOnce(&Node) -> T,
) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (node, store, done) = runtime.block_on(async {
        let clock = Arc::new(SystemClock::new().unwrap());
        let (node, store) = open_store(home, clock, set).await;
        let done = amid(&node).await;
        (node, store, done)
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    store.set_sink(Arc::new(|_| {}));
    drop(node);
    // The writer's thread, which is none of the runtime's, may still be telling its last commit.
    let begun = std::time::Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(begun.elapsed().as_secs() < 30, "something still holds the store");
        std::thread::yield_now();
    }
    done
}

/// A process of its own that lives until its story is told, and is gone then without a word.
pub async fn dies_after<T, S, F>(
    home: &Path,
    set: impl FnOnce(&mut Config) + Send + 'static,
    story: S,
) -> T
where
    T: Send + 'static,
    S: FnOnce(Arc<Node>) -> F + Send + 'static,
    F: Future<Output = T>,
{
    let home = home.to_owned();
    let life = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (told, store) = runtime.block_on(async {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::new().unwrap());
            let store = SqliteStore::open(OpenOptions::new(&home, "library", clock)).unwrap();
            let store = Arc::new(store);
            let model = Arc::new(Model::default());
            let models = Arc::new(OneModel(Arc::clone(&model)));
            let id = store.node_id().clone();
            let mut config = Config::new(id, home.display().to_string(), "serve", models);
            config.poll = Duration::from_millis(20);
            set(&mut config);
            let engine = Engine::open(Arc::clone(&store) as Arc<dyn Store>, config).await.unwrap();
            let told = story(Arc::new(Node { engine, model })).await;
            (told, store)
        });
        // Nothing of it works any more, and its lock is free.
        store.set_sink(Arc::new(|_| {}));
        runtime.shutdown_timeout(Duration::from_secs(10));
        drop(store);
        told
    };
    tokio::task::spawn_blocking(life).await.unwrap()
}

/// A machine whose wall clock is wrong by some milliseconds.
pub struct Shifted(pub SystemClock, pub i64);

impl Clock for Shifted {
    fn now(&self) -> everturn_core::Timestamp {
        everturn_core::Timestamp(self.0.now().0 + self.1)
    }

    fn boot(&self) -> everturn_core::LeaseExpiry {
        self.0.boot()
    }

    fn uuid(&self) -> uuid::Uuid {
        self.0.uuid()
    }
}

pub fn key(id: &str) -> SessionKey {
    SessionKey { principal: Principal::local(), id: SessionId::new(id).unwrap() }
}

impl Node {
    pub async fn say(&self, session: &str, request: &str, text: &str) -> Input {
        self.submit(session, request, text, Mode::Queue).await.unwrap()
    }

    pub async fn submit(
        &self,
        session: &str,
        request: &str,
        text: &str,
        mode: Mode,
    ) -> Result<Input, everturn_engine::EngineError> {
        let submission = Submission {
            key: key(session),
            request_id: RequestId::new(request).unwrap(),
            mode,
            content: Content::text(text),
            metadata: None,
        };
        self.engine.submit(submission).await.map(|admitted| admitted.input)
    }

    /// Waits for an input's outcome.
    pub async fn ended(&self, id: &InputId) -> Input {
        let found = self.engine.wait_input(id, Duration::from_secs(20)).await.unwrap();
        let (input, _) = found.unwrap();
        assert_eq!(input.status, InputStatus::Terminal, "it did not end in time");
        input
    }

    pub async fn transcript(&self, session: &str) -> Vec<Message> {
        self.engine.read().transcript(&key(session)).await.unwrap()
    }

    /// Role and text of every row.
    pub async fn rows(&self, session: &str) -> Vec<(String, String)> {
        let rows = self.transcript(session).await;
        rows.iter().map(|row| (row.role.to_string(), row.content.plain())).collect()
    }

    pub async fn last_run(&self, session: &str) -> Run {
        let runs = self.engine.read().runs(&key(session), None, 1).await.unwrap();
        runs.into_iter().next().unwrap()
    }

    pub async fn feed(&self, session: &str, after: Option<u64>) -> Stream {
        self.engine.session_stream(&key(session), after, false).await.unwrap()
    }

    /// All events of a run, as a reader gets them, to its end.
    pub async fn journal(&self, run: &Run) -> Vec<(u64, String, String)> {
        let mut stream = self.engine.run_stream(run.clone(), RunCursor::After(0)).await.unwrap();
        let mut events = Vec::new();
        loop {
            match within(stream.next()).await.unwrap() {
                Item::Frame(frame) => {
                    let (_, seq) = frame.head.run.clone().unwrap();
                    let bytes = String::from_utf8(frame.bytes.to_vec()).unwrap();
                    events.push((seq, frame.head.name.clone(), bytes));
                }
                Item::End => return events,
                _ => {}
            }
        }
    }
}

/// Waits for the next event of a name; answers its bytes.
pub async fn event(stream: &mut Stream, name: &str) -> serde_json::Value {
    within(async {
        loop {
            if let Item::Frame(frame) = stream.next().await.unwrap()
                && frame.head.name == name
            {
                return serde_json::from_slice(&frame.bytes).unwrap();
            }
        }
    })
    .await
}
