//! What may go wrong with a path that a model gave.

use std::io;

/// A refused or failed operation on a workspace. Carries the path as it was given.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The path leads out of the workspace: by `..`, by an absolute path or by a symbolic link.
    #[error("`{path}` leads out of the workspace")]
    Outside {
        /// As given.
        path: String,
    },
    /// Not a path at all: empty, too long, or with a NUL in it.
    #[error("`{path}` is not a usable path: {why}")]
    Invalid {
        /// As given, cut to a readable length.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nothing is there.
    #[error("`{path}` does not exist")]
    NotFound {
        /// As given.
        path: String,
    },
    /// Something other than a regular file is there: a folder, a pipe, a device.
    #[error("`{path}` is {found}, not a file")]
    NotAFile {
        /// As given.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// A file stands where a folder is needed.
    #[error("`{path}` is not a folder, or a part of it is not")]
    NotAFolder {
        /// As given.
        path: String,
    },
    /// The operating system refuses: permissions, a read-only file or file system.
    #[error("no permission for `{path}`: {source}")]
    Denied {
        /// As given.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it was when it was read, so it was left alone.
    #[error("`{path}` was changed by something else in the meantime; nothing was written")]
    Changed {
        /// As given.
        path: String,
    },
    /// No space, no quota, or the file would be larger than allowed.
    #[error("no space for `{path}`: {source}")]
    Full {
        /// As given.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The caller's own condition for writing failed at the last moment; nothing was written.
    #[error("`{path}` was not written: {why}")]
    Withheld {
        /// As given.
        path: String,
        /// What the caller said.
        why: &'static str,
    },
    /// The workspace folder itself cannot be opened.
    #[error("the workspace folder `{path}` cannot be opened: {source}")]
    Unusable {
        /// The folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else that the system reports.
    #[error("`{path}`: {source}")]
    Io {
        /// As given.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl WorkspaceError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Outside { .. } => "path_outside_workspace",
            Self::Invalid { .. } => "path_invalid",
            Self::NotFound { .. } => "path_not_found",
            Self::NotAFile { .. } => "path_not_a_file",
            Self::NotAFolder { .. } => "path_not_a_folder",
            Self::Denied { .. } => "path_denied",
            Self::Changed { .. } => "file_changed",
            Self::Full { .. } => "workspace_full",
            Self::Withheld { .. } => "write_withheld",
            Self::Unusable { .. } => "workspace_unusable",
            Self::Io { .. } => "workspace_io",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Outside { .. } => {
                "give a path relative to the workspace; links are followed only inside it"
            }
            Self::Invalid { .. } => "give a path relative to the workspace, such as `src/main.rs`",
            Self::NotFound { .. } => "list the folder above it to see what exists",
            Self::NotAFile { .. } => "give the path of a regular file; list_files shows them",
            Self::NotAFolder { .. } => "list the workspace to see which names are folders",
            Self::Denied { .. } => {
                "the server's user needs the permission; choose another path or ask a person"
            }
            Self::Changed { .. } => {
                "read the file again and repeat the change on what it now holds"
            }
            Self::Full { .. } => "free some space, then try again",
            Self::Withheld { .. } => "nothing to do here: the turn is being ended",
            Self::Unusable { .. } => {
                "create the folder, or name another one with --workspace; it must be readable"
            }
            Self::Io { .. } => "try again; if it persists, ask a person to look at the file system",
        }
    }

    /// Sorts an error of the system into its kind.
    pub(crate) fn of(path: &str, source: io::Error) -> Self {
        use rustix::io::Errno;
        let path = shown(path);
        // The path library reports an escape as a permission error without an errno of its own.
        if source.kind() == io::ErrorKind::PermissionDenied && source.raw_os_error().is_none() {
            return Self::Outside { path };
        }
        match Errno::from_io_error(&source) {
            Some(Errno::XDEV) => Self::Outside { path },
            Some(Errno::LOOP) => Self::Invalid { path, why: "its links lead nowhere" },
            Some(Errno::NOENT) => Self::NotFound { path },
            Some(Errno::NOTDIR) => Self::NotAFolder { path },
            Some(Errno::ISDIR) => Self::NotAFile { path, found: "a folder" },
            Some(Errno::NXIO) => Self::NotAFile { path, found: "a pipe or a device" },
            Some(Errno::NAMETOOLONG) => Self::Invalid { path, why: "a name in it is too long" },
            Some(Errno::INVAL) => Self::Invalid { path, why: "the file system refuses the name" },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied { path, source },
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::Full { path, source },
            _ => Self::Io { path, source },
        }
    }
}

/// A path as it may stand in a message: on one line, of a readable length.
pub(crate) fn shown(path: &str) -> String {
    const CHARS_MAX: usize = 200;
    let mut text: String = path
        .chars()
        .take(CHARS_MAX)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if path.chars().nth(CHARS_MAX).is_some() {
        text.push('…');
    }
    text
}
