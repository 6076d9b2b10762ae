//! Homes with something in them: written through the store, so that they are as real ones are.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use everturn_core::event::{End, Record};
use everturn_core::{
    Content, InputKind, LeaseExpiry, Mode, Principal, RequestId, SessionId, SessionKey, digest,
    limits,
};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::op::{Admit, Admitted, Claim, Claimed, Claimer, RegisterNode};
use everturn_store::rows::Node;
use everturn_store::{Clock as _, SystemClock, TurnLease, execute};

/// How long leases of these nodes are good for.
const LEASE_MS: u64 = 3_600_000;

/// A node that has a home's store open.
pub(crate) struct Writer {
    pub(crate) store: Arc<SqliteStore>,
    claimer: Claimer,
}

impl Writer {
    /// Opens it; dropping this is as if the process had died.
    pub(crate) async fn open(home: &Path) -> Result<Self> {
        let clock = SystemClock::new()?;
        let boot = clock.boot();
        let expiry = LeaseExpiry { boot_ms: boot.boot_ms + LEASE_MS, ..boot };
        let started_at = clock.now();
        let store = SqliteStore::open(OpenOptions::new(home, "serve", Arc::new(clock)))?;
        let node = Node {
            id: store.node_id().clone(),
            home: store.home().display().to_string(),
            boot_id: expiry.boot_id.clone(),
            role: "serve".to_owned(),
            started_at,
            interrupted_start: false,
            ended_at: None,
        };
        let claimer = Claimer {
            node: node.id.clone(),
            expiry,
            default_model: "script/demo".to_owned(),
            workspace: String::new(),
        };
        execute(&store, RegisterNode { node }).await?;
        Ok(Self { store: Arc::new(store), claimer })
    }

    /// The key of a session of the local principal.
    pub(crate) fn key(id: &str) -> Result<SessionKey> {
        Ok(SessionKey { principal: Principal::local(), id: SessionId::new(id)? })
    }

    /// Accepts an input, synced.
    pub(crate) async fn admit(&self, key: &SessionKey, name: &str, text: &str) -> Result<Admitted> {
        let content = Content::text(text.to_owned());
        let admit = Admit {
            key: key.clone(),
            request_id: RequestId::new(name)?,
            digest: digest::payload(InputKind::Message, Mode::Queue, &content, None),
            mode: Mode::Queue,
            content,
            metadata: None,
            queue_max: limits::QUEUE_INPUTS_MAX * 1_000,
            sessions_max: u64::MAX >> 1,
            auto_continue: everturn_core::AutoContinue::default(),
            claimer: None,
        };
        Ok(*execute(&*self.store, admit).await?)
    }

    /// Claims the next turn of a session.
    pub(crate) async fn claim(&self, key: &SessionKey) -> Result<Turn> {
        let claim = Claim { key: key.clone(), claimer: self.claimer.clone(), gone: None };
        match *execute(&*self.store, claim).await? {
            Claimed::Turn(turn) => {
                let lease = TurnLease::new(self.store.clone(), turn.fence);
                Ok(Turn { lease, number: 0 })
            }
            other => bail!("{key} gave no turn: {other:?}"),
        }
    }

    /// One turn, from its input to its end.
    pub(crate) async fn turn(&self, key: &SessionKey, name: &str, answer: &str) -> Result<()> {
        self.admit(key, name, "a question of a usual length, more or less").await?;
        let mut turn = self.claim(key).await?;
        let deltas = answer.split_inclusive(' ').map(|word| Record::TextDelta(word.to_owned()));
        turn.write(deltas.collect()).await?;
        turn.complete(answer).await
    }
}

/// A claimed turn, written to as the engine does.
pub(crate) struct Turn {
    lease: TurnLease,
    /// Writes so far.
    number: u64,
}

impl Turn {
    /// Writes records.
    pub(crate) async fn write(&mut self, records: Vec<Record>) -> Result<()> {
        self.number += 1;
        self.lease.write(self.number, records).await?;
        Ok(())
    }

    /// Ends it well.
    pub(crate) async fn complete(&mut self, answer: &str) -> Result<()> {
        let end = End::Completed { text: answer.to_owned(), reasoning: None, usage: None };
        self.write(vec![Record::End(end)]).await
    }
}

/// A folder in memory where there is one: building a fixture must not wait for the disk.
pub(crate) fn fast_folder() -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("everturn-bench-");
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(folder) = builder.tempdir_in(memory)
    {
        return Ok(folder);
    }
    Ok(builder.tempdir()?)
}

/// Copies the files of a home.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
