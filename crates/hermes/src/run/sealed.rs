//! A journal as a store takes it in: in the order of its seqs, whatever the order of its lines, in
//! bounded memory; numbered without holes; with one end, and nothing behind it.

use std::collections::VecDeque;
use std::io::BufRead;

use everturn_core::event::is_terminal;
use everturn_core::{Principal, Timestamp};
use serde_json::json;

use super::import::Importer;
use super::{RunEvent, RunItem};
use crate::error::{Error, Result};
use crate::journal::{
    Identity, Item, Journal, Reader, Record, Summary, Window, read_of, stale_report,
};
use crate::object::members;

/// Records of a journal out of order that are held at a time.
const HELD: usize = 16_384;

/// Opens the journal once more.
type Open<R> = Box<dyn FnMut() -> Result<R> + Send>;

/// Gives the events of a journal, ready to be stored.
///
/// | in the journal | here |
/// | --- | --- |
/// | an event | the same, with the next number |
/// | numbers that no record has | one `hermes.missing` with `from` and `to`, as they were numbered there; nothing where the event behind them is a snapshot of them |
/// | a record in the place of an event that could not be read | `hermes.malformed` with `reason` |
/// | the terminal event | the last one; what only the earlier tools wrote behind it stands before it |
/// | no terminal event | `run.interrupted`, cause `unknown`, with the last record as evidence |
pub struct Sealed<R> {
    open: Open<R>,
    identity: Identity,
    summary: Summary,
    importer: Importer,
    source: Source<R>,
    /// The next number there, and here.
    expected: u64,
    next: u64,
    ready: VecDeque<RunEvent>,
    /// The terminal event, held back.
    end: Option<RunEvent>,
    last_at: Timestamp,
    done: bool,
}

impl<R> std::fmt::Debug for Sealed<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Where records come from.
enum Source<R> {
    /// The lines are in order: one after the other, and those that stand there again are skipped.
    InOrder(Option<Reader<R>>, u64),
    /// They are not: a window at a time.
    Windows(VecDeque<Record>, u64, bool),
}

impl<R: BufRead> Sealed<R> {
    /// Begins with a journal of which this was read (any window), and which `open` opens at its beginning, each time anew.
    /// `fits` is as for [`Importer::checking`], `by` as for [`Importer::new`]. `None` if there is no
    /// record in it.
    pub fn new(
        journal: &Journal,
        by: Principal,
        fits: fn(&str, &str) -> bool,
        open: impl FnMut() -> Result<R> + Send + 'static,
    ) -> Option<Self> {
        let summary = &journal.summary;
        let identity = summary.identity.clone().filter(|_| summary.event_count > 0)?;
        let source = if journal.disordered {
            Source::Windows(VecDeque::new(), 0, true)
        } else {
            Source::InOrder(None, 0)
        };
        Some(Self {
            open: Box::new(open),
            identity,
            importer: Importer::new(summary, by).checking(fits),
            summary: summary.clone(),
            source,
            expected: 1,
            next: 1,
            ready: VecDeque::new(),
            end: None,
            last_at: Timestamp(0),
            done: false,
        })
    }

    /// The next record in the order of seqs.
    fn record(&mut self) -> Result<Option<Record>> {
        match &mut self.source {
            Source::InOrder(reader, last) => {
                let reader = match reader {
                    Some(reader) => reader,
                    None => reader.insert(Reader::of((self.open)()?, self.identity.clone())),
                };
                loop {
                    match reader.next().transpose()? {
                        None => return Ok(None),
                        Some(Item::Record { record, .. }) if record.seq > *last => {
                            *last = record.seq;
                            return Ok(Some(record));
                        }
                        Some(_) => {}
                    }
                }
            }
            Source::Windows(held, after, more) => {
                if held.is_empty() && *more {
                    let window = Window { after: *after, max: None, limit: HELD };
                    let journal = read_of((self.open)()?, self.identity.clone(), window)?;
                    held.extend(journal.events);
                    *more = journal.more;
                }
                let record = held.pop_front();
                if let Some(record) = &record {
                    *after = record.seq;
                }
                Ok(record)
            }
        }
    }

    fn push(&mut self, at: Timestamp, name: &str, body: &str) -> Result<()> {
        let event = RunEvent::new(self.next, name, at, body)?;
        self.next += 1;
        self.ready.push_back(event);
        Ok(())
    }

    fn take(&mut self, record: &Record) -> Result<()> {
        let Some(item) = self.importer.record(record) else {
            // The mark of a number without an event: a hole, told of with what is around it.
            return Ok(());
        };
        let snapshot = match &item {
            RunItem::Event(event) if event.name == "text.snapshot" => range(event),
            _ => None,
        };
        let hole = (self.expected, record.seq - 1);
        let told = snapshot.is_some_and(|(from, _)| from <= hole.0);
        if hole.0 <= hole.1 && !told {
            let body = json!({ "from": hole.0, "to": hole.1 }).to_string();
            self.push(record.at(), MISSING_HERE, &body)?;
        }
        self.expected = record.seq + 1;
        self.last_at = record.at();
        match item {
            RunItem::Malformed { error, .. } => {
                let body = json!({ "reason": error }).to_string();
                self.push(record.at(), MALFORMED_HERE, &body)
            }
            RunItem::Event(event) if is_terminal(&event.name) => {
                self.end = Some(event);
                Ok(())
            }
            RunItem::Event(event) => match snapshot {
                // It stands for its own number: those before it are given to others here.
                Some(_) => {
                    let body = renumbered(&event, self.next)?;
                    self.push(event.at, &event.name, &body)
                }
                None => self.push(event.at, &event.name, event.body.get()),
            },
        }
    }

    fn finish(&mut self) -> Result<()> {
        match self.end.take() {
            Some(end) => self.push(end.at, &end.name, end.body.get()),
            None => {
                let report = stale_report(&self.summary);
                let said = report
                    .map(|report| format!("{} {}", report.payload.message, report.payload.hint));
                let at = self.last_at;
                let body = json!({ "cause": "unknown", "evidence": {
                    "text": said.unwrap_or_default(),
                    "holder": "unknown",
                    "rebooted": false,
                    "observer": "unknown",
                    "observer_started_at": at.rfc3339(),
                    "newer_process": false,
                    "last_seq": self.summary.last_seq,
                    "last_event": self.summary.last_event.clone().unwrap_or_default(),
                    "last_event_at": at.rfc3339(),
                }});
                self.push(at, "run.interrupted", &body.to_string())
            }
        }
    }

    fn step(&mut self) -> Result<()> {
        match self.record()? {
            Some(record) => self.take(&record),
            None => {
                self.done = true;
                self.finish()
            }
        }
    }
}

/// Events in the place of what the journal does not have.
const MISSING_HERE: &str = "hermes.missing";
const MALFORMED_HERE: &str = "hermes.malformed";

impl<R: BufRead> Iterator for Sealed<R> {
    type Item = Result<RunEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.done {
                return None;
            }
            if let Err(error) = self.step() {
                self.done = true;
                return Some(Err(error));
            }
        }
    }
}

/// The numbers that a snapshot stands for.
fn range(event: &RunEvent) -> Option<(u64, u64)> {
    let [from, to] = members(event.body.get(), ["from", "to"])?;
    Some((from?.get().parse().ok()?, to?.get().parse().ok()?))
}

/// The body of a snapshot that stands for one number.
fn renumbered(event: &RunEvent, number: u64) -> Result<String> {
    let mut body: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(event.body.get()).map_err(|error| Error::Record(error.to_string()))?;
    body.insert("from".to_owned(), number.into());
    body.insert("to".to_owned(), number.into());
    Ok(serde_json::Value::Object(body).to_string())
}
