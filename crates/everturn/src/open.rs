//! From settings to an open store and an open engine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use everturn_agent::supervisor::Supervised;
use everturn_agent::tool::{self, Registry};
use everturn_agent::workspace::Workspace;
use everturn_core::{AutoContinue, AutoContinueWhen, InputId};
use everturn_engine::{Asking, Config, Engine, OpenError, Scope, Watchdog};
use everturn_sqlite::{OpenOptions, SqliteStore};
use everturn_store::SystemClock;

use crate::error::{CliError, Fault, Result};
use crate::home::Home;
use crate::models::NodeModels;
use crate::settings::kinds::{Fsync, Moment, Switch};
use crate::settings::{Settings, absolute};

/// What every session begins with. Short, and the same from turn to turn, so that providers' caches
/// hit.
pub(crate) const SYSTEM: &str = "You are a capable assistant that works in the user's workspace with the tools you are given. Look before you change something, do what was asked and no more, and say plainly what you did and what you could not do. Answer in the user's language.";

/// Which folder the store of the settings is in.
pub(crate) fn store_folder(settings: &Settings, home: &Home) -> Result<PathBuf> {
    let Some(said) = settings.store.value.as_deref() else { return Ok(home.path().to_owned()) };
    let source = &settings.store.source;
    let path = match said.split_once("://").map(|(scheme, rest)| (scheme.to_lowercase(), rest)) {
        None => said.strip_prefix("sqlite:").unwrap_or(said),
        Some((scheme, rest)) if scheme == "sqlite" => rest,
        Some((scheme, _)) if scheme == "postgres" || scheme == "postgresql" => {
            let message = "a store on PostgreSQL is not built yet";
            return Err(CliError::new(Fault::NotBuilt, message)
                .hint("leave --store out: SQLite in the home is the default"));
        }
        Some((scheme, _)) => {
            let message = format!("{source}: there is no store of the kind {scheme:?}");
            return Err(CliError::new(Fault::Config, message)
                .hint("a folder, or sqlite:FOLDER, in which everturn.db is or will be"));
        }
    };
    if path.is_empty() {
        let message = format!("{source}: the store {said:?} names no folder");
        return Err(CliError::new(Fault::Config, message));
    }
    absolute(Path::new(path))
}

/// Opens the store for writing.
pub(crate) async fn store(
    settings: &Settings,
    folder: &Path,
    role: &'static str,
) -> Result<Arc<SqliteStore>> {
    let clock = SystemClock::new().map_err(|error| {
        CliError::new(Fault::Io, format!("the boot id cannot be read: {error}"))
    })?;
    let mut options = OpenOptions::new(folder, role, Arc::new(clock));
    options.fsync = match settings.journal_fsync.value {
        Fsync::TerminalOnly => everturn_sqlite::Fsync::TerminalOnly,
        Fsync::Eager => everturn_sqlite::Fsync::Eager,
    };
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(options)).await;
    match opened {
        Ok(Ok(store)) => Ok(Arc::new(store)),
        Ok(Err(error)) => Err(error.into()),
        Err(panic) => Err(CliError::new(Fault::Io, format!("opening the store broke: {panic}"))),
    }
}

/// The built-in tools, working in a folder.
pub(crate) fn tools(settings: &Settings, workspace: &Path) -> Result<Registry> {
    let workspace = Workspace::open(workspace).map_err(|error| {
        CliError::new(Fault::Workspace, error.to_string())
            .hint("name an existing folder with --workspace DIR")
    })?;
    let pass = settings.tools_pass_env.value.0.clone();
    Ok(tool::builtin(workspace, Supervised::this_binary().pass(pass)))
}

/// What an engine is opened for.
pub(crate) struct Purpose {
    pub(crate) role: &'static str,
    pub(crate) scope: Scope,
    pub(crate) asking: Asking,
    pub(crate) allowed: BTreeSet<String>,
    pub(crate) adopted: Vec<InputId>,
    pub(crate) drain_timeout: Duration,
    /// Where its tools work, as [`place`] names it; empty where it has none.
    pub(crate) workspace: String,
}

/// Names a workspace for the store: the machine and the folder. A turn goes on by itself only where
/// it began.
pub(crate) fn place(workspace: &Path) -> String {
    let folder = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let machine = rustix::system::uname();
    format!("{}:{}", machine.nodename().to_string_lossy(), folder.display())
}

/// Opens the engine on a store.
pub(crate) async fn engine(
    settings: &Settings,
    home: &Home,
    store: Arc<SqliteStore>,
    models: Arc<NodeModels>,
    tools: Registry,
    purpose: Purpose,
) -> Result<Engine> {
    let mut config = Config::new(store.node_id().clone(), home.name(), purpose.role, models);
    config.scope = purpose.scope;
    config.tools = tools;
    config.allowed_tools = purpose.allowed;
    config.adopted = purpose.adopted;
    config.workspace = purpose.workspace;
    config.asking = purpose.asking;
    config.system = settings.system.value.clone().unwrap_or_else(|| SYSTEM.to_owned());
    config.lease = settings.lease_s.value.seconds();
    config.renew = settings.renew_s.value.seconds();
    config.poll = settings.poll_ms.value.millis();
    config.turns_max = settings.turns_max.value.as_usize();
    config.steps_max = settings.steps_max.value.as_u32();
    config.queue_max = settings.limits_queue.value.as_u32();
    config.sessions_max = settings.limits_sessions.value.0;
    config.drain_timeout = purpose.drain_timeout;
    config.loop_breaker = (
        settings.loop_breaker_starts.value.as_usize(),
        settings.loop_breaker_window_s.value.seconds(),
    );
    config.auto_continue = AutoContinue {
        enabled: settings.auto_continue.value == Switch::On,
        when: match settings.auto_continue_when.value {
            Moment::OnStart => AutoContinueWhen::OnStart,
            Moment::OnView => AutoContinueWhen::OnView,
        },
        max_attempts: settings.auto_continue_attempts.value.as_u32(),
        window_s: settings.auto_continue_window_s.value.0,
    };
    config.watchdog = Watchdog {
        model: settings.watchdog_model_s.value.seconds(),
        tool: settings.watchdog_tool_s.value.seconds(),
        store: settings.watchdog_store_s.value.seconds(),
    };
    // 0 is for ever.
    let retention = settings.retention_token_events_s.value.seconds();
    config.retention = (!retention.is_zero()).then_some(retention);
    config.coalesce = settings.coalesce_ms.value.millis();
    config.retry.retries = settings.provider_retries.value.as_u32();
    Engine::open(store, config).await.map_err(|OpenError::Store(error)| error.into())
}
