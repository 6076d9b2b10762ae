//! Finding and ending processes, by what `/proc` says about them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Clock ticks since boot: tells a process from a later one with the same id.
    pub(super) started: u64,
    /// Ended, but not waited for yet.
    pub(super) ended: bool,
}

/// All processes that can be seen. Those that come and go meanwhile may be missing.
pub(super) fn all() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        processes.extend(of(pid));
    }
    Ok(processes)
}

/// One process, if it exists.
pub(super) fn of(pid: i32) -> Option<Process> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a `/proc/PID/stat`. The second field is a name in brackets that may itself hold brackets
/// and blanks, so fields are counted from the last bracket.
fn parse(stat: &[u8]) -> Option<Process> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    Some(Process {
        pid,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        started: fields.get(19)?.parse().ok()?,
        ended: matches!(*fields.first()?, "Z" | "X" | "x"),
    })
}

/// Those of `processes` that descend from `root`, without it, that have not ended.
pub(super) fn descendants(root: i32, processes: &[Process]) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        // Taken out, so that a table read while it changed cannot send us in a circle.
        for child in children.remove(&parent).unwrap_or_default() {
            open.push(child.pid);
            if !child.ended {
                found.push(*child);
            }
        }
    }
    found
}

/// Sends a signal to exactly this process, never to a later one with the same id.
pub(super) fn signal(process: &Process, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    match of(process.pid) {
        Some(now) if now.started == process.started => Ok(pidfd_send_signal(handle, signal)?),
        _ => Ok(()),
    }
}

/// What the server knows about a command whose supervisor no longer answers.
pub(super) struct Lost {
    /// The supervisor, not waited for yet: as long as that is so its id is given to nobody else,
    /// neither as a process nor as a session.
    pub(super) supervisor: i32,
    /// `NAME=value`, unique to this command, in the environment of all that it started.
    pub(super) mark: String,
}

impl Lost {
    /// Kills the supervisor and all that can be recognised as its command's, again and again until
    /// there is nothing left or `limit` is over. Gives how many are left.
    pub(super) fn end(&self, limit: Duration) -> usize {
        let until = Instant::now() + limit;
        loop {
            let Ok(processes) = all() else { return 0 };
            let below = descendants(self.supervisor, &processes);
            let mut left = 0;
            for process in &processes {
                let ours = process.pid == self.supervisor
                    || process.session == self.supervisor
                    || below.iter().any(|other| other.pid == process.pid)
                    || self.marked(process.pid);
                if ours && !process.ended {
                    left += 1;
                    let _ = signal(process, Signal::KILL);
                }
            }
            if left == 0 || Instant::now() >= until {
                return left;
            }
            // A killed process takes a moment to go, and there is no one event to wait for: they
            // are not our children.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn marked(&self, pid: i32) -> bool {
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        environment.split(|byte| *byte == 0).any(|entry| entry == self.mark.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_read_past() {
        let stat = b"42 (a ) R 1 (b) S 7 8 9 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let process = parse(stat).unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.session), (42, 7, 8, 9));
        assert_eq!((process.started, process.ended), (12345, false));
        assert_eq!(parse(b"42 (x"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_circles_end() {
        let make = |pid, parent| Process {
            pid,
            parent,
            group: 0,
            session: 0,
            started: 0,
            ended: pid == 3,
        };
        let table = [make(2, 1), make(3, 2), make(4, 3), make(5, 9), make(8, 8)];
        let mut found: Vec<_> = descendants(1, &table).iter().map(|one| one.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 4]);
        assert_eq!(descendants(8, &table).len(), 1);
    }

    #[test]
    fn this_process_is_in_the_table() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all().unwrap().iter().any(|process| process.pid == own && !process.ended));
    }
}
