//! `everturn turn export`: a run's journal as JSON lines that the earlier web UI's tools read.

use std::io::{self, Write};
use std::path::Path;

use everturn_api::run::{Run, RunEvents};
use everturn_core::{RunId, SessionId};
use everturn_hermes::journal::Identity;
use everturn_hermes::{Exporter, RunEvent, RunItem};
use tempfile::NamedTempFile;

use super::turn::{Pages, Target, find};
use crate::client::Event;
use crate::connect::reader;
use crate::error::{CliError, Fault, Result, io as failed};
use crate::exit::Exit;
use crate::print;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::term::Term;

pub(crate) async fn export(
    settings: &Settings,
    id: &str,
    output: Option<&Path>,
    force: bool,
    term: Term,
) -> Result<Exit> {
    let target = Target::parse(id)?;
    if let Some(path) = output.filter(|path| !force && path.symlink_metadata().is_ok()) {
        return Err(taken(path));
    }
    let client = reader(settings).await?;
    let (_, runs) = find(&*client, &target).await?;
    let run = one(id, runs)?;
    let identity = identity(&run)?;
    let mut exporter = Exporter::new(Sink::open(output, force)?, identity);
    let mut progress = Progress::new(term, "exporting", run.last_seq);
    let mut pages = Pages::new(&*client, &run.run_id);
    let mut last = None;
    while let Some(page) = pages.next().await? {
        for item in items(&page) {
            exporter.item(&item).map_err(CliError::from)?;
            progress.add(1);
        }
        last = Some(page);
    }
    drop(progress);
    exporter.into_inner().close()?;
    if let Some(told) = last.as_ref().and_then(|page| unfinished(page, &run)) {
        print::talk(&told);
    }
    Ok(Exit::Completed)
}

/// The one run that was meant.
fn one(id: &str, mut runs: Vec<Run>) -> Result<Run> {
    match (runs.pop(), runs.is_empty()) {
        (Some(run), true) => Ok(run),
        (None, _) => Err(CliError::usage(format!("no turn of {id} has begun"))
            .hint("an input that waits has no journal yet")),
        (Some(last), false) => {
            runs.push(last);
            let ids: Vec<_> = runs.iter().map(|run| run.run_id.as_str()).collect();
            Err(CliError::usage(format!(
                "{id} has {} runs, and a journal is one run's",
                runs.len()
            ))
            .hint(format!("give one of {}", ids.join(", "))))
        }
    }
}

fn identity(run: &Run) -> Result<Identity> {
    let wrong = |error| {
        CliError::new(
            Fault::Protocol,
            format!("the server's answer has an id that is none: {error}"),
        )
    };
    Ok(Identity {
        session_id: SessionId::new(&run.session_id).map_err(wrong)?,
        run_id: RunId::new(&run.run_id).map_err(wrong)?,
    })
}

/// What stands on a page, in the order of its numbers.
fn items(page: &RunEvents) -> Vec<RunItem> {
    let mut items: Vec<RunItem> = page
        .malformed
        .iter()
        .map(|bad| RunItem::Malformed { seq: bad.seq, error: bad.error.clone() })
        .collect();
    items.extend(page.events.iter().map(|raw| match RunEvent::from_wire(raw.get()) {
        Ok(event) => RunItem::Event(event),
        // Told of in its place, as far as that can be read.
        Err(error) => {
            let seq = Event::of_json(raw).ok().and_then(|event| event.said.seq).unwrap_or(0);
            RunItem::Malformed { seq, error: error.to_string() }
        }
    }));
    items.retain(|item| item.seq() > 0);
    items.sort_by_key(RunItem::seq);
    items
}

/// What is to be said of a run without an end. Not a record: nothing of it is in the file.
fn unfinished(page: &RunEvents, run: &Run) -> Option<String> {
    if page.terminal {
        return None;
    }
    let last = format!("its last journaled event is {} (number {})", run.last_event, run.last_seq);
    Some(if page.interrupted_virtually {
        format!("nobody works on this run and its interruption is not recorded yet: {last}")
    } else {
        format!("this run goes on: {last}; what follows is not exported")
    })
}

/// Where the journal goes.
enum Sink {
    Stdout(io::Stdout),
    /// Beside the file that it becomes when it is complete.
    File {
        file: NamedTempFile,
        path: std::path::PathBuf,
        /// Whether it may take the place of another.
        force: bool,
    },
}

/// What is there is not overwritten.
fn taken(path: &Path) -> CliError {
    failed("write", path, "it is there already").hint("another name, or --force to replace it")
}

impl Sink {
    fn open(output: Option<&Path>, force: bool) -> Result<Self> {
        let Some(path) = output else { return Ok(Self::Stdout(io::stdout())) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Private, as journals are: conversations in plain text.
        let file = NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new(".")))
            .map_err(|error| failed("write", path, error))?;
        Ok(Self::File { file, path: path.to_owned(), force })
    }

    fn close(self) -> Result<()> {
        let Self::File { file, path, force } = self else { return Ok(()) };
        file.as_file().sync_all().map_err(|error| failed("write", &path, error))?;
        let kept = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        match kept {
            Ok(_) => Ok(()),
            // It came while the export was written.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(taken(&path)),
            Err(error) => Err(failed("write", &path, error.error)),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}
