//! The home: one folder for everything, which only its user can enter.
//!
//! ```text
//!   everturn.db …   the store
//!   config.toml     settings (optional)
//!   cli.key         what the command line proves itself with to the server, 0600
//!   server.json     where the running server is; locked by it for as long as it lives
//!   workspace/      where the tools of `serve` work
//!   chat-history    lines typed in `chat`
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::{CliError, Fault, Result, io};
use crate::settings::{Settings, absolute};

/// Bytes of the secret in `cli.key`.
const KEY_BYTES: usize = 32;

/// A home that exists.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
}

impl Home {
    /// The home of the settings, made if it does not exist.
    pub(crate) fn make(settings: &Settings) -> Result<Self> {
        let path = absolute(&settings.home.value)?;
        if !path.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| {
                CliError::new(
                    Fault::Home,
                    format!("cannot make the home {}: {error}", path.display()),
                )
                .hint("choose another place with --home DIR or EVERTURN_HOME")
            })?;
        }
        Self::usable(path)
    }

    /// The home of the settings, which must exist.
    pub(crate) fn find(settings: &Settings) -> Result<Self> {
        let path = absolute(&settings.home.value)?;
        if !path.exists() {
            return Err(CliError::new(
                Fault::NoHome,
                format!("there is no home at {} (from {})", path.display(), settings.home.source),
            )
            .hint("`everturn serve`, `run` and `chat` make one; --home DIR names another"));
        }
        Self::usable(path)
    }

    fn usable(path: PathBuf) -> Result<Self> {
        let meta = std::fs::metadata(&path).map_err(|error| {
            CliError::new(Fault::Home, format!("cannot use the home {}: {error}", path.display()))
        })?;
        if !meta.is_dir() {
            let message = format!("the home {} is not a folder", path.display());
            return Err(CliError::new(Fault::Home, message));
        }
        // One name for it, whatever links lead there: processes of one home know each other by it.
        let path = std::fs::canonicalize(&path).map_err(|error| io("find", &path, error))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The mode of a home that others may enter. A folder that was there before keeps its mode: it
    /// may be shared on purpose.
    pub(crate) fn open_mode(&self) -> Option<u32> {
        let mode = std::fs::metadata(&self.path).ok()?.mode() & 0o777;
        (mode & 0o077 != 0).then_some(mode)
    }

    /// Its name for other processes of it.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder that tools of a server work in, made if it does not exist.
    pub(crate) fn workspace(&self) -> Result<PathBuf> {
        let path = self.path.join("workspace");
        if !path.is_dir() {
            DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .map_err(|error| io("make the workspace", &path, error))?;
        }
        Ok(path)
    }

    /// The command line's key, made if there is none.
    pub(crate) fn make_key(&self) -> Result<String> {
        if let Some(key) = self.key()? {
            return Ok(key);
        }
        let path = self.file("cli.key");
        let secret: [u8; KEY_BYTES] = rand::random();
        let key: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        // Complete or not there: two servers may start at the same time, and the first one wins.
        let mut file = tempfile::Builder::new()
            .prefix(".cli.key")
            .tempfile_in(&self.path)
            .map_err(|error| io("write", &path, error))?;
        file.write_all(key.as_bytes())
            .and_then(|()| file.as_file().sync_all())
            .map_err(|error| io("write", &path, error))?;
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(key),
            Err(refused) if refused.error.kind() == std::io::ErrorKind::AlreadyExists => {
                self.key()?.ok_or_else(|| io("read", &path, "it is there and then it is not"))
            }
            Err(refused) => Err(io("write", &path, refused.error)),
        }
    }

    /// The command line's key. One that others could have read or written is refused.
    pub(crate) fn key(&self) -> Result<Option<String>> {
        let path = self.file("cli.key");
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default())
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("read", &path, error)),
        };
        let meta = file.metadata().map_err(|error| io("read", &path, error))?;
        let own = meta.uid() == rustix::process::geteuid().as_raw();
        if !own || meta.mode() & 0o077 != 0 {
            let message = format!(
                "the key {} could be read by others (mode {:o}, owner {})",
                path.display(),
                meta.mode() & 0o777,
                meta.uid()
            );
            return Err(CliError::new(Fault::Home, message)
                .hint("delete it and start the server again: it makes a new one"));
        }
        let mut key = String::new();
        file.take(4_096).read_to_string(&mut key).map_err(|error| io("read", &path, error))?;
        let key = key.trim().to_owned();
        if key.len() != KEY_BYTES * 2 || !key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let message = format!("the key {} is not one", path.display());
            return Err(CliError::new(Fault::Home, message)
                .hint("delete it and start the server again: it makes a new one"));
        }
        Ok(Some(key))
    }
}

/// Where a running server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerFile {
    /// `http://HOST:PORT`, reachable from this machine.
    pub(crate) address: String,
    /// Its process, for people; liveness is told by the lock.
    pub(crate) pid: u32,
    /// Its node.
    pub(crate) node: String,
    /// The store that it serves.
    pub(crate) store: String,
    /// Its version.
    pub(crate) version: String,
    /// When it started.
    pub(crate) started_at: String,
}

/// A lock on `server.json`, held by the server that it names. The kernel lets go of it however the
/// process ends.
#[derive(Debug)]
pub(crate) struct Announced {
    path: PathBuf,
    // Closing it is what frees the lock.
    lock: File,
}

impl Announced {
    /// Writes `server.json`, unless another living server of this home has.
    pub(crate) fn claim(home: &Home, said: &ServerFile) -> Result<Option<Self>> {
        if running_server(home)?.is_some() {
            return Ok(None);
        }
        let path = home.file("server.json");
        let failed = |error: &dyn std::fmt::Display| io("write", &path, error);
        let mut file = tempfile::Builder::new()
            .prefix(".server.json")
            .tempfile_in(home.path())
            .map_err(|error| failed(&error))?;
        // Locked before it can be found: whoever finds it sees a living server.
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(&error))?;
        let text = serde_json::to_string_pretty(said).map_err(|error| failed(&error))?;
        file.write_all(text.as_bytes()).map_err(|error| failed(&error))?;
        let lock = file.persist(&path).map_err(|error| failed(&error.error))?;
        Ok(Some(Self { path, lock }))
    }

    /// Whether the file at its place is still this one.
    pub(crate) fn stands(&self) -> bool {
        let there = std::fs::symlink_metadata(&self.path).ok();
        let same = there.zip(self.lock.metadata().ok());
        same.is_some_and(|(there, ours)| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Only our own: another server may have put its file there.
        if self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The server of a home, if one lives. A file that a dead server left behind counts as none.
pub(crate) fn running_server(home: &Home) -> Result<Option<ServerFile>> {
    let path = home.file("server.json");
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("read", &path, error)),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let mut text = String::new();
    (&mut file)
        .take(64 << 10)
        .read_to_string(&mut text)
        .map_err(|error| io("read", &path, error))?;
    match serde_json::from_str(&text) {
        Ok(said) => Ok(Some(said)),
        Err(error) => Err(CliError::new(
            Fault::Home,
            format!("{} cannot be understood: {error}", path.display()),
        )
        .hint("another version of everturn may be running on this home")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home { path: dir.path().to_owned() };
        (dir, home)
    }

    fn said(port: u16) -> ServerFile {
        ServerFile {
            address: format!("http://127.0.0.1:{port}"),
            pid: 1,
            node: "node_1".to_owned(),
            store: "s".to_owned(),
            version: "0".to_owned(),
            started_at: "now".to_owned(),
        }
    }

    #[test]
    fn a_key_is_made_once_and_only_its_user_may_read_it() {
        let (_dir, home) = home();
        assert_eq!(home.key().unwrap(), None);
        let key = home.make_key().unwrap();
        assert_eq!(home.make_key().unwrap(), key);
        let path = home.file("cli.key");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(home.key().unwrap_err().code, "home_unusable");
    }

    #[test]
    fn a_server_is_found_for_as_long_as_it_holds_the_lock() {
        let (_dir, home) = home();
        assert_eq!(running_server(&home).unwrap(), None);
        let announced = Announced::claim(&home, &said(1)).unwrap().unwrap();
        assert_eq!(running_server(&home).unwrap(), Some(said(1)));
        assert!(Announced::claim(&home, &said(2)).unwrap().is_none(), "one at a time");
        drop(announced);
        assert_eq!(running_server(&home).unwrap(), None);
        assert!(!home.file("server.json").exists());
    }

    #[test]
    fn a_file_that_a_dead_server_left_is_no_server() {
        let (_dir, home) = home();
        std::fs::write(home.file("server.json"), serde_json::to_string(&said(1)).unwrap()).unwrap();
        assert_eq!(running_server(&home).unwrap(), None);
        let _announced = Announced::claim(&home, &said(2)).unwrap().unwrap();
        assert_eq!(running_server(&home).unwrap(), Some(said(2)));
    }
}
