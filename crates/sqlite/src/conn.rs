//! Connections: how they are opened, and whether the files are still the ones that were opened.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use everturn_store::{StorageError, StorageErrorKind};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::errors::{Result, failure, io_failure};

/// How long SQLite itself waits for another connection; the writer tries again after that.
pub(crate) const BUSY_TIMEOUT: Duration =
    Duration::from_millis(if cfg!(test) { 100 } else { 5_000 });
/// Statements kept compiled per connection.
const STATEMENTS: usize = 128;
/// The write-ahead log is cut to this many bytes when it begins anew.
const WAL_KEPT_BYTES: i64 = 32 << 20;

/// Name of the database in its home.
pub(crate) const FILE: &str = "everturn.db";

fn prepare(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without this, SQLite compiles a statement anew whenever a value bound to a range or a limit
    // changes, in case other values deserve another plan: a third of what reading a page cost.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "mmap_size", 0)?;
    // Checkpoints are the writer's own business: it runs them between commits, and sees their
    // errors, which SQLite hides when it runs them itself.
    conn.pragma_update(None, "wal_autocheckpoint", 0)
}

/// A connection that may write. The file must exist.
pub(crate) fn writing(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let conn = Connection::open_with_flags(path, flags)?;
    prepare(&conn)?;
    conn.pragma_update(None, "foreign_keys", false)?;
    conn.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        tracing::warn!(mode, "the database could not be switched to write-ahead logging");
    }
    Ok(conn)
}

/// A connection that only reads.
pub(crate) fn reading(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let conn = Connection::open_with_flags(path, flags)?;
    prepare(&conn)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// What tells a file from any other: device and number.
pub(crate) type FileId = (u64, u64);

/// The file that is at a path now.
pub(crate) fn file_id(path: &Path) -> std::io::Result<FileId> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// The files of an open database, as they were when it was opened. Somebody who moves, restores or
/// deletes one of them under a running process must be told, not written past.
#[derive(Debug)]
pub(crate) struct Files {
    database: PathBuf,
    id: FileId,
    /// The write-ahead log and its index, once they exist.
    sides: [(PathBuf, Option<FileId>); 2],
}

impl Files {
    /// Notes the database's file.
    pub(crate) fn new(database: &Path) -> Result<Self> {
        let id =
            file_id(database).map_err(|error| io_failure("cannot look at", database, &error))?;
        let side = |suffix: &str| {
            let mut name = database.as_os_str().to_owned();
            name.push(suffix);
            (PathBuf::from(name), None)
        };
        Ok(Self { database: database.to_owned(), id, sides: [side("-wal"), side("-shm")] })
    }

    /// Notes the side files; called inside a transaction, when they exist.
    pub(crate) fn note_sides(&mut self) {
        for (path, id) in &mut self.sides {
            if id.is_none() {
                *id = file_id(path).ok();
            }
        }
    }

    /// The side files may be others from now on: the connection is opened anew.
    pub(crate) fn forget_sides(&mut self) {
        for (_, id) in &mut self.sides {
            *id = None;
        }
    }

    /// Whether all files are still the ones that were opened.
    pub(crate) fn check(&self) -> Result<()> {
        let database = (&self.database, Some(self.id));
        let sides = self.sides.iter().map(|(path, id)| (path, *id));
        for (path, id) in std::iter::once(database).chain(sides) {
            let Some(id) = id else { continue };
            match file_id(path) {
                Ok(now) if now == id => {}
                Ok(_) => {
                    return Err(replaced(path, "is another file than the one that was opened"));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(replaced(path, "is gone"));
                }
                Err(error) => return Err(io_failure("cannot look at", path, &error)),
            }
        }
        Ok(())
    }
}

fn replaced(path: &Path, what: &str) -> StorageError {
    StorageError::new(
        StorageErrorKind::Replaced,
        format!("{} {what}: put it back, or restart to use what is there now", path.display()),
    )
}

/// Whether the linked SQLite is one that never loses a commit (3.51.3 mended the last way).
pub(crate) fn check_version() -> Result<()> {
    const OLDEST: i32 = 3_051_003;
    if rusqlite::version_number() < OLDEST {
        return Err(StorageError::new(
            StorageErrorKind::Unavailable,
            format!("SQLite {} is too old: 3.51.3 is needed", rusqlite::version()),
        ));
    }
    Ok(())
}

/// A failed statement outside the writer.
pub(crate) fn query<T>(result: rusqlite::Result<T>) -> Result<T> {
    result.map_err(|error| failure(&error))
}
