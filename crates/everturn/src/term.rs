//! The terminal: whether there is one, colours, and hostile text made harmless.

use std::io::IsTerminal as _;

use anstyle::{AnsiColor, Style};

/// What is known of the three standard streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) stdin_tty: bool,
    pub(crate) stdout_tty: bool,
    pub(crate) stderr_tty: bool,
    pub(crate) no_color: bool,
}

impl Term {
    /// Looks at the process.
    pub(crate) fn of_process() -> Self {
        // https://no-color.org: present and not empty.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            stdin_tty: std::io::stdin().is_terminal(),
            stdout_tty: std::io::stdout().is_terminal(),
            stderr_tty: std::io::stderr().is_terminal(),
            no_color,
        }
    }

    /// Whether a person can be asked something.
    pub(crate) const fn can_ask(&self) -> bool {
        self.stdin_tty && self.stderr_tty
    }

    /// The colours of stderr.
    pub(crate) const fn err_paint(&self) -> Paint {
        Paint(self.stderr_tty && !self.no_color)
    }

    /// The colours of stdout.
    pub(crate) const fn out_paint(&self) -> Paint {
        Paint(self.stdout_tty && !self.no_color)
    }
}

/// Colours by role, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Whether there are any.
    pub(crate) const fn on(self) -> bool {
        self.0
    }

    fn with(self, style: Style, text: &str) -> String {
        if self.0 { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.with(Style::new().bold().fg_color(Some(AnsiColor::Red.into())), text)
    }

    pub(crate) fn warn(self, text: &str) -> String {
        self.with(Style::new().fg_color(Some(AnsiColor::Yellow.into())), text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.with(Style::new().fg_color(Some(AnsiColor::Green.into())), text)
    }

    pub(crate) fn name(self, text: &str) -> String {
        self.with(Style::new().bold().fg_color(Some(AnsiColor::Cyan.into())), text)
    }

    pub(crate) fn quiet(self, text: &str) -> String {
        self.with(Style::new().dimmed(), text)
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.with(Style::new().bold(), text)
    }
}

/// Text from a model or a tool, made harmless for a terminal: what could move the cursor, set a title
/// or paste into the shell is shown instead of obeyed. Line ends and tabs stay.
pub(crate) fn harmless(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.chars().any(dangerous) {
        return std::borrow::Cow::Borrowed(text);
    }
    let shown = text.chars().map(|char| match char {
        // The picture of a control character, where there is one.
        '\u{0}'..='\u{1f}' if dangerous(char) => {
            char::from_u32(0x2400 + u32::from(char)).unwrap_or('\u{fffd}')
        }
        '\u{7f}' => '\u{2421}',
        char if dangerous(char) => '\u{fffd}',
        char => char,
    });
    std::borrow::Cow::Owned(shown.collect())
}

/// Control characters, and those that turn the direction of text around.
fn dangerous(char: char) -> bool {
    (char.is_control() && !matches!(char, '\n' | '\t'))
        || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// One line of at most `chars` characters, harmless.
pub(crate) fn one_line(text: &str, chars: usize) -> String {
    let flat: String =
        text.chars().map(|char| if char.is_whitespace() { ' ' } else { char }).collect();
    let flat = harmless(flat.trim()).into_owned();
    if flat.chars().count() <= chars {
        return flat;
    }
    let mut cut: String = flat.chars().take(chars.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Columns of the terminal behind stdout, 80 if it does not say.
pub(crate) fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_shown_and_not_obeyed() {
        assert_eq!(harmless("a\x1b[31mb\x07\u{9b}1m\x7f"), "a␛[31mb␇\u{fffd}1m␡");
        assert_eq!(harmless("line\n\ttab é 漢"), "line\n\ttab é 漢");
        assert_eq!(harmless("x\r\ny\u{202e}z"), "x␍\ny\u{fffd}z");
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("  a\nb\tc  ", 10), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    #[test]
    fn no_colour_no_escape() {
        assert_eq!(Paint(false).bad("x"), "x");
        assert!(Paint(true).bad("x").starts_with('\x1b'));
    }
}
