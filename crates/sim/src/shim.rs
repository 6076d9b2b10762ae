//! What a machine can do to a process: a power loss that takes what was not synced, a disk that fails to
//! write or to sync, a wall clock that jumps.
//!
//! `shim.c` stands between the server and the C library (LD_PRELOAD); a test compiles it with the
//! system's C compiler, which building SQLite needs as well. Only the database and its log are touched.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tempfile::TempDir;

use crate::server::{Home, ServerSpec};

/// Bytes of a disk's sector: what is written whole or not at all.
const SECTOR: usize = 4_096;
/// The files that lose what is not synced.
const FILES: [&str; 2] = ["everturn.db", "everturn.db-wal"];
/// Places in the file `control`, as in `struct control`.
const CLOCK_S: u64 = 0;
const WRITE_ERRNO: u64 = 8;
const SYNC_ERRNO: u64 = 12;
const CONTROL_BYTES: usize = 16;

/// What a machine does to the servers that run on it.
#[derive(Debug)]
pub struct Shim {
    folder: TempDir,
    library: PathBuf,
    boots: u32,
}

impl Shim {
    /// Builds it.
    ///
    /// # Errors
    /// There is no C compiler, or no folder.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("everturn-shim-").tempdir()?;
        let source = folder.path().join("shim.c");
        let library = folder.path().join("shim.so");
        std::fs::write(&source, include_str!("shim.c"))?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .context("a C compiler (`cc`) is needed, as for SQLite")?;
        ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::create_dir(folder.path().join("synced"))?;
        std::fs::write(folder.path().join("control"), [0; CONTROL_BYTES])?;
        Ok(Self { folder, library, boots: 0 })
    }

    /// A server on this machine.
    #[must_use]
    pub fn over(&self, spec: ServerSpec) -> ServerSpec {
        spec.env("LD_PRELOAD", &self.library).env("SIM_SHIM", self.folder.path())
    }

    /// Notes a fresh home's database, which was synced before it had its name.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn installed(&self, home: &Home) -> Result<()> {
        let copy = self.synced(FILES[0]);
        if !copy.exists() {
            std::fs::copy(home.database(), copy)?;
        }
        Ok(())
    }

    fn synced(&self, name: &str) -> PathBuf {
        self.folder.path().join("synced").join(name)
    }

    fn set(&self, place: u64, bytes: &[u8]) -> Result<()> {
        let control = self.folder.path().join("control");
        let file = std::fs::OpenOptions::new().write(true).open(control)?;
        file.write_all_at(bytes, place).context("moving the machine's levers")
    }

    /// From now on the wall clock is so many seconds ahead of the real one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn clock_ahead(&self, seconds: i64) -> Result<()> {
        self.set(CLOCK_S, &seconds.to_ne_bytes())
    }

    /// From now on writing the database fails with this error; `None`: it does not.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn fail_writes(&self, errno: Option<rustix::io::Errno>) -> Result<()> {
        self.set(WRITE_ERRNO, &errno.map_or(0, rustix::io::Errno::raw_os_error).to_ne_bytes())
    }

    /// The same for syncing it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn fail_syncs(&self, errno: Option<rustix::io::Errno>) -> Result<()> {
        self.set(SYNC_ERRNO, &errno.map_or(0, rustix::io::Errno::raw_os_error).to_ne_bytes())
    }

    /// Takes the power from a home whose server was killed just now: of what was written since the last
    /// sync of each file, each sector is there or not, as `torn` dice say; without dice, none of it is.
    /// The next start is one of another boot. Returns how many bytes differed.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn lose_power(&mut self, home: &Home, mut torn: Option<&mut StdRng>) -> Result<usize> {
        let mut lost = 0;
        for name in FILES {
            let path = home.path().join(name);
            let written = read(&path)?;
            let synced = read(&self.synced(name))?;
            let mut left = synced.clone();
            for at in (0..written.len().max(synced.len())).step_by(SECTOR) {
                let of =
                    |all: &[u8]| -> Vec<u8> { all.iter().skip(at).take(SECTOR).copied().collect() };
                let (new, old) = (of(&written), of(&synced));
                if new == old {
                    continue;
                }
                lost += new.len().max(old.len());
                let arrived = torn.as_mut().is_some_and(|dice| dice.random_bool(0.5));
                if arrived {
                    if left.len() < at + new.len() {
                        left.resize(at + new.len(), 0);
                    }
                    left[at..at + new.len()].copy_from_slice(&new);
                }
            }
            std::fs::write(&path, &left)?;
            // What the disk has now, it has.
            std::fs::write(self.synced(name), left)?;
        }
        // An index in shared memory: gone with the power.
        let index = home.path().join("everturn.db-shm");
        if index.exists() {
            std::fs::remove_file(index)?;
        }
        self.boots += 1;
        let boot = format!("{:08}-0000-4000-8000-000000000000\n", self.boots);
        std::fs::write(self.folder.path().join("boot_id"), boot)?;
        Ok(lost)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}
