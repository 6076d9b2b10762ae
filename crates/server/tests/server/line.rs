//! What a reader has of one feed or of one run, by number, and whether that is the journal.
//!
//! A snapshot event stands for exactly the range that it names: it takes the place of the events of that
//! range, and must say what they said.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;

/// By what events are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Offsets, in a session's feed.
    Offset,
    /// Seqs, in a run.
    Seq,
}

/// What an event says of itself.
#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) session_id: String,
    pub(crate) offset: u64,
    pub(crate) event: String,
    pub(crate) run_id: Option<String>,
    pub(crate) seq: Option<u64>,
    from: Option<u64>,
    to: Option<u64>,
}

impl Head {
    pub(crate) fn of(bytes: &str) -> Self {
        serde_json::from_str(bytes).unwrap_or_else(|why| panic!("{why}: {bytes}"))
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        self.event == "text.snapshot"
    }

    /// The numbers that it stands for.
    pub(crate) fn range(&self, count: Count) -> RangeInclusive<u64> {
        let last = match count {
            Count::Offset => self.offset,
            Count::Seq => self.seq.expect("an event of a run has a seq"),
        };
        if !self.is_snapshot() {
            return last..=last;
        }
        let (from, to) = (self.from.unwrap(), self.to.unwrap());
        assert_eq!(Some(to), self.seq, "a snapshot stands at the end of its range");
        assert!(from >= 1 && from <= to && to - from < last);
        last - (to - from)..=last
    }
}

/// Which text an event belongs to, and its piece of it.
fn said(bytes: &str) -> Option<(String, String)> {
    let event: Value = serde_json::from_str(bytes).unwrap();
    let text = |name: &str| event[name].as_str().map(str::to_owned);
    let of_call = || format!("output of {}", event["call_id"]);
    Some(match event["event"].as_str()? {
        "text.delta" => ("text".to_owned(), text("text")?),
        "reasoning.delta" => ("reasoning".to_owned(), text("text")?),
        "tool.output" => (of_call(), text("text")?),
        "text.snapshot" => match (text("reasoning"), text("output")) {
            (None, None) => ("text".to_owned(), text("text")?),
            (Some(reasoning), None) => ("reasoning".to_owned(), reasoning),
            (None, Some(output)) => (of_call(), output),
            _ => return None,
        },
        _ => return None,
    })
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) bytes: String,
}

impl Piece {
    pub(crate) fn new(count: Count, bytes: String) -> Self {
        let (first, last) = Head::of(&bytes).range(count).into_inner();
        Self { first, last, bytes }
    }
}

/// Whether the pieces, which follow each other, say a part of what a snapshot says: which one is told by
/// `at_start` and `at_end`.
fn agrees(snapshot: &str, pieces: &[Piece], at_start: bool, at_end: bool) -> bool {
    let Some((of, whole)) = said(snapshot).filter(|_| Head::of(snapshot).is_snapshot()) else {
        return false;
    };
    let mut text = String::new();
    for piece in pieces {
        match said(&piece.bytes) {
            Some((of_piece, part)) if of_piece == of => text.push_str(&part),
            _ => return false,
        }
    }
    match (at_start, at_end) {
        (true, true) => whole == text,
        (true, false) => whole.starts_with(&text),
        (false, true) => whole.ends_with(&text),
        (false, false) => whole.contains(&text),
    }
}

/// What a reader has, in order and without overlaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    /// Up to here a snapshot of the session stands for the events.
    base: u64,
    pieces: Vec<Piece>,
}

impl Line {
    /// What begins behind a snapshot that reflects everything up to `base`.
    pub(crate) fn behind(base: u64) -> Self {
        Self { base, pieces: Vec::new() }
    }

    /// The number up to which it goes.
    pub(crate) fn at(&self) -> u64 {
        self.pieces.last().map_or(self.base, |piece| piece.last.max(self.base))
    }

    pub(crate) fn last(&self) -> Option<&str> {
        self.pieces.last().map(|piece| &*piece.bytes)
    }

    /// Takes an event from a connection that has come up to `place`: whatever lies between that and the
    /// event does not exist (any more).
    pub(crate) fn take(&mut self, place: u64, new: Piece) {
        assert!(new.last > place, "{place} is followed by {new:?}");
        if new.last <= self.base {
            return;
        }
        if new.first > place + 1 {
            self.pieces.retain(|piece| piece.last <= place || piece.first >= new.first);
        }
        let begin = self.pieces.partition_point(|piece| piece.last < new.first);
        let end = self.pieces.partition_point(|piece| piece.first <= new.last);
        let over = &self.pieces[begin..end];
        if let [one] = over
            && one.first <= new.first
            && new.last <= one.last
        {
            if one.bytes == new.bytes {
                return;
            }
            if Head::of(&one.bytes).is_snapshot() {
                // Pruned by now, and still in the memory of the process that wrote it.
                let (at_start, at_end) = (one.first == new.first, one.last == new.last);
                let pieces = std::slice::from_ref(&new);
                assert!(agrees(&one.bytes, pieces, at_start, at_end), "{one:?} and {new:?}");
                return;
            }
        }
        if let (Some(first), Some(last)) = (over.first(), over.last()) {
            assert!(first.first >= new.first && last.last <= new.last, "{over:?} and {new:?}");
            let (at_start, at_end) = (first.first == new.first, last.last == new.last);
            assert!(agrees(&new.bytes, over, at_start, at_end), "{over:?} and {new:?}");
        }
        self.pieces.splice(begin..end, [new]);
    }

    /// Fails unless these are the events of a journal, of which snapshots may have become coarser since.
    /// `original` knows events that are pruned by now.
    pub(crate) fn assert_is(&self, journal: &[Piece], original: impl Fn(u64) -> Option<String>) {
        let mut rest = &self.pieces[..];
        for event in journal.iter().filter(|event| event.last > self.base) {
            let count = rest.partition_point(|piece| piece.last <= event.last);
            let (own, behind) = rest.split_at(count);
            rest = behind;
            let what = || format!("{event:?} was read as {own:?}");
            let (Some(first), Some(last)) = (own.first(), own.last()) else {
                panic!("{event:?} was not read")
            };
            if let [one] = own
                && one == event
            {
                continue;
            }
            // Below the base nothing needs to have been read.
            let begins = event.first..=event.first.max(self.base + 1);
            assert!(begins.contains(&first.first) && last.last == event.last, "{}", what());
            let is_whole = first.first == event.first;
            assert!(own.is_sorted_by(|one, two| one.last + 1 == two.first), "{}", what());
            assert!(agrees(&event.bytes, own, is_whole, true), "{}", what());
            for piece in own.iter().filter(|piece| piece.first == piece.last) {
                if let Some(was) = original(piece.last) {
                    assert_eq!(piece.bytes, was, "it was something else when it was written");
                }
            }
        }
        assert!(rest.is_empty(), "{rest:?} is in no journal");
    }
}
