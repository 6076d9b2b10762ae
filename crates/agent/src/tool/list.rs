//! `list_files`: what is in a folder.

use std::path::Path;

use async_trait::async_trait;
use everturn_core::Effect;
use ignore::overrides::{Override, OverrideBuilder};
use serde::Deserialize;
use serde_json::json;

use super::arguments::{parse, refusal};
use super::guard::{Guard, blocking};
use super::{RESULT_BYTES_MAX, Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::workspace::{EntryKind, Found, Step, Walk, Workspace};

/// Folders deep that are listed if the model says nothing; 1 is the folder itself.
pub const LIST_DEPTH_DEFAULT: usize = 3;
/// Folders deep that a model may ask for.
pub const LIST_DEPTH_MAX: usize = 20;
/// Entries that are returned.
pub const LIST_ENTRIES_MAX: usize = 2_000;
/// Bytes of a glob.
pub const GLOB_BYTES_MAX: usize = 1_000;
/// Bytes kept for the notes after the entries.
const NOTE_BYTES: usize = 512;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: Option<String>,
    depth: Option<usize>,
    glob: Option<String>,
}

/// The tool.
#[derive(Debug)]
pub(super) struct ListFiles {
    spec: ToolSpec,
    workspace: Workspace,
}

impl ListFiles {
    pub(super) fn new(workspace: Workspace) -> Self {
        let spec = ToolSpec {
            name: "list_files".to_owned(),
            description: format!(
                "Lists files and folders in the workspace, sorted, folders with a / and symbolic \
                 links with an @ at the end. What .gitignore names is left out. At most \
                 {LIST_ENTRIES_MAX} entries."
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "the folder, relative to the workspace; all of it if not given",
                    },
                    "depth": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": LIST_DEPTH_MAX,
                        "description": format!(
                            "how deep to go, 1 for the folder alone; {LIST_DEPTH_DEFAULT} if not \
                             given, {LIST_DEPTH_MAX} with a glob"
                        ),
                    },
                    "glob": {
                        "type": "string",
                        "description": "list only files that match, such as *.rs or src/**/*.rs",
                    },
                },
                "required": [],
                "additionalProperties": false,
            }),
            effect: Effect::Read,
        };
        Self { spec, workspace }
    }
}

#[async_trait]
impl Tool for ListFiles {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        // A pattern says itself how deep it is meant.
        let usual = if arguments.glob.is_some() { LIST_DEPTH_MAX } else { LIST_DEPTH_DEFAULT };
        let depth = arguments.depth.unwrap_or(usual);
        if depth == 0 || depth > LIST_DEPTH_MAX {
            let what = format!("`depth` must be from 1 to {LIST_DEPTH_MAX}");
            return ToolOutcome::Failed(refusal(&self.spec, &what));
        }
        let only = match arguments.glob.as_deref().map(glob).transpose() {
            Ok(only) => only,
            Err(what) => return ToolOutcome::Failed(refusal(&self.spec, &what)),
        };
        let workspace = self.workspace.clone();
        let path = arguments.path.unwrap_or_else(|| ".".to_owned());
        blocking(&invocation, move |guard| list(&workspace, &path, depth, only.as_ref(), guard))
            .await
    }
}

/// A pattern as gitignore understands it: without a `/` it is for names anywhere below.
pub(super) fn glob(pattern: &str) -> Result<Override, String> {
    if pattern.is_empty() || pattern.len() > GLOB_BYTES_MAX {
        return Err(format!("`glob` must have from 1 to {GLOB_BYTES_MAX} bytes"));
    }
    let mut builder = OverrideBuilder::new("");
    builder
        .add(pattern)
        .and_then(|builder| builder.build())
        .map_err(|error| format!("`glob`: {error}"))
}

/// Whether a file is one of those that a pattern names.
pub(super) fn selected(only: Option<&Override>, path: &Path) -> bool {
    only.is_none_or(|only| !only.matched(path, false).is_ignore())
}

fn list(
    workspace: &Workspace,
    path: &str,
    depth: usize,
    only: Option<&Override>,
    guard: &Guard,
) -> ToolOutcome {
    let mut text = String::new();
    let (mut count, mut cut, mut seen) = (0, false, 0_usize);
    let mut ended = None;
    let walked = Walk::run(workspace, path, depth, &mut |entry| {
        seen += 1;
        if seen.is_multiple_of(256)
            && let Some(why) = guard.ended_because()
        {
            ended = Some(why);
            return Step::Stop;
        }
        let listed = match entry.kind {
            EntryKind::Folder => only.is_none(),
            _ => selected(only, entry.path),
        };
        if !listed {
            return Step::On;
        }
        let mark = match entry.kind {
            EntryKind::Folder => "/",
            EntryKind::Link => "@",
            EntryKind::File | EntryKind::Other => "",
        };
        let line = format!("{}{mark}\n", entry.shown());
        if count == LIST_ENTRIES_MAX || text.len() + line.len() > RESULT_BYTES_MAX - NOTE_BYTES {
            cut = true;
            return Step::Stop;
        }
        text.push_str(&line);
        count += 1;
        Step::On
    });
    if let Some(why) = ended {
        return ToolOutcome::Failed(format!("not listed: {why}"));
    }
    match walked {
        Ok(found) => {
            if count == 0 {
                text.push_str("[nothing there");
                text.push_str(if only.is_some() { " that matches]" } else { "]" });
            }
            text.push_str(&notes(found, cut.then_some(count), "listed"));
            ToolOutcome::Succeeded(text)
        }
        Err(error) => ToolOutcome::Failed(explain(&error)),
    }
}

/// What a reader must know of a walk's result that is not all there is; `cut` is how many results
/// there are if there were more.
pub(super) fn notes(found: Found, cut: Option<usize>, done: &str) -> String {
    let mut text = String::new();
    let mut note = |what: String| text.push_str(&format!("\n[{what}]"));
    if let Some(count) = cut {
        note(format!("only the first {count} are {done}; narrow path or glob to see the rest"));
    } else if found.cut {
        note("the workspace is too large to look at all of it; narrow path".to_owned());
    }
    if found.deeper > 0 {
        note(format!("{} go deeper than was looked", folders(found.deeper)));
    }
    if found.ignored > 0 {
        note(format!("{} left out by .gitignore", found.ignored));
    }
    if found.unreadable > 0 {
        note(format!("{} could not be read", folders(found.unreadable)));
    }
    text
}

fn folders(count: usize) -> String {
    if count == 1 { "1 folder".to_owned() } else { format!("{count} folders") }
}
