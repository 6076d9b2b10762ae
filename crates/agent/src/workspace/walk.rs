//! Walking a workspace in order, leaving out what `.gitignore` leaves out.
//!
//! The matching is the `ignore` crate's. Its own walker goes by path names, which would follow a
//! folder that is swapped for a link while it walks; this one goes from open folder to open
//! folder, so that it never leaves the root.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::{Workspace, WorkspaceError, open_regular, or_dot, shown};

/// Entries that one walk looks at, left-out ones included.
pub(crate) const ENTRIES_MAX: usize = 100_000;
/// Folders that one walk goes down into each other.
pub(crate) const DEPTH_MAX: usize = 64;
/// Bytes of one `.gitignore` that are read.
pub(crate) const IGNORE_FILE_BYTES_MAX: u64 = 256 << 10;

/// What an entry is, without following it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Folder,
    Link,
    Other,
}

/// One thing that a walk came by.
pub(crate) struct Entry<'a> {
    /// Relative to the workspace's root, `/` between the parts.
    pub(crate) path: &'a Path,
    /// What it is.
    pub(crate) kind: EntryKind,
    /// The open folder that it is in.
    pub(crate) folder: &'a Dir,
    /// Its name there.
    pub(crate) name: &'a Path,
}

impl Entry<'_> {
    /// The path as text on one line.
    pub(crate) fn shown(&self) -> String {
        shown_path(self.path)
    }
}

/// A path as text on one line, however long.
pub(crate) fn shown_path(path: &Path) -> String {
    path.to_string_lossy()
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

/// What to do after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Go on, down into a folder.
    On,
    /// End the walk.
    Stop,
}

/// What a walk was not able to show.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The limit of entries was reached.
    pub(crate) cut: bool,
    /// Folders whose content is deeper than asked or allowed.
    pub(crate) deeper: usize,
    /// Folders that could not be read.
    pub(crate) unreadable: usize,
    /// Entries that `.gitignore` leaves out.
    pub(crate) ignored: usize,
}

/// A walk through one folder of a workspace.
pub(crate) struct Walk<'v> {
    depth_max: usize,
    visit: &'v mut dyn FnMut(&Entry<'_>) -> Step,
    ignores: Vec<(PathBuf, Gitignore)>,
    left: usize,
    found: Found,
}

impl<'v> Walk<'v> {
    /// Walks `start` (a folder), calling `visit` for each entry that is not ignored, folders
    /// before what is in them, names in byte order.
    pub(crate) fn run(
        workspace: &Workspace,
        start: &str,
        depth_max: usize,
        visit: &'v mut dyn FnMut(&Entry<'_>) -> Step,
    ) -> Result<Found, WorkspaceError> {
        let folder = workspace.open_folder(start)?;
        let relative = workspace.relative(start)?;
        let mut walk = Self {
            depth_max: depth_max.min(DEPTH_MAX),
            visit,
            ignores: Vec::new(),
            left: ENTRIES_MAX,
            found: Found::default(),
        };
        let base = walk.rules_above(workspace, &relative);
        walk.folder(&folder, &base, 0);
        Ok(walk.found)
    }

    /// Loads the rules of the folders above `start`, and gives the clean path of `start` itself. A
    /// path with `..` or a link in it is taken as it stands: rules then apply from `start` down.
    fn rules_above(&mut self, workspace: &Workspace, start: &Path) -> PathBuf {
        let parts: Vec<_> = start
            .components()
            .filter(|part| !matches!(part, std::path::Component::CurDir))
            .collect();
        let plain = parts.iter().all(|part| matches!(part, std::path::Component::Normal(_)));
        let mut above = PathBuf::new();
        if plain && !parts.is_empty() {
            if let Ok(folder) = workspace.root.dir.open_dir(".") {
                self.load(&folder, Path::new(""));
            }
            for part in &parts[..parts.len() - 1] {
                above.push(part);
                if let Ok(folder) = workspace.root.dir.open_dir(&above) {
                    self.load(&folder, &above);
                }
            }
        }
        parts.iter().collect()
    }

    /// Pushes the rules that stand in a folder.
    fn load(&mut self, folder: &Dir, at: &Path) {
        let mut builder = GitignoreBuilder::new("");
        let mut any = add_rules(&mut builder, folder, ".gitignore");
        if at.as_os_str().is_empty() {
            any |= add_rules(&mut builder, folder, ".git/info/exclude");
        }
        if any && let Ok(rules) = builder.build() {
            self.ignores.push((at.to_path_buf(), rules));
        }
    }

    fn ignored(&self, path: &Path, is_folder: bool) -> bool {
        // The nearest file that says something decides, as git does it.
        for (base, rules) in self.ignores.iter().rev() {
            let Ok(relative) = path.strip_prefix(base) else { continue };
            match rules.matched(relative, is_folder) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    fn folder(&mut self, folder: &Dir, at: &Path, depth: usize) -> Step {
        let Ok(names) = self.names(folder) else {
            self.found.unreadable += 1;
            return Step::On;
        };
        let rules = self.ignores.len();
        self.load(folder, at);
        let step = self.entries(folder, at, depth, names);
        self.ignores.truncate(rules);
        step
    }

    fn names(&mut self, folder: &Dir) -> std::io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in folder.entries()? {
            if self.left == 0 {
                self.found.cut = true;
                break;
            }
            self.left -= 1;
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names)
    }

    fn entries(&mut self, folder: &Dir, at: &Path, depth: usize, names: Vec<OsString>) -> Step {
        for name in names {
            let path = at.join(&name);
            let name = Path::new(&name);
            // Gone since the folder was read: not there.
            let Ok(metadata) = folder.symlink_metadata(name) else { continue };
            let kind = if metadata.is_dir() {
                EntryKind::Folder
            } else if metadata.is_file() {
                EntryKind::File
            } else if metadata.is_symlink() {
                EntryKind::Link
            } else {
                EntryKind::Other
            };
            let is_folder = kind == EntryKind::Folder;
            if (is_folder && name == Path::new(".git")) || self.ignored(&path, is_folder) {
                self.found.ignored += 1;
                continue;
            }
            if (self.visit)(&Entry { path: &path, kind, folder, name }) == Step::Stop {
                return Step::Stop;
            }
            if !is_folder {
                continue;
            }
            if depth + 1 >= self.depth_max {
                self.found.deeper += 1;
                continue;
            }
            // Swapped for a link by now, it resolves beneath its own parent at most, and the depth
            // is bounded.
            match folder.open_dir(name) {
                Ok(inner) => {
                    if self.folder(&inner, &path, depth + 1) == Step::Stop {
                        return Step::Stop;
                    }
                }
                Err(_) => self.found.unreadable += 1,
            }
        }
        Step::On
    }
}

fn add_rules(builder: &mut GitignoreBuilder, folder: &Dir, name: &str) -> bool {
    let Ok(opened) = open_regular(folder, &or_dot(Path::new(name)), name) else { return false };
    let mut bytes = Vec::new();
    if opened.file.take(IGNORE_FILE_BYTES_MAX).read_to_end(&mut bytes).is_err() {
        return false;
    }
    for line in String::from_utf8_lossy(&bytes).lines() {
        // A broken pattern ignores nothing, as in git.
        if let Err(error) = builder.add_line(None, line) {
            tracing::debug!(file = %shown(name), %error, "pattern skipped");
        }
    }
    true
}
