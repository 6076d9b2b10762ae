//! From bytes to records, one at a time.
//!
//! A crash can leave half a record at the end of a journal, and a writer that appends behind it glues
//! the next one to it. So a line that is not one record is taken apart: complete records in it are
//! found again, and what lies between them is reported.

use std::collections::VecDeque;
use std::io::BufRead;

use everturn_core::{RunId, SessionId};
use serde_json::Deserializer;

use super::lines::{Line, Lines};
use super::record::{FIELDS, Fields, Record};
use crate::error::{Error, Result};
use crate::object::repaired;

/// Bytes of what is damaged that a report shows.
const SHOWN_BYTES: usize = 200;

/// How often a damaged line may be gone through while looking for records in it.
const PASSES: usize = 16;

/// What a journal is read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
}

/// One thing that stands in a journal.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A record.
    Record {
        /// The line that it stands in, from 1.
        line: u64,
        /// The record.
        record: Record,
    },
    /// Something that is none.
    Malformed(Malformed),
}

/// A line, or a part of one, that is not a record.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Malformed {
    /// The line, from 1.
    pub line: u64,
    /// Why it is none.
    pub reason: Reason,
    /// How many bytes it has.
    pub bytes: u64,
    /// Its beginning, at most 200 bytes, for people.
    pub text: String,
}

/// Why something is not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It ends in the middle: what a crash leaves.
    Torn,
    /// It is not JSON.
    NotJson,
    /// It is not UTF-8.
    NotUtf8,
    /// It is JSON, but not an object.
    NotAnObject,
    /// The line is longer than [`LINE_BYTES_MAX`](super::LINE_BYTES_MAX).
    TooLong,
    /// It has a version that is not known here.
    Version,
    /// This field is missing or has a value that it cannot have.
    Field(&'static str),
    /// This field is not an id, or not that of the record.
    Id(&'static str),
    /// It is of another run or session than the journal.
    Foreign,
    /// A record with the same seq stands before it; that one counts.
    Duplicate,
    /// It would leave more holes in the numbering than are kept count of.
    Scattered,
}

impl Reason {
    /// A word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Torn => "torn",
            Self::NotJson => "not_json",
            Self::NotUtf8 => "not_utf8",
            Self::NotAnObject => "not_an_object",
            Self::TooLong => "too_long",
            Self::Version => "version",
            Self::Field(_) => "field",
            Self::Id(_) => "id",
            Self::Foreign => "foreign",
            Self::Duplicate => "duplicate",
            Self::Scattered => "scattered",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            Self::Field(name) | Self::Id(name) => write!(f, " {name}"),
            _ => Ok(()),
        }
    }
}

impl serde::Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Goes through a journal, in the order of the file. Ends after an error of the input.
pub struct Reader<R> {
    lines: Lines<R>,
    identity: Option<Identity>,
    learns: bool,
    found: VecDeque<Item>,
    failed: bool,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads records of any run.
    pub fn new(input: R) -> Self {
        Self {
            lines: Lines::new(input),
            identity: None,
            learns: false,
            found: VecDeque::new(),
            failed: false,
        }
    }

    /// Reads the records of one run; all others are [`Reason::Foreign`].
    pub fn of(input: R, identity: Identity) -> Self {
        Self { identity: Some(identity), ..Self::new(input) }
    }

    /// Reads the records of one run: that of the first record.
    pub fn of_first(input: R) -> Self {
        Self { learns: true, ..Self::new(input) }
    }

    /// What the journal is read as, as far as it is known.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    fn fill(&mut self) -> Result<bool> {
        let Some(line) = self.lines.next().map_err(Error::io("read"))? else { return Ok(false) };
        let mut taken = Taken {
            line: line.number,
            identity: &mut self.identity,
            learns: self.learns,
            found: &mut self.found,
            budget: line.bytes.len().saturating_mul(PASSES),
            whole: line.bytes,
            suspect: None,
        };
        taken.line(&line);
        Ok(true)
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.found.pop_front() {
                return Some(Ok(item));
            }
            if self.failed {
                return None;
            }
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A line while it is taken apart.
struct Taken<'a> {
    line: u64,
    identity: &'a mut Option<Identity>,
    learns: bool,
    found: &'a mut VecDeque<Item>,
    /// Bytes that may still be looked at: a hostile line takes no more time than a long one.
    budget: usize,
    /// All of it, and whether there is something in it that might have to be repaired.
    whole: &'a [u8],
    suspect: Option<bool>,
}

/// What some bytes begin with.
enum Piece {
    /// An object: a record or not, and how many of the bytes it takes.
    Object(std::result::Result<Box<Record>, Reason>, usize),
    /// None, or not a complete one.
    Broken(Reason),
}

impl Taken<'_> {
    fn line(&mut self, line: &Line<'_>) {
        let mut bytes = line.bytes;
        if let Some(head) = line.head {
            // Nobody writes a record so long, but one may have been glued to what is there.
            let record = self.find(bytes, 0);
            let start = record.unwrap_or(bytes.len());
            let length = line.length - (bytes.len() - start) as u64;
            self.malformed(Reason::TooLong, head, length);
            if record.is_none() {
                return;
            }
            bytes = &bytes[start..];
        } else if self.line == 1 {
            bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        }
        self.pieces(bytes.trim_ascii());
    }

    /// Usually one piece: a record.
    fn pieces(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            let used = match self.piece(rest) {
                Piece::Object(record, used) => {
                    self.object(record.map(|record| *record), &rest[..used]);
                    used
                }
                Piece::Broken(reason) => {
                    let record = match reason {
                        Reason::NotAnObject => None,
                        _ => self.find(rest, 1),
                    };
                    let used = record.unwrap_or(rest.len());
                    let damaged = &rest[..used];
                    let reason = if record.is_some() && damaged.starts_with(b"{") {
                        Reason::Torn
                    } else if reason == Reason::NotJson && std::str::from_utf8(damaged).is_err() {
                        Reason::NotUtf8
                    } else {
                        reason
                    };
                    self.malformed(reason, damaged, used as u64);
                    used
                }
            };
            rest = rest[used..].trim_ascii_start();
        }
    }

    fn object(&mut self, record: std::result::Result<Record, Reason>, bytes: &[u8]) {
        let record = record.and_then(|record| {
            if self.is_foreign(&record) { Err(Reason::Foreign) } else { Ok(record) }
        });
        match record {
            Ok(record) => {
                if self.learns && self.identity.is_none() {
                    *self.identity = Some(Identity {
                        session_id: record.session_id.clone(),
                        run_id: record.run_id.clone(),
                    });
                }
                self.found.push_back(Item::Record { line: self.line, record });
            }
            Err(reason) => self.malformed(reason, bytes, bytes.len() as u64),
        }
    }

    fn is_foreign(&self, record: &Record) -> bool {
        self.identity.as_ref().is_some_and(|identity| {
            identity.run_id != record.run_id || identity.session_id != record.session_id
        })
    }

    fn malformed(&mut self, reason: Reason, bytes: &[u8], length: u64) {
        let malformed = Malformed { line: self.line, reason, bytes: length, text: shown(bytes) };
        self.found.push_back(Item::Malformed(malformed));
    }

    fn piece(&mut self, bytes: &[u8]) -> Piece {
        let (piece, looked) = if bytes.starts_with(b"{") {
            let mut objects = Deserializer::from_slice(bytes).into_iter::<Fields<'_>>();
            match objects.next() {
                Some(Ok(fields)) => {
                    let used = objects.byte_offset();
                    (Piece::Object(fields.record().map(Box::new), used), used)
                }
                Some(Err(error)) if !error.is_eof() => match self.repaired(bytes) {
                    Some(record) => (Piece::Object(record.map(Box::new), bytes.len()), bytes.len()),
                    None if self.suspect == Some(true) => (broken(&error, bytes), bytes.len()),
                    None => (broken(&error, bytes), error.column()),
                },
                _ => (Piece::Broken(Reason::Torn), bytes.len()),
            }
        } else {
            match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
                Ok(_) => (Piece::Broken(Reason::NotAnObject), bytes.len()),
                Err(error) => (broken(&error, bytes), error.column()),
            }
        };
        self.budget = self.budget.saturating_sub(looked);
        piece
    }

    /// The object that the bytes are once they are repaired, if they are one and nothing more.
    fn repaired(&mut self, bytes: &[u8]) -> Option<std::result::Result<Record, Reason>> {
        let whole = self.whole;
        let holds = |mark: &[u8]| whole.windows(mark.len()).any(|found| found == mark);
        let suspect = *self
            .suspect
            .get_or_insert_with(|| holds(b"NaN") || holds(b"Infinity") || holds(b"\\u"));
        if !suspect {
            return None;
        }
        let text = repaired(std::str::from_utf8(bytes).ok()?, true)?;
        serde_json::from_str::<Fields<'_>>(&text).ok().map(|fields| fields.record())
    }

    /// Where the next complete record begins, in bytes that hold something else as well.
    ///
    /// A part of another record may look like one. So it must be a record of this journal, and what
    /// follows it must not be what follows a value inside an object or a list.
    fn find(&mut self, bytes: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        while self.budget > 0 {
            at += beginning(&bytes[at..])?;
            if let Piece::Object(record, used) = self.piece(&bytes[at..]) {
                let follows = bytes[at + used..].trim_ascii_start().first();
                let inside = matches!(follows, Some(b'}' | b']' | b',' | b':' | b'"'));
                if !inside && record.is_ok_and(|record| !self.is_foreign(&record)) {
                    return Some(at);
                }
            }
            at += 1;
        }
        None
    }
}

/// Where something stands that a record begins with.
fn beginning(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).enumerate().filter(|(_, two)| two == b"{\"").map(|(at, _)| at).find(|at| {
        let name = &bytes[at + 2..];
        FIELDS.iter().any(|field| {
            name.strip_prefix(field.as_bytes()).is_some_and(|rest| rest.starts_with(b"\""))
        })
    })
}

fn broken(error: &serde_json::Error, bytes: &[u8]) -> Piece {
    // Where half a word or half a number is the last thing, that is what is wrong with it.
    let torn = error.is_eof() || error.column() >= bytes.len();
    Piece::Broken(if torn { Reason::Torn } else { Reason::NotJson })
}

fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < bytes.len() {
        text.truncate(text.trim_end_matches('\u{fffd}').len());
    }
    text
}
