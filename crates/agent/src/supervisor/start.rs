//! How a process becomes a supervisor: what it sets up before the command runs.

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::stdio::{stdin, stdout};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::child::Supervisor;
use super::output::Relay;
use super::protocol::{End, Frame, Report, Spec, VERSION, line};
use super::{CHUNK_BYTES, LINE_BYTES_MAX, boot_ms};

/// Shells that run a command, the first one that exists.
const SHELLS: &[&str] = &["/bin/bash", "/usr/bin/bash", "/bin/sh"];
/// Becomes a supervisor and starts the command. `None`: the server went away or its lease ran out
/// before there was anything to run.
pub(super) fn prepare() -> Result<Option<Supervisor>, String> {
    // A session of its own: no terminal whose keys reach the command, and an id by which the
    // server finds what is left should this process be killed.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("cannot adopt orphans: {error}"))?;
    let children = signals(&[SIGCHLD])?;
    let told = signals(&[SIGTERM, SIGINT, SIGHUP])?;
    let timer =
        timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|error| format!("cannot make a timer: {error}"))?;
    for end in [stdin(), stdout()] {
        rustix::io::ioctl_fionbio(end, true).map_err(|error| format!("bad pipe: {error}"))?;
    }

    let mut input = Lines::default();
    let first = loop {
        let _ = poll(&mut [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)], None);
        let open = input.fill();
        if let Some(first) = input.next() {
            break first;
        }
        if !open {
            return Ok(None);
        }
    };
    let spec: Spec = serde_json::from_slice(&first)
        .map_err(|error| format!("the server and its helper do not fit together: {error}"))?;
    if spec.version != VERSION {
        return Err(format!("the server speaks version {}, this is {VERSION}", spec.version));
    }
    if spec.deadline <= boot_ms() {
        let report = Report {
            end: End::Deadline,
            code: None,
            signal: None,
            duration_ms: 0,
            leftovers: 0,
            survivors: 0,
        };
        let _ = rustix::io::write(stdout(), &line(&Frame::Exit(report)));
        return Ok(None);
    }

    let shell = SHELLS.iter().find(|path| std::path::Path::new(path).exists()).unwrap_or(&"sh");
    let (output, writer) =
        std::io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
    rustix::io::ioctl_fionbio(&output, true).map_err(|error| format!("bad pipe: {error}"))?;
    let second = writer.try_clone().map_err(|error| format!("cannot copy a pipe: {error}"))?;
    let started = Instant::now();
    // The command value holds the writing ends and is dropped with this statement: from then on
    // only the command has them.
    let child = Command::new(shell)
        .arg("-c")
        .arg(&spec.command)
        .envs(spec.environment)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(second)
        .spawn()
        .map_err(|error| format!("cannot start {shell}: {error}"))?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    let supervisor = Supervisor {
        main: Pid::from_child(&child),
        status: None,
        started,
        duration: None,
        childless: false,
        time_up: started + Duration::from_millis(spec.timeout_ms),
        deadline: spec.deadline,
        input: Some(input),
        output: Some(output),
        relay: Some(Relay::default()),
        out: line(&Frame::Started { pid }),
        sent: 0,
        ending: None,
        drain_until: None,
        final_frames: false,
        children,
        told,
        timer,
    };
    supervisor.arm();
    Ok(Some(supervisor))
}

/// A pipe that gets a byte whenever one of the signals arrives.
fn signals(which: &[i32]) -> Result<PipeReader, String> {
    let failed = |error: std::io::Error| format!("cannot watch signals: {error}");
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    rustix::io::ioctl_fionbio(&reader, true).map_err(|error| failed(error.into()))?;
    for signal in which {
        let copy = writer.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(*signal, OwnedFd::from(copy)).map_err(failed)?;
    }
    Ok(reader)
}

/// Lines from the server.
#[derive(Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
}

impl Lines {
    /// Reads what is there. `false` once the server is gone, or says what no server says.
    pub(super) fn fill(&mut self) -> bool {
        let mut bytes = [0; CHUNK_BYTES];
        loop {
            match rustix::io::read(stdin(), &mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return false;
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
        line.pop();
        Some(line)
    }
}
