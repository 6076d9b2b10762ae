//! Looking at a database without changing it, for `doctor` and for the start.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use everturn_store::{StorageError, StorageErrorKind};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::ffi::ErrorCode;

use crate::conn::{self, query};
use crate::errors::{Result, corrupt, failure, io_failure};
use crate::migrate;

/// Problems named at most.
const PROBLEMS: usize = 20;

/// How much of a database to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Every page's structure: about as long as reading the file.
    Quick,
    /// Every index entry against its row as well: several times that.
    Full,
}

/// What a look at a database found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The database's file.
    pub path: PathBuf,
    /// Its schema version.
    pub schema_version: u32,
    /// Bytes of the database.
    pub bytes: u64,
    /// Bytes of its write-ahead log.
    pub wal_bytes: u64,
    /// Bytes in the database that hold nothing and will be used again.
    pub free_bytes: u64,
    /// What is wrong, at most twenty lines; empty when all is well.
    pub problems: Vec<String>,
}

/// What the first bytes of a file tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    user_version: u32,
}

/// Reads a database's first bytes, without SQLite, so that a file that is not ours stays as it is.
fn header(path: &Path) -> Result<Header> {
    let failed = |error: &std::io::Error| io_failure("cannot read", path, error);
    let mut file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut bytes = Vec::with_capacity(100);
    file.by_ref().take(100).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.is_empty() {
        return Err(corrupt(format!(
            "{} is empty: bring the database back from a backup, or remove the file to begin anew",
            path.display()
        )));
    }
    let number =
        |at: usize| bytes.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let (Some(user_version), Some(application)) = (number(60), number(68)) else {
        return Err(corrupt(format!("{} is not a database: it is cut off", path.display())));
    };
    if !bytes.starts_with(b"SQLite format 3\0") {
        return Err(corrupt(format!("{} is not a database", path.display())));
    }
    if application != migrate::APPLICATION_ID {
        return Err(corrupt(format!(
            "{} is a database of another program (application id {application:#010x})",
            path.display()
        )));
    }
    Ok(Header { user_version })
}

/// Whether a file may be opened: it is ours, and not newer than this program. Changes nothing.
pub(crate) fn may_open(path: &Path) -> Result<()> {
    migrate::check_version(header(path)?.user_version)?;
    // The newest version may still be in the write-ahead log.
    let conn = looking(path)?;
    migrate::check_version(migrate::version(&conn)?)
}

/// A connection that leaves the files as they are, also when it is closed.
fn looking(path: &Path) -> Result<Connection> {
    let conn = conn::reading(path).map_err(|error| failure(&error))?;
    query(conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true))?;
    Ok(conn)
}

/// What SQLite answers when it checks the structure of an open database.
fn lines(conn: &Connection, depth: Depth, limit: usize) -> rusqlite::Result<Vec<String>> {
    let sql = match depth {
        Depth::Quick => format!("PRAGMA quick_check({limit})"),
        Depth::Full => format!("PRAGMA integrity_check({limit})"),
    };
    let mut statement = conn.prepare(&sql)?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    rows.collect()
}

/// The problems in such an answer; none when all is well.
fn named(answer: rusqlite::Result<Vec<String>>) -> Result<Vec<String>> {
    match answer {
        Ok(lines) if lines == ["ok"] => Ok(Vec::new()),
        Ok(lines) => Ok(lines),
        Err(error) => match failure(&error) {
            error if error.kind == StorageErrorKind::Corrupt => Ok(vec![error.message]),
            error => Err(error),
        },
    }
}

/// What a look that may be cut short came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// Every page's structure is good.
    Sound,
    /// The first problem, in SQLite's words.
    Damaged(String),
    /// It was told to stop before it had seen everything.
    CutShort,
}

/// Looks at the structure of every page, as long as `goes_on` says so. It is asked every few
/// thousand steps of SQLite's machine, far below a millisecond apart.
pub(crate) fn look(
    conn: &mut Connection,
    mut goes_on: impl FnMut() -> bool + Send + 'static,
) -> Result<Look> {
    const STEPS: i32 = 1_000;
    query(conn.progress_handler(STEPS, Some(move || !goes_on())))?;
    let found = lines(conn, Depth::Quick, 1);
    query(conn.progress_handler(0, None::<fn() -> bool>))?;
    match found {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Ok(Look::CutShort)
        }
        found => Ok(named(found)?.into_iter().next().map_or(Look::Sound, Look::Damaged)),
    }
}

/// Looks at the database of a home.
///
/// # Errors
/// Where it cannot be looked at: it is missing, not ours, or made by a newer Everturn. What is found
/// wrong inside is in the report.
pub(crate) fn check(home: &Path, depth: Depth) -> Result<Report> {
    let path = home.join(conn::FILE);
    let bytes = match std::fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StorageError::new(
                StorageErrorKind::Unavailable,
                format!("there is no database at {}", path.display()),
            ));
        }
        Err(error) => return Err(io_failure("cannot look at", &path, &error)),
    };
    let header = header(&path)?;
    migrate::check_version(header.user_version)?;
    let conn = looking(&path)?;
    let schema_version = migrate::version(&conn)?;
    migrate::check_version(schema_version)?;
    let pragma = |sql: &str| query(conn.query_row(sql, [], |row| row.get::<_, i64>(0)));
    let free = pragma("PRAGMA freelist_count")?.saturating_mul(pragma("PRAGMA page_size")?);
    let wal = home.join(format!("{}-wal", conn::FILE));
    Ok(Report {
        schema_version,
        bytes,
        wal_bytes: std::fs::metadata(wal).map_or(0, |meta| meta.len()),
        free_bytes: u64::try_from(free).unwrap_or(0),
        problems: named(lines(&conn, depth, PROBLEMS))?,
        path,
    })
}
