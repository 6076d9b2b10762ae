//! `read_file`: lines of a text file.

use std::io::{BufRead, BufReader, Read as _, Seek as _};

use async_trait::async_trait;
use everturn_core::Effect;
use serde::Deserialize;
use serde_json::json;

use super::arguments::{parse, refusal};
use super::guard::{Guard, blocking};
use super::{RESULT_BYTES_MAX, Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::workspace::{Opened, Workspace, shown};

/// Lines that are returned if the model says nothing.
pub const READ_LINES_DEFAULT: u64 = 2_000;
/// Lines that a model may ask for.
pub const READ_LINES_MAX: u64 = 20_000;
/// Bytes of one line that are returned.
pub const READ_LINE_BYTES_MAX: usize = 8 << 10;
/// Bytes at the beginning of a file in which a NUL makes it binary.
pub const BINARY_PROBE_BYTES: u64 = 8 << 10;
/// Bytes kept for the note after the lines.
const NOTE_BYTES: usize = 512;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

/// The tool.
#[derive(Debug)]
pub(super) struct ReadFile {
    spec: ToolSpec,
    workspace: Workspace,
}

impl ReadFile {
    pub(super) fn new(workspace: Workspace) -> Self {
        let spec = ToolSpec {
            name: "read_file".to_owned(),
            description: format!(
                "Returns lines of a text file in the workspace, at most {} KiB of them. If there is \
                 more, the last line says with which offset to go on.",
                RESULT_BYTES_MAX >> 10
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "the file, relative to the workspace",
                    },
                    "offset": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "number of the first line; 1 if not given",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": READ_LINES_MAX,
                        "description": format!(
                            "how many lines; {READ_LINES_DEFAULT} if not given"
                        ),
                    },
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
            effect: Effect::Read,
        };
        Self { spec, workspace }
    }
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        let offset = arguments.offset.unwrap_or(1);
        let limit = arguments.limit.unwrap_or(READ_LINES_DEFAULT);
        if offset == 0 {
            return ToolOutcome::Failed(refusal(&self.spec, "`offset` counts from 1"));
        }
        if limit == 0 || limit > READ_LINES_MAX {
            let what = format!("`limit` must be from 1 to {READ_LINES_MAX}");
            return ToolOutcome::Failed(refusal(&self.spec, &what));
        }
        let workspace = self.workspace.clone();
        blocking(&invocation, move |guard| match workspace.open_file(&arguments.path) {
            Ok(opened) => read(opened, &arguments.path, offset, limit, guard),
            Err(error) => ToolOutcome::Failed(explain(&error)),
        })
        .await
    }
}

fn read(mut opened: Opened, path: &str, offset: u64, limit: u64, guard: &Guard) -> ToolOutcome {
    let path = shown(path);
    let failed = |error: std::io::Error| ToolOutcome::Failed(format!("`{path}`: {error}"));
    let mut probe = Vec::new();
    if let Err(error) = opened
        .file
        .by_ref()
        .take(BINARY_PROBE_BYTES)
        .read_to_end(&mut probe)
        .and_then(|_| opened.file.rewind())
    {
        return failed(error);
    }
    if probe.contains(&0) {
        return ToolOutcome::Failed(format!(
            "`{path}` is a binary file of {} bytes, which cannot be returned as text. \
             Look at it with a command if need be.",
            opened.size
        ));
    }

    let mut lines = Lines::new(BufReader::with_capacity(64 << 10, opened.file));
    let mut text = String::new();
    let (mut number, mut returned) = (0_u64, 0_u64);
    let mut lossy = false;
    let more = loop {
        if number.is_multiple_of(4_096)
            && let Some(why) = guard.ended_because()
        {
            return ToolOutcome::Failed(format!("not read: {why}"));
        }
        // Lines before the offset are passed over without being kept.
        let keep = if number + 1 < offset { 0 } else { READ_LINE_BYTES_MAX };
        let line = match lines.next(keep) {
            Ok(Some(line)) => line,
            Ok(None) => break false,
            Err(error) => return failed(error),
        };
        number += 1;
        if number < offset {
            continue;
        }
        let mut piece = String::from_utf8_lossy(line.kept).into_owned();
        let cut = line.length - line.kept.len();
        if cut > 0 {
            // The cut may go through a character; that does not make the file a strange one.
            let whole = piece.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
            piece.truncate(whole);
        }
        lossy |= piece.contains(char::REPLACEMENT_CHARACTER);
        if cut > 0 {
            piece.push_str(&format!("[… {cut} bytes more …]"));
        }
        if returned == limit || text.len() + piece.len() + 1 > RESULT_BYTES_MAX - NOTE_BYTES {
            break true;
        }
        text.push_str(&piece);
        text.push('\n');
        returned += 1;
    };

    let note = match (returned, more) {
        (0, _) if number == 0 => "[the file is empty]".to_owned(),
        (0, _) => format!("[the file has only {number} lines]"),
        (_, true) => format!(
            "[lines {offset} to {} of a file of {} bytes; go on with offset {number}]",
            number - 1,
            opened.size
        ),
        (_, false) if offset > 1 => format!("[lines {offset} to {number}, the last one]"),
        _ => String::new(),
    };
    text.push_str(&note);
    if lossy {
        text.push_str("\n[some bytes are not UTF-8 and are shown as \u{fffd}]");
    }
    ToolOutcome::Succeeded(text)
}

/// A line without its end.
struct Line<'a> {
    kept: &'a [u8],
    /// All of its bytes, kept or not.
    length: usize,
}

/// Reads lines of any length in bounded memory.
struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn new(from: R) -> Self {
        Self { from, buffer: Vec::new() }
    }

    /// The next line, of which at most `keep` bytes are kept.
    fn next(&mut self, keep: usize) -> std::io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        let mut length = 0;
        loop {
            let bytes = self.from.fill_buf()?;
            if bytes.is_empty() && length == 0 {
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let room = keep.saturating_sub(self.buffer.len()).min(part.len());
            self.buffer.extend_from_slice(&part[..room]);
            length += part.len();
            let (used, last) = match end {
                Some(end) => (end + 1, true),
                None => (bytes.len(), bytes.is_empty()),
            };
            self.from.consume(used);
            if last {
                return Ok(Some(Line { kept: &self.buffer, length }));
            }
        }
    }
}
