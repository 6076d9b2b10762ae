//! JSON objects by some of their members, without a tree of the rest.
//!
//! Payloads may be large, deep and hostile. Members are taken as the text that they are; whatever
//! else an object holds is skipped without being kept. Where a name stands twice the last one counts,
//! as for the earlier tools.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Takes the members of these names.
#[derive(Clone, Copy)]
pub(crate) struct Names<const N: usize>(pub(crate) [&'static str; N]);

/// The members, in the order of their [`Names`].
pub(crate) type Members<'a, const N: usize> = [Option<&'a RawValue>; N];

impl<'de, const N: usize> DeserializeSeed<'de> for Names<N> {
    type Value = Members<'de, N>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Names<N> {
    type Value = Members<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = [None; N];
        while let Some(place) = map.next_key_seed(Place(&self.0))? {
            match place {
                Some(place) => members[place] = Some(map.next_value()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(members)
    }
}

/// Finds the place of a name.
struct Place<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|known| *known == name))
    }
}

/// The members of an object; `None` where the text is not one.
pub(crate) fn members<'a, const N: usize>(
    text: &'a str,
    names: [&'static str; N],
) -> Option<Members<'a, N>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut from = serde_json::Deserializer::from_str(text);
    let members = Names(names).deserialize(&mut from).ok()?;
    from.end().ok()?;
    Some(members)
}

/// A member that is a text.
pub(crate) fn text(member: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(member?.get()).ok()
}

/// A member that is neither absent nor `null`.
pub(crate) fn present(member: Option<&RawValue>) -> Option<&RawValue> {
    member.filter(|raw| raw.get() != "null")
}

/// The object with one more member, before all others, which stay as they are written.
pub(crate) fn with_first(name: &str, value: &str, object: &str) -> String {
    let rest = object.strip_prefix('{').unwrap_or("}");
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!("{{\"{name}\":{value}{comma}{rest}")
}

/// What [`with_first`] was given, if the member still stands there as it was written.
pub(crate) fn without_first(name: &str, value: &str, object: &str) -> Option<String> {
    let rest = object.strip_prefix("{\"")?.strip_prefix(name)?.strip_prefix("\":")?;
    let rest = rest.strip_prefix(value)?;
    Some(format!("{{{}", rest.strip_prefix(',').unwrap_or(rest)))
}

/// JSON that every reader takes, from JSON that some writers produce: line ends between values go
/// (they would cut a line in two), and half of a surrogate pair becomes U+FFFD (no UTF-8 text can
/// hold it). With `numbers`, `NaN` and the infinities become `null` as well; then the text need not
/// be JSON before. `None` where nothing is to be changed.
pub(crate) fn repaired(text: &str, numbers: bool) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut clean = 0;
    let mut at = 0;
    let mut quoted = false;
    while at < bytes.len() {
        let rest = &text[at..];
        let (length, replacement) = match (quoted, bytes[at]) {
            (_, b'"') => {
                quoted = !quoted;
                (1, None)
            }
            (true, b'\\') => escape(rest),
            (false, b'\n' | b'\r') => (1, Some("")),
            (false, b'N' | b'I' | b'-') if numbers => number(rest),
            _ => {
                // Any character is skipped whole; runs of them at once.
                let plain =
                    |byte: &u8| !matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'N' | b'I' | b'-');
                let skip = bytes[at..].iter().take_while(|byte| plain(byte)).count();
                (skip.max(1), None)
            }
        };
        if let Some(replacement) = replacement {
            out.push_str(&text[clean..at]);
            out.push_str(replacement);
            clean = at + length;
        }
        at += length;
    }
    if clean == 0 {
        return None;
    }
    out.push_str(&text[clean..]);
    Some(out)
}

/// Length of the escape that the text begins with, and what stands for it if it is half a pair.
fn escape(text: &str) -> (usize, Option<&'static str>) {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    match unit(text) {
        Some(0xd800..=0xdbff) => match unit(&text[6..]) {
            Some(0xdc00..=0xdfff) => (12, None),
            _ => (6, Some("\\ufffd")),
        },
        Some(0xdc00..=0xdfff) => (6, Some("\\ufffd")),
        Some(_) => (6, None),
        // A backslash and whatever character follows it.
        None => (1 + text[1..].chars().next().map_or(0, char::len_utf8), None),
    }
}

/// Length of the word that the text begins with, and what stands for it if it is no JSON number.
fn number(text: &str) -> (usize, Option<&'static str>) {
    for word in ["NaN", "Infinity", "-Infinity"] {
        let ends = |rest: &str| !rest.starts_with(|char: char| char.is_alphanumeric());
        if text.strip_prefix(word).is_some_and(ends) {
            return (word.len(), Some("null"));
        }
    }
    (1, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_taken_as_they_stand_and_the_last_of_a_name_counts() {
        let taken = members(r#" {"b": [1, {"a":2}],"a":1, "a" : "x" }"#, ["a", "c"]).unwrap();
        assert_eq!(taken[0].unwrap().get(), r#""x""#);
        assert!(taken[1].is_none());
        for no in ["", "[]", "1", "{", "{} {}", "{\"a\":}"] {
            assert!(members(no, ["a"]).is_none(), "{no}");
        }
    }

    #[test]
    fn depth_is_no_matter() {
        let deep = format!("{{\"x\":{}{},\"a\":1}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(members(&deep, ["a"]).unwrap()[0].unwrap().get(), "1");
    }

    #[test]
    fn a_first_member_comes_and_goes() {
        for object in ["{}", "{\"a\":1}", "{\"m\":2,\"a\":{}}", "{ }", "{ \"a\" :1 }"] {
            let with = with_first("m", "{\"k\":1}", object);
            assert!(serde_json::from_str::<serde_json::Value>(&with).is_ok(), "{with}");
            assert_eq!(without_first("m", "{\"k\":1}", &with).unwrap(), object);
        }
        assert!(without_first("m", "1", "{ \"m\":1}").is_none());
    }

    #[test]
    fn what_some_writers_produce_becomes_json() {
        let cases = [
            (r#"{"a":NaN,"b":-Infinity,"c":[Infinity]}"#, r#"{"a":null,"b":null,"c":[null]}"#),
            (r#"{"a":"NaN","b":-1,"c":NaN}"#, r#"{"a":"NaN","b":-1,"c":null}"#),
            (r#"{"a":"\ud800"}"#, r#"{"a":"\ufffd"}"#),
            (
                r#"{"a":"\udc00\ud83e\uddff\ud800\u0041"}"#,
                r#"{"a":"\ufffd\ud83e\uddff\ufffd\u0041"}"#,
            ),
            ("{\n\"a\":1\r\n}", r#"{"a":1}"#),
        ];
        for (from, to) in cases {
            assert_eq!(repaired(from, true).as_deref(), Some(to), "{from}");
        }
        for same in [r#"{"a":"\\ud800","b":"\\\"NaN","é":"\u00e9"}"#, "{}", "NaNo", "\"\\", "\\é"]
        {
            assert_eq!(repaired(same, true), None, "{same}");
        }
        assert_eq!(repaired("NaN", false), None);
    }
}
