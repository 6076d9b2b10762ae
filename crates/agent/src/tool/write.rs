//! `write_file`: gives a file new content, all of it or none.

use async_trait::async_trait;
use everturn_core::Effect;
use serde::Deserialize;
use serde_json::json;

use super::arguments::{parse, refusal};
use super::guard::{Guard, blocking};
use super::{Tool, ToolInvocation, ToolOutcome, ToolSpec, explain};
use crate::workspace::{Version, Workspace, WorkspaceError, Written, shown};

/// Bytes that one call may write.
pub const WRITE_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    content: String,
}

/// The tool.
#[derive(Debug)]
pub(super) struct WriteFile {
    spec: ToolSpec,
    workspace: Workspace,
}

impl WriteFile {
    pub(super) fn new(workspace: Workspace) -> Self {
        let spec = ToolSpec {
            name: "write_file".to_owned(),
            description: "Gives a file in the workspace exactly this content, making it and the \
                          folders above it if need be and replacing what it held."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "the file, relative to the workspace",
                    },
                    "content": {
                        "type": "string",
                        "description": "all that the file is to hold",
                    },
                },
                "required": ["path", "content"],
                "additionalProperties": false,
            }),
            effect: Effect::Idempotent,
        };
        Self { spec, workspace }
    }
}

#[async_trait]
impl Tool for WriteFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome {
        let arguments: Arguments = match parse(&self.spec, &invocation.arguments) {
            Ok(arguments) => arguments,
            Err(text) => return ToolOutcome::Failed(text),
        };
        if arguments.content.len() > WRITE_BYTES_MAX {
            let what = format!(
                "`content` has {} bytes and may have {WRITE_BYTES_MAX}",
                arguments.content.len()
            );
            return ToolOutcome::Failed(refusal(&self.spec, &what));
        }
        let workspace = self.workspace.clone();
        blocking(&invocation, move |guard| {
            let content = arguments.content.as_bytes();
            match write(&workspace, &arguments.path, content, None, guard) {
                Ok(written) => ToolOutcome::Succeeded(format!(
                    "{} `{}`: {} bytes",
                    if written == Written::Created { "created" } else { "replaced" },
                    shown(&arguments.path),
                    content.len()
                )),
                Err(outcome) => outcome,
            }
        })
        .await
    }
}

/// Writes unless the tool was told to end; looks at that last of all.
pub(super) fn write(
    workspace: &Workspace,
    path: &str,
    content: &[u8],
    expected: Option<Version>,
    guard: &Guard,
) -> Result<Written, ToolOutcome> {
    let ready = || guard.ended_because().map_or(Ok(()), Err);
    workspace.write(path, content, expected, &ready).map_err(|error| match error {
        WorkspaceError::Withheld { .. } => ToolOutcome::NotRun(error.to_string()),
        error => ToolOutcome::Failed(explain(&error)),
    })
}
