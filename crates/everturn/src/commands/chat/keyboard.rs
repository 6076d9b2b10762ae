//! The person's side of a chat: a line editor, or lines of a pipe, on a thread of its own.
//!
//! While a turn streams there is no prompt: the thread only watches whether a key is pressed, without
//! taking it. The key then goes to the line editor, and what streams meanwhile appears above it.

use std::io::BufRead as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};
use tokio::sync::mpsc;

use crate::error::{CliError, Fault, Result};

/// Lines of history that are kept.
const HISTORY_LINES: usize = 1_000;

/// What the person did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A whole line.
    Line(String),
    /// A key, while nothing asked for a line.
    Key,
    /// Ctrl-C at the prompt.
    Interrupt,
    /// Ctrl-D, or the end of the pipe.
    End,
}

enum Do {
    Prompt,
    Watch,
}

/// Asks the thread for lines and takes what it says.
pub(super) struct Keyboard {
    typed: mpsc::UnboundedReceiver<Typed>,
    asks: Option<(std::sync::mpsc::Sender<Do>, Arc<OwnedFd>)>,
}

/// Prints above the prompt while it is being edited.
pub(super) type Above = Box<dyn rustyline::ExternalPrinter + Send>;

impl Keyboard {
    /// Lines of stdin as they come.
    pub(super) fn pipe() -> Self {
        let (send, typed) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if send.send(Typed::Line(line)).is_err() {
                    return;
                }
            }
            // Nobody listens any more: fine.
            let _ = send.send(Typed::End);
        });
        Self { typed, asks: None }
    }

    /// A line editor on the terminal.
    pub(super) fn terminal(history: PathBuf) -> Result<(Self, Above)> {
        let failed = |error: &dyn std::fmt::Display| {
            CliError::new(Fault::Io, format!("the terminal cannot be used: {error}"))
                .hint("with stdin from a pipe, every line is one input")
        };
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .map_err(|error| failed(&error))?
            .auto_add_history(true)
            .build();
        let mut editor: Editor<(), DefaultHistory> =
            Editor::with_config(config).map_err(|error| failed(&error))?;
        // No history yet, or one that cannot be read: nothing that a person must be told.
        let _ = editor.load_history(&history);
        let above = editor.create_external_printer().map_err(|error| failed(&error))?;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(Arc::new)
            .map_err(|error| failed(&error))?;
        let (ask, asks) = std::sync::mpsc::channel();
        let (send, typed) = mpsc::unbounded_channel();
        let woken = Arc::clone(&wake);
        std::thread::spawn(move || serve(editor, &history, &asks, &woken, &send));
        Ok((Self { typed, asks: Some((ask, wake)) }, Box::new(above)))
    }

    /// Shows the prompt and takes a line.
    pub(super) fn prompt(&self) {
        self.ask(Do::Prompt);
    }

    /// Only notices whether a key is pressed.
    pub(super) fn watch(&self) {
        self.ask(Do::Watch);
    }

    fn ask(&self, what: Do) {
        if let Some((asks, wake)) = &self.asks {
            // Woken first: the thread takes the wake-up back when it takes what is asked, so that a
            // late one never ends what was only just begun. The thread ends with the process only; a
            // failure here is that of a dead terminal, which shows as the end of input.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
            let _ = asks.send(what);
        }
    }

    /// What the person does next. Can be dropped and called again without losing anything.
    pub(super) async fn next(&mut self) -> Typed {
        self.typed.recv().await.unwrap_or(Typed::End)
    }
}

fn serve(
    mut editor: Editor<(), DefaultHistory>,
    history: &std::path::Path,
    asks: &std::sync::mpsc::Receiver<Do>,
    wake: &OwnedFd,
    send: &mpsc::UnboundedSender<Typed>,
) {
    for ask in asks {
        // Whatever was asked is being done now.
        let _ = rustix::io::read(wake, &mut [0_u8; 8]);
        let typed = match ask {
            Do::Watch => match watch(wake) {
                Ok(true) => Typed::Key,
                Ok(false) => continue,
                Err(_) => Typed::End,
            },
            Do::Prompt => match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.append_history(history);
                    Typed::Line(line)
                }
                Err(ReadlineError::Interrupted) => Typed::Interrupt,
                Err(_) => Typed::End,
            },
        };
        if send.send(typed).is_err() {
            return;
        }
    }
}

/// Waits for a key (`true`) or for the next thing to do (`false`). Keys are neither shown nor taken.
fn watch(wake: &OwnedFd) -> rustix::io::Result<bool> {
    let _quiet = Quiet::new()?;
    let stdin = rustix::stdio::stdin();
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let [key, next] = fds;
        if !next.revents().is_empty() {
            return Ok(false);
        }
        if !key.revents().is_empty() {
            return Ok(true);
        }
    }
}

/// The terminal without echo, and with keys that need no Enter; as it was again when dropped.
struct Quiet(Termios);

impl Quiet {
    fn new() -> rustix::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

/// The terminal's settings as they are now, put back when dropped: whatever the thread was doing when
/// the process ends.
pub(super) struct Restore(Option<Termios>);

impl Restore {
    pub(super) fn new() -> Self {
        Self(tcgetattr(rustix::stdio::stdin()).ok())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }
}
