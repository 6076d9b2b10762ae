//! Events of runs that happened elsewhere: whether a body is what readers may expect of an event of
//! its name.
//!
//! Every reader relies on the fields of the events that it knows, and on the head's own fields to be
//! there once. So what somebody else's journal claims to be one of our events is held to both before
//! it is stored.

use everturn_core::event::is_terminal;
use everturn_core::{Cause, TerminalState};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::message::ToolCall;
use crate::prompt::Prompt;
use crate::run::{Evidence, Failure, Usage};

/// What an event tells whoever takes a run in.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Some of the model's text.
    Text(String),
    /// The run exists.
    Started {
        /// `provider/name`.
        model: String,
    },
    /// Tokens that one model request used.
    Usage(Usage),
    /// The run ends.
    End(Ending),
    /// Anything else, also what is not known here.
    Other,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// How.
    pub state: TerminalState,
    /// Why, for an interruption.
    pub cause: Option<Cause>,
    /// The error, for a failure.
    pub error: Option<Failure>,
}

/// The fields that every event has besides those of its body.
const HEAD: [&str; 6] = ["session_id", "offset", "run_id", "seq", "event", "at"];

/// What an event with this name and body tells.
///
/// # Errors
/// Why no reader could take it for one, in words: the name is not made as ours are, the body is not
/// a JSON object, has a field of the head, or lacks a field that events of this name have.
pub fn known(name: &str, body: &str) -> Result<Known, String> {
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b)) {
        return Err(format!("{name:?} is no name of an event"));
    }
    if !body.starts_with('{') {
        return Err(format!("the body of {name} is no object"));
    }
    for field in fields(name, body)? {
        if HEAD.contains(&field.as_str()) {
            return Err(format!(
                "the body of {name} has a field {field}, which is the event's own"
            ));
        }
    }
    tells(name, body)
}

/// The names of an object's members, without a tree of what they hold.
fn fields(name: &str, body: &str) -> Result<Vec<String>, String> {
    struct Names;
    impl<'de> serde::de::Visitor<'de> for Names {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Vec<String>, A::Error> {
            let mut names = Vec::new();
            while let Some(name) = map.next_key()? {
                map.next_value::<serde::de::IgnoredAny>()?;
                names.push(name);
            }
            Ok(names)
        }
    }
    let mut from = serde_json::Deserializer::from_str(body);
    serde::Deserializer::deserialize_map(&mut from, Names)
        .and_then(|names| from.end().map(|()| names))
        .map_err(|error| format!("the body of {name}: {error}"))
}

/// Names of the events of a run whose fields every reader may rely on. Others may come later, and
/// from elsewhere; a reader must ignore them, whatever fields they have.
pub const NAMES: [&str; 18] = [
    "run.started",
    "text.resumed",
    "text.delta",
    "reasoning.delta",
    "tool.intended",
    "tool.output",
    "tool.finished",
    "prompt.opened",
    "prompt.settled",
    "steer.taken",
    "usage",
    "run.handed_over",
    "text.snapshot",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.interrupted",
    "malformed",
];

fn tells(name: &str, body: &str) -> Result<Known, String> {
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Output {
        call_id: String,
        text: String,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Call {
        call: ToolCall,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Asked {
        prompt: Prompt,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Started {
        generation: u64,
        input_ids: Vec<String>,
        attempt: u32,
        continues: Option<String>,
        model: String,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Resumed {
        message_id: u64,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Steer {
        input_id: String,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Snapshot {
        from: u64,
        to: u64,
        text: String,
        #[serde(default)]
        reasoning: Option<String>,
        #[serde(default)]
        call_id: Option<String>,
        #[serde(default)]
        output: Option<String>,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Completed {
        #[serde(default)]
        message_id: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Failed {
        error: Failure,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Cancelled {
        by: String,
    }
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "they must be there")]
    struct Interrupted {
        cause: String,
        evidence: Evidence,
    }
    fn read<T: DeserializeOwned>(name: &str, body: &str) -> Result<T, String> {
        serde_json::from_str(body).map_err(|error| format!("the body of {name}: {error}"))
    }
    let end = |state, cause, error| Known::End(Ending { state, cause, error });
    Ok(match name {
        "text.delta" => Known::Text(read::<Text>(name, body)?.text),
        "text.resumed" => read::<Resumed>(name, body).map(|_| Known::Other)?,
        "reasoning.delta" => read::<Text>(name, body).map(|_| Known::Other)?,
        "text.snapshot" => Known::Text(read::<Snapshot>(name, body)?.text),
        "tool.output" => read::<Output>(name, body).map(|_| Known::Other)?,
        "tool.intended" | "tool.finished" => read::<Call>(name, body).map(|_| Known::Other)?,
        "prompt.opened" | "prompt.settled" => read::<Asked>(name, body).map(|_| Known::Other)?,
        "steer.taken" => read::<Steer>(name, body).map(|_| Known::Other)?,
        "usage" => Known::Usage(read(name, body)?),
        "run.started" => Known::Started { model: read::<Started>(name, body)?.model },
        "run.completed" => {
            read::<Completed>(name, body)?;
            end(TerminalState::Completed, None, None)
        }
        "run.failed" => {
            let failed: Failed = read(name, body)?;
            end(TerminalState::Failed, None, Some(failed.error))
        }
        "run.cancelled" => {
            read::<Cancelled>(name, body)?;
            end(TerminalState::Cancelled, None, None)
        }
        "run.interrupted" => {
            let seen: Interrupted = read(name, body)?;
            // A word that this version does not know tells nothing that it could act on.
            let cause = Cause::parse(&seen.cause).unwrap_or(Cause::Unknown);
            end(TerminalState::Interrupted, Some(cause), None)
        }
        // Events of a session's feed that are in no run, and ends that this version does not know.
        _ if is_terminal(name) || IN_NO_RUN.contains(&name) => {
            return Err(format!("{name} is in no run"));
        }
        _ => Known::Other,
    })
}

/// Names that a client of a feed takes for something else than an event of a run.
const IN_NO_RUN: [&str; 10] = [
    "input.accepted",
    "input.cancelled",
    "turn.started",
    "message.added",
    "message.updated",
    "session.updated",
    "opened",
    "caught_up",
    "reset",
    "malformed",
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_readers_expect_is_let_in() {
        assert_eq!(known("text.delta", r#"{"text":"a"}"#), Ok(Known::Text("a".to_owned())));
        assert_eq!(known("something.new", "{}"), Ok(Known::Other));
        assert_eq!(known("hermes.title", r#"{"payload":{"seq":1}}"#), Ok(Known::Other));
        let end = known("run.failed", r#"{"error":{"code":"x","message":"m","permanent":true}}"#);
        let Known::End(end) = end.unwrap() else { panic!() };
        assert_eq!((end.state, end.error.unwrap().code.as_str()), (TerminalState::Failed, "x"));
    }

    #[test]
    fn what_would_mislead_a_reader_is_not() {
        for (name, body) in [
            ("", "{}"),
            ("Text", "{}"),
            ("a\"b", "{}"),
            ("text.delta", "{}"),
            ("text.delta", r#"{"text":1}"#),
            ("text.delta", r#"{"text":"a"} {}"#),
            ("text.delta", r#"[]"#),
            ("something.new", r#"{"session_id":"other"}"#),
            ("something.new", r#"{"a":1,"seq":9}"#),
            // An escape is the same name.
            ("something.new", r#"{"s\u0065q":9}"#),
            ("tool.finished", r#"{"call":{"id":"c"}}"#),
            ("run.interrupted", r#"{"cause":"unknown","evidence":{"text":"t"}}"#),
            ("session.updated", "{}"),
            ("message.added", "{}"),
            ("reset", "{}"),
        ] {
            assert!(known(name, body).is_err(), "{name} {body}");
        }
    }
}
