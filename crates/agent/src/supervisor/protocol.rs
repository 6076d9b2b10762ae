//! The lines on the two pipes between server and supervisor.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Counts changes of these types; both ends are normally the same binary, and say so if not.
pub(super) const VERSION: u32 = 1;

/// What to run: the first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    /// [`VERSION`].
    pub(super) version: u32,
    /// For the shell.
    pub(super) command: String,
    /// Added to the environment that the supervisor itself was given.
    pub(super) environment: Vec<(String, String)>,
    /// Milliseconds, asleep ones not counted.
    pub(super) timeout_ms: u64,
    /// `CLOCK_BOOTTIME` in milliseconds.
    pub(super) deadline: u64,
}

/// What the server says afterwards, a line each.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Control {
    /// The lease is good until then (`CLOCK_BOOTTIME`, milliseconds).
    Deadline(u64),
    /// End the command.
    Stop(bool),
}

/// What the supervisor says, a line each.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Frame {
    /// The command runs; first of all frames.
    Started {
        /// Its process id, which is its group's id as well.
        pid: i32,
    },
    /// It could not be started, and no other frame follows.
    Refused {
        /// What the system said.
        message: String,
    },
    /// Output, base64.
    Output(String),
    /// The end of an output that was longer than is passed on, base64.
    Tail {
        /// Bytes between the last [`Frame::Output`] and these.
        skipped: u64,
        /// The bytes.
        bytes: String,
    },
    /// All is over; last of all frames.
    Exit(Report),
}

/// Why a command is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It ended by itself.
    Exited,
    /// Its time was up.
    TimedOut,
    /// The server asked.
    Stopped,
    /// The lease ran out.
    Deadline,
    /// The server died.
    ServerGone,
    /// The supervisor was told to end by a signal from somebody else.
    Terminated,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Why it is over.
    pub end: End,
    /// Exit code of the shell, if it exited.
    pub code: Option<i32>,
    /// Number of the signal that ended the shell, if one did.
    pub signal: Option<i32>,
    /// Milliseconds from its start to the end of the shell.
    pub duration_ms: u64,
    /// Processes that the shell left behind and that had to be ended.
    pub leftovers: u32,
    /// Processes that could not be ended.
    pub survivors: u32,
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// A value as one line.
pub(super) fn line<T: Serialize>(value: &T) -> Vec<u8> {
    // These types have neither maps with odd keys nor failing serialisers.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn controls_look_as_documented() {
        assert_eq!(line(&Control::Deadline(7)), b"{\"deadline\":7}\n");
        assert_eq!(line(&Control::Stop(true)), b"{\"stop\":true}\n");
        assert!(serde_json::from_str::<Control>("{\"halt\":true}").is_err());
    }

    #[test]
    fn a_report_survives_the_pipe() {
        let report = Report {
            end: End::TimedOut,
            code: None,
            signal: Some(15),
            duration_ms: 3,
            leftovers: 1,
            survivors: 0,
        };
        let bytes = line(&Frame::Exit(report));
        assert_eq!(serde_json::from_slice::<Frame>(&bytes).unwrap(), Frame::Exit(report));
    }
}
