//! From our events to records of the earlier tools.

use std::io::Write;

use everturn_core::Timestamp;
use everturn_core::run::{Cause, TerminalState};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::names::{
    FOREIGN, FOREIGN_OTHER, MALFORMED, MARK, MISSING, failure_type, mark, mark_whole, ours,
};
use super::{RunEvent, RunItem};
use crate::error::{Error, Result};
use crate::journal::{Identity, LINE_BYTES_MAX, State, Writer, is_terminal};
use crate::object::{members, present, text};
use crate::time::parse_rfc3339;

/// Numbers without an event that are filled in at one place. A greater hole stays one.
pub const FILL_MAX: u64 = 1 << 16;

/// Characters of a tool's result that are shown.
const RESULT_CHARS: usize = 4_000;
/// Characters of one of its arguments, and arguments.
const ARGUMENT_CHARS: usize = 120;
const ARGUMENTS: usize = 4;

/// Writes a run's journal for the earlier tools: the events, in the order of their seqs, each as the
/// record of the same seq.
#[derive(Debug)]
pub struct Exporter<W> {
    writer: Writer<W>,
    identity: Identity,
    /// When the last record was written: a place without an event has no time of its own.
    last_at: Timestamp,
    usage: Tokens,
}

/// Tokens so far. The earlier tools show sums.
#[derive(Debug, Default)]
struct Tokens {
    input: u64,
    output: u64,
    cached: u64,
}

/// What a record says in the earlier tools' words.
struct Theirs {
    event: String,
    payload: String,
    state: Option<State>,
}

impl Theirs {
    fn new(event: &str, payload: String) -> Self {
        Self { event: event.to_owned(), payload, state: None }
    }
}

impl<W: Write> Exporter<W> {
    /// Begins the journal of a run. Give it the file itself and not a buffer in front of it, see
    /// [`Writer::new`].
    pub fn new(sink: W, identity: Identity) -> Self {
        let writer = Writer::new(sink, identity.clone());
        Self { writer, identity, last_at: Timestamp(0), usage: Tokens::default() }
    }

    /// Writes one item.
    ///
    /// # Errors
    /// [`Error::Record`] if its seq is not above that of the item before, or is 0. [`Error::Io`] if
    /// the sink fails.
    pub fn item(&mut self, item: &RunItem) -> Result<()> {
        match item {
            RunItem::Event(event) => self.event(event),
            RunItem::Malformed { seq, error } => self.malformed(*seq, error),
        }
    }

    /// Writes one event.
    ///
    /// # Errors
    /// As [`item`](Self::item). An event that is too large for a line is no error: a record in its
    /// place says so.
    pub fn event(&mut self, event: &RunEvent) -> Result<()> {
        self.fill(event.seq)?;
        // Room for the mark, what is shown of the body, and the other fields of the record.
        if event.body.get().len() + event.name.len() * 4 + (128 << 10) > LINE_BYTES_MAX {
            let error = format!("an event of {} bytes is too large", event.body.get().len());
            return self.append(&malformed_record(&error));
        }
        self.last_at = event.at;
        let theirs = self.translate(event);
        self.append(&theirs)
    }

    /// Writes that a stored event cannot be read.
    ///
    /// # Errors
    /// As [`item`](Self::item).
    pub fn malformed(&mut self, seq: u64, error: &str) -> Result<()> {
        self.fill(seq)?;
        self.append(&malformed_record(error))
    }

    /// The sink, at the end of the journal.
    pub fn into_inner(self) -> W {
        self.writer.into_inner()
    }

    fn append(&mut self, theirs: &Theirs) -> Result<()> {
        let payload = RawValue::from_string(theirs.payload.clone());
        let payload = payload.map_err(|error| Error::Record(error.to_string()))?;
        self.writer.append_as(&theirs.event, &payload, self.last_at, theirs.state)?;
        Ok(())
    }

    /// Brings the journal to the place before `seq`.
    fn fill(&mut self, seq: u64) -> Result<()> {
        let next = self.writer.next_seq();
        if seq < next {
            return Err(Error::Record(format!("number {seq} is not above {}", next - 1)));
        }
        if seq - next > FILL_MAX {
            self.writer.skip_to(seq);
            return Ok(());
        }
        for _ in next..seq {
            self.append(&Theirs::new(MISSING, "{}".to_owned()))?;
        }
        Ok(())
    }

    fn translate(&mut self, event: &RunEvent) -> Theirs {
        let body = event.body.get();
        let name = event.name.as_str();
        let whole = |their: &str, payload: Value| {
            Theirs::new(their, mark_whole(name, body, &payload.to_string()))
        };
        match name {
            "text.delta" => plain("token", name, body),
            "reasoning.delta" => plain("reasoning", name, body),
            "text.snapshot" => {
                let (their, payload) = snapshot(body);
                whole(their, payload)
            }
            "tool.intended" => whole("tool", tool(body, false)),
            "tool.finished" => whole("tool_complete", tool(body, true)),
            "prompt.opened" => {
                let (their, payload) = prompt(body, &self.identity);
                whole(their, payload)
            }
            "usage" => {
                self.usage.add(body);
                whole("metering", self.metering())
            }
            "run.completed" => whole("done", self.done()),
            "run.failed" => whole("apperror", self.failed(body)),
            "run.cancelled" => whole("cancel", self.cancelled()),
            "run.interrupted" => {
                let cause = text_of(body, "cause").and_then(|word| Cause::parse(&word));
                let state = State::from_ours(TerminalState::Interrupted, cause);
                Theirs { state: Some(state), ..whole("apperror", self.interrupted(body)) }
            }
            FOREIGN_OTHER => other(name, body),
            _ => match name.strip_prefix(FOREIGN) {
                // Under its own name it would tell an end that the run did not have.
                Some(their) if is_terminal(their) => plain(name, name, body),
                Some(their) if their.trim() == their && !their.is_empty() => {
                    foreign(their, name, body)
                }
                _ if name.contains('.') && name.trim() == name => plain(name, name, body),
                _ => whole(MISSING, json!({})),
            },
        }
    }

    fn session(&self) -> &str {
        self.identity.session_id.as_str()
    }

    fn metering(&self) -> Value {
        json!({
            "session_id": self.session(),
            "tps": 0.0,
            "tps_available": false,
            "estimated": false,
            "active": true,
            "usage": self.usage.json(),
        })
    }

    fn done(&self) -> Value {
        json!({ "session": { "session_id": self.session() }, "usage": self.usage.json() })
    }

    fn failed(&self, body: &str) -> Value {
        let error = members(body, ["error"]).and_then(|[error]| error).map_or("{}", RawValue::get);
        let code = text_of(error, "code").unwrap_or_default();
        json!({
            "message": text_of(error, "message"),
            "type": failure_type(&code),
            "hint": text_of(error, "hint"),
            "details": code,
            "session_id": self.session(),
        })
    }

    fn cancelled(&self) -> Value {
        json!({
            "message": "Cancelled by user",
            "type": "cancelled",
            "status": "cancelled",
            "session_id": self.session(),
        })
    }

    fn interrupted(&self, body: &str) -> Value {
        let evidence =
            members(body, ["evidence"]).and_then(|[seen]| seen).map_or("{}", RawValue::get);
        let message = text_of(evidence, "text");
        json!({
            "message": message.unwrap_or_else(|| "This turn was interrupted.".to_owned()),
            "type": "interrupted",
            "hint": "What was written before is kept.",
            "session_id": self.session(),
        })
    }
}

impl Tokens {
    fn add(&mut self, body: &str) {
        let names = ["input_tokens", "output_tokens", "cached_input_tokens"];
        let counts = members(body, names).unwrap_or_default();
        let [input, output, cached] =
            counts.map(|count| count.and_then(|count| count.get().parse().ok()).unwrap_or(0));
        self.input = self.input.saturating_add(input);
        self.output = self.output.saturating_add(output);
        self.cached = self.cached.saturating_add(cached);
    }

    fn json(&self) -> Value {
        json!({
            "input_tokens": self.input,
            "output_tokens": self.output,
            "cache_read_tokens": self.cached,
        })
    }
}

/// An event whose body is the payload. It is marked where the name alone would not bring it back.
fn plain(their: &str, name: &str, body: &str) -> Theirs {
    let payload = if !has_no_mark(body) {
        let text = members(body, ["text"]).and_then(|[text]| text).map_or("\"\"", RawValue::get);
        mark_whole(name, body, &format!("{{\"text\":{text}}}"))
    } else if ours(their).as_deref() == Some(name) {
        body.to_owned()
    } else {
        mark(name, body)
    };
    Theirs::new(their, payload)
}

/// A foreign event, whose payload is a field of its body.
fn foreign(their: &str, name: &str, body: &str) -> Theirs {
    let [payload] = members(body, ["payload"]).unwrap_or_default();
    let payload = payload.map(RawValue::get).filter(|payload| has_no_mark(payload));
    match payload {
        // The importer would make the same of it without a mark.
        Some(payload)
            if ours(their).as_deref() == Some(name)
                && body == format!("{{\"payload\":{payload}}}") =>
        {
            Theirs::new(their, payload.to_owned())
        }
        _ => Theirs::new(their, mark_whole(name, body, payload.unwrap_or("{}"))),
    }
}

/// A foreign event whose name is not one of ours.
fn other(name: &str, body: &str) -> Theirs {
    let [event, payload] = members(body, ["name", "payload"]).unwrap_or_default();
    match (text(event), payload) {
        (Some(event), Some(payload)) if !event.is_empty() && event.trim() == event => {
            let theirs = Some(payload.get()).filter(|payload| has_no_mark(payload));
            Theirs::new(&event, mark_whole(name, body, theirs.unwrap_or("{}")))
        }
        _ => Theirs::new(MISSING, mark_whole(name, body, "{}")),
    }
}

/// Whether an object has no member that would be taken for the mark.
fn has_no_mark(object: &str) -> bool {
    members(object, [MARK]).is_some_and(|[mark]| mark.is_none())
}

fn malformed_record(error: &str) -> Theirs {
    Theirs::new(MALFORMED, json!({ "error": cut(error, RESULT_CHARS) }).to_string())
}

fn text_of(object: &str, name: &'static str) -> Option<String> {
    members(object, [name]).and_then(|[member]| text(member))
}

/// All of the text of a range of pieces that was pruned, as one piece.
fn snapshot(body: &str) -> (&'static str, Value) {
    if let Some(text) = text_of(body, "reasoning") {
        return ("reasoning", json!({ "text": text }));
    }
    match text_of(body, "output") {
        Some(text) => ("tool.output", json!({ "call_id": text_of(body, "call_id"), "text": text })),
        None => ("token", json!({ "text": text_of(body, "text") })),
    }
}

/// A tool's call that began or ended.
fn tool(body: &str, ended: bool) -> Value {
    let call = members(body, ["call"]).and_then(|[call]| call).map_or("{}", RawValue::get);
    let arguments = members(call, ["arguments"]).and_then(|[arguments]| arguments);
    let (args, in_short) = arguments.map(arguments_in_short).unwrap_or_default();
    let mut payload = json!({
        "event_type": if ended { "tool.completed" } else { "tool.started" },
        "name": text_of(call, "name"),
        "preview": in_short,
        "args": args,
        "tid": text_of(call, "id"),
    });
    if ended {
        let result = text_of(call, "result").unwrap_or_default();
        let times = (text_of(call, "started_at"), text_of(call, "ended_at"));
        let time = |text: Option<String>| parse_rfc3339(&text?);
        let duration = match (time(times.0), time(times.1)) {
            (Some(from), Some(to)) => to.since_ms(from) as f64 / 1_000.0,
            _ => 0.0,
        };
        payload["preview"] = cut(&result, RESULT_CHARS).into();
        payload["duration"] = duration.into();
        payload["is_error"] = (text_of(call, "state").as_deref() != Some("succeeded")).into();
    }
    payload
}

/// The first few arguments, each in short, and all of them as one short text.
fn arguments_in_short(arguments: &RawValue) -> (Map<String, Value>, String) {
    match serde_json::from_str(arguments.get()) {
        Ok(Value::Object(all)) => {
            let in_short = |value: Value| match value {
                Value::String(text) => cut(&text, ARGUMENT_CHARS).into(),
                Value::Array(_) | Value::Object(_) => {
                    cut(&value.to_string(), ARGUMENT_CHARS).into()
                }
                simple => simple,
            };
            let preview = cut(&Value::Object(all.clone()).to_string(), ARGUMENT_CHARS);
            let few = all.into_iter().take(ARGUMENTS).map(|(name, value)| (name, in_short(value)));
            (few.collect(), preview)
        }
        Ok(Value::String(text)) => (Map::new(), cut(&text, ARGUMENT_CHARS)),
        _ => (Map::new(), cut(arguments.get(), ARGUMENT_CHARS)),
    }
}

/// A question to people.
fn prompt(body: &str, identity: &Identity) -> (&'static str, Value) {
    let prompt = members(body, ["prompt"]).and_then(|[prompt]| prompt).map_or("{}", RawValue::get);
    let question = text_of(prompt, "question");
    let seconds = |name| text_of(prompt, name).and_then(|text| parse_rfc3339(&text));
    if text_of(prompt, "kind").as_deref() == Some("clarification") {
        let (opened, expires) = (seconds("opened_at"), seconds("expires_at"));
        let timeout = opened.zip(expires).map(|(from, to)| to.since_ms(from) as f64 / 1_000.0);
        let seconds = |at: Option<Timestamp>| at.map(|at| at.0 as f64 / 1_000.0);
        let [proposed] = members(prompt, ["suggestions"]).unwrap_or_default();
        let proposed: Vec<String> =
            proposed.and_then(|all| serde_json::from_str(all.get()).ok()).unwrap_or_default();
        let payload = json!({
            "clarify_id": text_of(prompt, "id"),
            "question": question,
            "choices_offered": proposed,
            "session_id": identity.session_id.as_str(),
            "kind": "clarify",
            "requested_at": seconds(opened),
            "timeout_seconds": timeout,
            "expires_at": seconds(expires),
        });
        return ("clarify", payload);
    }
    let [call, choices] = members(prompt, ["call", "choices"]).unwrap_or_default();
    let call = present(call).map_or("{}", RawValue::get);
    let arguments = members(call, ["arguments"]).and_then(|[arguments]| arguments);
    let command = arguments.map(|arguments| arguments_in_short(arguments).1).unwrap_or_default();
    let choices: Vec<String> =
        choices.and_then(|all| serde_json::from_str(all.get()).ok()).unwrap_or_default();
    let payload = json!({
        "approval_id": text_of(prompt, "id"),
        "command": format!("{} {command}", text_of(call, "name").unwrap_or_default()).trim_end(),
        "description": question,
        "pattern_keys": [],
        "choices": choices,
        "pending_count": 1,
        "run_id": identity.run_id.as_str(),
    });
    ("approval", payload)
}

/// The beginning of a text.
fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
