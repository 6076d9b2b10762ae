//! What the engine asks of a tool, and the tools that are built in. docs/tools.md lists them with
//! their limits.

mod arguments;
mod ask;
mod edit;
mod guard;
mod list;
mod read;
mod search;
mod shell;
mod text;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use everturn_core::{CallId, Effect, SessionId};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use ask::AskUser;
pub use edit::EDIT_BYTES_MAX;
pub use guard::FILE_TOOL_END_MS;
pub use list::{GLOB_BYTES_MAX, LIST_DEPTH_DEFAULT, LIST_DEPTH_MAX, LIST_ENTRIES_MAX};
pub use read::{BINARY_PROBE_BYTES, READ_LINE_BYTES_MAX, READ_LINES_DEFAULT, READ_LINES_MAX};
pub use search::{
    REGEX_BYTES_MAX, REGEX_MEMORY_MAX, SEARCH_FILE_BYTES_MAX, SEARCH_HEAP_BYTES,
    SEARCH_LINE_BYTES_MAX, SEARCH_MATCHES_MAX, SEARCH_S_MAX,
};
pub use shell::{
    COMMAND_BYTES_MAX, OUTPUT_CHUNK_BYTES, OUTPUT_INTERVAL_MS, TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX,
};
pub use write::WRITE_BYTES_MAX;

use crate::supervisor::Supervised;
use crate::workspace::{Workspace, WorkspaceError};

/// Bytes of any built-in tool's result.
pub const RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes that are kept of the beginning of a command's output.
pub const RESULT_HEAD_BYTES: usize = 32 << 10;
/// Bytes that are kept of its end; the rest of the result is for what is said about it.
pub const RESULT_TAIL_BYTES: usize = 31 << 10;

/// The built-in tools, working in one workspace, with commands under supervisors.
#[must_use]
pub fn builtin(workspace: Workspace, supervised: Supervised) -> Registry {
    let mut registry = Registry::default();
    registry.add(ask::AskUser::default());
    registry.add(edit::EditFile::new(workspace.clone()));
    registry.add(list::ListFiles::new(workspace.clone()));
    registry.add(read::ReadFile::new(workspace.clone()));
    registry.add(search::SearchFiles::new(workspace.clone()));
    registry.add(write::WriteFile::new(workspace.clone()));
    registry.add(shell::Shell::new(workspace, supervised));
    registry
}

/// A refused path, for the model.
fn explain(error: &WorkspaceError) -> String {
    format!("{error} ({}). {}.", error.code(), error.hint())
}

/// What a model is told of a tool, and what the tool declares about itself.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Name, unique within a registry.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// What running it twice would do.
    pub effect: Effect,
}

impl ToolSpec {
    /// SHA-256 (hex) of name, schema and effect: what a call was approved under.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        use sha2::Digest as _;
        let text = format!("{}\0{}\0{}", self.name, self.effect, self.parameters);
        sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One execution of a tool.
#[derive(Debug, Clone)]
pub struct ToolInvocation {
    /// The call.
    pub call_id: CallId,
    /// Its session.
    pub session_id: SessionId,
    /// Parsed arguments, an object; the tool checks them against its own needs.
    pub arguments: Value,
    /// Stable for the call, across nodes and re-runs: lets a receiver outside make the effect
    /// exactly-once. Commands get it as `EVERTURN_IDEMPOTENCY_KEY`.
    pub idempotency_key: String,
    /// Cancelled when a person stops the turn or the node lost its lease. The tool ends at once,
    /// with everything that it started.
    pub cancel: CancellationToken,
    /// Milliseconds since boot (`CLOCK_BOOTTIME`) until which the node's lease is good. A command's
    /// supervisor ends the command when it passes without having been moved.
    pub lease_deadline: watch::Receiver<u64>,
    /// Takes output while the tool runs. Bounded: a tool whose output nobody takes waits.
    pub output: mpsc::Sender<String>,
}

/// How a tool ended. Each way is the call's state of the same name (promise P9): what is not known
/// is never said to have failed, and what is known not to have run is never said to be unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolOutcome {
    /// It did what was asked; the text is for the model.
    Succeeded(String),
    /// It did not, and says why, for the model.
    Failed(String),
    /// It is known to have done nothing of what was asked: it was told to end before it began.
    NotRun(String),
    /// It began, and how far it got is not known: it was ended in the middle, or whatever watched
    /// over it went away. It may have done all of its work, some or none.
    Unknown(String),
}

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What it is.
    fn spec(&self) -> &ToolSpec;
    /// For a tool that asks a person instead of running: the question of a call with these
    /// arguments, or why they ask nothing. The engine puts it, and the answer is the call's result.
    fn question(&self, arguments: &Value) -> Option<Result<String, String>> {
        let _ = arguments;
        None
    }
    /// Runs it.
    async fn run(&self, invocation: ToolInvocation) -> ToolOutcome;
}

/// The tools of a node, by name.
#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Registry {
    /// Adds a tool; a later one of the same name replaces it.
    pub fn add(&mut self, tool: impl Tool) {
        self.tools.insert(tool.spec().name.clone(), Arc::new(tool));
    }

    /// The tool of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// All specs, sorted by name, so that the model's view is byte-stable.
    #[must_use]
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.values().map(|tool| tool.spec().clone()).collect()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}
