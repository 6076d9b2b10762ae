//! The look at a large database that goes on behind the start (promise P13).
//!
//! Every page is looked at whenever a store is opened. What that takes grows with the file, and a
//! start must not: what is not done within [`START`] goes on in a thread of its own, and a store that
//! turns out to be damaged takes no more writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::check::{self, Look};
use crate::conn;
use crate::errors::{Result, corrupt, failure, io_failure};

/// How long a start looks at the database before it goes on; all of about 100 MB.
pub(crate) const START: Duration = Duration::from_millis(150);

/// What was found wrong with the open database, if anything was.
#[derive(Debug, Clone, Default)]
pub(crate) struct Damage(Arc<OnceLock<String>>);

impl Damage {
    /// Refuses what would write to a damaged database.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |problem| Err(corrupt(problem.clone())))
    }
}

fn damaged(path: &Path, problem: &str) -> String {
    format!("{} is damaged: {problem}", path.display())
}

/// Looks for as long as a start may take. `false`: not everything was seen.
pub(crate) fn at_start(conn: &mut Connection, path: &Path, patience: Duration) -> Result<bool> {
    if patience.is_zero() {
        return Ok(false);
    }
    let deadline = Instant::now() + patience;
    match check::look(conn, move || Instant::now() < deadline)? {
        Look::Sound => Ok(true),
        Look::Damaged(problem) => Err(corrupt(damaged(path, &problem))),
        Look::CutShort => Ok(false),
    }
}

/// The thread that looks at all of it. Dropping this ends it.
pub(crate) struct Inspector {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Inspector {
    /// Begins anew, on a connection of its own, with nobody waiting.
    pub(crate) fn start(database: PathBuf, damage: Damage) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let path = database.clone();
        let thread = std::thread::Builder::new()
            .name("everturn-check".to_owned())
            .spawn(move || look(&database, &told, &damage))
            .map_err(|error| io_failure("cannot start the check of", &path, &error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the check of the database panicked");
        }
    }
}

fn look(database: &Path, stop: &Arc<AtomicBool>, damage: &Damage) {
    let begun = Instant::now();
    let told = Arc::clone(stop);
    let found = conn::reading(database)
        .map_err(|error| failure(&error))
        .and_then(|mut conn| check::look(&mut conn, move || !told.load(Ordering::Relaxed)));
    let took_ms = begun.elapsed().as_millis();
    match found {
        Ok(Look::Sound) => tracing::info!(took_ms, "every page of the database is sound"),
        Ok(Look::Damaged(problem)) => {
            let problem = damaged(database, &problem);
            tracing::error!(
                problem,
                "nothing more is written; keep a copy of the database, then restore a backup"
            );
            let _first = damage.0.set(problem);
        }
        Ok(Look::CutShort) => {}
        // Whether it is damaged is not known; whoever reads or writes will meet what is there.
        Err(error) => tracing::warn!(%error, "the database could not be looked at as a whole"),
    }
}
