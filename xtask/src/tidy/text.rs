//! Rules about the text of any file.

use super::Findings;
use super::tree::Tree;

/// Past this many lines a file is looked at twice.
const LONG: usize = 800;

/// Long files are reported: whether one is still one thing is for a person to say.
pub(super) fn long_files(tree: &Tree, found: &mut Findings) {
    for file in tree.with(&["rs", "js", "mjs", "ts", "tsx", "css"]) {
        let lines = file.text.lines().count();
        if lines > LONG {
            found.note(format!("{} has {lines} lines: is it still one thing?", file.path));
        }
    }
}

/// Kinds of files that people write.
const WRITTEN: &[&str] =
    &["rs", "md", "toml", "js", "mjs", "ts", "tsx", "css", "html", "sh", "sql", "yml", "yaml"];

/// White space that nobody sees and every change stumbles over.
pub(super) fn white_space(tree: &Tree, found: &mut Findings) {
    for file in tree.with(WRITTEN).filter(|file| !file.is_generated()) {
        for (index, line) in file.text.split('\n').enumerate() {
            let mut problem = |text| found.problem(&file.path, index + 1, text);
            if line.ends_with('\r') {
                problem("carriage return at the end of the line");
            } else if line.ends_with([' ', '\t']) {
                problem("space at the end of the line");
            }
            if line.contains('\t') {
                problem("tab");
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            found.problem(
                &file.path,
                file.text.lines().count(),
                "no newline at the end of the file",
            );
        }
    }
}

/// Folders that exist only on somebody's machine. Put together here, so that the list is not found.
const MACHINE_PATHS: &[&str] = &[
    concat!("/wor", "k/"),
    concat!("/far", "m/"),
    concat!("/tmp/bash", "_jobs"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

/// What is in the tree works on every machine.
pub(super) fn machine_paths(tree: &Tree, found: &mut Findings) {
    for file in tree.files() {
        for (index, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS {
                // Inside a longer path (`/home/work/x`, `https://host/work/`) it is something else.
                let alone = line.match_indices(path).any(|(at, _)| {
                    !line[..at]
                        .ends_with(|char: char| char.is_alphanumeric() || "_-.}".contains(char))
                });
                if alone {
                    found.problem(&file.path, index + 1, format!("path of one machine: {path}"));
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
    fn unseen_white_space_is_found() {
        let files = [
            ("a.rs", "ok\nspace \n\ttab\nend"),
            ("b.md", "a\r\n"),
            ("c.md", "fine\n"),
            ("Cargo.lock", "x \n"),
            ("d.md", ""),
        ];
        assert_eq!(
            problems(white_space, &files),
            [
                "a.rs:2: space at the end of the line",
                "a.rs:3: tab",
                "a.rs:4: no newline at the end of the file",
                "b.md:1: carriage return at the end of the line",
            ]
        );
    }

    #[test]
    fn long_files_are_notes() {
        let long = "x\n".repeat(LONG + 1);
        let mut found = Findings::default();
        long_files(&Tree::of(&[("a.rs", &long), ("b.rs", "x\n")]), &mut found);
        assert_eq!(found.problems, Vec::<String>::new());
        assert_eq!(found.notes, ["a.rs has 801 lines: is it still one thing?"]);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let mine = format!("see {}main\n", MACHINE_PATHS[0]);
        let other = format!("see data{}main\n", MACHINE_PATHS[0]);
        let files = [("a.md", mine.as_str()), ("b.md", other.as_str())];
        let wanted = format!("a.md:1: path of one machine: {}", MACHINE_PATHS[0]);
        assert_eq!(problems(machine_paths, &files), [wanted]);
    }
}
