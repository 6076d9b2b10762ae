//! The folder that tools work in, and the only door to the files in it.
//!
//! The root is opened once; afterwards every path is resolved by the kernel *beneath* that open
//! folder (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`), so there is no moment
//! between a check and a use in which a swapped link could lead out. Links that stay inside work.
//!
//! The resolution is `cap-std`'s: it makes exactly that system call, and on kernels and sandboxes
//! that lack it walks the path component by component without following links blindly. Writing
//! that fallback ourselves would be the part most easily got wrong. Writes go to an unnamed file
//! in the same folder (`cap-tempfile`) and are renamed over the target, so a reader, or a restart
//! after a kill, sees the old content or the new and nothing between.

mod error;
mod walk;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use cap_tempfile::TempFile;
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

pub use error::WorkspaceError;
pub(crate) use error::shown;
pub(crate) use walk::{EntryKind, Found, Step, Walk};

/// Bytes of a path that a model may give.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Symbolic links that a write follows at the end of its path before it gives up.
pub const LINKS_MAX: usize = 16;

/// A root folder, opened once. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: Arc<Root>,
}

#[derive(Debug)]
struct Root {
    dir: Dir,
    /// Without links, for messages and for recognising absolute paths.
    path: PathBuf,
    /// As the operator wrote it, made absolute: people and models copy that one.
    given: PathBuf,
}

/// Which content a file held: enough to notice that it was replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// There was no such file.
    Created,
    /// The file existed and has new content.
    Replaced,
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct Opened {
    /// The file.
    pub file: File,
    /// Its size in bytes when it was opened.
    pub size: u64,
    /// What it was when it was opened.
    pub version: Version,
}

impl Workspace {
    /// Opens an existing folder as the root.
    ///
    /// # Errors
    /// [`WorkspaceError::Unusable`] if it does not exist, is no folder or may not be read.
    pub fn open(path: &Path) -> Result<Self, WorkspaceError> {
        let unusable =
            |source| WorkspaceError::Unusable { path: shown(&path.to_string_lossy()), source };
        let real = std::fs::canonicalize(path).map_err(unusable)?;
        let given = std::path::absolute(path).map_err(unusable)?;
        let dir = Dir::open_ambient_dir(&real, ambient_authority()).map_err(unusable)?;
        Ok(Self { root: Arc::new(Root { dir, path: real, given }) })
    }

    /// Where the root was when it was opened, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// The given path as one relative to the root. Purely lexical: it turns an absolute path that
    /// names something inside into a relative one and refuses what is no path; whether it stays
    /// inside is decided by the kernel when it is opened.
    pub(crate) fn relative(&self, given: &str) -> Result<PathBuf, WorkspaceError> {
        let invalid = |why| Err(WorkspaceError::Invalid { path: shown(given), why });
        if given.is_empty() {
            return invalid("it is empty");
        }
        if given.len() > PATH_BYTES_MAX {
            return invalid("it is too long");
        }
        if given.contains('\0') {
            return invalid("it contains a NUL character");
        }
        let path = Path::new(given);
        if path.is_absolute() {
            let inside = path
                .strip_prefix(&self.root.path)
                .or_else(|_| path.strip_prefix(&self.root.given))
                .map_err(|_| WorkspaceError::Outside { path: shown(given) })?;
            return Ok(or_dot(inside));
        }
        Ok(or_dot(path))
    }

    /// Opens a folder.
    ///
    /// # Errors
    /// Any [`WorkspaceError`]; [`WorkspaceError::Outside`] if the path leaves the root.
    pub fn open_folder(&self, path: &str) -> Result<Dir, WorkspaceError> {
        let relative = self.relative(path)?;
        self.root.dir.open_dir(relative).map_err(|error| WorkspaceError::of(path, error))
    }

    /// Opens a regular file for reading. A pipe or a device is refused and never waited for.
    ///
    /// # Errors
    /// Any [`WorkspaceError`]; [`WorkspaceError::Outside`] if the path leaves the root.
    pub fn open_file(&self, path: &str) -> Result<Opened, WorkspaceError> {
        let relative = self.relative(path)?;
        open_regular(&self.root.dir, &relative, path)
    }

    /// Gives a file new content, all of it or none: makes missing folders, keeps the mode (and
    /// where permitted the owner) of a file that is replaced, follows a link at the end of the
    /// path to its target inside, and reaches the disk before it returns.
    ///
    /// `expected` refuses the write if the file is no longer that one; `ready` is asked last,
    /// directly before the new content becomes visible, and its `Err` withholds the write. A hard
    /// link to the old content keeps the old content.
    ///
    /// # Errors
    /// Any [`WorkspaceError`]; nothing was changed then, folders that were made apart. The one
    /// exception is [`WorkspaceError::Io`] because the folder could not be synced at the very end:
    /// the new content is there, but a power loss could bring the old back.
    pub fn write(
        &self,
        path: &str,
        content: &[u8],
        expected: Option<Version>,
        ready: &dyn Fn() -> Result<(), &'static str>,
    ) -> Result<Written, WorkspaceError> {
        let failed = |error| WorkspaceError::of(path, error);
        let (folder, name) = self.target(path)?;
        let existing = match folder.symlink_metadata(&name) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(metadata) = &existing {
            if !metadata.is_file() {
                let found = kind_name(metadata);
                return Err(WorkspaceError::NotAFile { path: shown(path), found });
            }
            // A rename needs no permission on the file itself, but its owner made it read-only
            // for a reason.
            let access = rustix::fs::accessat(&folder, &name, Access::WRITE_OK, AtFlags::EACCESS);
            if let Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) = access {
                return Err(failed(error.into()));
            }
        }
        let before = existing.as_ref().map(Version::of);
        if expected.is_some() && expected != before {
            return Err(WorkspaceError::Changed { path: shown(path) });
        }

        let mut temporary = TempFile::new(&folder).map_err(failed)?;
        temporary.write_all(content).map_err(failed)?;
        if let Some(metadata) = &existing {
            let file = temporary.as_file();
            let made = file.metadata().map_err(failed)?;
            if (made.uid(), made.gid()) != (metadata.uid(), metadata.gid()) {
                // Only a privileged server can, and only then does it matter.
                let owner = rustix::fs::Uid::from_raw(metadata.uid());
                let group = rustix::fs::Gid::from_raw(metadata.gid());
                let _ = rustix::fs::fchown(file, Some(owner), Some(group));
            }
            file.set_permissions(metadata.permissions()).map_err(failed)?;
        }
        temporary.as_file().sync_all().map_err(failed)?;

        if expected.is_some() {
            let now = folder.symlink_metadata(&name).map_err(failed)?;
            if Some(Version::of(&now)) != expected {
                return Err(WorkspaceError::Changed { path: shown(path) });
            }
        }
        ready().map_err(|why| WorkspaceError::Withheld { path: shown(path), why })?;
        temporary.replace(&name).map_err(failed)?;
        sync_folder(&folder).map_err(failed)?;
        Ok(if existing.is_some() { Written::Replaced } else { Written::Created })
    }

    /// The open folder and the name in it that a write goes to, links at the end followed.
    fn target(&self, path: &str) -> Result<(Dir, PathBuf), WorkspaceError> {
        let mut relative = self.relative(path)?;
        if path.ends_with('/') {
            return Err(WorkspaceError::NotAFile { path: shown(path), found: "a folder" });
        }
        for _ in 0..LINKS_MAX {
            let Some(Component::Normal(name)) = relative.components().next_back() else {
                return Err(match relative.components().next_back() {
                    Some(Component::CurDir) | None => {
                        WorkspaceError::NotAFile { path: shown(path), found: "a folder" }
                    }
                    _ => match self.root.dir.open_dir(&relative) {
                        Ok(_) => WorkspaceError::NotAFile { path: shown(path), found: "a folder" },
                        Err(error) => WorkspaceError::of(path, error),
                    },
                });
            };
            let name = PathBuf::from(name);
            let parent = or_dot(relative.parent().unwrap_or(Path::new("")));
            let folder = self.folder_for_writing(&parent, path)?;
            let linked = folder.symlink_metadata(&name).is_ok_and(|found| found.is_symlink());
            if !linked {
                return Ok((folder, name));
            }
            let target =
                folder.read_link(&name).map_err(|error| WorkspaceError::of(path, error))?;
            relative = parent.join(target);
        }
        Err(WorkspaceError::Invalid { path: shown(path), why: "too many symbolic links" })
    }

    fn folder_for_writing(&self, parent: &Path, path: &str) -> Result<Dir, WorkspaceError> {
        let failed = |error| WorkspaceError::of(path, error);
        match self.root.dir.open_dir(parent) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            opened => return opened.map_err(failed),
        }
        self.root.dir.create_dir_all(parent).map_err(failed)?;
        self.root.dir.open_dir(parent).map_err(failed)
    }
}

/// Opens `name` beneath `dir` if it is a regular file; `shown_as` is the path for messages.
pub(crate) fn open_regular(
    dir: &Dir,
    name: &Path,
    shown_as: &str,
) -> Result<Opened, WorkspaceError> {
    let failed = |error| WorkspaceError::of(shown_as, error);
    let mut options = OpenOptions::new();
    // Without it the open of a pipe waits until somebody writes.
    options.read(true).custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default());
    let file = dir.open_with(name, &options).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let found = kind_name(&metadata);
        return Err(WorkspaceError::NotAFile { path: shown(shown_as), found });
    }
    let version = Version::of(&metadata);
    Ok(Opened { file: file.into_std(), size: metadata.len(), version })
}

/// Makes names in a folder survive a power loss. The folder is open for passing through only, which
/// is not enough for that.
fn sync_folder(folder: &Dir) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, ".", flags, Mode::empty())?;
    match rustix::fs::fsync(opened) {
        // A file system that has no such thing.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        result => Ok(result?),
    }
}

fn kind_name(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() { "a folder" } else { "a pipe, a socket or a device" }
}

/// The path, or `.` for an empty one: the kernel does not take an empty path for the folder itself.
fn or_dot(path: &Path) -> PathBuf {
    if path.as_os_str() == OsStr::new("") { PathBuf::from(".") } else { path.to_path_buf() }
}
