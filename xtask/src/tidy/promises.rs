//! ARCHITECTURE.md lists the promises, each with the tests that prove it; those tests exist.

use std::collections::BTreeSet;

use super::Findings;
use super::tree::{File, Tree};

const PAGE: &str = "ARCHITECTURE.md";

/// The promises are P1 to P14.
const COUNT: usize = 14;

/// Said of a promise that no test proves yet: an honest gap, reported at the end of every run.
const NO_TEST: &str = "no test yet";

/// Reads, for each promise, the text from its number to the next one: it must name a test, and every
/// name in it that looks like a test must be one.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let Some(page) = tree.get(PAGE) else {
        found.missing(format!("{PAGE} is missing"));
        return;
    };
    let known = Known::of(tree);
    let blocks = blocks(page);
    for number in 1..=COUNT {
        let mine: Vec<&Block> = blocks.iter().filter(|block| block.number == number).collect();
        let Some(first) = mine.first() else {
            found.missing(format!("{PAGE} does not list the promise P{number}"));
            continue;
        };
        let names: Vec<&str> = mine.iter().flat_map(|block| code_spans(&block.text)).collect();
        for name in names.iter().filter(|name| looks_like_test(name) && !known.is_named(name)) {
            found.problem(
                PAGE,
                first.line,
                format!("P{number} names {name}, which does not exist"),
            );
        }
        if names.iter().any(|name| known.is_test(name)) {
            continue;
        }
        if mine.iter().any(|block| block.text.to_lowercase().contains(NO_TEST)) {
            found.note(format!("P{number} is proved by no test yet"));
        } else {
            found.problem(PAGE, first.line, format!("P{number} names no test that proves it"));
        }
    }
}

/// What is said of one promise.
struct Block {
    number: usize,
    line: usize,
    text: String,
}

/// A block begins where a line, list item, table row or heading begins with the number of a promise.
fn blocks(page: &File) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in page.text.lines().enumerate() {
        if let Some(number) = promise(line) {
            blocks.push(Block { number, line: index + 1, text: String::new() });
            open = true;
        } else if line.starts_with('#') {
            open = false;
        }
        if let Some(block) = blocks.last_mut().filter(|_| open) {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    blocks
}

/// The number of the promise that the line begins with.
fn promise(line: &str) -> Option<usize> {
    let rest = line.trim_start_matches(['#', '*', '-', '|', ' ', '[', '`']).strip_prefix('P')?;
    let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    let ends = !rest[end..].starts_with(|char: char| char.is_alphanumeric() || char == '_');
    rest[..end].parse().ok().filter(|_| ends)
}

/// The texts between single backquotes.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Test names are sentences: three words or more, perhaps behind a path.
fn looks_like_test(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or_default();
    last.matches('_').count() >= 2
        && last
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
}

/// What exists.
struct Known {
    tests: BTreeSet<String>,
    functions: BTreeSet<String>,
    /// Web test files: a test's name is a text in them.
    web: Vec<String>,
}

impl Known {
    fn of(tree: &Tree) -> Self {
        let (mut tests, mut functions) = (BTreeSet::new(), BTreeSet::new());
        for (file, source) in tree.rust() {
            tests.extend(source.tests().into_iter().map(str::to_owned));
            functions.extend(source.functions().into_iter().map(str::to_owned));
            // The conformance suite's checks are functions that every store's tests call.
            if file.path.contains("/conformance") {
                tests.extend(source.functions().into_iter().map(str::to_owned));
            }
        }
        let web = tree.with(&["js", "mjs", "ts"]).filter(|file| file.path.starts_with("web/"));
        Self { tests, functions, web: web.map(|file| file.text.clone()).collect() }
    }

    fn is_test(&self, name: &str) -> bool {
        let last = name.rsplit("::").next().unwrap_or_default();
        let quoted = ["'", "\"", "`"].map(|quote| format!("{quote}{name}{quote}"));
        self.tests.contains(last)
            || self.web.iter().any(|text| quoted.iter().any(|name| text.contains(name)))
    }

    fn is_named(&self, name: &str) -> bool {
        let last = name.rsplit("::").next().unwrap_or_default();
        self.is_test(name) || self.functions.contains(last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::problems;
    use super::*;

    const TESTS: (&str, &str) = (
        "crates/sim/tests/a.rs",
        "#[test]\nfn accepted_means_durable() {}\nfn helps_with_it() {}\n",
    );

    fn page(of_promise: impl Fn(usize) -> String) -> String {
        (1..=COUNT)
            .map(|number| format!("- **P{number} Title.** {}\n", of_promise(number)))
            .collect()
    }

    #[test]
    fn every_promise_names_a_test_that_exists() {
        let good = page(|_| "Proved by `sim::accepted_means_durable`.".to_owned());
        assert!(problems(check, &[TESTS, (PAGE, &good)]).is_empty());
        let bad = page(|number| match number {
            3 => "Proved by `nothing_of_this_name`.".to_owned(),
            4 => "Proved by `helps_with_it`.".to_owned(),
            5 => "By nothing.".to_owned(),
            _ => "`accepted_means_durable`".to_owned(),
        });
        assert_eq!(
            problems(check, &[TESTS, (PAGE, &bad)]),
            [
                "ARCHITECTURE.md:3: P3 names nothing_of_this_name, which does not exist",
                "ARCHITECTURE.md:3: P3 names no test that proves it",
                "ARCHITECTURE.md:4: P4 names no test that proves it",
                "ARCHITECTURE.md:5: P5 names no test that proves it",
            ]
        );
    }

    #[test]
    fn tables_and_web_tests_count_and_a_gap_is_a_note() {
        let rows: String = (1..=COUNT)
            .map(|number| match number {
                10 => "| P10 | no test yet |\n".to_owned(),
                1 => "| P1 | `finds its place again` |\n".to_owned(),
                _ => format!("| P{number} | `accepted_means_durable` |\n"),
            })
            .collect();
        let web = ("web/test/a.mjs", "test('finds its place again', () => {});\n");
        let mut found = Findings::default();
        check(&Tree::of(&[TESTS, web, (PAGE, &rows)]), &mut found);
        assert_eq!(found.problems, Vec::<String>::new());
        assert_eq!(found.notes, ["P10 is proved by no test yet"]);
    }

    #[test]
    fn a_missing_promise_is_found() {
        let found = problems(check, &[TESTS, (PAGE, "# P1\n`accepted_means_durable`\n")]);
        assert_eq!(found.len(), COUNT - 1);
        assert_eq!(promise("P12 x"), Some(12));
        assert_eq!(promise("Page 1"), None);
        assert_eq!(promise("P1st"), None);
    }
}
