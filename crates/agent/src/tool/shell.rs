//! `shell`: runs a command under its supervisor.

use std::time::Duration;

use async_trait::async_trait;
use everturn_core::Effect;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::arguments::{parse, refusal};
use super::guard::Guard;
use super::text::{Clipped, Decoder, floor};
use super::{Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::supervisor::{Command, End, Event, Report, Supervised};
use crate::workspace::Workspace;

/// Bytes of a command's text. The kernel takes at most 128 KiB for one argument.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Seconds that a command may run if the model says nothing.
pub const TIMEOUT_S_DEFAULT: u64 = 120;
/// Seconds that a model may ask for.
pub const TIMEOUT_S_MAX: u64 = 600;
/// Bytes of one piece of output that is shown while a command runs.
pub const OUTPUT_CHUNK_BYTES: usize = 4 << 10;
/// Milliseconds for which small pieces of output are collected into one, the first one apart.
pub const OUTPUT_INTERVAL_MS: u64 = 50;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    command: String,
    timeout_s: Option<u64>,
    cwd: Option<String>,
}

/// The tool.
#[derive(Debug)]
pub(super) struct Shell {
    spec: ToolSpec,
    workspace: Workspace,
    supervised: Supervised,
}

impl Shell {
    pub(super) fn new(workspace: Workspace, supervised: Supervised) -> Self {
        let spec = ToolSpec {
            name: "shell".to_owned(),
            description: format!(
                "Runs a command with bash (sh where there is none) in the workspace and returns its \
                 output, stdout and stderr together, and how it ended. It has no terminal and no \
                 input. Everything that it starts ends with it: nothing can be left running in the \
                 background. Of a long output the beginning and the end are returned \
                 ({} KiB together).",
                super::RESULT_BYTES_MAX >> 10
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "command": {
                        "type": "string",
                        "description": "the command line",
                    },
                    "timeout_s": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": TIMEOUT_S_MAX,
                        "description": format!(
                            "seconds after which it is ended; {TIMEOUT_S_DEFAULT} if not given"
                        ),
                    },
                    "cwd": {
                        "type": "string",
                        "description": "folder to run it in, relative to the workspace",
                    },
                },
                "required": ["command"],
                "additionalProperties": false,
            }),
            effect: Effect::Write,
        };
        Self { spec, workspace, supervised }
    }
}

#[async_trait]
impl Tool for Shell {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        if let Some(what) = wrong(&arguments) {
            return ToolOutcome::Failed(refusal(&self.spec, &what));
        }
        let guard = Guard::of(&invocation);
        if let Err(outcome) = guard.check() {
            return outcome;
        }
        let folder = match self.workspace.open_folder(arguments.cwd.as_deref().unwrap_or(".")) {
            Ok(folder) => folder,
            Err(error) => return ToolOutcome::Failed(explain(&error)),
        };
        let timeout_s = arguments.timeout_s.unwrap_or(TIMEOUT_S_DEFAULT);
        let command = Command {
            text: arguments.command,
            folder: &folder,
            environment: vec![(
                "EVERTURN_IDEMPOTENCY_KEY".to_owned(),
                invocation.idempotency_key.clone(),
            )],
            timeout: Duration::from_secs(timeout_s),
            cancel: invocation.cancel.clone(),
            lease: invocation.lease_deadline.clone(),
        };
        let mut running = match self.supervised.start(command).await {
            Ok(running) => running,
            Err(error) => {
                return ToolOutcome::Failed(format!(
                    "the command did not run: {error} ({}). {}",
                    error.code(),
                    error.hint()
                ));
            }
        };

        let time_up = Instant::now() + Duration::from_secs(timeout_s);
        let mut output = Output::new(invocation.output.clone());
        let event = loop {
            if output.live.full() {
                // Nothing more is taken in until it is shown, so that a viewer who reads slowly
                // slows the command. Its end must not wait for viewers, though.
                tokio::select! {
                    () = output.live.send() => {}
                    () = running.tend() => {}
                    () = guard.ended() => output.live.close(),
                    () = tokio::time::sleep_until(time_up) => output.live.close(),
                }
                continue;
            }
            let event = tokio::select! {
                biased;
                event = running.next() => event,
                () = output.live.send_when_due() => continue,
            };
            if let Some(last) = output.take(event) {
                break last;
            }
        };
        let text = output.finish(&guard).await;
        conclude(event, text, timeout_s)
    }
}

/// What is wrong with arguments that have the right types.
fn wrong(arguments: &Arguments) -> Option<String> {
    let command = &arguments.command;
    if command.trim().is_empty() {
        return Some("`command` is empty".to_owned());
    }
    if command.len() > COMMAND_BYTES_MAX {
        return Some(format!(
            "`command` has {} bytes and may have {COMMAND_BYTES_MAX}; write a file and run that",
            command.len()
        ));
    }
    if command.contains('\0') {
        return Some("`command` contains a NUL character".to_owned());
    }
    if arguments.timeout_s.is_some_and(|asked| asked == 0 || asked > TIMEOUT_S_MAX) {
        return Some(format!("`timeout_s` must be from 1 to {TIMEOUT_S_MAX}"));
    }
    None
}

/// Output on its two ways: to the result, and to whoever watches.
struct Output {
    decoder: Decoder,
    kept: Clipped,
    live: Live,
}

impl Output {
    fn new(sender: mpsc::Sender<String>) -> Self {
        let live = Live { sender, pending: String::new(), next_at: Instant::now(), open: true };
        Self { decoder: Decoder::default(), kept: Clipped::default(), live }
    }

    fn push(&mut self, text: &str) {
        self.kept.push(text);
        self.live.push(text);
    }

    /// Takes an event in; gives it back if it is the last one.
    fn take(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Started(_) => everturn_crash::pass(everturn_crash::Point::CallSpawned),
            Event::Output(bytes) => {
                let text = self.decoder.push(&bytes);
                self.push(&text);
            }
            Event::Tail { skipped: 0, bytes } => {
                let text = self.decoder.push(&bytes);
                self.kept.push(&text);
                self.live.push(NOT_SHOWN);
            }
            Event::Tail { skipped, bytes } => {
                let last = self.decoder.finish();
                self.push(last);
                self.live.push(NOT_SHOWN);
                // The tail may begin within a character.
                let rest = bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count();
                self.kept.skip(skipped + rest as u64);
                let text = self.decoder.push(&bytes[rest..]);
                self.kept.push(&text);
            }
            last => return Some(last),
        }
        None
    }

    /// Shows what is still to be shown and gives the text for the result.
    async fn finish(mut self, guard: &Guard) -> String {
        let last = self.decoder.finish();
        self.push(last);
        while self.live.due() {
            tokio::select! {
                () = self.live.send() => {}
                () = guard.ended() => self.live.close(),
            }
        }
        self.kept.finish()
    }
}

/// Stands in the shown output for what comes after it.
const NOT_SHOWN: &str = "\n[… there is more output than is shown here; the result has its end …]\n";

/// Output for those who watch, in pieces of a bounded size and number.
struct Live {
    sender: mpsc::Sender<String>,
    pending: String,
    /// Until when small pieces are collected.
    next_at: Instant,
    open: bool,
}

impl Live {
    fn push(&mut self, text: &str) {
        if self.open {
            self.pending.push_str(text);
        }
    }

    fn due(&self) -> bool {
        self.open && !self.pending.is_empty()
    }

    fn full(&self) -> bool {
        self.open && self.pending.len() >= OUTPUT_CHUNK_BYTES
    }

    /// Shows nothing more.
    fn close(&mut self) {
        self.open = false;
        self.pending.clear();
    }

    /// Hands one piece over once there is room for it.
    async fn send(&mut self) {
        let Ok(permit) = self.sender.reserve().await else {
            self.open = false;
            self.pending.clear();
            return;
        };
        let end = floor(&self.pending, OUTPUT_CHUNK_BYTES);
        permit.send(self.pending.drain(..end).collect());
        self.next_at = Instant::now() + Duration::from_millis(OUTPUT_INTERVAL_MS);
    }

    /// The same when pieces have been collected long enough; waits for ever if there are none.
    async fn send_when_due(&mut self) {
        if !self.due() {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.next_at).await;
        self.send().await;
    }
}

/// The outcome, with a last line that says how it ended.
fn conclude(event: Event, mut text: String, timeout_s: u64) -> ToolOutcome {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match event {
        Event::Ended(report) => {
            text.push_str(&ending(&report, timeout_s));
            match report.end {
                End::Exited if report.code == Some(0) => ToolOutcome::Succeeded(text),
                End::Stopped | End::Deadline => ToolOutcome::Unknown(text),
                _ => ToolOutcome::Failed(text),
            }
        }
        Event::Refused(message) => {
            ToolOutcome::Failed(format!("the command did not run: {message}"))
        }
        Event::Lost { why, left } => {
            text.push_str(&format!(
                "[{why}; the outcome of the command is unknown: it may have done all of its work, \
                 some or none. What could be found of it was ended{}.]",
                match left {
                    0 => String::new(),
                    left => format!(", but {left} of its processes may still be running"),
                }
            ));
            ToolOutcome::Unknown(text)
        }
        // Not last events; `take` keeps them.
        Event::Started(_) | Event::Output(_) | Event::Tail { .. } => ToolOutcome::Failed(text),
    }
}

fn ending(report: &Report, timeout_s: u64) -> String {
    let seconds = report.duration_ms as f64 / 1_000.0;
    let how = match (report.end, report.code, report.signal) {
        (End::Exited, Some(code), _) => format!("exit code {code}, {seconds:.1} s"),
        (End::Exited, None, Some(signal)) => {
            format!("ended by signal {signal}{}, {seconds:.1} s", signal_name(signal))
        }
        (End::Exited, None, None) => format!("ended, {seconds:.1} s"),
        (End::TimedOut, ..) => {
            format!("ended at its time limit of {timeout_s} s; what it did until then stays done")
        }
        (End::Stopped, ..) => {
            format!("stopped after {seconds:.1} s; what it did until then stays done")
        }
        (End::Deadline, ..) => format!(
            "ended after {seconds:.1} s: the server was about to lose this session to another one"
        ),
        (End::ServerGone | End::Terminated, ..) => format!(
            "ended after {seconds:.1} s by somebody outside; what it did until then stays done"
        ),
    };
    let mut text = format!("[{how}]");
    if report.leftovers > 0 {
        text.push_str(&format!(
            "\n[{} still running in the background were ended with it]",
            processes(report.leftovers)
        ));
    }
    if report.survivors > 0 {
        text.push_str(&format!(
            "\n[{} could not be ended and may still be running]",
            processes(report.survivors)
        ));
    }
    text
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// The name of a signal that commands are commonly ended by, in brackets.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        25 => " (SIGXFSZ)",
        31 => " (SIGSYS)",
        _ => "",
    }
}
