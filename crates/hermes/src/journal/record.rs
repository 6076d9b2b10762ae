//! One record of a journal.

use std::fmt;
use std::str::FromStr;

use everturn_core::{RunId, SessionId, Timestamp};
use serde::de::{Deserialize, DeserializeSeed, Deserializer};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use serde_json::value::RawValue;

use super::reader::Reason;
use super::terminal::State;
use crate::object::{Members, Names, members, present, repaired, text};

/// The version of the records that we read and write.
const VERSION: u64 = 1;

/// The names of a record's fields, in the order in which they are written. `type` and `terminal` say
/// again what `event` and `terminal_state` say.
pub(crate) const FIELDS: [&str; 11] = [
    "version",
    "event_id",
    "seq",
    "run_id",
    "session_id",
    "event",
    "type",
    "created_at",
    "terminal",
    "terminal_state",
    "payload",
];

/// One record. Written as JSON it has the fields of the earlier tools.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its place in its run, from 1.
    pub seq: u64,
    /// The run.
    pub run_id: RunId,
    /// The session.
    pub session_id: SessionId,
    /// What happened; never empty.
    pub event: String,
    /// When, in seconds since the Unix epoch; 0 where the writer did not say.
    pub created_at: f64,
    /// How the run ended, for an event that ends it.
    pub terminal_state: Option<State>,
    /// More about it: JSON as it stands in the journal, on one line, usually an object.
    pub payload: Box<RawValue>,
}

impl Record {
    /// `<run>:<seq>`.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        EventId { run_id: self.run_id.clone(), seq: self.seq }
    }

    /// Whether it marks the end of its run.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        self.terminal_state.is_some()
    }

    /// When it was written, to the millisecond.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        // Saturates at the ends of the range.
        Timestamp((self.created_at * 1_000.0).round() as i64)
    }

    /// The payload's member of this name, if it is a text.
    #[must_use]
    pub fn payload_text(&self, name: &'static str) -> Option<String> {
        text(members(self.payload.get(), [name])?[0])
    }
}

/// Seconds since the Unix epoch, as records hold them.
pub(crate) fn seconds(at: Timestamp) -> f64 {
    at.0 as f64 / 1_000.0
}

/// How an event with this payload ends its run.
pub(crate) fn state(event: &str, payload: &str, stored: Option<&str>) -> Option<State> {
    // Most events do not end it, whatever their payload.
    State::of_event(event, None, None, None)?;
    let [kind, declared] = members(payload, ["type", "terminal_state"]).unwrap_or_default();
    let (kind, declared) = (text(kind), text(declared));
    State::of_event(event, kind.as_deref(), declared.as_deref(), stored)
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
            && self.run_id == other.run_id
            && self.session_id == other.session_id
            && self.event == other.event
            && self.created_at == other.created_at
            && self.terminal_state == other.terminal_state
            && self.payload.get() == other.payload.get()
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut record = to.serialize_struct("Record", FIELDS.len())?;
        record.serialize_field(FIELDS[0], &VERSION)?;
        record.serialize_field(FIELDS[1], &format_args!("{}", self.event_id()))?;
        record.serialize_field(FIELDS[2], &self.seq)?;
        record.serialize_field(FIELDS[3], self.run_id.as_str())?;
        record.serialize_field(FIELDS[4], self.session_id.as_str())?;
        record.serialize_field(FIELDS[5], &self.event)?;
        record.serialize_field(FIELDS[6], &self.event)?;
        record.serialize_field(FIELDS[7], &self.created_at)?;
        record.serialize_field(FIELDS[8], &self.terminal())?;
        record.serialize_field(FIELDS[9], &self.terminal_state)?;
        record.serialize_field(FIELDS[10], &self.payload)?;
        record.end()
    }
}

/// The name of one record among all: `<run>:<seq>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The run.
    pub run_id: RunId,
    /// The record's place in it, from 1.
    pub seq: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.run_id, self.seq)
    }
}

impl FromStr for EventId {
    type Err = crate::Error;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        let parts = id.rsplit_once(':').and_then(|(run, seq)| {
            let run_id = RunId::new(run.trim()).ok()?;
            Some(Self { run_id, seq: number(seq.trim())? })
        });
        parts.ok_or_else(|| crate::Error::Record(format!("{id:?} is not RUN:NUMBER")))
    }
}

/// A place in a run: decimal digits, from 1, small enough for every store.
fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse().ok())??;
    (1..=i64::MAX as u64).contains(&number).then_some(number)
}

/// The members of a record as they stand in a line.
pub(crate) struct Fields<'a>(Members<'a, 11>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Names(FIELDS).deserialize(from).map(Self)
    }
}

impl Fields<'_> {
    /// The record.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn record(&self) -> Result<Record, Reason> {
        let [
            version,
            event_id,
            seq,
            run_id,
            session_id,
            event,
            kind,
            created_at,
            _,
            state,
            payload,
        ] = self.0.map(present);
        if version.is_some_and(|version| number(version.get()) != Some(VERSION)) {
            return Err(Reason::Version);
        }
        let seq = seq.ok_or(Reason::Field("seq"))?;
        let seq = number(seq.get()).ok_or(Reason::Field("seq"))?;
        let event = text(event.or(kind)).unwrap_or_default().trim().to_owned();
        if event.is_empty() {
            return Err(Reason::Field("event"));
        }
        let id = |member, name| text(member).ok_or(Reason::Field(name));
        let run_id = RunId::new(id(run_id, "run_id")?.trim());
        let run_id = run_id.map_err(|_| Reason::Id("run_id"))?;
        let session_id = SessionId::new(id(session_id, "session_id")?.trim());
        let session_id = session_id.map_err(|_| Reason::Id("session_id"))?;
        if let Some(event_id) = event_id {
            let named = text(Some(event_id)).and_then(|id| id.parse::<EventId>().ok());
            if named.is_none_or(|named| named.seq != seq || named.run_id != run_id) {
                return Err(Reason::Id("event_id"));
            }
        }
        let payload = payload.map_or("{}", RawValue::get);
        let payload = repaired(payload, false).unwrap_or_else(|| payload.to_owned());
        let created_at = created_at.and_then(|at| serde_json::from_str::<f64>(at.get()).ok());
        Ok(Record {
            seq,
            run_id,
            session_id,
            terminal_state: self::state(&event, &payload, text(state).as_deref()),
            event,
            created_at: created_at.unwrap_or(0.0),
            payload: RawValue::from_string(payload).map_err(|_| Reason::Field("payload"))?,
        })
    }
}
