//! What the tests work with.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everturn_agent::supervisor::{Supervised, boot_ms};
use everturn_agent::tool::{Registry, ToolInvocation, ToolOutcome, builtin};
use everturn_agent::workspace::Workspace;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use serde_json::Value;
use tokio::io::AsyncBufReadExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            tokio::time::timeout(4 * PATIENCE, test).await.expect("the test hangs");
        });
}

/// A workspace in a folder of its own, with something secret beside it.
pub struct Bench {
    _home: tempfile::TempDir,
    pub root: PathBuf,
    pub outside: PathBuf,
    pub workspace: Workspace,
    pub tools: Registry,
}

impl Bench {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("workspace");
        let outside = home.path().join("outside");
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "SECRET\n").unwrap();
        let workspace = Workspace::open(&root).unwrap();
        let tools = builtin(workspace.clone(), Supervised::this_binary());
        Self { _home: home, root, outside, workspace, tools }
    }

    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Makes a named pipe.
    pub fn pipe(&self, path: &str) {
        let path = self.root.join(path);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    /// The next line that anybody writes to a named pipe.
    pub async fn read_pipe(&self, path: &str) -> String {
        let mut options = tokio::net::unix::pipe::OpenOptions::new();
        let pipe = options.read_write(true).open_receiver(self.root.join(path)).unwrap();
        let mut line = String::new();
        let mut pipe = tokio::io::BufReader::new(pipe);
        tokio::time::timeout(PATIENCE, pipe.read_line(&mut line))
            .await
            .expect("nobody writes to the pipe")
            .unwrap();
        line
    }

    pub fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap()
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        names(&self.root.join(path))
    }

    /// Starts a call.
    pub fn start(&self, tool: &str, arguments: Value) -> Call {
        self.start_with(tool, arguments, boot_ms() + 600_000, 64)
    }

    pub fn start_with(&self, tool: &str, arguments: Value, lease: u64, room: usize) -> Call {
        self.begin(tool, arguments, lease, room, CancellationToken::new())
    }

    /// Starts a call whose turn was stopped a moment ago.
    pub fn start_cancelled(&self, tool: &str, arguments: Value) -> Call {
        let cancel = CancellationToken::new();
        cancel.cancel();
        self.begin(tool, arguments, boot_ms() + 600_000, 64, cancel)
    }

    fn begin(
        &self,
        tool: &str,
        arguments: Value,
        lease: u64,
        room: usize,
        cancel: CancellationToken,
    ) -> Call {
        let (sender, shown) = mpsc::channel(room);
        let (lease, lease_deadline) = watch::channel(lease);
        let tool = self.tools.get(tool).unwrap().clone();
        let invocation = ToolInvocation {
            call_id: "call-1".parse().unwrap(),
            session_id: "session-1".parse().unwrap(),
            arguments,
            idempotency_key: "key-1".to_owned(),
            cancel: cancel.clone(),
            lease_deadline,
            output: sender,
        };
        let task = tokio::spawn(async move { tool.run(invocation).await });
        Call { task, cancel, lease, shown, so_far: String::new() }
    }

    /// Runs a call to its end, taking its output.
    pub async fn run(&self, tool: &str, arguments: Value) -> ToolOutcome {
        self.start(tool, arguments).end().await
    }

    pub async fn succeed(&self, tool: &str, arguments: Value) -> String {
        match self.run(tool, arguments).await {
            ToolOutcome::Succeeded(text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub async fn fail(&self, tool: &str, arguments: Value) -> String {
        match self.run(tool, arguments).await {
            ToolOutcome::Failed(text) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Each of the arguments is refused with a text that has the part in it.
    pub async fn refuses(&self, tool: &str, cases: &[(Value, &str)]) {
        for (arguments, part) in cases {
            let text = self.fail(tool, arguments.clone()).await;
            assert!(text.contains(part), "{arguments}: {text}");
            assert!(text.starts_with(&format!("bad arguments for {tool}: ")), "{text}");
        }
    }
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A call under way.
pub struct Call {
    pub task: JoinHandle<ToolOutcome>,
    pub cancel: CancellationToken,
    pub lease: watch::Sender<u64>,
    pub shown: mpsc::Receiver<String>,
    pub so_far: String,
}

impl Call {
    /// Waits until the shown output has a whole line that begins so, and gives the rest of it.
    pub async fn line(&mut self, beginning: &str) -> String {
        loop {
            let whole = self.so_far.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().find_map(|line| line.strip_prefix(beginning)) {
                return line.trim().to_owned();
            }
            match tokio::time::timeout(PATIENCE, self.shown.recv()).await {
                Ok(Some(piece)) => self.so_far.push_str(&piece),
                other => panic!("{other:?} before {beginning:?} in {:?}", self.so_far),
            }
        }
    }

    /// A process whose id is shown in such a line.
    pub async fn process(&mut self, beginning: &str) -> Process {
        Process::of(&self.line(beginning).await)
    }

    pub async fn end(self) -> ToolOutcome {
        self.end_with_shown().await.0
    }

    pub async fn end_with_shown(mut self) -> (ToolOutcome, Vec<String>) {
        let mut pieces = Vec::new();
        while let Some(piece) =
            tokio::time::timeout(2 * PATIENCE, self.shown.recv()).await.expect("the call hangs")
        {
            pieces.push(piece);
        }
        (self.task.await.unwrap(), pieces)
    }
}

/// A process, held so that it is not taken for a later one with the same id.
pub struct Process {
    pub pid: i32,
    handle: Option<OwnedFd>,
}

impl Process {
    pub fn of(pid: &str) -> Self {
        let pid: i32 = pid.parse().unwrap();
        Self { pid, handle: pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).ok() }
    }

    pub fn kill(&self) {
        rustix::process::kill_process(
            Pid::from_raw(self.pid).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }

    /// Whether it is gone, waiting for that up to `limit`. A process's handle becomes readable
    /// when it ends.
    pub fn gone_within(&self, limit: Duration) -> bool {
        let Some(handle) = &self.handle else { return true };
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs().try_into().unwrap(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.unwrap() > 0,
            }
        }
    }

    pub fn assert_gone(&self) {
        assert!(self.gone_within(PATIENCE), "process {} is still there", self.pid);
    }

    /// For a process that must have been ended before the tool reported.
    pub fn assert_gone_already(&self) {
        assert!(self.gone_within(Duration::ZERO), "process {} is still there", self.pid);
    }
}
