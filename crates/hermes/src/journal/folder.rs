//! A folder of journals: `_run_journal/SESSION/RUN.jsonl`.
//!
//! Paths are made of ids only, and an id is never a path: nothing outside the folder is reached.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use everturn_core::{RunId, SessionId};

use super::reader::Identity;
use super::window::{Journal, Summary, Window, read_of};
use super::writer::Writer;
use crate::error::{Error, Result};

/// Below the sessions' folder.
const JOURNALS: &str = "_run_journal";

/// The folder of the earlier web UI that holds its sessions, for the run journals in it.
#[derive(Debug, Clone)]
pub struct Folder {
    journals: PathBuf,
}

/// A run that was found by its id.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Its session, and the run again.
    pub identity: Identity,
    /// Its journal in short.
    pub summary: Summary,
}

impl Folder {
    /// The journals below a sessions' folder, which need not exist.
    pub fn new(sessions: impl AsRef<Path>) -> Self {
        Self { journals: sessions.as_ref().join(JOURNALS) }
    }

    /// Where the journal of a run is, or would be.
    #[must_use]
    pub fn path(&self, identity: &Identity) -> PathBuf {
        let session = self.journals.join(identity.session_id.as_str());
        session.join(format!("{}.jsonl", identity.run_id))
    }

    /// Reads a window of a run's journal; one that does not exist reads as empty.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read.
    pub fn read(&self, identity: &Identity, window: Window) -> Result<Journal> {
        match File::open(self.path(identity)) {
            Ok(file) => read_of(BufReader::new(file), identity.clone(), window),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                read_of(io::empty(), identity.clone(), window)
            }
            Err(error) => Err(Error::io("open")(error)),
        }
    }

    /// A run's journal in short.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn summary(&self, identity: &Identity) -> Result<Summary> {
        let window = Window { limit: 0, ..Window::default() };
        self.read(identity, window).map(|journal| journal.summary)
    }

    /// Finds a run by its id alone. If several sessions have a journal of that name, the one with
    /// the smallest id is taken.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder or the journal cannot be read.
    pub fn find(&self, run_id: &RunId) -> Result<Option<Found>> {
        let mut sessions = Vec::new();
        let folders = match fs::read_dir(&self.journals) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open")(error)),
        };
        for folder in folders {
            let name = folder.map_err(Error::io("open"))?.file_name();
            // What is no id is nobody's session.
            let Some(Ok(session_id)) = name.to_str().map(SessionId::new) else { continue };
            let identity = Identity { session_id, run_id: run_id.clone() };
            if self.path(&identity).is_file() {
                sessions.push(identity);
            }
        }
        let first = sessions.into_iter().min_by(|a, b| a.session_id.cmp(&b.session_id));
        let Some(identity) = first else { return Ok(None) };
        let summary = self.summary(&identity)?;
        Ok(Some(Found { path: self.path(&identity), identity, summary }))
    }

    /// Goes on with a run's journal, or begins it. It has this one writer until that is dropped.
    ///
    /// # Errors
    /// [`Error::InUse`] if it has another writer, [`Error::Io`] if it cannot be opened or read.
    pub fn writer(&self, identity: Identity) -> Result<Writer<File>> {
        let path = self.path(&identity);
        if let Some(folder) = path.parent() {
            let mut builder = DirBuilder::new();
            private_folder(builder.recursive(true)).create(folder).map_err(Error::io("open"))?;
        }
        let mut options = OpenOptions::new();
        let options = private_file(options.read(true).append(true).create(true));
        let file = options.open(&path).map_err(Error::io("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { run_id: identity.run_id.to_string() });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("open")(error)),
        }
        let existing = file.try_clone().map_err(Error::io("open"))?;
        Writer::resume(BufReader::new(existing), file, identity)
    }
}

// Journals are conversations in plain text.

#[cfg(unix)]
fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700)
}

#[cfg(unix)]
fn private_file(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    builder
}

#[cfg(not(unix))]
fn private_file(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
