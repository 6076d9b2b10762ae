//! Watches the provider's own frames, through the library's hook for them.
//!
//! Two things are essential here and hidden by the library's events:
//!
//! - Whether the stream came to its proper end. In some dialects (Ollama, OpenAI's Responses) the
//!   library makes an end of its own when the body just stops, and a broken answer would pass for
//!   a complete one.
//! - The tool calls of the OpenAI dialect. The library drops a call without an index, repeats one
//!   when the first index is not 0, and merges two that share an index; servers that call
//!   themselves compatible do all three. A lost call is an answer that hangs, a repeated one an
//!   effect that happens twice. So they are put together here, as the model wrote them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use genai::chat::{ChatFrameSink, FrameCtx, RawFrameRef};
use serde_json::Value;

use super::RequestedCall;

/// The family of protocols that a provider speaks, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's chat completions, and everything compatible.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Ollama's own.
    Ollama,
    /// Google's, where one message carries all results of a step.
    Gemini,
    /// Any other one that the library speaks.
    Other,
}

#[derive(Debug, Default)]
struct Seen {
    ended: bool,
    error: Option<Value>,
    calls: Vec<(Option<u64>, RequestedCall)>,
}

/// What was seen of one answer's frames.
#[derive(Debug)]
pub(super) struct Frames {
    dialect: Dialect,
    seen: Mutex<Seen>,
}

impl Frames {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // What is behind the lock is whole after each statement, whoever panicked.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the frame that ends an answer has come, where the library does not tell.
    pub(super) fn ended(&self) -> bool {
        self.dialect != Dialect::Ollama || self.seen().ended
    }

    /// An error that came in the place of a frame, where the library overlooks it.
    pub(super) fn error(&self) -> Option<Value> {
        self.seen().error.take()
    }

    /// The tool calls, where they are put together here.
    pub(super) fn calls(&self) -> Option<Vec<RequestedCall>> {
        (self.dialect == Dialect::OpenAi)
            .then(|| self.seen().calls.drain(..).map(|(_, call)| call).collect())
    }

    fn ollama(&self, data: &str) {
        // Most frames are a few letters of text: look before parsing.
        if !data.contains("\"done\"") && !data.contains("\"error\"") {
            return;
        }
        let Ok(frame) = serde_json::from_str::<Value>(data) else { return };
        let mut seen = self.seen();
        seen.ended |= frame["done"] == Value::Bool(true);
        if let Some(error) = frame.get("error").filter(|error| !error.is_null()) {
            seen.error = Some(error.clone());
        }
    }

    fn open_ai(&self, data: &str) {
        if !data.contains("\"tool_calls\"") {
            return;
        }
        let Ok(frame) = serde_json::from_str::<Value>(data) else { return };
        let Some(pieces) = frame.pointer("/choices/0/delta/tool_calls").and_then(Value::as_array)
        else {
            return;
        };
        let mut seen = self.seen();
        for piece in pieces {
            seen.add(piece);
        }
    }
}

impl Seen {
    /// Adds a piece to the call that it belongs to, or begins one.
    fn add(&mut self, piece: &Value) {
        let text = |place: &str| piece.pointer(place).and_then(Value::as_str).unwrap_or_default();
        let index = piece.get("index").and_then(Value::as_u64);
        let (id, name) = (text("/id"), text("/function/name"));
        let arguments = match piece.pointer("/function/arguments") {
            Some(Value::String(text)) => text.clone(),
            // Some servers send the arguments as what they are.
            Some(value @ Value::Object(_)) => value.to_string(),
            _ => String::new(),
        };
        let open = self.calls.iter_mut().rev().find(|(at, call)| match index {
            Some(_) => *at == index,
            None => id.is_empty() || call.provider_id == id,
        });
        match open {
            // An id of its own makes it another call, whatever index it claims.
            Some((_, call))
                if id.is_empty() || call.provider_id.is_empty() || call.provider_id == id =>
            {
                if call.provider_id.is_empty() {
                    id.clone_into(&mut call.provider_id);
                }
                if call.name.is_empty() {
                    name.clone_into(&mut call.name);
                }
                call.arguments.push_str(&arguments);
            }
            _ => self.calls.push((
                index,
                RequestedCall { provider_id: id.to_owned(), name: name.to_owned(), arguments },
            )),
        }
    }
}

impl ChatFrameSink for Frames {
    fn on_frame(&self, _ctx: &FrameCtx, frame: RawFrameRef<'_>) {
        match self.dialect {
            Dialect::OpenAi => self.open_ai(frame.data),
            Dialect::Ollama => self.ollama(frame.data),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn calls(pieces: &[Value]) -> Vec<(String, String, String)> {
        let frames = Frames::new(Dialect::OpenAi);
        for piece in pieces {
            frames.open_ai(&json!({"choices": [{"delta": {"tool_calls": [piece]}}]}).to_string());
        }
        let calls = frames.calls().unwrap_or_default();
        calls.into_iter().map(|call| (call.provider_id, call.name, call.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn pieces_of_two_calls_may_be_interleaved() {
        assert_eq!(
            calls(&[
                json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}),
                json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"y\""}}),
                json!({"index": 0, "function": {"arguments": "{\"x\":"}}),
                json!({"index": 1, "id": "b", "function": {"arguments": ":2}"}}),
                json!({"index": 0, "function": {"name": null, "arguments": "1}"}}),
            ]),
            [call("a", "f", "{\"x\":1}"), call("b", "g", "{\"y\":2}")]
        );
    }

    #[test]
    fn a_first_index_of_one_is_one_call() {
        assert_eq!(
            calls(&[
                json!({"index": 1, "id": "a", "function": {"name": "f", "arguments": "{"}}),
                json!({"index": 1, "function": {"arguments": "}"}}),
            ]),
            [call("a", "f", "{}")]
        );
    }

    #[test]
    fn calls_without_an_index_are_kept() {
        assert_eq!(
            calls(&[
                json!({"id": "a", "function": {"name": "f", "arguments": "{}"}}),
                json!({"id": "b", "function": {"name": "g", "arguments": {"z": 1}}}),
            ]),
            [call("a", "f", "{}"), call("b", "g", "{\"z\":1}")]
        );
    }

    #[test]
    fn two_calls_that_share_an_index_stay_two() {
        assert_eq!(
            calls(&[
                json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}),
                json!({"index": 0, "id": "b", "function": {"name": "f", "arguments": "{}"}}),
            ]),
            [call("a", "f", "{}"), call("b", "f", "{}")]
        );
    }

    #[test]
    fn the_end_of_an_ollama_answer() {
        let frames = Frames::new(Dialect::Ollama);
        frames.ollama(r#"{"message":{"content":"\"done\":true"},"done":false}"#);
        assert!(!frames.ended());
        frames.ollama(r#"{"message":{"content":""},"done": true}"#);
        assert!(frames.ended());
        assert_eq!(frames.error(), None);
        frames.ollama(r#"{"error":"no memory"}"#);
        assert_eq!(frames.error(), Some(json!("no memory")));
    }
}
