//! Our runs as journals of the earlier web UI, and back.
//!
//! [`Exporter`] writes each of our events as the record of that seq which the earlier tools read;
//! [`Importer`] makes our events of records, ours or theirs. What a record of theirs cannot say stands
//! beside it in the payload, under [`MARK`], so that what was exported comes back exactly.

mod export;
mod import;
mod names;
mod sealed;

use everturn_core::{RunId, SessionId, Timestamp};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::object::{members, repaired, text};
use crate::time::parse_rfc3339;

pub use export::{Exporter, FILL_MAX};
pub use import::Importer;
pub use names::{FOREIGN, MALFORMED, MARK, MISSING};
pub use sealed::Sealed;

/// One of our events, as a run's journal has it.
#[derive(Debug, Clone)]
pub struct RunEvent {
    /// Its place in the run, from 1.
    pub seq: u64,
    /// Its name, for example `text.delta`.
    pub name: String,
    /// When it was committed.
    pub at: Timestamp,
    /// Everything else: a JSON object.
    pub body: Box<RawValue>,
}

impl RunEvent {
    /// An event, from the parts that a store keeps.
    ///
    /// # Errors
    /// [`Error::Record`] if the body is not a JSON object, or the name is empty.
    pub fn new(seq: u64, name: impl Into<String>, at: Timestamp, body: &str) -> Result<Self> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::Record(format!("event {seq} has no name")));
        }
        let clean = repaired(body, false).unwrap_or_else(|| body.to_owned());
        let body = RawValue::from_string(clean).ok().filter(|body| body.get().starts_with('{'));
        let body = body.ok_or_else(|| Error::Record(format!("event {seq} has no JSON object")))?;
        Ok(Self { seq, name, at, body })
    }

    /// An event, from the bytes that our streams and pages send.
    ///
    /// # Errors
    /// [`Error::Record`] if they are not an event of a run.
    pub fn from_wire(event: &str) -> Result<Self> {
        let wrong = || Error::Record("it is not an event of a run".to_owned());
        let names = ["session_id", "offset", "run_id", "seq", "event", "at"];
        let [session, offset, run, seq, name, at] = members(event, names).ok_or_else(wrong)?;
        let number = |member: Option<&RawValue>| member?.get().parse::<u64>().ok();
        let head = || {
            let session = SessionId::new(text(session)?).ok()?;
            let run = RunId::new(text(run)?).ok()?;
            let at = text(at)?;
            Some((session, number(offset)?, run, number(seq)?, text(name)?, at))
        };
        let (session, offset, run, seq, name, at) = head().ok_or_else(wrong)?;
        let time = parse_rfc3339(&at).ok_or_else(wrong)?;
        let as_sent = format!(
            r#"{{"session_id":"{session}","offset":{offset},"run_id":"{run}","seq":{seq},"event":"{name}","at":"{at}""#
        );
        let body = match event.trim().strip_prefix(as_sent.as_str()) {
            Some(rest) => format!("{{{}", rest.strip_prefix(',').unwrap_or(rest)),
            // Somebody wrote it anew on the way.
            None => {
                let mut all: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(event).map_err(|_| wrong())?;
                for name in names {
                    all.remove(name);
                }
                serde_json::Value::Object(all).to_string()
            }
        };
        Self::new(seq, name, time, &body)
    }
}

impl PartialEq for RunEvent {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
            && self.name == other.name
            && self.at == other.at
            && self.body.get() == other.body.get()
    }
}

/// One thing that stands in a run's journal.
#[derive(Debug, Clone, PartialEq)]
pub enum RunItem {
    /// An event.
    Event(RunEvent),
    /// A stored event that cannot be read.
    Malformed {
        /// Its place in the run.
        seq: u64,
        /// What is wrong with it.
        error: String,
    },
}

impl RunItem {
    /// Its place in the run.
    #[must_use]
    pub const fn seq(&self) -> u64 {
        match self {
            Self::Event(event) => event.seq,
            Self::Malformed { seq, .. } => *seq,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_our_streams_send_is_an_event() {
        let sent = r#"{"session_id":"s","offset":9,"run_id":"r","seq":4,"event":"text.delta","at":"2026-11-30T05:58:44.123Z","text":"a\u00e9"}"#;
        let event = RunEvent::from_wire(sent).unwrap();
        let want =
            RunEvent::new(4, "text.delta", Timestamp(1_796_018_324_123), r#"{"text":"a\u00e9"}"#);
        assert_eq!(event, want.unwrap());
        let empty = sent.replace(r#","text":"a\u00e9""#, "");
        assert_eq!(RunEvent::from_wire(&empty).unwrap().body.get(), "{}");
        // As another program may have written it.
        let anew: serde_json::Value = serde_json::from_str(sent).unwrap();
        let anew = serde_json::to_string_pretty(&anew).unwrap();
        assert_eq!(RunEvent::from_wire(&anew).unwrap().body.get(), "{\"text\":\"aé\"}");
        for bad in [
            "",
            "[]",
            "{}",
            &sent.replace("\"seq\":4", "\"seq\":\"4\""),
            &sent.replace("Z\"", "\""),
        ] {
            assert_eq!(RunEvent::from_wire(bad).unwrap_err().code(), "journal_record_invalid");
        }
    }

    #[test]
    fn a_body_is_an_object() {
        for bad in ["", "1", "[]", "{", "{} {}"] {
            assert!(RunEvent::new(1, "x", Timestamp(0), bad).is_err(), "{bad}");
        }
        assert!(RunEvent::new(1, "", Timestamp(0), "{}").is_err());
    }
}
