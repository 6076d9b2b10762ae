//! `everturn import journal`: a run that an earlier web UI (or another Everturn) kept as JSON lines
//! becomes a run of this store.
//!
//! The file is read three times, each time in bounded memory: for its summary, for the digest that
//! tells whether it was imported before, and while the store takes it in, in one transaction. A kill
//! at any moment leaves all of the run or nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use everturn_api::known;
use everturn_core::digest::{Digest, JournalDigest};
use everturn_core::{InputId, Principal, RequestId, Run, RunId, SessionId, SessionKey, limits};
use everturn_hermes::journal::{Journal, Malformed, Window, read};
use everturn_hermes::{RunEvent, Sealed};
use everturn_store::op::{ForeignEvent, ForeignEvents, ImportRun};
use everturn_store::{OpError, Read as _, Refusal, execute};
use serde::Serialize;

use crate::client::local::session_id;
use crate::connect::existing_store;
use crate::error::{CliError, Fault, Result, io as failed};
use crate::exit::Exit;
use crate::home::Home;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::term::{Term, one_line};
use crate::{open, print, table};

/// Reports of what is malformed that people are shown; JSON has more.
const SHOWN: usize = 20;

pub(crate) struct Asked<'a> {
    pub(crate) file: &'a Path,
    pub(crate) session: Option<&'a str>,
    pub(crate) dry_run: bool,
    pub(crate) json: bool,
}

/// What is told of an import, or of what it would be.
#[derive(Serialize)]
struct Told {
    dry_run: bool,
    /// Whether it was imported before; then nothing changed.
    replayed: bool,
    /// The session that it is in here.
    session_id: String,
    /// The run and the import here.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// How it ended, in our words.
    terminal_state: String,
    /// Events here, and what they are made of.
    events: u64,
    source: Source,
    malformed: Vec<Malformed>,
    malformed_count: u64,
}

/// What the journal says of itself.
#[derive(Serialize)]
struct Source {
    session_id: String,
    run_id: String,
    event_count: u64,
    last_seq: u64,
    last_event: Option<String>,
    /// In the earlier words.
    terminal_state: &'static str,
    terminal: bool,
}

pub(crate) async fn journal(settings: &Settings, asked: Asked<'_>, term: Term) -> Result<Exit> {
    let path = asked.file;
    let session = asked.session.map(session_id).transpose()?;
    let bytes = regular(path)?;
    let progress = Progress::new(term, "reading bytes", bytes);
    let file = File::open(path).map_err(|error| failed("open", path, error))?;
    let counted = BufReader::new(Counted(file, progress));
    let journal = read(counted, Window { limit: 0, ..Window::default() })?;
    let Some(theirs) = journal.summary.identity.clone().filter(|_| journal.summary.event_count > 0)
    else {
        return Err(nothing(path, &journal));
    };
    let session = session.unwrap_or_else(|| theirs.session_id.clone());
    let principal = Principal::local();
    let first = look(path, &journal, &principal, &theirs.run_id, term)?;

    let mut told = tell(&asked, &journal, &session, &theirs.run_id, &first);
    let key = SessionKey { principal: principal.clone(), id: session };
    if asked.dry_run {
        if let Some((input, run)) = known_before(settings, &key, &theirs.run_id, &first).await? {
            told.replayed = true;
            told.run_id = Some(run.id.to_string());
            told.input_id = Some(input.to_string());
            told.generation = Some(run.generation);
            told.events = run.last_seq;
        }
    } else {
        let progress = Progress::new(term, "importing", first.events);
        let events = foreign(path, &journal, principal, progress)?;
        let home = Home::make(settings)?;
        let folder = open::store_folder(settings, &home)?;
        let store = open::store(settings, &folder, "import").await?;
        let import = ImportRun {
            key,
            source: theirs.run_id,
            digest: first.digest,
            events,
            node: store.node_id().clone(),
            sessions_max: settings.limits_sessions.value.0,
        };
        let done = execute(&*store, import).await.map_err(refused)?;
        told.replayed = done.replayed;
        told.run_id = Some(done.run.id.to_string());
        told.input_id = Some(done.input.id.to_string());
        told.generation = Some(done.run.generation);
        told.events = done.run.last_seq;
    }
    if asked.json {
        print::json(&told)?;
    } else {
        print::text(&describe(&told))?;
    }
    Ok(Exit::Completed)
}

/// The run that this journal is here already, if it is: what the import itself would find.
async fn known_before(
    settings: &Settings,
    key: &SessionKey,
    source: &RunId,
    first: &Look,
) -> Result<Option<(InputId, Run)>> {
    // Looking makes nothing.
    let home = match Home::find(settings) {
        Err(error) if error.code == Fault::NoHome.code() => return Ok(None),
        found => found?,
    };
    let store = match existing_store(settings, &home, "import").await {
        Err(error) if error.code == Fault::NoHome.code() => return Ok(None),
        found => found?,
    };
    if store.session(key).await?.is_none() && store.tombstone(key).await?.is_some() {
        return Err(refused(Refusal::SessionDeleted.into()));
    }
    let request = RequestId::new(format!("import:{source}"))
        .map_err(|error| CliError::usage(format!("the run's id: {error}")))?;
    if let Some(input) = store.input_by_identity(key, &request).await? {
        if input.digest != first.digest {
            return Err(refused(Refusal::InputConflict.into()));
        }
        let Some(run) = &input.run_id else { return Ok(None) };
        return Ok(store.run(run).await?.map(|run| (input.id, run)));
    }
    let run = store.run(source).await?.filter(|run| run.session_key() == *key);
    Ok(run.and_then(|run| Some((run.input_ids.first()?.clone(), run))))
}

/// How large the file is, if it can be read again and again.
fn regular(path: &Path) -> Result<u64> {
    let about = std::fs::metadata(path).map_err(|error| {
        let told = failed("open", path, error);
        match path == Path::new("-") {
            true => told.hint("a journal is read several times: write stdin into a file first"),
            false => told.hint("give the path of a run's journal, as `everturn turn export --output FILE` writes it"),
        }
    })?;
    if about.is_file() {
        return Ok(about.len());
    }
    Err(CliError::usage(format!("{} is not a file", path.display()))
        .hint("a journal is read several times: write a pipe into a file first"))
}

fn nothing(path: &Path, journal: &Journal) -> CliError {
    let message = format!("there is no record in {}", path.display());
    let error = CliError::new(Fault::NoRecord, message);
    match journal.malformed.first() {
        None => error.hint("it is empty"),
        Some(bad) => error.hint(format!(
            "{} of it {} none, the first in line {}: {} {:?}",
            table::count(journal.malformed_count, "part"),
            if journal.malformed_count == 1 { "is" } else { "are" },
            bad.line,
            bad.reason,
            one_line(&bad.text, 60)
        )),
    }
}

/// What readers of our events could take for one.
fn fits(name: &str, body: &str) -> bool {
    known::known(name, body).is_ok()
}

fn sealed(path: &Path, journal: &Journal, principal: Principal) -> Result<Sealed<BufReader<File>>> {
    let again: PathBuf = path.to_owned();
    let open = move || match File::open(&again) {
        Ok(file) => Ok(BufReader::new(file)),
        Err(source) => Err(everturn_hermes::Error::Io { doing: "open", source }),
    };
    Sealed::new(journal, principal, fits, open).ok_or_else(|| nothing(path, journal))
}

/// What one reading of all events tells.
struct Look {
    digest: Digest,
    events: u64,
    end: String,
}

fn look(
    path: &Path,
    journal: &Journal,
    principal: &Principal,
    run: &RunId,
    term: Term,
) -> Result<Look> {
    let mut progress = Progress::new(term, "checking", journal.summary.event_count);
    let mut digest = JournalDigest::new(run);
    let (mut events, mut bytes, mut end) = (0, 0_u64, String::new());
    for event in sealed(path, journal, principal.clone())? {
        let RunEvent { seq, name, at, body } = event?;
        digest.add(at, &name, body.get());
        progress.add(1);
        events = seq;
        bytes += body.get().len() as u64;
        if events > limits::IMPORT_EVENTS_MAX || bytes > limits::IMPORT_BYTES_MAX {
            let (events, mib) = (limits::IMPORT_EVENTS_MAX, limits::IMPORT_BYTES_MAX >> 20);
            let message = format!("it has more than {events} events or {mib} MiB");
            return Err(Refusal::BadImport(message).into());
        }
        if let Ok(known::Known::End(ending)) = known::known(&name, body.get()) {
            end = ending.state.to_string();
        }
    }
    Ok(Look { digest: digest.finish(), events, end })
}

/// The events, pulled while the store takes them in.
fn foreign(
    path: &Path,
    journal: &Journal,
    principal: Principal,
    mut progress: Progress,
) -> Result<ForeignEvents> {
    let events = sealed(path, journal, principal)?;
    Ok(ForeignEvents::new(events.map(move |event| {
        progress.add(1);
        let RunEvent { name, at, body, .. } = event.map_err(|error| error.to_string())?;
        Ok(ForeignEvent { at, name, body: Box::<str>::from(body).into() })
    })))
}

fn refused(error: OpError) -> CliError {
    match error {
        OpError::Refused(Refusal::InputConflict) => {
            let mut told = CliError::from(Refusal::InputConflict);
            "a run of this id was imported into the session before, and its journal said something else"
                .clone_into(&mut told.message);
            told.hints = vec!["--session ID imports it elsewhere".to_owned()];
            told
        }
        error => error.into(),
    }
}

fn tell(
    asked: &Asked<'_>,
    journal: &Journal,
    session: &SessionId,
    run: &RunId,
    first: &Look,
) -> Told {
    let summary = &journal.summary;
    let theirs = summary.identity.as_ref().map(|identity| identity.session_id.to_string());
    Told {
        dry_run: asked.dry_run,
        replayed: false,
        session_id: session.to_string(),
        run_id: None,
        input_id: None,
        generation: None,
        terminal_state: first.end.clone(),
        events: first.events,
        source: Source {
            session_id: theirs.unwrap_or_default(),
            run_id: run.to_string(),
            event_count: summary.event_count,
            last_seq: summary.last_seq,
            last_event: summary.last_event.clone(),
            terminal_state: summary.state(),
            terminal: summary.terminal(),
        },
        malformed: journal.malformed.clone(),
        malformed_count: journal.malformed_count,
    }
}

fn describe(told: &Told) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: &str| {
        // Writing to a text cannot fail.
        let _ = writeln!(out, "{name:<10} {value}");
    };
    let source = &told.source;
    row("journal", &format!("run {} of session {}", source.run_id, source.session_id));
    row(
        "records",
        &format!(
            "{}, the last is {} (number {})",
            source.event_count,
            one_line(source.last_event.as_deref().unwrap_or_default(), 60),
            source.last_seq
        ),
    );
    row(
        "outcome",
        &if source.terminal {
            format!("{} ({} here)", source.terminal_state, told.terminal_state)
        } else {
            format!("none: nobody recorded an end ({} here)", told.terminal_state)
        },
    );
    row("session", &told.session_id);
    match &told.run_id {
        Some(id) => {
            let before = match (told.replayed, told.dry_run) {
                (true, true) => ", here already: nothing would change",
                (true, false) => ", here already: nothing changed",
                (false, _) => "",
            };
            row("run", &format!("{id}{before}"));
            row("events", &told.events.to_string());
        }
        None => row("events", &format!("{} would be imported", told.events)),
    }
    if told.malformed_count > 0 {
        row("malformed", &told.malformed_count.to_string());
        for bad in told.malformed.iter().take(SHOWN) {
            let text = one_line(&bad.text, 60);
            row("", &format!("line {}: {}, {} bytes: {text}", bad.line, bad.reason, bad.bytes));
        }
        let more = told.malformed_count.saturating_sub(SHOWN as u64);
        if more > 0 {
            row("", &format!("and {more} more; --json has {} of them", told.malformed.len()));
        }
    }
    out
}

/// A file whose bytes are counted.
struct Counted(File, Progress);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.add(count as u64);
        Ok(count)
    }
}
