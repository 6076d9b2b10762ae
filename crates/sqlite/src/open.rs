//! Opening: the home's folder, this node's lock, a database that may be used, the writer's thread.

use std::fs::{DirBuilder, File, OpenOptions as FileOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use everturn_core::NodeId;
use rusqlite::{Connection, OpenFlags};

use crate::check;
use crate::conn::{self, query};
use crate::errors::{Result, corrupt, failure, io_failure};
use crate::inspect;
use crate::locks;
use crate::migrate;

/// Makes the home and its folder of locks. Returns the home without links in its path.
pub(crate) fn home(home: &Path) -> Result<(PathBuf, PathBuf)> {
    let fresh = !home.exists();
    make_folder(home)?;
    let home =
        home.canonicalize().map_err(|error| io_failure("cannot use the folder", home, &error))?;
    let nodes = home.join(locks::FOLDER);
    make_folder(&nodes)?;
    if fresh && let Some(parent) = home.parent() {
        sync_folder(parent)?;
    }
    Ok((home, nodes))
}

fn make_folder(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| io_failure("cannot make the folder", path, &error))
}

/// Makes the entries of a folder survive power loss.
fn sync_folder(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|error| io_failure("cannot sync the folder", path, &error))
}

/// Opens the database of a home for writing, and makes it where there is none. With it comes whether
/// every page was looked at; that takes `patience` at most.
pub(crate) fn database(
    home: &Path,
    nodes: &Path,
    node: &NodeId,
    patience: Duration,
) -> Result<(Connection, bool)> {
    let path = home.join(conn::FILE);
    if path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        for side in ["-wal", "-journal"] {
            let left = home.join(format!("{}{side}", conn::FILE));
            if left.exists() {
                // SQLite would play a stranger's log into the new database.
                return Err(corrupt(format!(
                    "{} is gone but {} is there: bring the database back, or move both away",
                    path.display(),
                    left.display()
                )));
            }
        }
        create(home, &path, &locks::new_path(nodes, node))?;
    }
    check::may_open(&path)?;
    let mut conn = conn::writing(&path).map_err(|error| failure(&error))?;
    migrate::migrate(&mut conn)?;
    let is_seen = inspect::at_start(&mut conn, &path, patience)?;
    Ok((conn, is_seen))
}

/// Makes a complete database beside its place and then puts it there in one step, so that nobody
/// ever sees half of one, and nothing that is there is ever overwritten.
fn create(home: &Path, path: &Path, new: &Path) -> Result<()> {
    FileOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(new)
        .map_err(|error| io_failure("cannot make", new, &error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = query(Connection::open_with_flags(new, flags))?;
    query(conn.pragma_update(None, "synchronous", "FULL"))?;
    query(conn.pragma_update(None, "foreign_keys", false))?;
    query(conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())))?;
    migrate::migrate(&mut conn)?;
    query(conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))?;
    conn.close().map_err(|(_, error)| failure(&error))?;
    let place = || -> std::io::Result<()> {
        File::open(new)?.sync_all()?;
        match std::fs::hard_link(new, path) {
            Ok(()) => {}
            // Another process was faster: its database is as good.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        everturn_crash::pass(everturn_crash::Point::CreateLinked);
        std::fs::remove_file(new)
    };
    place().map_err(|error| io_failure("cannot make", path, &error))?;
    sync_folder(home)
}
