//! How far a long piece of work is, on a terminal's stderr. Nowhere else: a log of it helps nobody.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::term::Term;

/// How often it is shown.
const EVERY: Duration = Duration::from_millis(200);

/// Something that is counted while it is done.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Whether anybody sees it.
    on: bool,
    what: &'static str,
    done: u64,
    total: u64,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// Begins; `what` is the verb in front of the numbers. Short work shows nothing.
    pub(crate) fn new(term: Term, what: &'static str, total: u64) -> Self {
        let next = Instant::now() + EVERY;
        Self { on: term.stderr_tty, what, done: 0, total, next, shown: false }
    }

    /// So many more are done.
    pub(crate) fn add(&mut self, count: u64) {
        self.done += count;
        // The clock is not asked for each of very many.
        if !self.on || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + EVERY;
        self.shown = true;
        let percent = self.done.min(self.total) * 100 / self.total.max(1);
        write(&format!("\r\x1b[K{} {} of {} ({percent}%)", self.what, self.done, self.total));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            write("\r\x1b[K");
        }
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    // Whoever closed stderr wants to see nothing.
    drop(err.write_all(text.as_bytes()).and_then(|()| err.flush()));
}
