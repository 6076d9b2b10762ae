//! A child process whose output can be waited for, and which never outlives the test.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::wait::LIMIT;

/// Bytes of output that are shown when a test fails.
const SHOWN_BYTES: usize = 16 << 10;

/// What a process has written so far, on one of its streams.
#[derive(Clone)]
pub struct Output(Arc<Written>);

struct Written {
    bytes: Mutex<Vec<u8>>,
    /// Bytes so far, and whether the stream has ended.
    state: watch::Sender<(usize, bool)>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Output").field(&self.text()).finish()
    }
}

impl Output {
    /// Reads a stream to its end, in a thread of its own.
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let state = watch::Sender::new((0, false));
        let output = Self(Arc::new(Written { bytes: Mutex::default(), state }));
        let into = output.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 8 << 10];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut bytes = into.bytes();
                bytes.extend_from_slice(&buffer[..count]);
                into.0.state.send_replace((bytes.len(), false));
            }
            into.0.state.send_modify(|state| state.1 = true);
        });
        output
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The end of it, at most this many bytes.
    #[must_use]
    pub fn tail(&self, bytes: usize) -> String {
        let all = self.bytes();
        String::from_utf8_lossy(&all[all.len().saturating_sub(bytes)..]).into_owned()
    }

    /// Waits until `found` makes something of the output; `None` when the stream ended before.
    ///
    /// # Errors
    /// Nothing was found in time.
    pub async fn wait_for<T>(&self, found: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        let mut state = self.0.state.subscribe();
        let look = async {
            loop {
                let ended = state.borrow_and_update().1;
                if let Some(found) = found(&self.text()) {
                    return Some(found);
                }
                if ended || state.changed().await.is_err() {
                    return None;
                }
            }
        };
        match timeout(LIMIT, look).await {
            Ok(found) => Ok(found),
            Err(_) => {
                bail!("not in the output within {LIMIT:?}; it is: {}", self.tail(SHOWN_BYTES))
            }
        }
    }

    /// Waits until the output contains this text.
    ///
    /// # Errors
    /// It did not come in time, or the stream ended without it.
    pub async fn wait_for_text(&self, text: &str) -> Result<()> {
        match self.wait_for(|all| all.contains(text).then_some(())).await? {
            Some(()) => Ok(()),
            None => bail!("the output ended without {text:?}; it is: {}", self.tail(SHOWN_BYTES)),
        }
    }
}

/// How a process is started: the arguments, and an environment that holds nothing of the tester's
/// own settings and keys.
#[derive(Debug, Clone)]
pub struct Spec {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
}

impl Spec {
    /// A process of this program.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let env = vec![
            ("PATH".into(), path),
            ("LANG".into(), "C.UTF-8".into()),
            ("RUST_BACKTRACE".into(), "1".into()),
            ("NO_COLOR".into(), "1".into()),
        ];
        Self { program: program.into(), args: Vec::new(), env, folder: None }
    }

    /// A process of the binary under test.
    ///
    /// # Errors
    /// There is none.
    pub fn everturn() -> Result<Self> {
        Ok(Self::new(binary()?))
    }

    /// An argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Arguments.
    #[must_use]
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A variable of the environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The folder that it is started in.
    #[must_use]
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self) -> Result<Process> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().cloned());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        let out = Output::of(child.stdout.take().context("no stdout")?);
        let err = Output::of(child.stderr.take().context("no stderr")?);
        let words: Vec<_> = self.args.iter().map(|arg| arg.to_string_lossy()).collect();
        Ok(Process { child, out, err, name: words.join(" "), ended: None })
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// It cannot be started, or does not end within [`LIMIT`].
    pub async fn run(&self) -> Result<Ended> {
        self.start()?.ended().await
    }
}

/// The binary under test: `EVERTURN_BIN`, else the one beside the test program.
///
/// # Errors
/// There is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EVERTURN_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("where is this program?")?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("everturn"));
    for path in beside {
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!("there is no binary to test; build it (`cargo build -p everturn`) or set EVERTURN_BIN")
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// A child process. Dropping it kills it; if the test is failing, what it said is shown.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Its stdout.
    pub out: Output,
    /// Its stderr.
    pub err: Output,
    name: String,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process id")?, signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself; waiting tells.
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_none()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// It did not within [`LIMIT`].
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        self.wait_for(LIMIT).await
    }

    /// As [`Process::wait`], with a limit of its own.
    ///
    /// # Errors
    /// As [`Process::wait`].
    pub async fn wait_for(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            self.is_running();
            if let Some(status) = self.ended {
                return Ok(status);
            }
            if Instant::now() >= end {
                bail!("{} did not end within {limit:?}: {}", self.name, self.err.tail(SHOWN_BYTES));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it ends by itself and its output is read.
    ///
    /// # Errors
    /// As [`Process::wait`].
    pub async fn ended(mut self) -> Result<Ended> {
        self.end().await
    }

    /// As [`Process::ended`], for a process that is held by something else.
    ///
    /// # Errors
    /// As [`Process::wait`].
    pub async fn end(&mut self) -> Result<Ended> {
        let status = self.wait().await?;
        // What it started may hold its streams; what it wrote itself is there by then.
        let _ = timeout(Duration::from_secs(5), self.out.wait_for(|_| None::<()>)).await;
        let _ = timeout(Duration::from_secs(5), self.err.wait_for(|_| None::<()>)).await;
        Ok(Ended { code: status.code(), stdout: self.out.text(), stderr: self.err.text() })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "the test is failing; this says why")]
            {
                eprintln!("--- stderr of `{}` ({:?}):", self.name, self.ended);
                eprintln!("{}", self.err.tail(SHOWN_BYTES));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_is_waited_for_and_the_process_is_gone_afterwards() {
        let script = "echo one; echo two >&2; read x < /dev/zero";
        let process = Spec::new("/bin/sh").args(["-c", script]).start().unwrap();
        process.out.wait_for_text("one").await.unwrap();
        process.err.wait_for_text("two").await.unwrap();
        let folder = PathBuf::from(format!("/proc/{}", process.pid()));
        assert!(folder.exists());
        drop(process);
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn an_end_is_told_with_code_and_output_and_nothing_is_inherited() {
        let script = "echo \"$CARGO_MANIFEST_DIR|$MINE\"; echo no >&2; exit 7";
        let ended =
            Spec::new("/bin/sh").args(["-c", script]).env("MINE", "yes").run().await.unwrap();
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(7), "|yes\n", "no\n")
        );
    }

    #[tokio::test]
    async fn a_text_that_never_comes_is_an_error_once_the_stream_ends() {
        let process = Spec::new("/bin/sh").args(["-c", "echo only this"]).start().unwrap();
        let error = process.out.wait_for_text("something else").await.unwrap_err();
        assert!(error.to_string().contains("only this"), "{error}");
    }
}
