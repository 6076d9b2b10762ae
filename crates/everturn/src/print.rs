//! Writing data to stdout, whole or not at all.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::{CliError, Fault, Result};

/// Writes text as it is. A reader that went away ends the command quietly, as pipes want it.
pub(crate) fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(gone()),
        Err(error) => Err(CliError::new(Fault::Io, format!("cannot write stdout: {error}"))),
    }
}

/// Says something to the person.
#[allow(clippy::print_stderr, reason = "talk is for stderr")]
pub(crate) fn talk(line: &str) {
    eprintln!("{line}");
}

/// The reader of stdout went away.
pub(crate) fn gone() -> CliError {
    CliError::new(Fault::Io, "nobody reads stdout any more")
}

/// Writes a value as JSON for people and programs.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let shown = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::new(Fault::Io, format!("cannot write JSON: {error}")))?;
    text(&format!("{shown}\n"))
}

/// Writes values as JSON lines.
pub(crate) fn json_lines<T: Serialize>(values: &[T]) -> Result<()> {
    let mut lines = String::new();
    for value in values {
        let line = serde_json::to_string(value)
            .map_err(|error| CliError::new(Fault::Io, format!("cannot write JSON: {error}")))?;
        lines.push_str(&line);
        lines.push('\n');
    }
    text(&lines)
}
