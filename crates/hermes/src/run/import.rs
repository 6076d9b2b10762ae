//! From records to our events.

use everturn_core::event::is_terminal;
use everturn_core::run::{Cause, TerminalState};
use everturn_core::{CallId, Principal, Timestamp};
use serde_json::{Value, json};

use super::names::{
    FOREIGN, FOREIGN_OTHER, MALFORMED, MISSING, is_plain, marked, our_failure, ours,
};
use super::{RunEvent, RunItem};
use crate::journal::{Record, State, Summary};
use crate::object::{members, present};

/// Stands for a node where none is known.
const NOT_KNOWN: &str = "unknown";

/// Makes our events of a journal's records, given in the order of their seqs.
///
/// Records that carry the mark of an export become exactly what was exported. Of the others, the one
/// that tells the run's outcome becomes its terminal event; what the earlier tools know and we do not
/// (titles, warnings, what only closes a connection) becomes `hermes.NAME` with the payload in its
/// body, and is never terminal, also where it stands behind the end.
#[derive(Debug)]
pub struct Importer {
    /// Whether readers can take a body for that of an event of this name.
    fits: fn(&str, &str) -> bool,
    /// The record that tells how the run ended.
    terminal: Option<(u64, State)>,
    by: Principal,
    /// Calls that have begun, oldest first: (id, name).
    open: Vec<(String, String)>,
    /// The last record told of, as far as the evidence of an interruption goes.
    last: Option<(u64, String)>,
    last_at: Timestamp,
    /// Whether the text so far ends where a new paragraph may begin.
    paragraph: bool,
}

impl Importer {
    /// Begins a run with this summary. `by` is who a stop is attributed to where the journal does not
    /// say.
    #[must_use]
    pub fn new(summary: &Summary, by: Principal) -> Self {
        let terminal = summary.terminal_seq.zip(summary.terminal_state);
        let fits = |_: &str, _: &str| true;
        Self {
            fits,
            terminal,
            by,
            open: Vec::new(),
            last: None,
            last_at: Timestamp(0),
            paragraph: true,
        }
    }

    /// Lets nothing be one of our events (name, body) that readers could not take for one. A mark
    /// that claims it is not believed, and a record that would be translated to it is kept as what
    /// only the earlier tools know.
    #[must_use]
    pub fn checking(mut self, fits: fn(&str, &str) -> bool) -> Self {
        self.fits = fits;
        self
    }

    /// What a record is; `None` for the mark of a number that no event has.
    pub fn record(&mut self, record: &Record) -> Option<RunItem> {
        let tells_the_end = self.terminal.is_some_and(|(seq, _)| seq == record.seq);
        // A run ends once, whatever its journal claims.
        let marked = marked(&record.payload).filter(|(name, body)| {
            tells_the_end == is_terminal(name) && (self.fits)(name, body.get())
        });
        let (name, body) = match marked {
            Some((name, body)) => (name, body.get().to_owned()),
            None => match record.event.as_str() {
                MISSING => return None,
                MALFORMED => {
                    let error = record.payload_text("error").unwrap_or_default();
                    return Some(RunItem::Malformed { seq: record.seq, error });
                }
                _ => {
                    let (name, body) = self.translate(record);
                    if (self.fits)(&name, &body) { (name, body) } else { other(record) }
                }
            },
        };
        self.last = Some((record.seq, name.clone()));
        self.last_at = record.at();
        // Every body above is an object; should one not be, that is told in its place.
        Some(match RunEvent::new(record.seq, name, record.at(), &body) {
            Ok(event) => RunItem::Event(event),
            Err(error) => RunItem::Malformed { seq: record.seq, error: error.to_string() },
        })
    }

    fn translate(&mut self, record: &Record) -> (String, String) {
        let event = record.event.as_str();
        let payload = record.payload.get();
        if let Some((seq, state)) = self.terminal
            && seq == record.seq
        {
            let (name, body) = self.end(record, state);
            return (name.to_owned(), body.to_string());
        }
        if !payload.starts_with('{') {
            return foreign(record);
        }
        match event {
            "tool" => {
                let id = self.call_id(record);
                let call = self.call(record, &id);
                self.open.push((id, record.payload_text("name").unwrap_or_default()));
                ("tool.intended".to_owned(), json!({ "call": call }).to_string())
            }
            "tool_complete" => {
                let id = self.ended_call(record).unwrap_or_else(|| self.call_id(record));
                let mut call = self.call(record, &id);
                let [failed] = members(payload, ["is_error"]).unwrap_or_default();
                let failed = failed.is_some_and(|failed| failed.get() == "true");
                call["state"] = if failed { "failed" } else { "succeeded" }.into();
                call["result"] = record.payload_text("preview").into();
                ("tool.finished".to_owned(), json!({ "call": call }).to_string())
            }
            "interim_assistant" => self.interim(record),
            _ => match ours(event).filter(|name| !name.starts_with(FOREIGN)) {
                Some(name) => {
                    if name == "text.delta" {
                        self.said(&record.payload_text("text").unwrap_or_default());
                    }
                    (name, payload.to_owned())
                }
                None => foreign(record),
            },
        }
    }

    fn said(&mut self, text: &str) {
        if let Some(last) = text.chars().next_back() {
            self.paragraph = last.is_whitespace();
        }
    }

    /// A finished piece of text: a boundary, or the text itself if it was not streamed.
    fn interim(&mut self, record: &Record) -> (String, String) {
        let [streamed] = members(record.payload.get(), ["already_streamed"]).unwrap_or_default();
        let streamed = streamed.is_some_and(|streamed| streamed.get() == "true");
        let text = record.payload_text("text").filter(|text| !streamed && !text.is_empty());
        let Some(text) = text else { return foreign(record) };
        let gap = if self.paragraph { "" } else { "\n\n" };
        self.said(&text);
        ("text.delta".to_owned(), json!({ "text": format!("{gap}{text}") }).to_string())
    }

    fn call_id(&self, record: &Record) -> String {
        let id = record.payload_text("tid").filter(|id| CallId::new(id).is_ok());
        id.unwrap_or_else(|| format!("journal-{}", record.seq))
    }

    /// The call that ended: by its id, else the latest of its name that has not.
    fn ended_call(&mut self, record: &Record) -> Option<String> {
        let (id, name) = (record.payload_text("tid"), record.payload_text("name"));
        let by_id = self.open.iter().rposition(|open| Some(&open.0) == id.as_ref());
        let by_name = || {
            let name = name.unwrap_or_default();
            self.open.iter().rposition(|open| name.is_empty() || open.1 == name)
        };
        let has_id = id.as_ref().is_some_and(|id| !id.is_empty());
        let place = if has_id { by_id } else { by_name() };
        place.map(|place| self.open.remove(place).0)
    }

    /// A call as far as a record tells of it. What it would do a second time is not known, and so
    /// taken for the worst.
    fn call(&self, record: &Record, id: &str) -> Value {
        let [args] = members(record.payload.get(), ["args"]).unwrap_or_default();
        let args = present(args).and_then(|args| serde_json::from_str(args.get()).ok());
        json!({
            "id": id,
            "name": record.payload_text("name").unwrap_or_default(),
            "arguments": args.filter(Value::is_object).unwrap_or_else(|| json!({})),
            "state": "running",
            "effect": "write",
        })
    }

    /// The terminal event.
    fn end(&self, record: &Record, state: State) -> (&'static str, Value) {
        let message = record.payload_text("message").unwrap_or_default();
        match state.to_ours() {
            (TerminalState::Completed, _) => ("run.completed", json!({})),
            (TerminalState::Cancelled, _) => ("run.cancelled", json!({ "by": self.by.as_str() })),
            (TerminalState::Failed, _) => {
                let kind = match state {
                    State::ToolLimitReached => Some(state.as_str().to_owned()),
                    _ => record.payload_text("type"),
                };
                let failure = our_failure(&kind.unwrap_or_default());
                let mut error = json!({
                    "code": failure.code,
                    "message": message,
                    "permanent": failure.permanent,
                });
                if let Some(hint) = record.payload_text("hint") {
                    error["hint"] = hint.into();
                }
                ("run.failed", json!({ "error": error }))
            }
            (TerminalState::Interrupted, cause) => {
                let cause = cause.unwrap_or(Cause::Unknown);
                let (last_seq, last_event) = self.last.clone().unwrap_or_default();
                // Who held it and who saw it end is not in a journal.
                let evidence = json!({
                    "text": message,
                    "holder": NOT_KNOWN,
                    "rebooted": false,
                    "observer": NOT_KNOWN,
                    "observer_started_at": record.at().rfc3339(),
                    "newer_process": false,
                    "last_seq": last_seq,
                    "last_event": last_event,
                    "last_event_at": self.last_at.rfc3339(),
                });
                ("run.interrupted", json!({ "cause": cause.as_str(), "evidence": evidence }))
            }
        }
    }
}

/// What only the earlier tools know. The payload is a field of the body, because its own fields may
/// have the names of ours.
fn foreign(record: &Record) -> (String, String) {
    let name = format!("{FOREIGN}{}", record.event);
    let payload = record.payload.get();
    if is_plain(&record.event) && payload.starts_with('{') && name != FOREIGN_OTHER {
        return (name, format!("{{\"payload\":{payload}}}"));
    }
    other(record)
}

/// The same for a record whose name could not be one of ours.
fn other(record: &Record) -> (String, String) {
    let (name, payload) = (Value::from(record.event.as_str()), record.payload.get());
    (FOREIGN_OTHER.to_owned(), format!("{{\"name\":{name},\"payload\":{payload}}}"))
}
