//! A server for one test, and everything to ask it with.

use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use everturn_core::{NodeId, Principal, SessionId, SessionKey, TokenId};
use everturn_engine::{Config, Engine};
use everturn_server::{Scope, ServerConfig, new_token, serve};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::memory::MemoryStore;
use everturn_store::read::Counts;
use everturn_store::{Store, SystemClock};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::puppet::{OneModel, Puppet, tools};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What an answer said.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The code of a problem that is complete and agrees with its status.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text);
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        assert!(problem["permanent"].is_boolean(), "{problem}");
        for field in ["title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        code
    }

    /// Status and code.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status, self.code())
    }

    /// The JSON of an answer that must be a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

/// A server.
pub(crate) struct World {
    /// The store, where it is the one in memory.
    pub(crate) store: Arc<MemoryStore>,
    /// The store, whichever it is.
    pub(crate) any_store: Arc<dyn Store>,
    /// The home, where it is on SQLite.
    _home: Option<TempDir>,
    pub(crate) engine: Engine,
    pub(crate) puppet: Puppet,
    pub(crate) addr: SocketAddr,
    client: reqwest::Client,
    bearer: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

fn client() -> reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

/// A store in memory, with the machine's clock.
pub(crate) fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock::new().unwrap())))
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    /// With other settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Config, &mut ServerConfig)) -> Self {
        Self::on(memory(), change).await
    }

    /// On a fresh home, as a real server is.
    pub(crate) async fn sqlite() -> Self {
        Self::sqlite_with(|_, _| {}).await
    }

    /// On a fresh home, with other settings.
    pub(crate) async fn sqlite_with(change: impl FnOnce(&mut Config, &mut ServerConfig)) -> Self {
        let home = TempDir::new().unwrap();
        let clock = Arc::new(SystemClock::new().unwrap());
        let node = NodeId::from_uuid(uuid::Uuid::now_v7());
        let mut options = OpenOptions::new(home.path(), "serve", clock);
        options.node_id = Some(node.clone());
        let store = tokio::task::spawn_blocking(|| SqliteStore::open(options).unwrap());
        let store = Arc::new(store.await.unwrap());
        let mut world = Self::serve(store, node, change).await;
        world._home = Some(home);
        world
    }

    /// On a store that holds something.
    pub(crate) async fn on(
        store: Arc<MemoryStore>,
        change: impl FnOnce(&mut Config, &mut ServerConfig),
    ) -> Self {
        let node = NodeId::from_uuid(uuid::Uuid::now_v7());
        store.set_gone(&node, Some(false));
        let mut world = Self::serve(store.clone(), node, change).await;
        world.store = store;
        world
    }

    async fn serve(
        store: Arc<dyn Store>,
        node: NodeId,
        change: impl FnOnce(&mut Config, &mut ServerConfig),
    ) -> Self {
        let puppet = Puppet::new();
        let mut config =
            Config::new(node, "home".to_owned(), "serve", Arc::new(OneModel(puppet.clone())));
        config.tools = tools();
        let mut settings = ServerConfig {
            metrics: Some(everturn_server::install_metrics().unwrap()),
            ..ServerConfig::default()
        };
        change(&mut config, &mut settings);
        let engine = Engine::open(Arc::clone(&store), config).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(engine.clone(), settings, listener, async move {
            let _ = stopped.await;
        });
        let served = Some(tokio::spawn(async move { serving.await.unwrap() }));
        Self {
            store: memory(),
            any_store: store,
            _home: None,
            engine,
            puppet,
            addr,
            client: client(),
            bearer: None,
            stop: Some(stop),
            served,
        }
    }

    /// Stops the server, and waits until it has stopped.
    pub(crate) async fn stop(&mut self) {
        drop(self.stop.take());
        let served = self.served.take().unwrap();
        tokio::time::timeout(PATIENCE, served).await.expect("the server stops").unwrap();
    }

    /// From now on requests show this token.
    pub(crate) fn show(&mut self, token: Option<&str>) {
        self.bearer = token.map(str::to_owned);
    }

    /// Makes a token in the store, as the command line does.
    pub(crate) async fn token(&self, principal: &str, scopes: &[Scope]) -> String {
        let clock = self.store.clock();
        let id = TokenId::from_uuid(clock.uuid());
        let principal = Principal::new(principal).unwrap();
        let (token, secret) = new_token(id, principal, scopes, clock.now(), None).unwrap();
        self.engine.create_token(token).await.unwrap();
        secret
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("http://{}{path}", self.addr));
        match &self.bearer {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Answer { status, headers, text: response.text().await.unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Changes a session, for the revision that it has now.
    pub(crate) async fn change(&self, session: &str, mut change: Value) -> Answer {
        let path = format!("/v1/sessions/{session}");
        change["expected_revision"] = self.get(&path).await.ok()["revision"].clone();
        self.patch(&path, change).await
    }

    /// Gives a session another title.
    pub(crate) async fn rename(&self, session: &str, title: &str) -> Answer {
        self.change(session, serde_json::json!({ "title": title })).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Sends a text, and answers its receipt.
    pub(crate) async fn say(&self, session: &str, text: &str) -> Value {
        let path = format!("/v1/sessions/{session}/inputs");
        let answer = self.post(&path, serde_json::json!({ "text": text })).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        answer.json()
    }

    /// Sends a text, and waits for the end of its turn.
    pub(crate) async fn say_and_wait(&self, session: &str, text: &str) -> Value {
        let receipt = self.say(session, text).await;
        self.ended(receipt["input_id"].as_str().unwrap()).await
    }

    /// Waits until an input has ended.
    pub(crate) async fn ended(&self, input: &str) -> Value {
        let input = self.get(&format!("/v1/inputs/{input}?wait=20")).await.ok();
        assert_eq!(input["status"], "terminal", "{input}");
        input
    }

    /// Asks for a session again and again until it is as the test wants it.
    pub(crate) async fn session_when(
        &self,
        session: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/v1/sessions/{session}");
        self.when(&path, wanted).await
    }

    /// Asks for something again and again until it is as the test wants it.
    pub(crate) async fn when(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let seen = self.get(path).await.ok();
            if wanted(&seen) {
                return seen;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path} stayed {seen}");
            tokio::task::yield_now().await;
        }
    }

    /// A turn that runs until it is released: its run id.
    pub(crate) async fn held_turn(&self, session: &str) -> String {
        self.say(session, "hold on").await;
        let session = self.session_when(session, |seen| seen["state"] == "running").await;
        session["running"]["run_id"].as_str().unwrap().to_owned()
    }

    /// What is in the store, in numbers.
    pub(crate) async fn counts(&self) -> Counts {
        self.engine.read().counts().await.unwrap()
    }

    /// Sends bytes as they are and reads until the server closes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        // The server may refuse before it has read everything.
        let _ = stream.write_all(bytes).await;
        read_answer(&mut stream).await
    }
}

/// Reads one answer up to the end of the connection.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut seen = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut seen)).await;
    read.expect("the server closes the connection").unwrap();
    let text = String::from_utf8_lossy(&seen).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (
                http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                http::HeaderValue::from_str(value.trim()).unwrap(),
            )
        })
        .collect();
    Answer { status, headers, text: body.to_owned() }
}

/// What names a session of `local`.
pub(crate) fn key(id: &str) -> SessionKey {
    SessionKey { principal: Principal::local(), id: SessionId::new(id).unwrap() }
}
