//! How one event is a row: a small number for its name and form, and its body.
//!
//! The bytes of an event are final, so the numbers and the rendering here are frozen: a number is
//! never given another meaning, and [`text_body`] never changes. Deltas, by far the most events, keep
//! their text alone, if (and only if) that text renders to exactly the body that was committed.

use std::borrow::Cow;

/// What the body column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The body: a JSON object.
    Json,
    /// The value of the body's only field `text`.
    Text,
}

/// The kind of an event whose name is written out.
const NAMED: i64 = 0;

/// Every kind: number, name, form. Append only.
const KINDS: &[(i64, &str, Form)] = &[
    (1, "run.started", Form::Json),
    (2, "text.delta", Form::Text),
    (3, "text.delta", Form::Json),
    (4, "reasoning.delta", Form::Text),
    (5, "reasoning.delta", Form::Json),
    (6, "tool.intended", Form::Json),
    (7, "tool.output", Form::Json),
    (8, "tool.finished", Form::Json),
    (9, "prompt.opened", Form::Json),
    (10, "prompt.settled", Form::Json),
    (11, "steer.taken", Form::Json),
    (12, "usage", Form::Json),
    (13, "run.handed_over", Form::Json),
    (14, "text.snapshot", Form::Json),
    (15, "run.completed", Form::Json),
    (16, "run.failed", Form::Json),
    (17, "run.cancelled", Form::Json),
    (18, "run.interrupted", Form::Json),
    (19, "input.accepted", Form::Json),
    (20, "input.cancelled", Form::Json),
    (21, "turn.started", Form::Json),
    (22, "message.added", Form::Json),
    (23, "message.updated", Form::Json),
    (24, "session.updated", Form::Json),
    (25, "text.resumed", Form::Json),
];

/// An event's name and body as they are stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    /// Number of the kind.
    pub(crate) kind: i64,
    /// The name, where no number stands for it.
    pub(crate) name: Option<&'a str>,
    /// What the body column holds.
    pub(crate) body: Cow<'a, str>,
}

/// The stored form of an event.
pub(crate) fn encode<'a>(name: &'a str, body: &'a str) -> Stored<'a> {
    let number =
        |form| KINDS.iter().find(|kind| kind.1 == name && kind.2 == form).map(|kind| kind.0);
    if let Some(kind) = number(Form::Text)
        && let Some(text) = only_text(body)
    {
        return Stored { kind, name: None, body: text };
    }
    match number(Form::Json) {
        Some(kind) => Stored { kind, name: None, body: body.into() },
        None => Stored { kind: NAMED, name: Some(name), body: body.into() },
    }
}

/// The name and the body of a stored event.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn decode(
    kind: i64,
    name: Option<&str>,
    body: &str,
) -> Result<(String, String), String> {
    let (name, form) = match KINDS.iter().find(|known| known.0 == kind) {
        Some((_, known, form)) => (*known, *form),
        None if kind == NAMED => {
            (name.filter(|name| is_name(name)).ok_or("the event has no name")?, Form::Json)
        }
        None => return Err(format!("event kind {kind} is not known")),
    };
    let body = match form {
        Form::Text => text_body(body),
        Form::Json => {
            if !body.starts_with('{') {
                return Err("the event's body is not a JSON object".to_owned());
            }
            serde_json::from_str::<&serde_json::value::RawValue>(body)
                .map_err(|error| format!("the event's body is not valid JSON: {error}"))?;
            body.to_owned()
        }
    };
    Ok((name.to_owned(), body))
}

/// A name stands unescaped in the event's bytes.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'.' | b'_'))
}

const BEFORE: &str = "{\"text\":\"";
const AFTER: &str = "\"}";

/// The body of a delta.
fn text_body(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + BEFORE.len() + AFTER.len() + 8);
    out.push_str(BEFORE);
    let mut clean = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            0x09 => "\\t",
            0x0a => "\\n",
            0x0c => "\\f",
            0x0d => "\\r",
            0x00..=0x1f => "",
            _ => continue,
        };
        out.push_str(&text[clean..at]);
        clean = at + 1;
        if short.is_empty() {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.push_str("\\u00");
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        } else {
            out.push_str(short);
        }
    }
    out.push_str(&text[clean..]);
    out.push_str(AFTER);
    out
}

/// The text of a body that is nothing else, and that [`text_body`] renders to the same bytes.
fn only_text(body: &str) -> Option<Cow<'_, str>> {
    let inner = body.strip_prefix(BEFORE)?.strip_suffix(AFTER)?;
    if !inner.bytes().any(|b| b < 0x20 || matches!(b, b'"' | b'\\')) {
        return Some(inner.into());
    }
    #[derive(serde::Deserialize)]
    struct Only {
        text: String,
    }
    let only: Only = serde_json::from_str(body).ok()?;
    (text_body(&only.text) == body).then_some(only.text.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn round_trip(name: &str, body: &str) -> (i64, String) {
        let stored = encode(name, body);
        let decoded = decode(stored.kind, stored.name, &stored.body).unwrap();
        assert_eq!(decoded, (name.to_owned(), body.to_owned()));
        (stored.kind, stored.body.into_owned())
    }

    #[test]
    fn every_name_of_the_vocabulary_has_its_number() {
        // Written out once more, so that a change of the table shows.
        let numbers: Vec<(i64, &str)> = KINDS.iter().map(|kind| (kind.0, kind.1)).collect();
        for (at, (number, _)) in numbers.iter().enumerate() {
            assert_eq!(*number, i64::try_from(at).unwrap() + 1, "numbers are never moved");
        }
        assert_eq!(encode("text.delta", "{\"text\":\"x\"}").kind, 2);
        assert_eq!(encode("session.updated", "{}").kind, 24);
        assert_eq!(encode("something.new", "{}").kind, NAMED);
        round_trip("something.new", "{\"a\":1}");
    }

    #[test]
    fn a_delta_keeps_its_text_alone_and_renders_as_the_encoder_of_the_wire_does() {
        let all: String = (0..=0x2ff_u32).filter_map(char::from_u32).collect();
        for text in
            ["", "plain", "\0", "a\"b\\c\n\r\t\u{8}\u{c}\u{1f}\u{7f}", "ü\u{2028}\u{1f9ff}", &all]
        {
            let body = everturn_api::event::body(&everturn_core::Event::TextDelta(text.into()));
            assert_eq!(round_trip("text.delta", &body), (2, text.to_owned()));
        }
    }

    #[test]
    fn a_body_that_would_render_differently_is_kept_whole() {
        for body in [
            "{\"text\":\"\\u0041\"}",
            "{\"text\":\"a\\/b\"}",
            "{\"text\": \"a\"}",
            "{\"text\":\"a\",\"more\":\"b\"}",
            "{}",
            "{\"text\":\"\\ud83e\\uddff\"}",
        ] {
            assert_eq!(round_trip("text.delta", body), (3, body.to_owned()), "{body}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (kind, name, body) in [
            (99, None, "{}"),
            (-1, None, "{}"),
            (0, None, "{}"),
            (0, Some("a\"b"), "{}"),
            (1, None, "nothing"),
            (1, None, "{\"a\":"),
            (1, None, "{} {}"),
        ] {
            assert!(decode(kind, name, body).is_err(), "{kind} {name:?} {body}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives(text in any::<String>()) {
            let body = everturn_api::event::body(&everturn_core::Event::ReasoningDelta(text.clone()));
            prop_assert_eq!(round_trip("reasoning.delta", &body), (4, text));
        }

        #[test]
        fn any_body_survives(inner in "[\\x00-\\x7f]{0,40}") {
            let body = format!("{{\"text\":\"{inner}\"}}");
            let stored = encode("text.delta", &body);
            if stored.kind == 2 {
                prop_assert_eq!(text_body(&stored.body), body);
            } else {
                prop_assert_eq!(stored.body.as_ref(), body.as_str());
            }
        }
    }
}
