//! Proof of life: each open store holds a kernel lock on a file of its own.
//!
//! A lock of the kernel ends with its process, whatever ended that, and is never mistaken for
//! another's, as a process number can be. The file is made and locked before its node is known to
//! anybody, so: a node whose lock can be had, or whose file is gone, is gone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use everturn_core::NodeId;
use everturn_store::{StorageError, StorageErrorKind};

use crate::conn::file_id;
use crate::errors::{Result, io_failure};

/// Lock files looked at in one sweep.
const SWEEP_FILES: usize = 1_000;
/// Attempts to get one's own lock, and the pause between them: others hold it for a moment only.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(10);

/// Name of the folder of lock files in the home.
pub(crate) const FOLDER: &str = "nodes";
const SUFFIX: &str = ".lock";
/// What a node's unfinished new database is called, besides its id.
const NEW_SUFFIX: &str = ".new";

fn lock_path(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}{SUFFIX}"))
}

/// Where a node prepares a new database.
pub(crate) fn new_path(folder: &Path, node: &NodeId) -> PathBuf {
    folder.join(format!("{node}{NEW_SUFFIX}"))
}

/// A node's lock, held as long as this lives.
#[derive(Debug)]
pub(crate) struct NodeLock {
    path: PathBuf,
    _file: File,
}

impl NodeLock {
    /// Makes and locks a node's file. `note` is for people who look into it.
    pub(crate) fn hold(folder: &Path, node: &NodeId, note: &str) -> Result<Self> {
        let path = lock_path(folder, node.as_str());
        let failed = |error: &std::io::Error| io_failure("cannot lock", &path, error);
        for _ in 0..ATTEMPTS {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)
                .map_err(|error| failed(&error))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    // Somebody looks whether it is free; nobody keeps it.
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(failed(&error)),
            }
            // A sweep may have removed the file between its making and its locking.
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0).and_then(|()| writeln!(file, "{note}")).map_err(|e| failed(&e))?;
            return Ok(Self { path, _file: file });
        }
        Err(StorageError::new(
            StorageErrorKind::Unavailable,
            format!("{} is held: another process uses this node id", path.display()),
        ))
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // While the lock is held: nobody can mistake a later file for this one.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the lock file stays");
        }
    }
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let open = file.metadata().map(|meta| (meta.dev(), meta.ino()));
    matches!((open, file_id(path)), (Ok(open), Ok(at)) if open == at)
}

/// What a node's lock file tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Its lock is held.
    Alive,
    /// Its lock could be had.
    Gone,
    /// There is no such file.
    NoFile,
    /// It cannot be told.
    Unknown,
}

/// Looks whether a node lives.
pub(crate) fn look(folder: &Path, node: &NodeId) -> Sign {
    let file = match File::open(lock_path(folder, node.as_str())) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Sign::NoFile,
        Err(_) => return Sign::Unknown,
    };
    // Shared, so that two who look do not take each other for the holder.
    match file.try_lock_shared() {
        Ok(()) => Sign::Gone,
        Err(TryLockError::WouldBlock) => Sign::Alive,
        Err(TryLockError::Error(_)) => Sign::Unknown,
    }
}

/// Removes what nodes that are gone left behind. A missing file says the same as a free lock.
pub(crate) fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(SWEEP_FILES) {
        let name = entry.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else {
            continue;
        };
        let path = entry.path();
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() && is_at(&file, &path) {
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let _none =
                    std::fs::remove_file(folder.join(format!("{node}{NEW_SUFFIX}{suffix}")));
            }
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "the lock file stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lock_tells_life_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::new("node_a").unwrap();
        assert_eq!(look(folder.path(), &node), Sign::NoFile);
        let lock = NodeLock::hold(folder.path(), &node, "test").unwrap();
        assert_eq!(look(folder.path(), &node), Sign::Alive);
        sweep(folder.path());
        assert_eq!(look(folder.path(), &node), Sign::Alive);
        drop(lock);
        assert_eq!(look(folder.path(), &node), Sign::NoFile);
        // As a process that was killed leaves it.
        std::fs::write(lock_path(folder.path(), "node_a"), "left").unwrap();
        std::fs::write(new_path(folder.path(), &node), "half").unwrap();
        assert_eq!(look(folder.path(), &node), Sign::Gone);
        sweep(folder.path());
        assert_eq!(look(folder.path(), &node), Sign::NoFile);
        assert!(!new_path(folder.path(), &node).exists());
    }

    #[test]
    fn a_node_id_has_one_holder_and_lookers_do_not_hinder_it() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::new("node_a").unwrap();
        std::fs::write(lock_path(folder.path(), "node_a"), "left").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _sign = look(folder.path(), &node);
                        sweep(folder.path());
                    }
                });
            }
            for _ in 0..50 {
                let lock = NodeLock::hold(folder.path(), &node, "test").unwrap();
                assert_eq!(look(folder.path(), &node), Sign::Alive);
                drop(lock);
            }
        });
        let _lock = NodeLock::hold(folder.path(), &node, "test").unwrap();
        assert!(NodeLock::hold(folder.path(), &node, "test").is_err());
    }
}
