//! The server's side of a supervised command.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt as _;
use rustix::process::{Pid, Signal};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::sync::CancellationToken;

use super::environment;
use super::process::Lost;
use super::protocol::{Control, Frame, Report, Spec, VERSION, decode, line};
use super::{
    ARGUMENT, GRACE_MS, LINE_BYTES_MAX, STUCK_AFTER_DEADLINE_MS, STUCK_MS, SURVIVOR_MS, boot_ms,
};

/// Variable that names one execution of one command; unique, and in the environment of all that
/// the command starts.
const MARK: &str = "EVERTURN_COMMAND_ID";
/// How long the server itself tries to end the command of a supervisor that is lost.
const LOST_LIMIT: Duration = Duration::from_secs(2);
/// How long the end of a supervisor that has reported is waited for.
const GONE_LIMIT: Duration = Duration::from_secs(1);

/// How supervisors are started. One value serves a node.
#[derive(Debug, Clone)]
pub struct Supervised {
    program: PathBuf,
    argument: OsString,
    extra: Vec<String>,
}

impl Supervised {
    /// Supervisors are this very binary, whose `main` must call [`super::dispatch`] first. It is
    /// executed through `/proc/self/exe`, so that it is the same one even after an upgrade has
    /// replaced the file.
    #[must_use]
    pub fn this_binary() -> Self {
        Self::new("/proc/self/exe")
    }

    /// Supervisors are another binary, which calls [`super::main`] when its first argument is
    /// [`ARGUMENT`].
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), argument: ARGUMENT.into(), extra: Vec::new() }
    }

    /// Adds names of environment variables that commands may see beyond the built-in list. What
    /// looks like a secret stays hidden even so.
    #[must_use]
    pub fn pass(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.extra.extend(names);
        self
    }

    /// Starts a supervisor and tells it what to run. Dropping the returned value, or this future,
    /// ends the command at once with everything that it started.
    ///
    /// # Errors
    /// [`StartError`]; the command did not run then.
    pub async fn start(&self, command: Command<'_>) -> Result<Running, StartError> {
        let mark = format!("{:032x}", rand::random::<u128>());
        let mut lease = command.lease;
        let deadline = *lease.borrow_and_update();
        let mut environment = command.environment;
        environment.push((MARK.to_owned(), mark.clone()));
        let spec = line(&Spec {
            version: VERSION,
            command: command.text,
            environment,
            timeout_ms: u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX),
            deadline,
        });
        if spec.len() > LINE_BYTES_MAX {
            return Err(StartError::TooLong);
        }
        // The child enters exactly the open folder, whatever its name leads to by now.
        let folder = format!("/proc/self/fd/{}", command.folder.as_fd().as_raw_fd());
        let mut child = tokio::process::Command::new(&self.program)
            .arg(&self.argument)
            .arg0("everturn-supervisor")
            .env_clear()
            .envs(environment::passed(std::env::vars_os(), &self.extra))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| StartError::Spawn { program: self.program.clone(), source })?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(StartError::Pipe(io::Error::from(io::ErrorKind::BrokenPipe)));
        };
        input.write_all(&spec).await.map_err(StartError::Pipe)?;
        let limit = command.timeout + Duration::from_millis(GRACE_MS + SURVIVOR_MS + STUCK_MS);
        Ok(Running {
            child,
            input: Some(input),
            frames: FramedRead::new(output, LinesCodec::new_with_max_length(LINE_BYTES_MAX)),
            lease: Some(lease),
            deadline,
            overdue: None,
            cancel: command.cancel,
            stopping: false,
            stuck_at: Instant::now() + limit,
            mark: format!("{MARK}={mark}"),
            last: None,
        })
    }
}

/// What to run, and what ends it.
#[derive(Debug)]
pub struct Command<'a> {
    /// For the shell.
    pub text: String,
    /// Where it runs.
    pub folder: &'a cap_std::fs::Dir,
    /// Additions to its environment.
    pub environment: Vec<(String, String)>,
    /// How long it may run; time that the machine sleeps does not count.
    pub timeout: Duration,
    /// Stops it, with a grace.
    pub cancel: CancellationToken,
    /// `CLOCK_BOOTTIME` in milliseconds until which it may run; may be moved while it does.
    pub lease: watch::Receiver<u64>,
}

/// A command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The supervisor's binary does not start.
    #[error("the supervisor `{program}` cannot be started: {source}")]
    Spawn {
        /// The binary.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ended before it was told what to run.
    #[error("the supervisor ended before it was told what to run: {0}")]
    Pipe(io::Error),
    /// Command and environment together are longer than [`LINE_BYTES_MAX`].
    #[error("command and environment are too long together")]
    TooLong,
}

impl StartError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Spawn { .. } | Self::Pipe(_) => "supervisor_unavailable",
            Self::TooLong => "command_too_long",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Spawn { .. } | Self::Pipe(_) => {
                "the server cannot start processes: check its limits and that /proc is there"
            }
            Self::TooLong => "write the command to a file and run the file",
        }
    }
}

/// What a running command reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It runs, in a process group with this id. Comes first.
    Started(i32),
    /// The shell could not be started; nothing ran. Comes last.
    Refused(String),
    /// Output, in order; its two streams are one, as on a terminal.
    Output(Vec<u8>),
    /// The end of an output that was longer than is passed on.
    Tail {
        /// Bytes left out before it.
        skipped: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// It is over. Comes last.
    Ended(Report),
    /// The supervisor is gone or silent, and how far the command got is not known. Whatever could
    /// be recognised as its work was killed. Comes last.
    Lost {
        /// What was observed.
        why: String,
        /// Processes that are still there.
        left: usize,
    },
}

/// A supervised command. Dropping it ends the command at once.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Open as long as the command may run: its end is what ends the command.
    input: Option<ChildStdin>,
    frames: FramedRead<ChildStdout, LinesCodec>,
    /// `None` once nobody moves the deadline any more.
    lease: Option<watch::Receiver<u64>>,
    deadline: u64,
    /// When a supervisor that lets the deadline pass is given up on.
    overdue: Option<Instant>,
    cancel: CancellationToken,
    stopping: bool,
    /// When a supervisor that says nothing final is given up on.
    stuck_at: Instant,
    mark: String,
    /// What is to be concluded.
    last: Option<Last>,
}

#[derive(Debug)]
enum Last {
    Said(Event),
    Lost(&'static str),
}

impl Running {
    /// The next event. May be dropped and called again without losing one. Passes on what `cancel`
    /// and `lease` say meanwhile, so this or [`Running::tend`] must be polled as long as the
    /// command runs.
    pub async fn next(&mut self) -> Event {
        loop {
            if self.last.is_some() {
                return self.conclude().await;
            }
            let (wake, lease_first) = self.wake_at();
            // Nothing in the branches waits, so that dropping this future loses nothing.
            tokio::select! {
                biased;
                () = self.cancel.cancelled(), if !self.stopping => self.stop(),
                deadline = moved(&mut self.lease) => self.moved(deadline),
                frame = self.frames.next() => {
                    let frame = match frame {
                        Some(Ok(text)) => serde_json::from_str(&text).ok(),
                        Some(Err(_)) => None,
                        None => {
                            self.last = Some(Last::Lost("the supervisor vanished"));
                            continue;
                        }
                    };
                    match frame.and_then(event) {
                        Some(event @ (Event::Refused(_) | Event::Ended(_))) => {
                            self.last = Some(Last::Said(event));
                        }
                        Some(event) => return event,
                        None => {
                            self.last = Some(Last::Lost("the supervisor said something unreadable"));
                        }
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if !lease_first || self.overdue.is_some() {
                        self.last = Some(Last::Lost("the supervisor does not answer"));
                    } else if self.deadline <= boot_ms() {
                        self.overdue = Some(
                            Instant::now() + Duration::from_millis(STUCK_AFTER_DEADLINE_MS),
                        );
                        self.poke();
                    }
                }
            }
        }
    }

    /// Only passes on what `cancel` and `lease` say, for as long as it is polled, and takes no
    /// events: the command is held back by its own output. Never completes.
    pub async fn tend(&mut self) {
        loop {
            tokio::select! {
                () = self.cancel.cancelled(), if !self.stopping => self.stop(),
                deadline = moved(&mut self.lease) => self.moved(deadline),
            }
        }
    }

    /// When to look again without having been told anything, and whether the lease is why.
    fn wake_at(&self) -> (Instant, bool) {
        let lease = self.overdue.unwrap_or_else(|| {
            let left = self.deadline.saturating_sub(boot_ms());
            // A far deadline must not overflow the clock.
            Instant::now() + Duration::from_millis(left.min(86_400_000))
        });
        (lease.min(self.stuck_at), lease < self.stuck_at)
    }

    fn stop(&mut self) {
        self.stopping = true;
        let limit = Instant::now() + Duration::from_millis(GRACE_MS + STUCK_MS);
        self.stuck_at = self.stuck_at.min(limit);
        self.poke();
        self.say(&Control::Stop(true));
    }

    fn moved(&mut self, deadline: Option<u64>) {
        match deadline {
            Some(deadline) => {
                self.deadline = deadline;
                self.overdue = None;
                self.say(&Control::Deadline(deadline));
            }
            None => self.lease = None,
        }
    }

    /// Writes a control line. It is far smaller than what a pipe takes in one piece; if the pipe
    /// is full nevertheless, the supervisor is stuck, which is noticed elsewhere.
    fn say(&self, control: &Control) {
        if let Some(input) = &self.input
            && let Err(error) = rustix::io::write(input, &line(control))
        {
            tracing::debug!(%error, "the supervisor could not be told");
        }
    }

    /// Wakes a supervisor that somebody has suspended.
    fn poke(&self) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }

    /// Lets go of the supervisor and gives the last event; again when asked again.
    async fn conclude(&mut self) -> Event {
        self.input = None;
        let (event, wait) = match &self.last {
            Some(Last::Said(event)) => {
                // One with survivors stays to go on trying.
                let stays = matches!(event, Event::Ended(report) if report.survivors > 0);
                (event.clone(), !stays)
            }
            Some(Last::Lost(why)) => {
                let why = (*why).to_owned();
                (Event::Lost { why, left: self.end_lost().await }, true)
            }
            None => (Event::Lost { why: "nothing was heard".to_owned(), left: 0 }, true),
        };
        if wait {
            let _ = tokio::time::timeout(GONE_LIMIT, self.child.wait()).await;
        }
        event
    }

    /// Ends what can be found of a command whose supervisor is of no use any more. The supervisor
    /// is waited for only afterwards: until then its ids cannot be given to anybody else.
    async fn end_lost(&self) -> usize {
        let Some(supervisor) = self.child.id().and_then(|id| i32::try_from(id).ok()) else {
            return 0;
        };
        let lost = Lost { supervisor, mark: self.mark.clone() };
        tokio::task::spawn_blocking(move || lost.end(LOST_LIMIT)).await.unwrap_or(1)
    }
}

/// A frame as an event; `None` if its bytes are not what they should be.
fn event(frame: Frame) -> Option<Event> {
    Some(match frame {
        Frame::Started { pid } => Event::Started(pid),
        Frame::Refused { message } => Event::Refused(message),
        Frame::Output(text) => Event::Output(decode(&text)?),
        Frame::Tail { skipped, bytes } => Event::Tail { skipped, bytes: decode(&bytes)? },
        Frame::Exit(report) => Event::Ended(report),
    })
}

/// The new deadline when there is one; `None` when there will be none any more.
async fn moved(lease: &mut Option<watch::Receiver<u64>>) -> Option<u64> {
    match lease {
        Some(lease) => lease.changed().await.ok().map(|()| *lease.borrow_and_update()),
        None => std::future::pending().await,
    }
}
