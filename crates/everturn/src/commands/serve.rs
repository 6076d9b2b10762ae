//! `everturn serve`: from settings to a server, and out again in order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use everturn_engine::{Asking, Engine, Models as _, Scope};
use everturn_server::{ServeError, ServerConfig, check_bind, hash_secret, install_metrics};
use everturn_sqlite::{SqliteStore, schema_version};
use everturn_store::{Read as _, Store as _};
use rustix::process::Resource;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::home::{Announced, Home, ServerFile};
use crate::settings::{Settings, absolute};
use crate::signals::{Ask, Signals};
use crate::{models, open, print};

/// How often a server that is not the announced one of its home looks whether it may be.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(settings: &Settings) -> Result<Exit> {
    let mut signals = Signals::new()?;
    raise_handles();
    let home = Home::make(settings)?;
    if let Some(mode) = home.open_mode() {
        tracing::warn!(
            home = %home.path().display(),
            mode = format_args!("{mode:o}"),
            "others may enter the home; `chmod 700` keeps them out"
        );
    }
    let folder = open::store_folder(settings, &home)?;
    // First the port: a server that cannot listen must not begin to work.
    let listener = listen(settings.listen.value).await?;
    let bound = listener
        .local_addr()
        .map_err(|error| CliError::new(Fault::Listen, format!("no address: {error}")))?;
    let workspace = match &settings.workspace.value {
        Some(path) => absolute(path)?,
        None => home.workspace()?,
    };
    let tools = open::tools(settings, &workspace)?;
    let found = models::find(settings).await?;
    if let Some(notice) = &found.notice {
        tell(notice);
    }
    let model = found.models.default_model();
    let store = open::store(settings, &folder, "serve").await?;
    check_bind(bound, !store.tokens().await?.is_empty())
        .map_err(|error| CliError::from(ServeError::from(error)))?;
    let key = home.make_key()?;
    let purpose = open::Purpose {
        role: "serve",
        scope: Scope::All,
        asking: Asking::Prompt,
        allowed: std::collections::BTreeSet::new(),
        adopted: Vec::new(),
        drain_timeout: settings.drain_timeout_s.value.seconds(),
        workspace: open::place(&workspace),
    };
    let engine = open::engine(settings, &home, store.clone(), found.models, tools, purpose).await?;
    tracing::info!(
        home = %home.path().display(),
        store = %folder.display(),
        workspace = %workspace.display(),
        model,
        node = %engine.node(),
        "ready"
    );
    let config = server_config(settings, &home, &folder, &key, found.notice);
    let said = ServerFile {
        address: format!("http://{}", reachable(bound)),
        pid: std::process::id(),
        node: engine.node().to_string(),
        store: folder.display().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: store.clock().now().rfc3339(),
    };
    let gone = CancellationToken::new();
    // Whoever reads that the server listens finds it: the first try comes before the word.
    let (tried, first_try) = tokio::sync::oneshot::channel();
    let announcing = tokio::spawn(announce(home.clone(), said, gone.clone(), tried));
    let _ended = first_try.await;
    print::text(&format!("listening on http://{bound}\n"))?;

    let leave = CancellationToken::new();
    let served =
        everturn_server::serve(engine.clone(), config, listener, leave.clone().cancelled_owned());
    let mut served = std::pin::pin!(served);
    let outcome = tokio::select! {
        outcome = &mut served => outcome,
        ask = signals.next() => {
            drain(&engine, ask, &mut signals, served.as_mut(), &leave).await
        }
    };
    outcome.map_err(CliError::from)?;
    gone.cancel();
    if let Err(error) = announcing.await {
        tracing::warn!(%error, "the announcement broke");
    }
    engine.close().await;
    close(engine, store).await;
    tell("stopped; nothing that was accepted is lost");
    Ok(Exit::Completed)
}

/// Lets turns end or hands them over, while reads are answered; then lets the server end.
async fn drain(
    engine: &Engine,
    ask: Ask,
    signals: &mut Signals,
    mut served: std::pin::Pin<&mut impl Future<Output = Result<(), ServeError>>>,
    leave: &CancellationToken,
) -> Result<(), ServeError> {
    let turns = engine.turns();
    let running = match turns {
        0 => "no turn is running".to_owned(),
        1 => "1 turn is running: it ends, or is handed over at its next step".to_owned(),
        many => {
            format!("{many} turns are running: they end, or are handed over at their next step")
        }
    };
    let how = match ask {
        Ask::Interrupt => "Ctrl-C again",
        Ask::Terminate => "a second signal",
    };
    tell(&format!("draining: {running}; {how} ends at once"));
    let drained = engine.drain();
    tokio::select! {
        () = drained => {}
        outcome = served.as_mut() => return outcome,
        ask = signals.next() => at_once(ask),
    }
    leave.cancel();
    tokio::select! {
        outcome = served => outcome,
        ask = signals.next() => at_once(ask),
    }
}

/// The second signal. Nothing is lost by it: whoever comes next finds everything in the store.
fn at_once(ask: Ask) -> ! {
    tell("leaving at once");
    std::process::exit(match ask {
        Ask::Interrupt => 130,
        Ask::Terminate => 143,
    })
}

/// Closes the store where it may block.
async fn close(engine: Engine, store: std::sync::Arc<SqliteStore>) {
    drop(engine);
    if tokio::task::spawn_blocking(move || drop(store)).await.is_err() {
        tracing::warn!("closing the store broke");
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        CliError::new(Fault::Listen, message)
            .hint("another address with --listen HOST:PORT; port 0 picks a free one")
    })
}

/// The address under which this machine itself reaches the server.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

fn server_config(
    settings: &Settings,
    home: &Home,
    folder: &Path,
    key: &str,
    notice: Option<String>,
) -> ServerConfig {
    let metrics = install_metrics()
        .inspect_err(|error| tracing::warn!(%error, "there will be no figures"))
        .ok();
    ServerConfig {
        local_key: Some(hash_secret(key)),
        hosts: settings.hosts.value.0.clone(),
        rate_per_s: settings.limits_rate.value.as_u32(),
        rate_burst: settings.limits_burst.value.as_u32(),
        streams_per_principal: settings.limits_streams_per_principal.value.as_usize(),
        streams_max: settings.limits_streams.value.as_usize(),
        connections_max: settings.limits_connections.value.as_usize(),
        data_dir: Some(folder.to_owned()),
        min_free_bytes: settings.limits_min_free_bytes.value.0,
        notice,
        // A name for people; the path is nobody's business.
        home: home.path().file_name().map(|name| name.to_string_lossy().into_owned()),
        store_kind: "sqlite".to_owned(),
        store_schema: Some(u64::from(schema_version())),
        queue_max: settings.limits_queue.value.as_u32(),
        sessions_max: settings.limits_sessions.value.0,
        metrics,
        ..ServerConfig::default()
    }
}

/// Keeps `server.json` for as long as this server lives, from the moment that no other living server
/// of the home has it.
async fn announce(
    home: Home,
    said: ServerFile,
    gone: CancellationToken,
    tried: tokio::sync::oneshot::Sender<()>,
) {
    let mut tried = Some(tried);
    let mut announced: Option<Announced> = None;
    let mut told = false;
    loop {
        if !announced.as_ref().is_some_and(Announced::stands) {
            announced = match Announced::claim(&home, &said) {
                Ok(Some(claimed)) => Some(claimed),
                Ok(None) => {
                    if !std::mem::replace(&mut told, true) {
                        tell(
                            "another server of this home is running; the command line keeps using that one",
                        );
                    }
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "the command line will not find this server");
                    None
                }
            };
        }
        if let Some(tried) = tried.take() {
            let _nobody_waits = tried.send(());
        }
        tokio::select! {
            () = gone.cancelled() => return,
            () = tokio::time::sleep(ANNOUNCE_EVERY) => {}
        }
    }
}

/// Allows as many open files as the system lets this process have.
fn raise_handles() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
}

#[allow(clippy::print_stderr, reason = "talk of a command")]
fn tell(line: &str) {
    eprintln!("{line}");
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Open(error) => Self {
                code: error.code().to_owned(),
                ..Self::new(Fault::Listen, error.to_string()).hint(error.hint())
            },
            ServeError::Store(error) => error.into(),
            ServeError::Address(error) => {
                Self::new(Fault::Listen, format!("the listener has no address: {error}"))
            }
            ServeError::NoRandomness(error) => Self::new(Fault::Io, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_reached_through_loopback() {
        let of = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(of("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(of("[::]:80"), "[::1]:80");
        assert_eq!(of("10.0.0.1:80"), "10.0.0.1:80");
    }
}
