//! Rust source, with code, comments and strings told apart, so that a rule about code is not broken by
//! a sentence about it.

use std::ops::Range;

/// The source of one file.
#[derive(Debug)]
pub(super) struct Source {
    /// The source with comments and the insides of strings blanked; line numbers and columns stay.
    code: String,
    /// The source with comments blanked and strings as they are.
    with_strings: String,
    /// Byte ranges of modules under `#[cfg(test)]`.
    tests: Vec<Range<usize>>,
}

/// A line of code.
pub(super) struct Line<'a> {
    /// Counts from 1.
    pub(super) number: usize,
    pub(super) code: &'a str,
    /// Whether it is in a module under `#[cfg(test)]`.
    pub(super) in_test: bool,
}

impl Source {
    /// Takes the text apart.
    pub(super) fn new(text: &str) -> Self {
        let spans = spans(text);
        let code = blanked(text, spans.iter());
        let comments = spans.iter().filter(|span| span.comment);
        let with_strings = blanked(text, comments);
        let tests = test_modules(&code);
        Self { code, with_strings, tests }
    }

    /// The code, line by line.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut start = 0;
        self.code.split('\n').enumerate().map(move |(index, code)| {
            let in_test = self.tests.iter().any(|range| range.contains(&start));
            start += code.len() + 1;
            Line { number: index + 1, code, in_test }
        })
    }

    /// The names of the tests: functions under `#[test]` or an attribute that ends so.
    pub(super) fn tests(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for (at, _) in self.code.match_indices("#[") {
            let attribute = self.code[at + 2..].split([']', '(']).next().unwrap_or_default();
            if attribute.rsplit("::").next() != Some("test") {
                continue;
            }
            if let Some(name) = function_after(&self.code[at..]) {
                names.push(name);
            }
        }
        names
    }

    /// The names of all functions.
    pub(super) fn functions(&self) -> Vec<&str> {
        let places = self.code.match_indices("fn ");
        places.filter_map(|(at, _)| function_after(&self.code[at..])).collect()
    }

    /// The string literals in the bodies of functions with this name, outside tests, each with its line.
    pub(super) fn strings_in_function(&self, name: &str) -> Vec<(usize, String)> {
        let mut strings = Vec::new();
        for (at, _) in self.code.match_indices(&format!("fn {name}(")) {
            if self.tests.iter().any(|range| range.contains(&at)) {
                continue;
            }
            let Some(body) = braces_after(&self.code, at) else { continue };
            strings.extend(self.strings_in(body));
        }
        strings
    }

    /// The string literals that are given to a field of this name, outside tests, each with its line.
    pub(super) fn strings_of_field(&self, name: &str) -> Vec<(usize, String)> {
        let field = format!("{name}: \"");
        let places = self.code.match_indices(&field).map(|(at, _)| at);
        let shipped = places.filter(|at| !self.tests.iter().any(|range| range.contains(at)));
        shipped
            .filter_map(|at| {
                let start = at + field.len() - 1;
                let end = start + 1 + self.code[start + 1..].find('"')? + 1;
                self.strings_in(start..end).pop()
            })
            .collect()
    }

    /// The string literals in this range of the source, each with its line.
    pub(super) fn strings_in(&self, range: Range<usize>) -> Vec<(usize, String)> {
        let mut strings = Vec::new();
        let mut open = None;
        // Quotes survive in the code; what is between them is blank there and text in the other.
        for (at, _) in self.code[range.clone()].match_indices('"') {
            let at = range.start + at;
            match open.take() {
                None => open = Some(at + 1),
                Some(start) => {
                    let line = self.code[..start].matches('\n').count() + 1;
                    strings.push((line, self.with_strings[start..at].to_owned()));
                }
            }
        }
        strings
    }

    /// Where the first brace after this text, and its partner, stand.
    pub(super) fn braces_after(&self, text: &str) -> Option<Range<usize>> {
        braces_after(&self.code, self.code.find(text)?)
    }
}

/// Whether the code uses this path or name: not as a part of a longer name.
pub(super) fn uses(code: &str, name: &str) -> bool {
    let part_of_name = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(name).any(|(at, _)| {
        let starts = !name.starts_with(part_of_name)
            || !code[..at].chars().next_back().is_some_and(part_of_name);
        let ends = !name.ends_with(part_of_name)
            || !code[at + name.len()..].chars().next().is_some_and(part_of_name);
        starts && ends
    })
}

/// A stretch of the source that is no code.
struct Span {
    range: Range<usize>,
    comment: bool,
}

/// The comments, and the insides of strings and of character literals.
fn spans(text: &str) -> Vec<Span> {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let end_of = |length: Option<usize>| length.map_or(text.len(), |length| at + length);
        if rest.starts_with("//") {
            let end = end_of(rest.find('\n'));
            spans.push(Span { range: at..end, comment: true });
            at = end;
        } else if rest.starts_with("/*") {
            let end = at + block_comment(rest);
            spans.push(Span { range: at..end, comment: true });
            at = end;
        } else if let Some((inside, length)) = string(rest) {
            // `r` and `b` are prefixes only where no longer name ends with them.
            let named = rest.starts_with(['r', 'b', 'c'])
                && text[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_');
            if named {
                at += 1;
                continue;
            }
            spans.push(Span { range: at + inside.start..at + inside.end, comment: false });
            at += length;
        } else if let Some(length) = character(rest) {
            spans.push(Span { range: at + 1..at + length - 1, comment: false });
            at += length;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    spans
}

/// Length of the block comment that the text begins with; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The inside and the whole length of the string literal, of any kind, that the text begins with.
fn string(text: &str) -> Option<(Range<usize>, usize)> {
    let prefix = text.len() - text.trim_start_matches(['b', 'c', 'r']).len();
    let raw = match &text[..prefix] {
        "" | "b" | "c" => false,
        "r" | "br" | "cr" => true,
        _ => return None,
    };
    let hashes = text[prefix..].bytes().take_while(|byte| *byte == b'#').count();
    if !raw && hashes > 0 {
        return None;
    }
    let open = prefix + hashes;
    if !text[open..].starts_with('"') {
        return None;
    }
    let start = open + 1;
    let end = if raw {
        let close = format!("\"{}", "#".repeat(hashes));
        text[start..].find(&close).map_or(text.len(), |length| start + length)
    } else {
        let mut escaped = false;
        let close = text[start..].bytes().position(|byte| {
            let closes = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            closes
        });
        close.map_or(text.len(), |length| start + length)
    };
    Some((start..end, (end + 1 + hashes).min(text.len())))
}

/// Length of the character literal that the text begins with; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    if chars.next()?.1 != '\'' {
        return None;
    }
    let (_, first) = chars.next()?;
    if first == '\\' {
        let (at, _) = chars.next()?;
        let (close, _) = text.char_indices().find(|(index, char)| *index > at && *char == '\'')?;
        return Some(close + 1);
    }
    let (at, close) = chars.next()?;
    (close == '\'' && first != '\'').then_some(at + 1)
}

/// The text with these spans made of spaces; line ends stay, and so do byte positions.
fn blanked<'a>(text: &str, spans: impl Iterator<Item = &'a Span>) -> String {
    let mut blank = String::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        blank.push_str(&text[at..span.range.start]);
        for char in text[span.range.clone()].chars() {
            match char {
                '\n' => blank.push('\n'),
                other => (0..other.len_utf8()).for_each(|_| blank.push(' ')),
            }
        }
        at = span.range.end;
    }
    blank.push_str(&text[at..]);
    blank
}

/// The name of the first function in this code.
fn function_after(code: &str) -> Option<&str> {
    let name = &code[code.find("fn ")? + 3..];
    let end = name.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

/// The range from the first `{` after this place to its partner, both included.
fn braces_after(code: &str, place: usize) -> Option<Range<usize>> {
    let start = place + code[place..].find('{')?;
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(start..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The modules under `#[cfg(test)]`, from the attribute to the closing brace.
fn test_modules(code: &str) -> Vec<Range<usize>> {
    let attributes = code.match_indices("#[cfg(test)]");
    let module = |(at, _): (usize, &str)| {
        let item = code[at..].find(['{', ';'])?;
        // `mod tests;` is a file of its own; a function or an implementation has a body as a module has.
        if code[at + item..].starts_with(';') {
            return Some(at..at + item + 1);
        }
        braces_after(code, at).map(|body| at..body.end)
    };
    attributes.filter_map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        source.code
    }

    #[test]
    fn comments_and_strings_are_blank() {
        assert_eq!(code("a(); // b();\nc();"), "a();        \nc();");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code(r#"p("dbg!(\"x\")"); q"#), r#"p("           "); q"#);
        assert_eq!(code("r#\"a\"b\"# c"), "r#\"   \"# c");
        assert_eq!(code("\"//\" a // é"), "\"  \" a      ");
        assert_eq!(code("\"a\nb\" c"), "\" \n \" c");
    }

    #[test]
    fn lifetimes_and_names_are_code() {
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
        assert_eq!(code(r"['\'', '\\', '/', a]"), "['  ', '  ', ' ', a]");
        assert_eq!(code("matches!('\"', _) \"x\""), "matches!(' ', _) \" \"");
        assert_eq!(code("for \"x\""), "for \" \"");
        assert_eq!(code("b\"x\" br\"y\""), "b\" \" br\" \"");
    }

    #[test]
    fn test_modules_are_told_apart() {
        let source = Source::new("a();\n#[cfg(test)]\nmod tests {\n    b();\n}\nc();\n");
        let lines: Vec<bool> = source.lines().map(|line| line.in_test).collect();
        assert_eq!(lines, [false, true, true, true, true, false, false]);
        let source = Source::new("#[cfg(test)]\nmod tests;\nfn f() { g(); }\n");
        assert!(source.lines().nth(2).is_some_and(|line| !line.in_test));
    }

    #[test]
    fn tests_are_found_by_their_attribute() {
        let text = "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\n#[allow(x)]\n\
                    async fn two() {}\n// #[test] fn three() {}\n#[attest]\nfn four() {}\n";
        let source = Source::new(text);
        assert_eq!(source.tests(), ["one", "two"]);
        assert_eq!(source.functions(), ["one", "two", "four"]);
    }

    #[test]
    fn strings_of_a_function_come_with_their_lines() {
        let text = "fn code(self) -> X {\n    match self {\n        A => \"a_b\", // \"no\"\n        \
                    B => r\"c\",\n    }\n}\nfn other() { \"d\"; }\n";
        let found = Source::new(text).strings_in_function("code");
        assert_eq!(found, [(3, "a_b".to_owned()), (4, "c".to_owned())]);
    }

    #[test]
    fn strings_of_a_field_come_with_their_lines() {
        let text = "F {\n    code: \"a_b\".to_owned(),\n    hint: \"no\",\n}\n// code: \"no\"\n";
        assert_eq!(Source::new(text).strings_of_field("code"), [(2, "a_b".to_owned())]);
    }

    #[test]
    fn a_name_is_used_only_as_a_whole() {
        assert!(uses("Instant::now()", "Instant"));
        assert!(!uses("MyInstant::now()", "Instant"));
        assert!(uses("todo!()", "todo!("));
        assert!(!uses("a_todo!()", "todo!("));
    }
}
