//! Where things are shown: data on stdout, talk on stderr, and both in one terminal without running
//! into each other.

use std::io::{self, Write};

use crate::term::{Paint, Term, harmless};

/// What a renderer writes on.
pub(crate) trait Surface {
    /// Data: the model's text.
    fn data(&mut self, text: &str);
    /// Makes sure that data goes on at the beginning of a line.
    fn break_data(&mut self);
    /// Talk: one line for the person.
    fn talk(&mut self, line: &str);
    /// The colours of talk.
    fn paint(&self) -> Paint;
}

/// The process's own streams.
pub(crate) struct Streams {
    term: Term,
    out: io::Stdout,
    err: io::Stderr,
    /// Whether data stands in the middle of a line.
    open: bool,
    /// Data could not be written: whoever read it went away.
    broken: bool,
}

impl Streams {
    pub(crate) fn new(term: Term) -> Self {
        Self { term, out: io::stdout(), err: io::stderr(), open: false, broken: false }
    }

    /// Whether the reader of stdout went away.
    pub(crate) fn broken(&self) -> bool {
        self.broken
    }

    fn write(&mut self, text: &str) {
        if self.broken {
            return;
        }
        let mut out = self.out.lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            self.broken = true;
        }
    }

    /// One line of data, such as a JSON object.
    pub(crate) fn line(&mut self, text: &str) {
        self.write(&format!("{text}\n"));
        self.open = false;
    }
}

impl Surface for Streams {
    fn data(&mut self, text: &str) {
        let Some(last) = text.chars().next_back() else { return };
        // Files and pipes get what the model said; a terminal would obey it.
        if self.term.stdout_tty {
            self.write(&harmless(text));
        } else {
            self.write(text);
        }
        self.open = last != '\n';
    }

    fn break_data(&mut self) {
        if self.open {
            self.write("\n");
            self.open = false;
        }
    }

    fn talk(&mut self, line: &str) {
        // In one terminal, talk in the middle of a line of data would be unreadable.
        if self.open && self.term.stdout_tty && self.term.stderr_tty {
            self.write("\n");
            self.open = false;
        }
        let mut err = self.err.lock();
        // Nobody reads it: nothing to be done.
        let _ = writeln!(err, "{line}");
    }

    fn paint(&self) -> Paint {
        self.term.err_paint()
    }
}
