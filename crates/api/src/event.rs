//! Events on the wire: the bytes that are stored, and that every reader is sent, for ever.

use everturn_core::event::{EventHead, Told};
use everturn_core::{CallId, Event};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::content::list;
use crate::message::{Message, ToolCall};
use crate::prompt::Prompt;
use crate::run::{Evidence, Failure, Usage};
use crate::session::Session;

/// The body of an event as a JSON object: everything but what [`render`] adds.
#[must_use]
pub fn body(event: &Event<Session>) -> String {
    #[derive(Serialize)]
    struct Text<'a> {
        text: &'a str,
    }
    let value: Value = match event {
        // The hot path: no tree is built for a delta.
        Event::TextDelta(text) | Event::ReasoningDelta(text) => {
            return serde_json::to_string(&Text { text }).unwrap_or_else(|_| "{}".to_owned());
        }
        Event::TextResumed { message_id } => json!({ "message_id": message_id }),
        Event::RunStarted { generation, input_ids, attempt, continues, model } => json!({
            "generation": generation,
            "input_ids": input_ids.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "attempt": attempt,
            "continues": continues.as_ref().map(ToString::to_string),
            "model": model,
        }),
        Event::ToolIntended(call) | Event::ToolFinished(call) => {
            json!({ "call": ToolCall::from(call) })
        }
        Event::ToolOutput { call_id, text } => {
            json!({ "call_id": call_id.as_str(), "text": text })
        }
        Event::PromptOpened(prompt, call) | Event::PromptSettled(prompt, call) => {
            json!({ "prompt": Prompt::new(prompt, call.as_ref()) })
        }
        Event::SteerTaken(input_id) => json!({ "input_id": input_id.as_str() }),
        Event::Usage(usage) => json!(Usage::from(usage)),
        Event::RunHandedOver => json!({}),
        // `text` is the answer's, always there, so that whoever knows no other field is told nothing
        // wrong; what else was pruned has a field of its own.
        Event::TextSnapshot { from, to, of, text } => match of {
            Told::Text => json!({ "from": from, "to": to, "text": text }),
            Told::Reasoning => json!({ "from": from, "to": to, "text": "", "reasoning": text }),
            Told::Output(call_id) => json!({
                "from": from, "to": to, "text": "", "call_id": call_id.as_str(), "output": text,
            }),
        },
        Event::RunCompleted { message_id } => json!({ "message_id": message_id }),
        Event::RunFailed(failure) => json!({ "error": Failure::from(failure) }),
        Event::RunCancelled { by } => json!({ "by": by.as_str() }),
        Event::RunInterrupted { cause, evidence } => {
            json!({ "cause": cause.as_str(), "evidence": Evidence::new(evidence, *cause) })
        }
        Event::InputAccepted { input_id, request_id, kind, content, delivery } => {
            let mut body = json!({
                "input_id": input_id.as_str(),
                "request_id": request_id,
                "kind": kind,
                "text": content.plain(),
                "delivery": delivery,
            });
            // As in the input and the message: the list, where it is more than one text.
            if !content.is_plain() {
                body["content"] = json!(list(content));
            }
            body
        }
        Event::InputCancelled { input_id, reason } => {
            json!({ "input_id": input_id.as_str(), "reason": reason })
        }
        Event::TurnStarted { generation, run_id, input_ids } => json!({
            "generation": generation,
            "run_id": run_id.as_str(),
            "input_ids": input_ids.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
        Event::MessageAdded(message) | Event::MessageUpdated(message) => {
            json!({ "message": Message::from(message) })
        }
        Event::SessionUpdated(session) => json!({ "session": session }),
    };
    value.to_string()
}

/// What a token event, or a snapshot of a range of them, tells: the seqs that it stands for, and the
/// text. The counterpart of [`body`] for these events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// First seq.
    pub from: u64,
    /// Last seq: the event's own.
    pub to: u64,
    /// Of what.
    pub of: Told,
    /// The text.
    pub text: String,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
}

/// Reads a token event or a snapshot. `None` for every other event, for one that is in no run, and
/// for a body that does not say what such an event says.
#[must_use]
pub fn piece(head: &EventHead, body: &str) -> Option<Piece> {
    #[derive(Deserialize)]
    struct Said {
        text: String,
        from: Option<u64>,
        to: Option<u64>,
        reasoning: Option<String>,
        call_id: Option<String>,
        output: Option<String>,
    }
    let seq = head.run.as_ref()?.1;
    let name = head.name.as_str();
    if !matches!(name, "text.delta" | "reasoning.delta" | "tool.output" | "text.snapshot") {
        return None;
    }
    let said: Said = serde_json::from_str(body).ok()?;
    let call = |id: Option<String>| CallId::new(id?).ok();
    let one = |of, text| Piece { from: seq, to: seq, of, text, is_snapshot: false };
    Some(match name {
        "text.delta" => one(Told::Text, said.text),
        "reasoning.delta" => one(Told::Reasoning, said.text),
        "tool.output" => one(Told::Output(call(said.call_id)?), said.text),
        _ => {
            let (from, to) = (said.from?, said.to?);
            if from == 0 || from > to || to != seq {
                return None;
            }
            let (of, text) = match (said.reasoning, said.output) {
                (None, None) => (Told::Text, said.text),
                (Some(text), None) if said.text.is_empty() => (Told::Reasoning, text),
                (None, Some(text)) if said.text.is_empty() => {
                    (Told::Output(call(said.call_id)?), text)
                }
                _ => return None,
            };
            Piece { from, to, of, text, is_snapshot: true }
        }
    })
}

/// The complete bytes of an event: its head, then the fields of its body. A pure function of what
/// is stored, so that a reader years later is sent what a live one was.
#[must_use]
pub fn render(head: &EventHead, body: &str) -> String {
    let mut out = String::with_capacity(body.len() + 256);
    let mut digits = itoa::Buffer::new();
    // Ids, names and times hold nothing that JSON would escape; see their types. No formatting
    // machinery: this is done for every event of every replay.
    out.push_str(r#"{"session_id":""#);
    out.push_str(head.session_id.as_str());
    out.push_str(r#"","offset":"#);
    out.push_str(digits.format(head.offset));
    if let Some((run, seq)) = &head.run {
        out.push_str(r#","run_id":""#);
        out.push_str(run.as_str());
        out.push_str(r#"","seq":"#);
        out.push_str(digits.format(*seq));
    }
    out.push_str(r#","event":""#);
    out.push_str(&head.name);
    out.push_str(r#"","at":""#);
    out.push_str(&head.at.rfc3339());
    out.push('"');
    let fields = body.strip_prefix('{').unwrap_or("}");
    if fields.starts_with('}') {
        out.push('}');
    } else {
        out.push(',');
        out.push_str(fields);
    }
    out
}
