//! `edit_file`: replaces a piece of a text file.

use std::io::Read as _;

use async_trait::async_trait;
use everturn_core::Effect;
use serde::Deserialize;
use serde_json::json;

use super::arguments::{parse, refusal};
use super::guard::{Guard, blocking};
use super::write::{WRITE_BYTES_MAX, write};
use super::{Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::workspace::{Workspace, shown};

/// Bytes of a file that can be edited.
pub const EDIT_BYTES_MAX: usize = WRITE_BYTES_MAX;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    old: String,
    new: String,
    all: Option<bool>,
}

/// The tool.
#[derive(Debug)]
pub(super) struct EditFile {
    spec: ToolSpec,
    workspace: Workspace,
}

impl EditFile {
    pub(super) fn new(workspace: Workspace) -> Self {
        let spec = ToolSpec {
            name: "edit_file".to_owned(),
            description: "Replaces a piece of a text file in the workspace. `old` must stand in \
                          the file exactly once, to the last blank, unless `all` is true."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "the file, relative to the workspace",
                    },
                    "old": {
                        "type": "string",
                        "description": "the text to replace, as it stands in the file",
                    },
                    "new": {
                        "type": "string",
                        "description": "the text to put in its place",
                    },
                    "all": {
                        "type": "boolean",
                        "description": "replace it everywhere; false if not given",
                    },
                },
                "required": ["path", "old", "new"],
                "additionalProperties": false,
            }),
            effect: Effect::Write,
        };
        Self { spec, workspace }
    }
}

#[async_trait]
impl Tool for EditFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        let wrong = if arguments.old.is_empty() {
            Some("`old` is empty; use write_file to give a file its content")
        } else if arguments.old == arguments.new {
            Some("`old` and `new` are the same")
        } else {
            None
        };
        if let Some(what) = wrong {
            return ToolOutcome::Failed(refusal(&self.spec, what));
        }
        let workspace = self.workspace.clone();
        blocking(&invocation, move |guard| {
            edit(&workspace, &arguments, guard).unwrap_or_else(|outcome| outcome)
        })
        .await
    }
}

fn edit(
    workspace: &Workspace,
    arguments: &Arguments,
    guard: &Guard,
) -> Result<ToolOutcome, ToolOutcome> {
    let path = shown(&arguments.path);
    let failed = |text: String| Err(ToolOutcome::Failed(text));
    let opened = workspace
        .open_file(&arguments.path)
        .map_err(|error| ToolOutcome::Failed(explain(&error)))?;
    let mut bytes = Vec::new();
    if let Err(error) = opened.file.take(EDIT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes) {
        return failed(format!("`{path}`: {error}"));
    }
    if bytes.len() > EDIT_BYTES_MAX {
        return failed(format!(
            "`{path}` has {} bytes; files up to {EDIT_BYTES_MAX} bytes can be edited. \
             Use a command for it.",
            opened.size
        ));
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return failed(format!("`{path}` is not UTF-8 text. Use a command to change it."));
    };

    let count = occurrences(&text, &arguments.old);
    let all = arguments.all.unwrap_or(false);
    if count == 0 {
        return failed(not_found(&path, &text, &arguments.old));
    }
    if count > 1 && !all {
        return failed(format!(
            "`old` stands in `{path}` {count} times (lines {}). Nothing was changed. Give more of \
             the text around it so that it is found once, or set `all`.",
            line_numbers(&text, &arguments.old)
        ));
    }
    let replaced = text.matches(&arguments.old).count();
    let growth = arguments.new.len().saturating_sub(arguments.old.len());
    if text.len().saturating_add(growth.saturating_mul(replaced)) > EDIT_BYTES_MAX {
        return failed(format!(
            "`{path}` would have more than {EDIT_BYTES_MAX} bytes. Nothing was changed."
        ));
    }
    let content = text.replace(&arguments.old, &arguments.new);
    write(workspace, &arguments.path, content.as_bytes(), Some(opened.version), guard)?;
    Ok(ToolOutcome::Succeeded(match replaced {
        1 => format!("`{path}`: replaced 1 place"),
        places => format!("`{path}`: replaced {places} places"),
    }))
}

/// How many places the piece begins at, overlapping ones included: `aa` stands in `aaa` twice, and
/// which one is meant is not known.
fn occurrences(text: &str, piece: &str) -> usize {
    places(text, piece).count()
}

fn places<'a>(text: &'a str, piece: &'a str) -> impl Iterator<Item = usize> + 'a {
    let step = piece.chars().next().map_or(1, char::len_utf8);
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + text.get(from..)?.find(piece)?;
        from = at + step;
        Some(at)
    })
}

/// The lines of the first few places.
fn line_numbers(text: &str, piece: &str) -> String {
    const SHOWN: usize = 10;
    let (mut line, mut from) = (1, 0);
    let mut numbers = Vec::new();
    for at in places(text, piece).take(SHOWN) {
        line += text[from..at].matches('\n').count();
        from = at;
        numbers.push(line.to_string());
    }
    let more = if occurrences(text, piece) > SHOWN { ", …" } else { "" };
    numbers.join(", ") + more
}

/// Says that the piece is not there, and why that may be.
fn not_found(path: &str, text: &str, old: &str) -> String {
    let loose = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = if text.contains("\r\n") && text.contains(&old.replace('\n', "\r\n")) {
        "the file ends its lines with \\r\\n, and so must `old`"
    } else if loose(text).contains(&loose(old)) {
        "it stands there with other blanks or line breaks; read the file again and copy it exactly"
    } else {
        "read the file again and copy the text exactly"
    };
    format!("`old` does not stand in `{path}`: {why}. Nothing was changed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_places_are_all_counted() {
        assert_eq!(occurrences("aaa", "aa"), 2);
        assert_eq!(occurrences("ababa", "aba"), 2);
        assert_eq!(occurrences("ééé", "é"), 3);
        assert_eq!(occurrences("abc", "d"), 0);
    }

    #[test]
    fn the_lines_of_the_places_are_named() {
        assert_eq!(line_numbers("x\ny\nx x\n", "x"), "1, 3, 3");
        assert_eq!(line_numbers(&"x\n".repeat(12), "x"), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …");
    }

    #[test]
    fn a_miss_is_explained() {
        assert!(not_found("f", "a\r\nb", "a\nb").contains("\\r\\n"));
        assert!(not_found("f", "a  b", "a b").contains("other blanks"));
        assert!(not_found("f", "a", "b").contains("copy the text exactly"));
    }
}
