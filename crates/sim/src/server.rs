//! The real binary as a server on a home of its own.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::client::Client;
use crate::process::{Ended, Process, Spec};

/// Folders of one test: a home, a workspace for the tools, and a place for scripts. They go with it.
#[derive(Debug)]
pub struct Home {
    root: TempDir,
    address: watch::Sender<String>,
    /// The binary; by default the one beside the test program.
    program: Option<PathBuf>,
}

impl Home {
    /// Fresh folders.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new() -> Result<Self> {
        let root = tempfile::Builder::new().prefix("everturn-sim-").tempdir()?;
        for folder in ["home", "work"] {
            std::fs::DirBuilder::new().mode(0o700).create(root.path().join(folder))?;
        }
        Ok(Self { root, address: watch::Sender::new(String::new()), program: None })
    }

    /// Fresh folders for this binary.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn of(program: &Path) -> Result<Self> {
        Ok(Self { program: Some(program.to_owned()), ..Self::new()? })
    }

    /// Leaves the folders behind, and says where they are.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.root.keep()
    }

    /// The home.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// The tools' workspace.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// The database, whether it is there yet or not.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path().join("everturn.db")
    }

    /// Writes a model's script, and gives the name of that model.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn script(&self, text: &str) -> Result<String> {
        let path = self.root.path().join("script.toml");
        std::fs::write(&path, text)?;
        Ok(format!("script/{}", path.display()))
    }

    /// The binary with this home, before its command and arguments are added.
    ///
    /// # Errors
    /// There is no binary.
    pub fn everturn(&self, command: &str) -> Result<Spec> {
        let spec = match &self.program {
            Some(program) => Spec::new(program),
            None => Spec::everturn()?,
        };
        Ok(spec
            .arg(command)
            .env("EVERTURN_HOME", self.path())
            .env("HOME", self.root.path())
            .env("TMPDIR", std::env::temp_dir())
            .folder(&self.work()))
    }

    /// A server on this home, not started yet.
    ///
    /// # Errors
    /// There is no binary.
    pub fn serve(&self, model: &str) -> Result<ServerSpec> {
        let spec = self.everturn("serve")?.args(["--model", model, "--workspace"]).arg(self.work());
        Ok(ServerSpec { spec, address: self.address.clone() })
    }

    /// A client of whatever server runs on this home at the moment.
    ///
    /// # Errors
    /// The TLS library cannot be set up.
    pub fn client(&self) -> Result<Client> {
        Client::new(self.address.subscribe())
    }
}

/// How a server is started.
#[derive(Debug, Clone)]
pub struct ServerSpec {
    spec: Spec,
    address: watch::Sender<String>,
}

impl ServerSpec {
    /// An argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.spec = self.spec.arg(arg);
        self
    }

    /// A variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.spec = self.spec.env(name, value);
        self
    }

    /// Starts it on a free port and waits until it is ready.
    ///
    /// # Errors
    /// It ends before, or is not ready in time.
    pub async fn start(&self) -> Result<Server> {
        self.start_on("127.0.0.1:0").await
    }

    /// As [`ServerSpec::start`], at this address.
    ///
    /// # Errors
    /// As [`ServerSpec::start`].
    pub async fn start_on(&self, listen: &str) -> Result<Server> {
        match self.try_start(listen).await? {
            Ok(server) => Ok(server),
            Err(ended) => bail!("the server ended at once: {ended:?}"),
        }
    }

    /// Starts it; the inner error is how it ended if it was never ready.
    ///
    /// # Errors
    /// It cannot be started at all, or neither ends nor is ready in time.
    pub async fn try_start(&self, listen: &str) -> Result<Result<Server, Ended>> {
        let process = self.spec.clone().args(["--listen", listen]).start()?;
        let found = process.out.wait_for(|out| {
            let (_, rest) = out.split_once("listening on ")?;
            rest.contains('\n').then(|| rest.lines().next().unwrap_or_default().trim().to_owned())
        });
        let Some(address) = found.await? else { return Ok(Err(process.ended().await?)) };
        self.address.send_replace(address.clone());
        Ok(Ok(Server { process, address, again: self.clone() }))
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Process,
    /// `http://HOST:PORT`.
    pub address: String,
    again: ServerSpec,
}

impl Server {
    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until it has died by itself.
    ///
    /// # Errors
    /// It does not within the limit.
    pub async fn wait_for_death(&mut self) -> Result<()> {
        self.process.wait().await?;
        Ok(())
    }

    /// Kills it, if it still runs, and starts another one on the same home and a new port.
    ///
    /// # Errors
    /// As [`ServerSpec::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.kill();
        *self = self.again.start().await?;
        Ok(())
    }

    /// Asks it to leave (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// It does not within the limit, or not with exit code 0.
    pub async fn terminate(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait().await?;
        if !status.success() {
            bail!("the server left with {status}: {}", self.process.err.tail(4_096));
        }
        Ok(())
    }

    /// A client of this very server, which does not follow the home to another one.
    ///
    /// # Errors
    /// The TLS library cannot be set up.
    pub fn client(&self) -> Result<Client> {
        Client::new(watch::Sender::new(self.address.clone()).subscribe())
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.process.pid())
    }
}

/// Resident memory of a process in bytes.
///
/// # Errors
/// It has ended, or the kernel does not tell.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.trim().parse::<u64>()? * 1_024)
}

/// Processes that live and whose command line or environment contains this text.
///
/// # Errors
/// The process table cannot be read.
pub fn processes_with(text: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    let own = std::process::id();
    for entry in Path::new("/proc").read_dir()? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let of = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let state = String::from_utf8_lossy(&of("stat")).into_owned();
        let ended =
            state.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with(['Z', 'X']));
        let has =
            |bytes: Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        if pid != own && !ended && (has(of("cmdline")) || has(of("environ"))) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Lets this process, and those that it starts, have this many files and sockets open.
///
/// # Errors
/// The system allows fewer.
pub fn allow_open_files(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(count), ..limit };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("{count} open files are needed (`ulimit -n`), it is {limit:?}"))
}
