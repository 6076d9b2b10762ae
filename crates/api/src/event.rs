//! Events on the wire: the bytes that are stored, and that every reader is sent, for ever.

use everturn_core::Event;
use everturn_core::event::EventHead;
use serde::Serialize;
use serde_json::{Value, json};

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
        Event::TextSnapshot { from, to, text } => json!({ "from": from, "to": to, "text": text }),
        Event::RunCompleted { message_id } => json!({ "message_id": message_id }),
        Event::RunFailed(failure) => json!({ "error": Failure::from(failure) }),
        Event::RunCancelled { by } => json!({ "by": by.as_str() }),
        Event::RunInterrupted { cause, evidence } => {
            json!({ "cause": cause.as_str(), "evidence": Evidence::new(evidence, *cause) })
        }
        Event::InputAccepted { input_id, request_id, kind, content, delivery } => json!({
            "input_id": input_id.as_str(),
            "request_id": request_id,
            "kind": kind,
            "text": content.plain(),
            "delivery": delivery,
        }),
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

/// The complete bytes of an event: its head, then the fields of its body. A pure function of what
/// is stored, so that a reader years later is sent what a live one was.
#[must_use]
pub fn render(head: &EventHead, body: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(body.len() + 192);
    // Ids, names and times hold nothing that JSON would escape; see their types.
    let _ = write!(out, r#"{{"session_id":"{}","offset":{}"#, head.session_id, head.offset);
    if let Some((run, seq)) = &head.run {
        let _ = write!(out, r#","run_id":"{run}","seq":{seq}"#);
    }
    let _ = write!(out, r#","event":"{}","at":"{}""#, head.name, head.at.rfc3339());
    let fields = body.strip_prefix('{').unwrap_or("}");
    if fields.starts_with('}') {
        out.push('}');
    } else {
        out.push(',');
        out.push_str(fields);
    }
    out
}
