//! Appending to a journal.

use std::io::{self, BufRead, Write};

use everturn_core::Timestamp;
use serde_json::value::RawValue;

use super::lines::LINE_BYTES_MAX;
use super::reader::Identity;
use super::record::{Record, seconds, state};
use super::terminal::State;
use super::window::{Window, read_of};
use crate::error::{Error, Result};
use crate::object::repaired;

/// Writes one run's journal: numbers without gaps from 1, one line each.
///
/// A number is given away only with its record: after a failed write the next record gets it, and
/// what the failed one left behind is closed off first, so that it swallows nothing.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    identity: Identity,
    next: u64,
    /// The sink ends inside a line.
    torn: bool,
}

impl<W: Write> Writer<W> {
    /// Begins a journal.
    ///
    /// Give it the file itself and not a buffer in front of it: how much of a failed write arrived
    /// must be known.
    pub fn new(sink: W, identity: Identity) -> Self {
        Self { sink, identity, next: 1, torn: false }
    }

    /// Goes on with a journal, `existing` being what it holds and `sink` its end.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read.
    pub fn resume(existing: impl BufRead, sink: W, identity: Identity) -> Result<Self> {
        let mut tail = Tail { input: existing, last: b'\n' };
        let window = Window { limit: 0, ..Window::default() };
        let journal = read_of(&mut tail, identity.clone(), window)?;
        let torn = tail.last != b'\n';
        Ok(Self { sink, identity, next: journal.summary.last_seq + 1, torn })
    }

    /// The seq that the next record gets.
    #[must_use]
    pub const fn next_seq(&self) -> u64 {
        self.next
    }

    /// Appends a record and answers it. Its end of the run, if it is one, follows from the table of
    /// [`State::of_event`].
    ///
    /// # Errors
    /// [`Error::Record`] if the name is empty, the payload is no object, the line would be longer
    /// than [`LINE_BYTES_MAX`], or no number is left; nothing is written then. [`Error::Io`] if the
    /// sink fails; the journal can be gone on with, and [`next_seq`](Self::next_seq) tells whether the
    /// record had arrived nevertheless.
    pub fn append(&mut self, event: &str, payload: &RawValue, at: Timestamp) -> Result<Record> {
        self.append_as(event, payload, at, None)
    }

    /// Leaves the numbers below `seq` to nobody.
    pub(crate) fn skip_to(&mut self, seq: u64) {
        self.next = self.next.max(seq);
    }

    /// The same, for an interruption that is known to be none by a crash.
    pub(crate) fn append_as(
        &mut self,
        event: &str,
        payload: &RawValue,
        at: Timestamp,
        stored: Option<State>,
    ) -> Result<Record> {
        if event.trim().is_empty() || event.trim() != event {
            return Err(Error::Record(format!("{event:?} is no name for an event")));
        }
        if !payload.get().starts_with('{') {
            return Err(Error::Record(format!("the payload of {event} is not a JSON object")));
        }
        if i64::try_from(self.next).is_err() {
            return Err(Error::Record("no number is left".to_owned()));
        }
        let clean = repaired(payload.get(), false).map(RawValue::from_string);
        let payload = match clean {
            None => payload.to_owned(),
            Some(Ok(clean)) => clean,
            Some(Err(error)) => return Err(Error::Record(error.to_string())),
        };
        let stored = stored.map(State::as_str);
        let record = Record {
            seq: self.next,
            run_id: self.identity.run_id.clone(),
            session_id: self.identity.session_id.clone(),
            event: event.to_owned(),
            created_at: seconds(at),
            terminal_state: state(event, payload.get(), stored),
            payload,
        };
        self.write(&record)?;
        Ok(record)
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        let mut line = Vec::with_capacity(record.payload.get().len() + 384);
        if self.torn {
            line.push(b'\n');
        }
        let closing = line.len();
        serde_json::to_writer(&mut line, record)
            .map_err(|error| Error::Record(error.to_string()))?;
        if line.len() - closing > LINE_BYTES_MAX {
            let bytes = line.len() - closing;
            return Err(Error::Record(format!(
                "it has {bytes} bytes, {LINE_BYTES_MAX} are allowed"
            )));
        }
        line.push(b'\n');
        let mut written = 0;
        let result = loop {
            match self.sink.write(&line[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written >= line.len() {
                break self.sink.flush();
            }
        };
        // A record that lacks nothing but its line feed will be read: its number is used.
        if written + 1 >= line.len() {
            self.next += 1;
        }
        if written > 0 {
            self.torn = line[written - 1] != b'\n';
        }
        result.map_err(Error::io("write"))
    }

    /// The sink.
    pub fn into_inner(self) -> W {
        self.sink
    }

    /// The sink.
    pub fn get_ref(&self) -> &W {
        &self.sink
    }
}

/// Remembers the last byte of an input.
struct Tail<R> {
    input: R,
    last: u8,
}

impl<R: BufRead> io::Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Tail<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let available = self.input.fill_buf()?;
        if let Some(last) = available.last() {
            self.last = *last;
        }
        Ok(available)
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
    }
}
