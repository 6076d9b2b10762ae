//! A command's client: the home's running server, or this process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use everturn_core::{InputId, Principal, RequestId, Run, SessionId, SessionKey};
use everturn_engine::{Asking, Scope};
use everturn_sqlite::SqliteStore;
use everturn_store::{Clock as _, Read as _, SystemClock};
use tokio::time::Instant;

use crate::client::http::{HttpClient, http};
use crate::client::join;
use crate::client::local::LocalClient;
use crate::client::{Client, Place};
use crate::error::{CliError, Fault, Result};
use crate::home::Home;
use crate::settings::{Settings, Source, absolute};
use crate::{models, open};

/// How long a process that runs turns itself waits for steps under way when it leaves.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Links of a chain of continuations that are followed.
const CHAIN_MAX: usize = 128;

/// The server of a home, if one runs on the store of the settings.
pub(crate) async fn server(settings: &Settings, home: &Home) -> Result<Option<HttpClient>> {
    let store = open::store_folder(settings, home)?.display().to_string();
    let http = http()?;
    let until = Instant::now() + settings.reconnect_s.value.seconds();
    loop {
        match join::look(home, &store, &http).await {
            Ok(found) => {
                return Ok(found.map(|at| HttpClient::new(home.clone(), store, http, at)));
            }
            // It lives and does not answer: starting or leaving.
            Err(error) if error.passing && Instant::now() < until => {
                tracing::debug!(%error, "looking again for the server");
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A client for commands that read and tidy.
pub(crate) async fn reader(settings: &Settings) -> Result<Box<dyn Client>> {
    let home = Home::find(settings)?;
    if let Some(server) = server(settings, &home).await? {
        return Ok(Box::new(server));
    }
    let store = existing_store(settings, &home, "reader").await?;
    Ok(Box::new(LocalClient::new(store, None)))
}

/// A client for commands that follow a feed and run nothing.
pub(crate) async fn watcher(settings: &Settings) -> Result<Box<dyn Client>> {
    let home = Home::find(settings)?;
    if let Some(server) = server(settings, &home).await? {
        return Ok(Box::new(server));
    }
    let store = existing_store(settings, &home, "watch").await?;
    // A session that nobody has: this engine reads, and works on nothing.
    let key = SessionKey { principal: Principal::local(), id: fresh_session()? };
    let purpose = open::Purpose {
        role: "watch",
        scope: Scope::Only(key),
        asking: Asking::Deny,
        allowed: BTreeSet::new(),
        adopted: Vec::new(),
        drain_timeout: LEAVE_MAX,
        workspace: String::new(),
    };
    let tools = everturn_agent::tool::Registry::default();
    let models = models::none()?;
    let engine = open::engine(settings, &home, store.clone(), models, tools, purpose).await?;
    Ok(Box::new(LocalClient::new(store, Some(engine))))
}

/// The store, which must exist: reading makes none.
pub(crate) async fn existing_store(
    settings: &Settings,
    home: &Home,
    role: &'static str,
) -> Result<Arc<SqliteStore>> {
    let folder = open::store_folder(settings, home)?;
    if !folder.join("everturn.db").exists() {
        let message = format!("there is no store in {}", folder.display());
        return Err(CliError::new(Fault::NoHome, message)
            .hint("`everturn serve`, `run` and `chat` make one; --home DIR names another"));
    }
    open::store(settings, &folder, role).await
}

/// What a command that runs turns says about itself.
pub(crate) struct Work<'a> {
    pub(crate) role: &'static str,
    pub(crate) session: &'a SessionId,
    /// The input that it was started for, if it names one.
    pub(crate) request: Option<&'a RequestId>,
    pub(crate) allow: &'a [String],
    pub(crate) can_ask: bool,
    /// The flags that only a process with an engine of its own can obey.
    pub(crate) own_flags: &'a [(&'static str, bool)],
}

/// A client and what the person should be told about it.
pub(crate) struct Connected {
    pub(crate) client: Box<dyn Client>,
    pub(crate) notices: Vec<String>,
}

/// A client for commands that run turns.
pub(crate) async fn worker(settings: &Settings, work: Work<'_>) -> Result<Connected> {
    let workspace = match &settings.workspace.value {
        Some(path) => absolute(path)?,
        None => absolute(std::path::Path::new("."))?,
    };
    let tools = open::tools(settings, &workspace)?;
    // A server has the same tools, and a misspelt name would show as a denial only.
    for tool in work.allow {
        if tools.get(tool).is_none() {
            let names: Vec<_> = tools.specs().into_iter().map(|spec| spec.name).collect();
            return Err(CliError::usage(format!("there is no tool named {tool:?}"))
                .hint(format!("tools: {}", names.join(", "))));
        }
    }
    // A model that is none leaves no home behind. (Where there is no home, there is no server.)
    let early = match absolute(&settings.home.value)?.exists() {
        true => None,
        false => Some(models::find(settings).await?),
    };
    let home = Home::make(settings)?;
    if let Some(server) = server(settings, &home).await? {
        let mut notices = Vec::new();
        for (flag, given) in work.own_flags {
            if *given && let Place::Server(address) = server.place() {
                notices.push(format!(
                    "the server at {address} does the work with settings of its own: {flag} does nothing here"
                ));
            }
        }
        return Ok(Connected { client: Box::new(server), notices });
    }
    let folder = open::store_folder(settings, &home)?;
    let found = match early {
        Some(found) => found,
        None => models::find(settings).await?,
    };
    let store = open::store(settings, &folder, work.role).await?;
    let key = SessionKey { principal: Principal::local(), id: work.session.clone() };
    let adopted = match work.request {
        Some(request) => adopted(&store, &key, request).await?,
        None => Vec::new(),
    };
    let purpose = open::Purpose {
        role: work.role,
        scope: Scope::Only(key),
        asking: if work.can_ask { Asking::Prompt } else { Asking::Deny },
        allowed: work.allow.iter().cloned().collect::<BTreeSet<_>>(),
        adopted,
        drain_timeout: LEAVE_MAX.min(settings.drain_timeout_s.value.seconds()),
        workspace: open::place(&workspace),
    };
    let engine = open::engine(settings, &home, store.clone(), found.models, tools, purpose).await?;
    let client = Box::new(LocalClient::new(store, Some(engine)));
    Ok(Connected { client, notices: found.notice.into_iter().collect() })
}

/// The inputs whose interrupted turn this process may continue, because it was started for one of
/// them: the input itself, and whatever continuation of it was under way.
async fn adopted(
    store: &SqliteStore,
    key: &SessionKey,
    request: &RequestId,
) -> Result<Vec<InputId>> {
    let Some(input) = store.input_by_identity(key, request).await? else { return Ok(Vec::new()) };
    let mut adopted = vec![input.id.clone()];
    let Some(view) = store.session(key).await? else { return Ok(adopted) };
    let Some(running) = view.running else { return Ok(adopted) };
    let mut link: Option<Run> = Some(running.clone());
    for _ in 0..CHAIN_MAX {
        let Some(run) = link else { break };
        if run.input_ids.contains(&input.id) {
            adopted.extend(running.input_ids);
            break;
        }
        link = match &run.continues {
            Some(before) => store.run(before).await?,
            None => None,
        };
    }
    Ok(adopted)
}

/// A fresh session id, for a command that names none.
pub(crate) fn fresh_session() -> Result<SessionId> {
    Ok(SessionId::from_uuid(clock()?.uuid()))
}

/// A fresh request id, so that a repeated submission is the same input.
pub(crate) fn fresh_request() -> Result<RequestId> {
    Ok(RequestId::from_uuid(clock()?.uuid()))
}

fn clock() -> Result<SystemClock> {
    SystemClock::new()
        .map_err(|error| CliError::new(Fault::Io, format!("the boot id cannot be read: {error}")))
}

/// Whether a setting came from a flag.
pub(crate) fn from_flag(source: &Source) -> bool {
    matches!(source, Source::Flag(_))
}
