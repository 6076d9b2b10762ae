//! The terminal of a chat: text streams as it comes, or, while a line is being typed, in whole rows
//! above it.

use std::io::Write as _;

use super::keyboard::Above;
use crate::surface::{Streams, Surface};
use crate::term::{Paint, Term, columns, harmless};

/// Where a chat is shown.
pub(super) enum Screen {
    /// A pipe: data on stdout, talk on stderr.
    Streams(Streams),
    /// A terminal.
    Terminal(Terminal),
}

/// One terminal for everything.
pub(super) struct Terminal {
    term: Term,
    above: Above,
    /// Whether a line is being typed.
    typing: bool,
    /// Text that waits for the end of its row, while a line is being typed.
    row: String,
    /// Whether text stands in the middle of a row, while none is.
    open: bool,
}

impl Screen {
    pub(super) fn terminal(term: Term, above: Above) -> Self {
        Self::Terminal(Terminal { term, above, typing: false, row: String::new(), open: false })
    }

    /// A line is being typed from now on, or no longer.
    pub(super) fn typing(&mut self, typing: bool) {
        if let Self::Terminal(terminal) = self {
            terminal.set_typing(typing);
        }
    }

    /// Whether nobody sees any of it any more.
    pub(super) fn broken(&self) -> bool {
        match self {
            Self::Streams(streams) => streams.broken(),
            Self::Terminal(_) => false,
        }
    }
}

impl Surface for Screen {
    fn data(&mut self, text: &str) {
        match self {
            Self::Streams(streams) => streams.data(text),
            Self::Terminal(terminal) => terminal.data(&harmless(text)),
        }
    }

    fn break_data(&mut self) {
        match self {
            Self::Streams(streams) => streams.break_data(),
            Self::Terminal(terminal) => terminal.break_data(),
        }
    }

    fn talk(&mut self, line: &str) {
        match self {
            Self::Streams(streams) => streams.talk(line),
            Self::Terminal(terminal) => {
                terminal.break_data();
                terminal.write(&format!("{line}\n"));
            }
        }
    }

    fn paint(&self) -> Paint {
        match self {
            Self::Streams(streams) => streams.paint(),
            Self::Terminal(terminal) => terminal.term.out_paint(),
        }
    }
}

impl Terminal {
    fn write(&mut self, text: &str) {
        if self.typing {
            // A terminal that went away shows as the end of input.
            let _ = self.above.print(text.to_owned());
        } else {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    fn set_typing(&mut self, typing: bool) {
        if typing == self.typing {
            return;
        }
        if typing {
            self.break_data();
            self.typing = true;
        } else {
            self.typing = false;
            // The row that had not ended goes on where it can be seen.
            let row = std::mem::take(&mut self.row);
            self.data(&row);
        }
    }

    fn data(&mut self, text: &str) {
        let Some(last) = text.chars().next_back() else { return };
        if !self.typing {
            self.write(text);
            self.open = last != '\n';
            return;
        }
        self.row.push_str(text);
        let rows = whole_rows(&mut self.row, columns());
        if !rows.is_empty() {
            self.write(&rows);
        }
    }

    fn break_data(&mut self) {
        if self.typing {
            if !self.row.is_empty() {
                let row = std::mem::take(&mut self.row);
                self.write(&format!("{row}\n"));
            }
        } else if std::mem::take(&mut self.open) {
            self.write("\n");
        }
    }
}

/// Takes the rows out of `text` that have ended: by a line end, or because no more fits.
fn whole_rows(text: &mut String, columns: usize) -> String {
    let columns = columns.max(8);
    let mut rows = String::new();
    loop {
        let line_end = text.find('\n');
        let full = text.char_indices().nth(columns).map(|(at, _)| at);
        let (end, skip) = match (line_end, full) {
            (Some(end), None) => (end, 1),
            (Some(end), Some(full)) if end <= full => (end, 1),
            (_, Some(full)) => match text.get(..full).and_then(|row| row.rfind(' ')) {
                Some(space) if space > 0 => (space, 1),
                _ => (full, 0),
            },
            (None, None) => return rows,
        };
        let rest = text.split_off(end + skip);
        let row = std::mem::replace(text, rest);
        rows.push_str(row.get(..end).unwrap_or_default());
        rows.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, columns: usize) -> (String, String) {
        let mut text = text.to_owned();
        let rows = whole_rows(&mut text, columns);
        (rows, text)
    }

    #[test]
    fn rows_end_at_line_ends_or_between_words() {
        assert_eq!(rows("short", 10), (String::new(), "short".to_owned()));
        assert_eq!(rows("a\n\nb", 10), ("a\n\n".to_owned(), "b".to_owned()));
        assert_eq!(
            rows("one two three four", 9),
            ("one two\nthree\n".to_owned(), "four".to_owned())
        );
        assert_eq!(rows("abcdefghijkl", 10), ("abcdefghij\n".to_owned(), "kl".to_owned()));
        assert_eq!(rows("éééééééééééé", 10).1, "éé");
    }
}
