//! The processes of a random history, and what happens to them: one is cut off and taken over from, and
//! may come back; all of them go with the power, and others start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everturn_core::{LeaseExpiry, NodeId, Principal, Timestamp, TokenId};
use everturn_engine::{Config, Engine};
use everturn_server::{Scope, Server, ServerConfig, new_token};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::memory::MemoryStore;
use everturn_store::op::PruneEvents;
use everturn_store::{Clock, Store, SystemClock, execute};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::door::{Door, Progress};
use crate::puppet::{OneModel, Puppet, tools};

/// The machine's clock in this boot, or in a later one.
pub(crate) struct Booted {
    clock: SystemClock,
    boot: u64,
}

impl Booted {
    /// After so many more starts of the machine.
    pub(crate) fn after(boot: u64) -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::new().unwrap(), boot })
    }
}

impl Clock for Booted {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn boot(&self) -> LeaseExpiry {
        let now = self.clock.boot();
        LeaseExpiry { boot_id: format!("{}+{}", now.boot_id, self.boot), ..now }
    }

    fn uuid(&self) -> uuid::Uuid {
        self.clock.uuid()
    }
}

/// A process: an engine on the store, and a server without a socket.
struct Process {
    engine: Engine,
    door: Door,
    server: Server,
    store: Arc<dyn Store>,
    /// Its way to the store in memory.
    memory: Option<Arc<MemoryStore>>,
    /// What it runs on, where it has something of its own.
    own: Own,
}

/// Dropped without waiting for what runs on it.
struct Own(Option<Runtime>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(own) = self.0.take() {
            own.shutdown_background();
        }
    }
}

/// Where the store is.
enum Place {
    /// In memory; this handle is nobody's process.
    Memory(Arc<MemoryStore>),
    Disk(TempDir),
}

/// Processes at the same time, at most.
const PROCESSES: usize = 3;

/// Processes that share one store.
pub(crate) struct Fleet {
    place: Place,
    /// Those that run; never empty but for a moment.
    processes: Vec<Process>,
    /// Cut off from the store and declared dead, and all the same alive.
    frozen: Vec<Process>,
    coalesce: Duration,
    poll: Duration,
    boot: u64,
    /// Counts processes: the number is the door's.
    started: usize,
    secret: String,
    /// What readers are told.
    pub(crate) progress: watch::Sender<Progress>,
    gone: BTreeSet<usize>,
    shaken: BTreeSet<usize>,
}

impl Fleet {
    /// On a store in memory, some of the time with two processes.
    pub(crate) async fn in_memory(random: StdRng) -> Self {
        let store = Arc::new(MemoryStore::new(Booted::after(0)));
        Self::on(random, Place::Memory(store)).await
    }

    /// On SQLite, some of the time with two processes.
    pub(crate) async fn on_disk(random: StdRng) -> Self {
        // What reaches the disk, and when, is not what is looked at.
        let memory = std::path::Path::new("/dev/shm");
        let home = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self::on(random, Place::Disk(home.unwrap())).await
    }

    async fn on(mut random: StdRng, place: Place) -> Self {
        let several = random.random_bool(0.25);
        let mut fleet = Self {
            place,
            processes: Vec::new(),
            frozen: Vec::new(),
            coalesce: Duration::from_millis(random.random_range(0..=1)),
            // Alone, notices must do: the look around that makes up for lost ones does not come.
            poll: Duration::from_millis(if several { 2 } else { 600_000 }),
            boot: 0,
            started: 0,
            secret: String::new(),
            progress: watch::Sender::default(),
            gone: BTreeSet::new(),
            shaken: BTreeSet::new(),
        };
        fleet.start().await;
        let clock = SystemClock::new().unwrap();
        let id = TokenId::from_uuid(clock.uuid());
        let scopes = [Scope::Read, Scope::Submit, Scope::Control, Scope::Approve];
        let (token, secret) =
            new_token(id, Principal::local(), &scopes, clock.now(), None).unwrap();
        fleet.engine().create_token(token).await.unwrap();
        fleet.processes[0].door.token.clone_from(&secret);
        fleet.secret = secret;
        if several {
            fleet.start().await;
        }
        fleet
    }

    /// Whether processes look around for what others do.
    fn has_several(&self) -> bool {
        self.poll < Duration::from_secs(1)
    }

    /// An engine that runs.
    pub(crate) fn engine(&self) -> &Engine {
        &self.processes[0].engine
    }

    /// A way in.
    pub(crate) fn door(&self, random: &mut StdRng) -> Door {
        self.processes.choose(random).unwrap().door.clone()
    }

    /// A history begins.
    pub(crate) fn begin(&self) {
        self.progress.send_replace(Progress::default());
        self.tell();
    }

    /// Nothing more will happen, up to these offsets.
    pub(crate) fn end(&mut self, ends: BTreeMap<String, u64>) {
        // Whoever hangs on to a process that does not come back sees its connection end.
        self.gone.extend(self.frozen.iter().map(|process| process.door.number));
        self.tell();
        self.progress.send_modify(|progress| progress.ends = Some(ends));
    }

    /// Tells readers whom they can ask.
    fn tell(&self) {
        self.progress.send_modify(|progress| {
            progress.doors = self.processes.iter().map(|process| process.door.clone()).collect();
            progress.gone.clone_from(&self.gone);
            progress.shaken.clone_from(&self.shaken);
        });
    }

    /// Starts one more process, which takes over what dead ones left.
    async fn start(&mut self) {
        let node = NodeId::from_uuid(uuid::Uuid::now_v7());
        let clock = Booted::after(self.boot);
        let (store, memory, own): (Arc<dyn Store>, _, _) = match &self.place {
            Place::Memory(outside) => {
                let store = Arc::new(outside.another(clock));
                store.set_gone(&node, Some(false));
                (store.clone(), Some(store), Own(None))
            }
            Place::Disk(home) => {
                let options = OpenOptions {
                    node_id: Some(node.clone()),
                    ..OpenOptions::new(home.path(), "serve", clock)
                };
                let mut own = tokio::runtime::Builder::new_multi_thread();
                let own = own.worker_threads(1).enable_all().build().unwrap();
                (Arc::new(SqliteStore::open(options).unwrap()), None, Own(Some(own)))
            }
        };
        let mut config =
            Config::new(node, "home".to_owned(), "serve", Arc::new(OneModel(Puppet::new())));
        config.tools = tools();
        config.coalesce = self.coalesce;
        config.poll = self.poll;
        // The test prunes when it wants to, and interrupts more often than any home would bear.
        config.retention = None;
        config.loop_breaker = (1_000, Duration::from_secs(1));
        let opening = Engine::open(Arc::clone(&store), config);
        let engine = match &own.0 {
            Some(own) => own.spawn(opening).await.unwrap(),
            None => opening.await,
        };
        let engine = engine.unwrap();
        let bound = SocketAddr::from(([127, 0, 0, 1], 80));
        let server = Server::new(engine.clone(), ServerConfig::default(), bound).unwrap();
        let door =
            Door { number: self.started, router: server.router(), token: self.secret.clone() };
        self.started += 1;
        self.processes.push(Process { engine, door, server, store, memory, own });
    }

    /// A process stops in the middle of whatever it does, and another one takes over: one that runs
    /// already, or one that starts now.
    pub(crate) async fn interrupt(&mut self, random: &mut StdRng) {
        let process = self.processes.remove(random.random_range(0..self.processes.len()));
        let number = process.door.number;
        self.shaken.insert(number);
        let outside = match &self.place {
            Place::Memory(outside) => Some(Arc::clone(outside)),
            Place::Disk(_) => None,
        };
        if outside.is_none() || !self.has_several() || random.random_bool(0.5) {
            self.gone.insert(number);
        }
        self.tell();
        if let (Some(outside), Some(own)) = (outside, &process.memory) {
            own.set_cut_off(true);
            outside.set_gone(process.engine.node(), Some(true));
            self.frozen.push(process);
        } else {
            die(process).await;
        }
        let may_start = self.processes.len() < PROCESSES;
        if self.processes.is_empty() || (may_start && random.random_bool(0.3)) {
            self.start().await;
        }
        self.tell();
    }

    /// A process that was taken for dead is back, and finds that it was taken over from.
    pub(crate) fn thaw(&mut self) {
        if !self.has_several() || self.processes.len() >= PROCESSES {
            return;
        }
        let Some(process) = self.frozen.pop() else { return };
        if let (Place::Memory(outside), Some(own)) = (&self.place, &process.memory) {
            outside.set_gone(process.engine.node(), Some(false));
            own.set_cut_off(false);
        }
        self.gone.remove(&process.door.number);
        self.processes.push(process);
        self.tell();
    }

    /// The power fails, and the machine starts again: in memory everything that no sync covered is
    /// gone; of a file in memory nothing is, and numbering goes on above it all the same.
    pub(crate) async fn lose_power(&mut self) {
        let mut dead = std::mem::take(&mut self.processes);
        dead.append(&mut self.frozen);
        let numbers = || dead.iter().map(|process| process.door.number);
        self.gone.extend(numbers());
        self.shaken.extend(numbers());
        self.tell();
        self.boot += 1;
        if let Place::Memory(outside) = &mut self.place {
            outside.lose_power();
            *outside = Arc::new(outside.another(Booted::after(self.boot)));
            for process in &dead {
                outside.set_gone(process.engine.node(), Some(true));
            }
        }
        for process in dead {
            die(process).await;
        }
        self.start().await;
        if self.has_several() {
            self.start().await;
        }
        self.tell();
    }

    /// Retention: prunes everything that is over.
    pub(crate) async fn prune(&self, random: &mut StdRng) {
        let process = self.processes.choose(random).unwrap();
        let (before, mut after) = (Timestamp(i64::MAX), None);
        loop {
            let done = execute(&*process.store, PruneEvents { before, after }).await.unwrap();
            after = done.after;
            if !done.more {
                return;
            }
        }
    }

    /// Everybody leaves.
    pub(crate) async fn close(self) {
        for process in &self.processes {
            process.engine.close().await;
        }
    }
}

/// Ends a process where it stands: nothing of it is polled any more, or reaches a store.
async fn die(process: Process) {
    let Process { engine, door, server, store, memory, own } = process;
    // The sink holds what the engine shares, which holds the store.
    store.set_sink(Arc::new(|_| {}));
    let is_held = own.0.is_some();
    drop((engine, door, server, memory, own));
    // Its readers let go of it when they see that it is gone; with the last of them its lock is free.
    while is_held && Arc::strong_count(&store) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
