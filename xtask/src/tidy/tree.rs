//! The files of the tree: those that git tracks or would track, with their text.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::source::Source;
use crate::command;

/// The files, in the order of their paths.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: PathBuf,
    files: Vec<File>,
}

/// One text file.
#[derive(Debug)]
pub(super) struct File {
    /// Path from the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    /// The name's ending, without the dot; empty if it has none.
    pub(super) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|ending| ending.to_str()).unwrap_or_default()
    }

    /// Written by a tool: its contents are nobody's style.
    pub(super) fn is_generated(&self) -> bool {
        self.path.ends_with("Cargo.lock")
            || self.path.ends_with("package-lock.json")
            || self.extension() == "snap"
    }

    /// The crate's folder (`core` of `crates/core/src/lib.rs`, or `xtask`), if the file is in one.
    pub(super) fn folder_of_crate(&self) -> Option<&str> {
        match self.path.strip_prefix("crates/") {
            Some(rest) => rest.split('/').next(),
            None => self.path.starts_with("xtask/").then_some("xtask"),
        }
    }

    /// Whether all of it is test code: a test program, a benchmark, or a test module's file.
    pub(super) fn is_test(&self) -> bool {
        ["/tests/", "/benches/"].iter().any(|folder| self.path.contains(folder))
            || self.path.ends_with("/tests.rs")
            || self.folder_of_crate() == Some("sim")
    }
}

impl Tree {
    /// Reads the workspace's tree.
    pub(super) fn read() -> Result<Self> {
        let root = command::root();
        let mut git = command::command("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = git.output().context("git is needed to list the files of the tree")?;
        if !listed.status.success() {
            bail!("`{}` failed: is this a clone?", command::shown(&git));
        }
        let listed = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
        let mut tree = Self { root: root.clone(), files: Vec::new() };
        let mut paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            // A file may be listed and gone (deleted, not yet committed); a picture is not text.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            if let Ok(text) = String::from_utf8(bytes) {
                tree.files.push(File { path: path.to_owned(), text });
            }
        }
        Ok(tree)
    }

    /// Every text file.
    pub(super) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    /// The files with one of these endings.
    pub(super) fn with<'a>(&'a self, endings: &'a [&str]) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(|file| endings.contains(&file.extension()))
    }

    /// Every Rust file, with its comments and strings told apart from its code.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, Source)> {
        self.with(&["rs"]).map(|file| (file, Source::new(&file.text)))
    }

    /// The file at this path, if it is in the tree.
    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether something is at this path, a folder or a picture included.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.get(path).is_some()
            || self.files.iter().any(|file| file.path.starts_with(&folder))
            || (!self.root.as_os_str().is_empty() && self.root.join(path).exists())
    }
}

#[cfg(test)]
impl Tree {
    /// A tree made of these files.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self { root: PathBuf::new(), files: files.iter().map(file).collect() }
    }
}

/// What a rule says of a tree made of these files.
#[cfg(test)]
pub(super) fn problems(
    check: fn(&Tree, &mut super::Findings),
    files: &[(&str, &str)],
) -> Vec<String> {
    let mut found = super::Findings::default();
    check(&Tree::of(files), &mut found);
    found.problems
}
