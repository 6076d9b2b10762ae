//! What does the work: a running server, the tools in their workspace, the model.

use std::path::PathBuf;
use std::time::Duration;

use everturn_agent::provider::{ModelEvent, ModelRequest};
use everturn_agent::supervisor::boot_ms;
use everturn_agent::tool::{ToolInvocation, ToolOutcome};
use everturn_core::view::ViewMessage;
use everturn_core::{CallId, Content, SessionId};
use everturn_engine::Models as _;
use futures::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Findings, machine};
use crate::client::http::http;
use crate::client::join;
use crate::home::{self, Home};
use crate::settings::Settings;
use crate::table;
use crate::{models, open};

/// How long a command that does nothing may take.
const TOOL_MAX: Duration = Duration::from_secs(20);
/// How long a provider may take to say something.
const MODEL_MAX: Duration = Duration::from_secs(30);

/// The server of the home, if it says that it runs.
pub(super) async fn server(settings: &Settings, home: &Home, found: &mut Findings) {
    let said = match home::running_server(home) {
        Ok(Some(said)) => said,
        Ok(None) => {
            if home.file("server.json").exists() {
                found.note(
                    "server",
                    "none is running; one that did ended without leaving word",
                    "nothing is needed: the next one resolves what it left",
                );
            } else {
                found.ok("server", "none is running on this home");
            }
            return;
        }
        Err(error) => return found.error("server", &error),
    };
    let since = table::time(&said.started_at);
    let name =
        format!("{} (process {}, node {}, since {since})", said.address, said.pid, said.node);
    let store = match open::store_folder(settings, home) {
        Ok(folder) => folder.display().to_string(),
        Err(_) => return,
    };
    if said.store != store {
        found.note(
            "server",
            format!("{name} works on another store: {}", said.store),
            "commands of these settings do not use it; compare --store with the server's",
        );
        return;
    }
    let answer = match http() {
        Ok(http) => join::look(home, &store, &http).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) if said.version == env!("CARGO_PKG_VERSION") => found.ok("server", name),
        Ok(_) => found.note(
            "server",
            format!("{name} is version {}, this is {}", said.version, env!("CARGO_PKG_VERSION")),
            "restart the server to use what is installed now",
        ),
        Err(error) => found.problem(
            "server",
            format!("{name}: {error}"),
            "its log says why; kill -9 is safe, and nothing accepted is lost",
        ),
    }
}

/// The folder that tools work in, and one command in it, under its supervisor.
pub(super) async fn workspace(settings: &Settings, home: Option<&Home>, found: &mut Findings) {
    let path: PathBuf = match (&settings.workspace.value, home) {
        (Some(path), _) => path.clone(),
        (None, Some(home)) if home.file("workspace").is_dir() => home.file("workspace"),
        (None, _) => PathBuf::from("."),
    };
    let tools = match open::tools(settings, &path) {
        Ok(tools) => tools,
        Err(error) => return found.error("workspace", &error),
    };
    match machine::writable(&path) {
        Ok(()) => found.ok("workspace", format!("{}", path.display())),
        Err(error) => found.note(
            "workspace",
            format!("{} cannot be written: {error}", path.display()),
            "tools can only read there; name another folder with --workspace DIR",
        ),
    }
    let Some(shell) = tools.get("shell") else { return };
    let (Ok(call_id), Ok(session_id)) = (CallId::new("call_doctor"), SessionId::new("doctor"))
    else {
        return;
    };
    let cancel = CancellationToken::new();
    let limit = u64::try_from(TOOL_MAX.as_millis()).unwrap_or(u64::MAX);
    // Held until the command has ended: a lease that nobody holds any more ends it.
    let (_lease, lease_deadline) = watch::channel(boot_ms() + limit);
    let (output, mut taken) = mpsc::channel(16);
    let invocation = ToolInvocation {
        call_id,
        session_id,
        arguments: serde_json::json!({ "command": "echo everturn" }),
        idempotency_key: "doctor".to_owned(),
        cancel: cancel.clone(),
        lease_deadline,
        output,
    };
    let run = async {
        let outcome = shell.run(invocation);
        let drain = async { while taken.recv().await.is_some() {} };
        futures::join!(outcome, drain).0
    };
    let hint = "commands run under a process of this same binary: it must be executable, /proc mounted, and a new process allowed";
    match tokio::time::timeout(TOOL_MAX, run).await {
        Ok(ToolOutcome::Succeeded(text)) if text.starts_with("everturn") => {
            found.ok("supervisor", "a command ran and ended under it");
        }
        Ok(ToolOutcome::Succeeded(text) | ToolOutcome::Failed(text)) => {
            found.problem("supervisor", format!("a command did not run well: {text}"), hint);
        }
        Ok(ToolOutcome::NotRun(text) | ToolOutcome::Unknown(text)) => {
            found.problem("supervisor", format!("a command was ended: {text}"), hint);
        }
        Err(_) => {
            cancel.cancel();
            let waited = TOOL_MAX.as_secs();
            found.problem("supervisor", format!("a command took more than {waited} s"), hint);
        }
    }
}

/// The model: whether it can be set up, and whether it answers.
pub(super) async fn model(settings: &Settings, offline: bool, found: &mut Findings) {
    let ready = match models::find(settings).await {
        Ok(ready) => ready,
        Err(error) => return found.error("model", &error),
    };
    if let Some(notice) = &ready.notice {
        found.note("model", notice.clone(), "");
    }
    let name = ready.models.default_model();
    if name.starts_with("script/") {
        return found.ok("model", format!("{name}, a script: nothing to reach"));
    }
    if offline {
        return found.ok("model", format!("{name} is set up; not asked (--offline)"));
    }
    let provider = match ready.models.provider(&name).await {
        Ok(provider) => provider,
        Err(failure) => return found.error("model", &failure.into()),
    };
    let request = ModelRequest {
        system: "Answer with one word.".to_owned(),
        messages: vec![ViewMessage::User(Content::text("Say ok."))],
        tools: Vec::new(),
    };
    let asked = async {
        let mut stream = provider.request(request).await?;
        while let Some(event) = stream.next().await {
            if matches!(
                event?,
                ModelEvent::Text(_) | ModelEvent::Reasoning(_) | ModelEvent::Done(_)
            ) {
                break;
            }
        }
        Ok::<_, everturn_agent::provider::ProviderError>(())
    };
    match tokio::time::timeout(MODEL_MAX, asked).await {
        Ok(Ok(())) => found.ok("model", format!("{name} answers")),
        Ok(Err(error)) => {
            let failure = error.failure();
            let hint = failure.hint.clone().unwrap_or_default();
            let detail = format!("{name}: {} ({})", failure.message, failure.code);
            found.problem("model", detail, &hint);
        }
        Err(_) => found.problem(
            "model",
            format!("{name} said nothing for {} s", MODEL_MAX.as_secs()),
            "is the provider reachable from here? `everturn doctor --offline` skips this check",
        ),
    }
}
