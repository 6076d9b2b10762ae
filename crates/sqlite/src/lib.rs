//! The Store on SQLite: one writer thread, group commit, a pool of readers, migrations.
//!
//! [`SqliteStore::open`] is where it begins; [`writer`] tells the story of a commit; [`tx`] maps the
//! rows of an operation, [`ask`] those of a question. docs/store.md has the operator's side.

mod ask;
mod cache;
mod check;
mod conn;
mod errors;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod inspect;
mod landmarks;
mod locks;
mod migrate;
mod open;
mod read;
mod readers;
mod rows;
mod stats;
#[cfg(test)]
mod tests;
mod tx;
#[cfg(test)]
mod work;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use everturn_core::NodeId;
use everturn_store::store::Sink;
use everturn_store::{Clock, Op, OpError, Read as _, Reply, StorageError, StorageErrorKind, Store};
use tokio::sync::{mpsc, oneshot};

pub use check::{Depth, Report};
pub use migrate::schema_version;
pub use stats::StoreStats;

use errors::{Result, failure};
use inspect::{Damage, Inspector};
use locks::{NodeLock, Sign};
use readers::Readers;
use writer::{Job, Writer};

/// What is synced to the disk before anybody is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// Everything but token events, which survive the process and are lost with the power only.
    #[default]
    TerminalOnly,
    /// Token events as well.
    Eager,
}

/// How to open a store.
pub struct OpenOptions {
    /// Its folder; made if need be.
    pub home: PathBuf,
    /// What the process is: `serve`, `run`, `chat`, `library`. Noted in its lock file.
    pub role: String,
    /// Where it takes time and ids from.
    pub clock: Arc<dyn Clock>,
    /// What is synced.
    pub fsync: Fsync,
    /// The id of this node; `None` makes a fresh one. Never used twice.
    pub node_id: Option<NodeId>,
    /// How long opening looks at the pages of the database. What is not looked at by then is looked
    /// at while the store is used already; found damaged, it takes no more writes.
    pub check_for: Duration,
}

impl OpenOptions {
    /// The usual: token events are not synced, the node's id is fresh.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, role: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            home: home.into(),
            role: role.into(),
            clock,
            fsync: Fsync::default(),
            node_id: None,
            check_for: inspect::START,
        }
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("home", &self.home)
            .field("role", &self.role)
            .field("fsync", &self.fsync)
            .field("node_id", &self.node_id)
            .field("check_for", &self.check_for)
            .finish_non_exhaustive()
    }
}

/// A store in one SQLite database, shared with other processes of the machine.
///
/// Dropping it waits for what was submitted, checkpoints the write-ahead log if nobody else has the
/// database open, and gives the node's lock up.
pub struct SqliteStore {
    home: PathBuf,
    database: PathBuf,
    nodes: PathBuf,
    node: NodeId,
    clock: Arc<dyn Clock>,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    readers: Readers,
    sink: Arc<RwLock<Option<Sink>>>,
    counters: Arc<stats::Counters>,
    /// The rest of the look at the database, if the start left one.
    inspector: Option<Inspector>,
    lock: Option<NodeLock>,
    #[cfg(test)]
    faults: writer::Faults,
}

impl SqliteStore {
    /// Opens the store of a home, and makes it where there is none. Blocks for some disk accesses.
    ///
    /// # Errors
    /// [`StorageErrorKind::TooNew`] for a database of a newer Everturn (it is not touched),
    /// [`StorageErrorKind::Corrupt`] for one that is damaged or not ours (it is never overwritten),
    /// [`StorageErrorKind::Full`] and [`StorageErrorKind::Unavailable`] where the folder cannot be
    /// written.
    pub fn open(options: OpenOptions) -> std::result::Result<Self, StorageError> {
        conn::check_version()?;
        let (home, nodes) = open::home(&options.home)?;
        let node = options.node_id.unwrap_or_else(|| NodeId::from_uuid(options.clock.uuid()));
        let note = format!(
            "{} process {} since {}",
            options.role,
            std::process::id(),
            options.clock.now().rfc3339()
        );
        // First the lock: from now on this node can be seen to live.
        let lock = NodeLock::hold(&nodes, &node, &note)?;
        locks::sweep(&nodes);
        let (conn, is_seen) = open::database(&home, &nodes, &node, options.check_for)?;
        let database = home.join(conn::FILE);
        let files = Arc::new(Mutex::new(conn::Files::new(&database)?));
        let sink = Arc::<RwLock<Option<Sink>>>::default();
        let counters = Arc::<stats::Counters>::default();
        let damage = Damage::default();
        #[cfg(test)]
        let faults = writer::Faults::default();
        let writer = Writer::new(
            conn,
            database.clone(),
            home.clone(),
            options.clock.clone(),
            options.fsync,
            writer::Shared {
                files: files.clone(),
                sink: sink.clone(),
                counters: counters.clone(),
                damage: damage.clone(),
                #[cfg(test)]
                faults: faults.clone(),
            },
        )?;
        let (jobs, receiver) = mpsc::channel(writer::QUEUE_OPS);
        let thread = std::thread::Builder::new()
            .name("everturn-writer".to_owned())
            .spawn(move || writer.run(receiver))
            .map_err(|error| errors::io_failure("cannot start the writer of", &database, &error))?;
        let inspector =
            if is_seen { None } else { Some(Inspector::start(database.clone(), damage)?) };
        Ok(Self {
            readers: Readers::new(database.clone(), files),
            inspector,
            home,
            database,
            nodes,
            node,
            clock: options.clock,
            jobs: Some(jobs),
            thread: Some(thread),
            sink,
            counters,
            lock: Some(lock),
            #[cfg(test)]
            faults,
        })
    }

    /// The id of this node, whose lock the store holds. Register it before anything is claimed.
    #[must_use]
    pub fn node_id(&self) -> &NodeId {
        &self.node
    }

    /// The home's folder, without links in its path.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The database's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.database
    }

    /// What the writer did since the store was opened.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.counters.read()
    }

    /// Looks at the database of a home without changing it; nobody needs to have it open, or may.
    /// Blocks as long as reading the file takes.
    ///
    /// # Errors
    /// Where it cannot be looked at: it is missing, not ours, or of a newer Everturn. Damage inside
    /// is in the report.
    pub fn check(home: &Path, depth: Depth) -> std::result::Result<Report, StorageError> {
        check::check(home, depth)
    }

    /// Writes a copy of the database, as of now, to a file that does not exist yet. Readers and
    /// the writer go on meanwhile. Never copy the file itself while it is in use.
    ///
    /// # Errors
    /// Where the copy cannot be written; what there is of it is of no use then.
    pub async fn backup_to(&self, path: &Path) -> std::result::Result<(), StorageError> {
        let (database, to) = (self.database.clone(), path.to_owned());
        let copy = move || -> Result<()> {
            let text = to.to_str().ok_or_else(|| {
                StorageError::new(StorageErrorKind::Unavailable, "the path is not UTF-8")
            })?;
            let conn = conn::writing(&database).map_err(|error| failure(&error))?;
            conn.execute("VACUUM INTO ?1", [text]).map_err(|error| failure(&error))?;
            let synced = std::fs::File::open(&to).and_then(|file| file.sync_all());
            synced.map_err(|error| errors::io_failure("cannot sync", &to, &error))
        };
        tokio::task::spawn_blocking(copy).await.map_err(|_| closed())?
    }

    /// Reads in one transaction.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&rusqlite::Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.readers.read(read).await
    }

    /// Reads a lot in one transaction.
    pub(crate) async fn search<T: Send + 'static>(
        &self,
        read: impl FnOnce(&rusqlite::Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.readers.search(read).await
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(closed)?;
        jobs.send(job(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        drop(self.inspector.take());
        self.readers.close();
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The sink runs on the writer's thread and may hold the last handle.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("the writer panicked");
            }
        }
        drop(self.lock.take());
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("database", &self.database)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn submit(&self, op: Op) -> std::result::Result<Reply, OpError> {
        let op = Box::new(op);
        self.ask(|reply| Job::Op { op, reply }).await?
    }

    fn set_sink(&self, sink: Sink) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    async fn node_gone(&self, node: &NodeId) -> Option<bool> {
        let (folder, id) = (self.nodes.clone(), node.clone());
        let sign = tokio::task::spawn_blocking(move || locks::look(&folder, &id)).await.ok()?;
        match sign {
            Sign::Alive => Some(false),
            Sign::Gone => Some(true),
            // A node is known only after its file was locked: one without a file has left.
            Sign::NoFile => self.node(node).await.ok().flatten().map(|_| true),
            Sign::Unknown => None,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    async fn changed_elsewhere(&self) -> bool {
        self.ask(Job::Changed).await.unwrap_or(true)
    }
}

fn closed() -> StorageError {
    StorageError::new(StorageErrorKind::Closed, "the store is closed")
}
