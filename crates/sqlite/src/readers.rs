//! The readers: a few connections that cannot write, each read in one short transaction.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use everturn_store::{StorageError, StorageErrorKind};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::conn::{self, Files, query};
use crate::errors::{Result, failure};

/// Reads at a time.
const READERS: usize = 4;
/// Of these: searches. A search reads a lot; it must not keep the short reads waiting.
const SEARCHES: usize = 1;

/// The pool.
pub(crate) struct Readers {
    database: PathBuf,
    files: Arc<Mutex<Files>>,
    permits: Arc<Semaphore>,
    searches: Semaphore,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(crate) fn new(database: PathBuf, files: Arc<Mutex<Files>>) -> Self {
        let permits = Arc::new(Semaphore::new(READERS));
        Self { database, files, permits, searches: Semaphore::new(SEARCHES), idle: Arc::default() }
    }

    /// Reads in one transaction, off the runtime's own threads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let (idle, files) = (self.idle.clone(), self.files.clone());
        let database = self.database.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            files.lock().unwrap_or_else(PoisonError::into_inner).check()?;
            let known = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let conn = match known {
                Some(conn) => conn,
                None => conn::reading(&database).map_err(|error| failure(&error))?,
            };
            let out = snapshot(&conn, read);
            // A connection that met an I/O error is not used again.
            let sound = out.as_ref().err().is_none_or(|e| e.kind == StorageErrorKind::Corrupt);
            if sound && conn.is_autocommit() {
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
            }
            out
        });
        match task.await {
            Ok(out) => out,
            Err(error) if error.is_panic() => Err(StorageError::new(
                StorageErrorKind::Unavailable,
                "a read failed inside; see the log",
            )),
            Err(_) => Err(closed()),
        }
    }

    /// Reads a lot.
    pub(crate) async fn search<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = self.searches.acquire().await.map_err(|_| closed())?;
        self.read(read).await
    }

    /// Closes all connections that are not in use, and lets no new read in.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.searches.close();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn snapshot<T>(conn: &Connection, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let execute = |sql: &str| {
        query(conn.prepare_cached(sql).and_then(|mut statement| statement.execute([]))).map(drop)
    };
    execute("BEGIN")?;
    let out = read(conn);
    let ended = execute("COMMIT");
    if ended.is_err() && !conn.is_autocommit() {
        let _failed = conn.execute_batch("ROLLBACK");
    }
    out
}

fn closed() -> StorageError {
    StorageError::new(StorageErrorKind::Closed, "the store is closed")
}
