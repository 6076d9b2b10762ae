//! Rules about Rust code.

use super::Findings;
use super::source::uses;
use super::tree::Tree;

/// What would let `core` see the world. Time and randomness come in as arguments.
const IMPURE: &[&str] = &[
    "SystemTime",
    "Instant",
    "now_v7",
    "new_v4",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "tokio",
    "serde",
    "rusqlite",
    "rand::",
];

/// `core` only decides.
pub(super) fn pure_core(tree: &Tree, found: &mut Findings) {
    let core = |path: &str| path.starts_with("crates/core/src/");
    for (file, source) in tree.rust().filter(|(file, _)| core(&file.path)) {
        for line in source.lines().filter(|line| !line.in_test) {
            for name in IMPURE.iter().filter(|name| uses(line.code, name)) {
                found.problem(&file.path, line.number, format!("core uses {name}"));
            }
        }
    }
}

/// Every file says what it is for.
pub(super) fn module_docs(tree: &Tree, found: &mut Findings) {
    for file in tree.with(&["rs"]) {
        let first = file.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let says = first.strip_prefix("//!").is_some_and(|text| !text.trim().is_empty());
        if !says {
            found.problem(&file.path, 1, "the file does not begin with a `//!` comment");
        }
    }
}

/// What is sent to a person's terminal is the binary's business: a library that prints breaks it.
pub(super) fn prints(tree: &Tree, found: &mut Findings) {
    const PRINTS: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!"];
    const MAY_PRINT: &[&str] = &["everturn", "sim", "xtask"];
    for (file, source) in tree.rust().filter(|(file, _)| !file.is_test()) {
        let of_printer = file.folder_of_crate().is_some_and(|name| MAY_PRINT.contains(&name));
        // A build script speaks to cargo on its standard output.
        if of_printer || file.path.ends_with("/build.rs") {
            continue;
        }
        for line in source.lines().filter(|line| !line.in_test) {
            for name in PRINTS.iter().filter(|name| uses(line.code, name)) {
                found.problem(&file.path, line.number, format!("{name} outside the binary"));
            }
        }
    }
}

/// Nothing is left undone, and a test either runs or is not there.
pub(super) fn stubs(tree: &Tree, found: &mut Findings) {
    const UNDONE: &[&str] = &["todo!", "unimplemented!", "#[ignore"];
    const SLEEPS: &str = "thread::sleep";
    for (file, source) in tree.rust() {
        for line in source.lines() {
            for name in UNDONE.iter().filter(|name| uses(line.code, name)) {
                found.problem(&file.path, line.number, format!("{name} is not for the tree"));
            }
            if (line.in_test || file.is_test()) && uses(line.code, SLEEPS) {
                found.problem(
                    &file.path,
                    line.number,
                    "a test waits for what it observes, not for time",
                );
            }
        }
    }
    // Web tests: the runners share these words.
    const LEFT_OUT: &[&str] = &[".skip(", ".only(", ".fixme(", ".todo("];
    for file in tree.with(&["js", "mjs", "ts", "tsx"]).filter(|file| file.path.starts_with("web/"))
    {
        for (index, line) in file.text.lines().enumerate() {
            for word in ["test", "it", "describe"] {
                for name in LEFT_OUT.iter().map(|end| format!("{word}{end}")) {
                    if uses(line, &name) {
                        found.problem(&file.path, index + 1, format!("{name}…) leaves tests out"));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::problems;
    use super::*;

    #[test]
    fn core_may_speak_of_the_clock_but_not_read_it() {
        let text = "//! No SystemTime here.\nuse std::time::SystemTime;\nfn f() { \"Instant\"; }\n\
                    #[cfg(test)]\nmod tests {\n    use std::env;\n}\n";
        assert_eq!(
            problems(pure_core, &[("crates/core/src/a.rs", text)]),
            ["crates/core/src/a.rs:2: core uses SystemTime"]
        );
        assert!(problems(pure_core, &[("crates/engine/src/a.rs", text)]).is_empty());
    }

    #[test]
    fn a_file_without_a_word_about_itself_is_found() {
        let files = [
            ("a.rs", "//! Says.\n"),
            ("b.rs", "//!\nfn f() {}\n"),
            ("c.rs", "use x;\n"),
            ("d.rs", ""),
            ("e.md", "text\n"),
        ];
        let found = problems(module_docs, &files);
        let names: Vec<&str> = found.iter().map(|problem| &problem[..4]).collect();
        assert_eq!(names, ["b.rs", "c.rs", "d.rs"]);
    }

    #[test]
    fn only_the_binary_and_tests_print() {
        let prints_here = "fn f() { println!(\"x\"); }\n";
        let files = [
            ("crates/core/src/a.rs", prints_here),
            ("crates/core/tests/a.rs", prints_here),
            ("crates/everturn/src/main.rs", prints_here),
            ("crates/server/build.rs", prints_here),
            (
                "crates/core/src/b.rs",
                "/// `println!(\"x\")`\n#[cfg(test)]\nmod t { fn f() { print!(); } }",
            ),
        ];
        assert_eq!(
            problems(prints, &files),
            ["crates/core/src/a.rs:1: println! outside the binary"]
        );
    }

    #[test]
    fn undone_things_and_sleeping_tests_are_found() {
        let undone =
            format!("fn f() {{ {}!() }}\n#[{}]\nfn g() {{}}\n", "todo", "ignore = \"slow\"");
        let sleeps = "fn f() { std::thread::sleep(d); }\n";
        let skipped = "import test from 'x';\ntest.only('a', () => {});\nawait page.only();\n";
        let files = [
            ("crates/a/src/a.rs", undone.as_str()),
            ("crates/a/src/b.rs", sleeps),
            ("crates/a/tests/c.rs", sleeps),
            ("web/test/d.mjs", skipped),
            ("docs/d.mjs", skipped),
        ];
        assert_eq!(
            problems(stubs, &files),
            [
                "crates/a/src/a.rs:1: todo! is not for the tree",
                "crates/a/src/a.rs:2: #[ignore is not for the tree",
                "crates/a/tests/c.rs:1: a test waits for what it observes, not for time",
                "web/test/d.mjs:2: test.only(…) leaves tests out",
            ]
        );
    }
}
