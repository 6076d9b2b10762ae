//! What the engine asks of a tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use everturn_core::{CallId, Effect, SessionId};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

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

/// How a tool ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolOutcome {
    /// It did what was asked; the text is for the model.
    Succeeded(String),
    /// It did not, and says why, for the model.
    Failed(String),
    /// It was ended by `cancel` and may have done some of its work.
    Cancelled(String),
}

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What it is.
    fn spec(&self) -> &ToolSpec;
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
