//! The supervisor process itself: one thread, one poll loop.
//!
//! Each turn of the loop takes in what happened (children that ended, control lines, clocks,
//! output) and then waits for the next thing. Nothing in it waits for the server to read: a stop,
//! a deadline or the server's death are acted on while output is stuck.

use std::io::{PipeReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::stdio::{stdin, stdout};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use super::output::Relay;
use super::process;
use super::protocol::{Control, End, Frame, Report, line};
use super::start::{Lines, prepare};
use super::{
    CHUNK_BYTES, DRAIN_MS, GRACE_MS, LEFTOVER_GRACE_MS, LEFTOVER_MS, LINGER_MS, SURVIVOR_MS,
    boot_ms,
};

/// Bytes read at once of an output that is no longer passed on.
const DISCARD_BYTES: usize = 64 << 10;
/// Reads of output in one turn of the loop.
const READS_PER_TURN: usize = 16;
/// The first and the longest pause between two rounds of killing.
const SWEEP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

pub(super) fn main() -> ExitCode {
    if rustix::termios::isatty(stdin()) {
        let _ = writeln!(
            std::io::stderr(),
            "this is how the program starts its own helper; it is of no use by hand"
        );
        return ExitCode::from(2);
    }
    match prepare() {
        Ok(Some(mut supervisor)) => supervisor.run(),
        Ok(None) => ExitCode::SUCCESS,
        Err(message) => {
            // The pipe is empty, so a line of this size fits without waiting.
            let _ = rustix::io::write(stdout(), &line(&Frame::Refused { message }));
            ExitCode::FAILURE
        }
    }
}

/// How the command is being brought to its end.
pub(super) struct Ending {
    end: End,
    /// When `SIGTERM` goes out; `None` once it has, or if it is not to.
    term_at: Option<Instant>,
    /// From when on `SIGKILL` goes out.
    kill_at: Instant,
    /// The next round of it, and the pause after that.
    sweep: (Instant, Duration),
    leftovers: u32,
}

pub(super) struct Supervisor {
    pub(super) main: Pid,
    pub(super) status: Option<WaitStatus>,
    pub(super) started: Instant,
    pub(super) duration: Option<Duration>,
    /// Whether there is no descendant any more.
    pub(super) childless: bool,
    pub(super) time_up: Instant,
    pub(super) deadline: u64,
    /// `None` once the server is gone.
    pub(super) input: Option<Lines>,
    /// `None` once it ended.
    pub(super) output: Option<PipeReader>,
    /// `None` once its last frame is written.
    pub(super) relay: Option<Relay>,
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    pub(super) ending: Option<Ending>,
    pub(super) drain_until: Option<Instant>,
    pub(super) final_frames: bool,
    pub(super) children: PipeReader,
    pub(super) told: PipeReader,
    pub(super) timer: OwnedFd,
}

impl Supervisor {
    fn run(&mut self) -> ExitCode {
        loop {
            // Before looking at what they announce: a child that ends after the look rings again.
            let told = drain(self.told.as_fd());
            drain(self.children.as_fd());
            drain(self.timer.as_fd());
            self.reap();
            self.note_exit();
            if told {
                self.begin(End::Terminated, GRACE_MS);
            }
            self.listen();
            let now = Instant::now();
            self.decide(now);
            self.carry_out(now);
            self.flush();
            self.read_output();
            if self.finished(now) {
                return ExitCode::SUCCESS;
            }
            self.wait(now);
        }
    }

    /// Takes in every child that ended, adopted ones included.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    self.status = Some(status);
                    self.duration = Some(self.started.elapsed());
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    self.childless = true;
                    return;
                }
            }
        }
    }

    /// Begins to end what the command left behind once it has ended by itself. Comes before all
    /// that could end it from outside: that came too late.
    fn note_exit(&mut self) {
        if self.ending.is_none() && self.status.is_some() {
            let term_at = Instant::now() + Duration::from_millis(LEFTOVER_MS);
            let kill_at = term_at + Duration::from_millis(LEFTOVER_GRACE_MS);
            self.ending = Some(Ending {
                end: End::Exited,
                term_at: Some(term_at),
                kill_at,
                sweep: (kill_at, SWEEP.0),
                leftovers: 0,
            });
        }
    }

    /// Takes in what the server says.
    fn listen(&mut self) {
        let Some(mut input) = self.input.take() else { return };
        let mut open = input.fill();
        while let Some(text) = input.next() {
            match serde_json::from_slice(&text) {
                Ok(Control::Deadline(deadline)) => {
                    self.deadline = deadline;
                    self.arm();
                }
                Ok(Control::Stop(true)) => self.begin(End::Stopped, GRACE_MS),
                Ok(Control::Stop(false)) => {}
                // Whatever writes there is not our server.
                Err(_) => open = false,
            }
        }
        if open {
            self.input = Some(input);
        } else {
            self.gone();
        }
    }

    /// Looks at the clocks.
    fn decide(&mut self, now: Instant) {
        if self.deadline <= boot_ms() {
            self.begin(End::Deadline, 0);
        }
        if self.ending.is_none() && self.time_up <= now {
            self.begin(End::TimedOut, GRACE_MS);
        }
    }

    /// Begins to end the command, or hurries it up. The first reason is the one reported.
    fn begin(&mut self, end: End, grace_ms: u64) {
        let now = Instant::now();
        let kill_at = now + Duration::from_millis(grace_ms);
        if grace_ms == 0 {
            // Nobody may be there to read; the command must not wait for that.
            if let Some(relay) = &mut self.relay {
                relay.close();
            }
        }
        match &mut self.ending {
            Some(ending) => {
                ending.kill_at = ending.kill_at.min(kill_at);
                if grace_ms == 0 {
                    ending.term_at = None;
                    ending.sweep.0 = ending.sweep.0.min(kill_at);
                }
            }
            None => {
                self.ending = Some(Ending {
                    end,
                    term_at: (grace_ms > 0).then_some(now),
                    kill_at,
                    sweep: (kill_at, SWEEP.0),
                    leftovers: 0,
                });
            }
        }
    }

    /// Sends the signals that are due.
    fn carry_out(&mut self, now: Instant) {
        if self.childless {
            return;
        }
        let Some(ending) = &self.ending else { return };
        if ending.term_at.is_some_and(|at| at <= now) {
            let reached = self.signal_all(Signal::TERM);
            if let Some(ending) = &mut self.ending {
                ending.term_at = None;
                if ending.end == End::Exited {
                    ending.leftovers = reached;
                }
            }
        } else if ending.kill_at <= now && ending.sweep.0 <= now {
            self.signal_all(Signal::KILL);
            if let Some(ending) = &mut self.ending {
                ending.sweep.0 = now + ending.sweep.1;
                ending.sweep.1 = (ending.sweep.1 * 2).min(SWEEP.1);
            }
        }
    }

    /// Sends a signal to everything that descends from the command; gives how many there are.
    fn signal_all(&self, signal: Signal) -> u32 {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let group = self.main.as_raw_nonzero().get();
        let below = process::all()
            .map(|processes| process::descendants(own, &processes))
            .unwrap_or_default();
        // The group in one step, which no fork escapes. Its id is ours as long as the shell has
        // not been waited for or a member is alive.
        let grouped = self.status.is_none() || below.iter().any(|one| one.group == group);
        if grouped {
            let _ = rustix::process::kill_process_group(self.main, signal);
        }
        for process in &below {
            if !(grouped && process.group == group) {
                let _ = process::signal(process, signal);
            }
        }
        u32::try_from(below.len()).unwrap_or(u32::MAX)
    }

    /// Takes output in as far as it can be passed on or need not be. Leaves after some rounds even
    /// if there is more, because a fast writer must not keep the rest of the loop from its turn.
    fn read_output(&mut self) {
        let mut bytes = [0; DISCARD_BYTES];
        for _ in 0..READS_PER_TURN {
            let (Some(output), Some(relay)) = (&self.output, &mut self.relay) else { return };
            if relay.room() > 0 && self.sent < self.out.len() {
                // The command waits until the server has taken what there is.
                return;
            }
            let size = match relay.room() {
                0 => DISCARD_BYTES,
                room => CHUNK_BYTES.min(usize::try_from(room).unwrap_or(CHUNK_BYTES)),
            };
            match rustix::io::read(output, &mut bytes[..size]) {
                Ok(0) => self.output = None,
                Ok(count) => {
                    if let Some(line) = relay.take(&bytes[..count]) {
                        self.out = line;
                        self.sent = 0;
                        self.flush();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.output = None,
            }
        }
    }

    /// Sends what there is to send, as far as the server takes it.
    fn flush(&mut self) {
        while self.sent < self.out.len() {
            match rustix::io::write(stdout(), &self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.gone();
                    return;
                }
            }
        }
    }

    /// There is nobody any more to read or to say anything.
    fn gone(&mut self) {
        self.input = None;
        self.output = None;
        self.out.clear();
        self.sent = 0;
        self.begin(End::ServerGone, 0);
    }

    /// Whether all is done. Writes the last frames when everything is over.
    fn finished(&mut self, now: Instant) -> bool {
        let Some(ending) = &self.ending else { return false };
        let (end, leftovers) = (ending.end, ending.leftovers);
        let given_up = ending.kill_at + Duration::from_millis(SURVIVOR_MS) <= now;
        let lingered = ending.kill_at + Duration::from_millis(LINGER_MS) <= now;
        if self.input.is_none() || self.final_frames {
            // Nobody to report to, or all reported: only survivors keep us.
            let told = self.input.is_none() || self.sent >= self.out.len();
            return (self.childless || lingered) && told;
        }
        if !self.childless && !given_up {
            return false;
        }
        // Nothing is left to write, but what was written may still have to go through; and an
        // outsider may hold the pipe open, for whom nobody waits.
        let blocked = self.sent < self.out.len();
        if blocked || self.drain_until.is_none() {
            self.drain_until = Some(now + Duration::from_millis(DRAIN_MS));
        }
        if self.output.is_some() && (blocked || self.drain_until.is_some_and(|until| now < until)) {
            return false;
        }
        self.output = None;
        let survivors = if self.childless { 0 } else { self.signal_all(Signal::KILL) };
        let report = Report {
            end,
            code: self.status.and_then(WaitStatus::exit_status),
            signal: self.status.and_then(WaitStatus::terminating_signal),
            duration_ms: u64::try_from(
                self.duration.unwrap_or_else(|| self.started.elapsed()).as_millis(),
            )
            .unwrap_or(u64::MAX),
            leftovers,
            survivors,
        };
        self.out.drain(..self.sent);
        self.sent = 0;
        self.out.extend(self.relay.take().and_then(Relay::finish).unwrap_or_default());
        self.out.extend(line(&Frame::Exit(report)));
        self.final_frames = true;
        self.flush();
        self.childless && self.sent >= self.out.len()
    }

    /// Waits for the next thing to happen.
    fn wait(&self, now: Instant) {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(6);
        fds.push(PollFd::new(&self.children, PollFlags::IN));
        fds.push(PollFd::new(&self.told, PollFlags::IN));
        fds.push(PollFd::new(&self.timer, PollFlags::IN));
        if self.input.is_some() {
            fds.push(PollFd::from_borrowed_fd(stdin(), PollFlags::IN));
            if self.sent < self.out.len() {
                fds.push(PollFd::from_borrowed_fd(stdout(), PollFlags::OUT));
            }
        }
        if let (Some(output), Some(relay)) = (&self.output, &self.relay)
            && (relay.room() == 0 || self.sent >= self.out.len())
        {
            fds.push(PollFd::new(output, PollFlags::IN));
        }
        let timeout = self.next_clock().map(|at| at.saturating_duration_since(now)).map(|left| {
            // Rounded up, so that a clock that is nearly due does not make us spin.
            let left = left + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// The next moment at which something is due by the awake clock.
    fn next_clock(&self) -> Option<Instant> {
        let Some(ending) = &self.ending else { return Some(self.time_up) };
        if self.childless {
            return self.drain_until.filter(|_| !self.final_frames);
        }
        let round = ending.sweep.0.max(ending.kill_at);
        Some(ending.term_at.map_or(round, |at| at.min(round)))
    }

    /// Sets the timer that wakes us at the lease deadline, also out of a suspended machine.
    pub(super) fn arm(&self) {
        let at = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(self.deadline / 1_000).unwrap_or(i64::MAX),
                // A value of zero would switch the timer off.
                tv_nsec: i64::try_from(self.deadline % 1_000 * 1_000_000).unwrap_or(0).max(1),
            },
        };
        let _ = timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::ABSTIME, &at);
    }
}

/// Empties a signal pipe or a timer; `true` if there was something in it.
fn drain(source: BorrowedFd<'_>) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while let Ok(1..) = rustix::io::read(source, &mut bytes) {
        any = true;
    }
    any
}
