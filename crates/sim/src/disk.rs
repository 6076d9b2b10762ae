//! A file system that is full when the test says so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Set in the program that [`in_namespace`] starts.
const INSIDE: &str = "EVERTURN_SIM_INSIDE";

/// A small file system in memory, mounted on a folder.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts one of this size on an existing folder.
    ///
    /// # Errors
    /// That is not allowed here; see [`in_namespace`].
    pub fn mount(path: &Path, bytes: u64) -> rustix::io::Result<Self> {
        let size = std::ffi::CString::new(format!("size={bytes}")).unwrap_or_default();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), size.as_c_str())?;
        Ok(Self { path: path.to_owned() })
    }

    /// Lets nothing be written to it any more. Nothing may be open for writing.
    ///
    /// # Errors
    /// Something is.
    pub fn read_only(&self) -> Result<()> {
        let flags = MountFlags::RDONLY;
        rustix::mount::mount_remount(self.path.as_path(), flags, "")
            .context("making the disk read-only")
    }

    /// Takes this much space.
    ///
    /// # Errors
    /// There is less.
    pub fn take(&self, bytes: usize) -> Result<()> {
        std::fs::write(self.filler(), vec![0_u8; bytes]).context("taking space")
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Takes all the space that is left.
    ///
    /// # Errors
    /// It cannot be filled.
    pub fn fill(&self) -> Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(self.filler())?;
        let mut size = 1 << 20;
        while size > 0 {
            match file.write(&vec![0_u8; size]) {
                Ok(0) => size /= 2,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => size /= 2,
                Err(error) => return Err(error).context("filling the disk"),
            }
        }
        Ok(())
    }

    /// Gives the space back.
    ///
    /// # Errors
    /// It cannot be given back.
    pub fn free(&self) -> Result<()> {
        std::fs::remove_file(self.filler()).context("freeing the disk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached: whatever still has a file open keeps it until it ends.
        let _ = unmount(self.path.as_path(), UnmountFlags::DETACH);
    }
}

/// Whether file systems can be mounted by this program; if not, the test of this name is run again
/// by a program that can, in a user namespace of its own, and the answer is `false` once it passed.
///
/// # Errors
/// The other program could not be started, or the test failed in it.
pub fn in_namespace(test: &str) -> Result<bool> {
    let probe = tempfile::tempdir()?;
    let refused = match SmallDisk::mount(probe.path(), 1 << 20) {
        Ok(_) => return Ok(true),
        Err(error) => error,
    };
    if std::env::var_os(INSIDE).is_some() {
        bail!("no file system can be mounted, not even in a user namespace: {refused}");
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .with_context(|| {
            format!("mounting is refused ({refused}) and unshare cannot be started")
        })?;
    if !status.success() {
        bail!("the test failed in a user namespace (mounting is refused here: {refused})");
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_full_until_it_is_freed() {
        if !in_namespace("disk::tests::a_full_disk_is_full_until_it_is_freed").unwrap() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = SmallDisk::mount(folder.path(), 1 << 20).unwrap();
        let write = || std::fs::write(folder.path().join("a"), [1; 8192]);
        write().unwrap();
        disk.fill().unwrap();
        let error = std::fs::write(folder.path().join("b"), [1; 8192]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        disk.free().unwrap();
        write().unwrap();
        drop(disk);
        assert!(!folder.path().join("a").exists());
    }
}
