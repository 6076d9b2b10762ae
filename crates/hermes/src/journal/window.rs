//! A window of a journal and its summary, in one pass.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::reader::{Identity, Item, Malformed, Reader, Reason};
use super::record::{EventId, Record};
use super::terminal::{State, is_bookkeeping};
use crate::error::Result;

/// Reports of malformed records that one reading keeps; all are counted.
pub const MALFORMED_MAX: usize = 1_000;

/// Bytes of payloads that one window holds; a single larger record is a window of its own.
pub const WINDOW_BYTES_MAX: usize = 64 << 20;

/// Holes in the numbering of a journal that are kept count of.
pub const HOLES_MAX: usize = 1 << 16;

/// Which records of a journal are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Only those with a greater seq; 0 is all.
    pub after: u64,
    /// Only those up to this seq, it included.
    pub max: Option<u64>,
    /// At most so many, those with the smallest seqs.
    pub limit: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { after: 0, max: None, limit: usize::MAX }
    }
}

impl Window {
    /// Everything behind a seq.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { after: seq, ..Self::default() }
    }
}

/// What a reading of a journal found.
#[derive(Debug, Clone, PartialEq)]
pub struct Journal {
    /// The records of the window, in the order of their seqs, each seq once.
    pub events: Vec<Record>,
    /// Whether the window holds more than `limit` or [`WINDOW_BYTES_MAX`] let through. Then read on
    /// after the last seq of `events`.
    pub more: bool,
    /// What is not a record, in the order of the file, whatever the window: the first
    /// [`MALFORMED_MAX`] of them.
    pub malformed: Vec<Malformed>,
    /// How many there are.
    pub malformed_count: u64,
    /// Whether a record stands behind one with a greater seq.
    pub disordered: bool,
    /// The whole journal in short.
    pub summary: Summary,
}

/// A journal in short.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Whose journal it is; `None` while no record is known and nobody said.
    pub identity: Option<Identity>,
    /// Records, each seq once.
    pub event_count: u64,
    /// The greatest seq; 0 if there is no record.
    pub last_seq: u64,
    /// The name of the record with that seq.
    pub last_event: Option<String>,
    /// When that record was written, in seconds since the Unix epoch.
    pub last_at: f64,
    /// How the run ended. What only closes the connection (`stream_end`) never overrides what tells
    /// an outcome; of two that do, the one with the greater seq counts.
    pub terminal_state: Option<State>,
    /// The seq of the record that says so.
    pub terminal_seq: Option<u64>,
    /// Whether the record that tells the outcome only closes the connection.
    bookkeeping: bool,
}

impl Summary {
    /// Whether the run has ended.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        self.terminal_state.is_some()
    }

    /// The earlier word for where the run is: how it ended, `running` if it has not, `unknown` if
    /// there is no record.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self.terminal_state {
            Some(state) => state.as_str(),
            None if self.event_count > 0 => "running",
            None => "unknown",
        }
    }

    /// The id of the record with the greatest seq.
    #[must_use]
    pub fn last_event_id(&self) -> Option<EventId> {
        let run_id = self.identity.as_ref()?.run_id.clone();
        (self.last_seq > 0).then_some(EventId { run_id, seq: self.last_seq })
    }

    /// Takes a record in whose seq is new.
    fn add(&mut self, record: &Record) {
        self.event_count += 1;
        if record.seq > self.last_seq {
            self.last_seq = record.seq;
            self.last_event = Some(record.event.clone());
            self.last_at = record.created_at;
        }
        if record.terminal() {
            let bookkeeping = is_bookkeeping(&record.event);
            let tells_more = match self.terminal_seq {
                None => true,
                Some(_) if bookkeeping != self.bookkeeping => self.bookkeeping,
                Some(seq) => record.seq > seq,
            };
            if tells_more {
                self.bookkeeping = bookkeeping;
                self.terminal_seq = Some(record.seq);
                self.terminal_state = record.terminal_state;
            }
        }
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let session = self.identity.as_ref().map(|identity| identity.session_id.as_str());
        let run = self.identity.as_ref().map(|identity| identity.run_id.as_str());
        let last_event_id = self.last_event_id().map(|id| id.to_string());
        let mut summary = to.serialize_struct("Summary", 9)?;
        summary.serialize_field("session_id", &session)?;
        summary.serialize_field("run_id", &run)?;
        summary.serialize_field("stream_id", &run)?;
        summary.serialize_field("event_count", &self.event_count)?;
        summary.serialize_field("last_seq", &self.last_seq)?;
        summary.serialize_field("last_event_id", &last_event_id)?;
        summary.serialize_field("last_event", &self.last_event)?;
        summary.serialize_field("terminal", &self.terminal())?;
        summary.serialize_field("terminal_state", self.state())?;
        summary.end()
    }
}

/// Reads a window of a journal, whose run is that of its first record.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) if the input fails. Nothing that stands in it is an error.
pub fn read(input: impl BufRead, window: Window) -> Result<Journal> {
    gather(Reader::of_first(input), window)
}

/// Reads a window of the journal of one run.
///
/// # Errors
/// As [`read`].
pub fn read_of(input: impl BufRead, identity: Identity, window: Window) -> Result<Journal> {
    gather(Reader::of(input, identity), window)
}

/// Reads the summary of a journal, whose run is that of its first record.
///
/// # Errors
/// As [`read`].
pub fn summary(input: impl BufRead) -> Result<Summary> {
    read(input, Window { limit: 0, ..Window::default() }).map(|journal| journal.summary)
}

fn gather(mut reader: Reader<impl BufRead>, window: Window) -> Result<Journal> {
    let mut events = Events::new(window);
    let mut seen = Seen::default();
    let mut summary = Summary::default();
    let mut malformed = Vec::new();
    let mut malformed_count = 0;
    let mut disordered = false;
    while let Some(item) = reader.next().transpose()? {
        let problem = match item {
            Item::Malformed(problem) => problem,
            Item::Record { line, record } => match seen.add(record.seq) {
                Ok(()) => {
                    disordered |= record.seq < summary.last_seq;
                    summary.add(&record);
                    events.add(record);
                    continue;
                }
                Err(reason) => {
                    let text = record.event_id().to_string();
                    Malformed { line, reason, bytes: record.payload.get().len() as u64, text }
                }
            },
        };
        malformed_count += 1;
        if malformed.len() < MALFORMED_MAX {
            malformed.push(problem);
        }
    }
    summary.identity = reader.identity().cloned();
    let Events { held, more, .. } = events;
    let events = held.into_values().collect();
    Ok(Journal { events, more, malformed, malformed_count, disordered, summary })
}

/// The records with the smallest seqs of a window: all that is held of a journal.
struct Events {
    window: Window,
    held: BTreeMap<u64, Record>,
    bytes: usize,
    more: bool,
    /// Records from this seq on do not fit.
    end: u64,
}

impl Events {
    fn new(window: Window) -> Self {
        Self { window, held: BTreeMap::new(), bytes: 0, more: false, end: u64::MAX }
    }

    fn add(&mut self, record: Record) {
        let Window { after, max, limit } = self.window;
        if record.seq <= after || max.is_some_and(|max| record.seq > max) {
            return;
        }
        if record.seq >= self.end {
            self.more = true;
            return;
        }
        self.bytes += record.payload.get().len();
        self.held.insert(record.seq, record);
        while self.held.len() > limit || (self.bytes > WINDOW_BYTES_MAX && self.held.len() > 1) {
            let Some((seq, record)) = self.held.pop_last() else { break };
            self.bytes -= record.payload.get().len();
            self.end = seq;
            self.more = true;
        }
    }
}

/// The seqs that were seen, as ranges: a journal without holes is one of them.
#[derive(Default)]
struct Seen(BTreeMap<u64, u64>);

impl Seen {
    fn add(&mut self, seq: u64) -> std::result::Result<(), Reason> {
        let before = self.0.range(..=seq).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| seq <= last) {
            return Err(Reason::Duplicate);
        }
        let joins = before.filter(|(_, last)| last + 1 == seq);
        let (first, mut last) = (joins.map_or(seq, |(first, _)| first), seq);
        if let Some(next) = self.0.remove(&(seq + 1)) {
            last = next;
        } else if joins.is_none() && self.0.len() >= HOLES_MAX {
            return Err(Reason::Scattered);
        }
        self.0.insert(first, last);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_seen_is_what_was_added(seqs in prop::collection::vec(1_u64..60, 0..120)) {
            let mut seen = Seen::default();
            let mut all = BTreeSet::new();
            for seq in seqs {
                prop_assert_eq!(seen.add(seq).is_ok(), all.insert(seq));
            }
            let ranges = seen.0.iter().flat_map(|(first, last)| *first..=*last);
            prop_assert_eq!(ranges.collect::<Vec<_>>(), all.iter().copied().collect::<Vec<_>>());
            let holes = all.iter().filter(|seq| !all.contains(&(*seq - 1))).count();
            prop_assert_eq!(seen.0.len(), holes);
        }
    }

    #[test]
    fn holes_are_bounded_and_what_fills_one_is_welcome() {
        let mut seen = Seen::default();
        for seq in 1..=HOLES_MAX as u64 {
            assert_eq!(seen.add(seq * 2), Ok(()));
        }
        assert_eq!(seen.add(1_000_000), Err(Reason::Scattered));
        assert_eq!(seen.add(3), Ok(()));
        assert_eq!(seen.add(1_000_000), Ok(()));
        assert_eq!(seen.add(4), Err(Reason::Duplicate));
        assert_eq!(seen.add(i64::MAX as u64), Err(Reason::Scattered));
    }
}
