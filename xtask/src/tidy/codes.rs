//! Error codes: each has a page that says what it means and what to do, and each page has a code.

use std::collections::BTreeMap;

use super::Findings;
use super::tree::Tree;

/// Where the codes of the API are listed, in a macro call of this name.
const TABLE: (&str, &str) = ("crates/api/src/codes.rs", "codes! {");

/// Where the pages are.
const PAGES: &str = "docs/errors/";

/// Compares the codes in the source with the pages.
///
/// A code is a word of small letters in the table of the API crate, or, anywhere else, in a function
/// named `code` or `failure` or given to a field named `code`.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let codes = codes(tree, found);
    for (code, place) in &codes {
        match tree.get(&format!("{PAGES}{code}.md")) {
            None => found.missing(format!("{place}: the code {code} has no page {PAGES}{code}.md")),
            Some(page) if !page.text.lines().next().is_some_and(|line| line.contains(code)) => {
                found.problem(&page.path, 1, format!("the first line does not name {code}"));
            }
            Some(_) => {}
        }
    }
    for page in tree.with(&["md"]) {
        let Some(name) = page.path.strip_prefix(PAGES) else { continue };
        let code = name.trim_end_matches(".md");
        if code != "README" && !codes.contains_key(code) {
            found.problem(&page.path, 1, format!("no code is called {code}"));
        }
    }
}

/// Where codes are made up for tests.
const OTHERS: &[&str] = &["crates/store/src/conformance", "crates/sim/"];

/// Every code and where it stands first.
fn codes(tree: &Tree, found: &mut Findings) -> BTreeMap<String, String> {
    let mut codes = BTreeMap::new();
    let (table, open) = TABLE;
    let mut listed = false;
    let ours = |path: &str| !OTHERS.iter().any(|other| path.starts_with(other));
    for (file, source) in tree.rust().filter(|(file, _)| !file.is_test() && ours(&file.path)) {
        let mut strings = source.strings_in_function("code");
        strings.extend(source.strings_in_function("failure"));
        strings.extend(source.strings_of_field("code"));
        if file.path == table
            && let Some(range) = source.braces_after(open)
        {
            listed = true;
            strings.extend(source.strings_in(range));
        }
        for (line, text) in strings.into_iter().filter(|(_, text)| is_code(text)) {
            codes.entry(text).or_insert_with(|| format!("{}:{line}", file.path));
        }
    }
    if !listed {
        found.missing(format!("{table} has no table `{open} … }}`: where are the codes listed?"));
    }
    codes
}

/// Titles and hints are sentences; a code is one word.
fn is_code(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_lowercase())
        && text
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
}

#[cfg(test)]
mod tests {
    use super::super::tree::problems;
    use super::*;

    const CODES: (&str, &str) = (
        "crates/api/src/codes.rs",
        "macro_rules! codes { () => {} }\ncodes! {\n    A = \"bad_a\", 400, \"A title\";\n}\n",
    );

    #[test]
    fn a_code_needs_a_page_and_a_page_a_code() {
        let engine = (
            "crates/engine/src/error.rs",
            "fn code(&self) -> &str { match self { X => \"lost_x\" } }\n\
             #[cfg(test)]\nmod tests { fn code() { \"not_one\"; } }\n",
        );
        let agent = ("crates/agent/src/a.rs", "fn f() -> F { F { code: \"y_gone\".into() } }\n");
        let files = [
            CODES,
            engine,
            agent,
            ("docs/errors/bad_a.md", "# `bad_a`\n"),
            ("docs/errors/old.md", "# `old`\n"),
            ("docs/errors/README.md", "# Errors\n"),
        ];
        assert_eq!(
            problems(check, &files),
            [
                "crates/engine/src/error.rs:1: the code lost_x has no page docs/errors/lost_x.md",
                "crates/agent/src/a.rs:1: the code y_gone has no page docs/errors/y_gone.md",
                "docs/errors/old.md:1: no code is called old",
            ]
        );
    }

    #[test]
    fn a_page_names_its_code_and_the_table_must_be_found() {
        assert_eq!(
            problems(check, &[CODES, ("docs/errors/bad_a.md", "# Something\n")]),
            ["docs/errors/bad_a.md:1: the first line does not name bad_a"]
        );
        assert_eq!(problems(check, &[]).len(), 1);
    }
}
