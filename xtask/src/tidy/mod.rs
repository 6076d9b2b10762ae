//! `cargo xtask tidy`: the rules of the tree that no compiler checks. `cargo test -p xtask` checks them
//! too, each as a test of its own.

mod codes;
mod dependencies;
mod links;
mod promises;
mod rust;
mod source;
mod text;
mod tree;

use anyhow::Result;

use tree::Tree;

/// One rule: what it is called, what it says, and how it is checked.
struct Rule {
    name: &'static str,
    says: &'static str,
    check: fn(&Tree, &mut Findings),
}

/// Every rule.
const RULES: &[Rule] = &[
    Rule {
        name: "dependencies",
        says: "crates depend in the direction of the table in dependencies.rs",
        check: dependencies::check,
    },
    Rule {
        name: "pure core",
        says: "core has no I/O, clock, environment, randomness or serde",
        check: rust::pure_core,
    },
    Rule {
        name: "module docs",
        says: "every Rust file begins with a `//!` comment",
        check: rust::module_docs,
    },
    Rule {
        name: "no prints",
        says: "only the binary, sim, xtask and tests print",
        check: rust::prints,
    },
    Rule {
        name: "no stubs",
        says: "nothing is left undone, no test is left out, none sleeps",
        check: rust::stubs,
    },
    Rule {
        name: "file length",
        says: "a file over 800 lines is looked at twice (reported, not refused)",
        check: text::long_files,
    },
    Rule {
        name: "white space",
        says: "no trailing space, tab, carriage return or missing final newline",
        check: text::white_space,
    },
    Rule {
        name: "machine paths",
        says: "no path of one person's machine",
        check: text::machine_paths,
    },
    Rule { name: "links", says: "relative links in Markdown lead somewhere", check: links::check },
    Rule {
        name: "error codes",
        says: "every error code has a page in docs/errors, and every page a code",
        check: codes::check,
    },
    Rule {
        name: "promises",
        says: "ARCHITECTURE.md names, for each promise, tests that exist",
        check: promises::check,
    },
];

/// What one rule found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    problems: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    /// Something that must be mended. `line` counts from 1.
    fn problem(&mut self, path: &str, line: usize, text: impl AsRef<str>) {
        self.problems.push(format!("{path}:{line}: {}", text.as_ref()));
    }

    /// Something that must be mended and is on no line.
    fn missing(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// Something worth a look.
    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// A rule that was checked.
pub(crate) struct Checked {
    rule: &'static Rule,
    /// What must be mended.
    pub(crate) problems: Vec<String>,
    /// What is worth a look.
    pub(crate) notes: Vec<String>,
}

impl Checked {
    /// Prints the rule and what was found.
    pub(crate) fn print(&self) {
        let verdict = if self.problems.is_empty() { "ok" } else { "FAILED" };
        println!("   {:<14} {verdict:<7} {}", self.rule.name, self.rule.says);
        for problem in &self.problems {
            println!("      {problem}");
        }
        for note in &self.notes {
            println!("      note: {note}");
        }
    }
}

/// Checks every rule on the tree as it is, committed or not.
pub(crate) fn all() -> Result<Vec<Checked>> {
    let tree = Tree::read()?;
    Ok(RULES.iter().map(|rule| one(rule, &tree)).collect())
}

/// Checks every rule and prints the outcome. Whether all hold.
pub(crate) fn print_all() -> Result<bool> {
    let checked = all()?;
    for rule in &checked {
        rule.print();
    }
    Ok(checked.iter().all(|rule| rule.problems.is_empty()))
}

fn one(rule: &'static Rule, tree: &Tree) -> Checked {
    let mut found = Findings::default();
    (rule.check)(tree, &mut found);
    Checked { rule, problems: found.problems, notes: found.notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree itself, one rule.
    fn holds(name: &str) {
        let tree = Tree::read().unwrap();
        let rule = RULES.iter().find(|rule| rule.name == name).unwrap();
        let checked = one(rule, &tree);
        assert!(checked.problems.is_empty(), "{}\n{}", rule.says, checked.problems.join("\n"));
    }

    macro_rules! the_tree_keeps {
        ($($test:ident: $rule:literal;)*) => {
            $(#[test] fn $test() { holds($rule); })*

            #[test]
            fn every_rule_is_tested() {
                let tested = [$($rule),*];
                let all: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
                assert_eq!(all, tested);
            }
        };
    }

    the_tree_keeps! {
        dependencies: "dependencies";
        pure_core: "pure core";
        module_docs: "module docs";
        no_prints: "no prints";
        no_stubs: "no stubs";
        file_length: "file length";
        white_space: "white space";
        machine_paths: "machine paths";
        links: "links";
        error_codes: "error codes";
        promises: "promises";
    }
}
