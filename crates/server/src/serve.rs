//! Accepting connections, and leaving in order.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use everturn_engine::Engine;
use everturn_store::StorageError;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::access::{BindError, NoRandomness, Peer, check_bind};
use crate::config::ServerConfig;
use crate::connection::{Connection, Exchange};
use crate::state::Server;

/// Bytes that are kept of what a peer sends or does not take, per connection and direction. It is
/// also what the library reads of a request's headers before it refuses them.
const BUFFER_BYTES: usize = 64 << 10;
/// How long accepting pauses after the system refused (no file descriptor is left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often figures are tidied.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can be reached from outside and nothing keeps strangers out.
    #[error(transparent)]
    Open(#[from] BindError),
    /// The tokens cannot be read.
    #[error("cannot read the tokens: {0}")]
    Store(#[from] StorageError),
    /// The listener has no address.
    #[error("the listener has no address: {0}")]
    Address(#[source] io::Error),
    /// The system has no randomness to give.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// Answers on a listener until `shutdown` is ready, then lets open requests end (streams are ended
/// for them) and returns, after [`ServerConfig::stop_timeout`] at the latest.
///
/// It does not drain the engine: a server that leaves drains first, while it still answers reads,
/// and then makes `shutdown` ready.
///
/// # Errors
/// [`ServeError`], before the first connection is accepted.
pub async fn serve(
    engine: Engine,
    config: ServerConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let bound = listener.local_addr().map_err(ServeError::Address)?;
    check_bind(bound, !engine.read().tokens().await?.is_empty())?;
    let server = Server::new(engine, config, bound)?;
    accept(&server, listener, shutdown).await;
    Ok(())
}

async fn accept(server: &Server, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let config = server.config();
    let router = server.router();
    let graceful = GracefulShutdown::new();
    // Cuts what has not ended in time.
    let cut = CancellationToken::new();
    let places = Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS)));
    let upkeep = tokio::spawn(upkeep(server.clone()));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let next = async {
            // A connection beyond the limit waits in the system's queue.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = next => next,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = handle(config, router.clone(), stream, peer);
        let connection = graceful.watch(connection);
        let cut = cut.clone();
        tokio::spawn(async move {
            metrics::gauge!("everturn_connections").increment(1.0);
            tokio::select! {
                result = connection => {
                    // A peer that goes away is a normal end.
                    if let Err(error) = result {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                }
                () = cut.cancelled() => {}
            }
            metrics::gauge!("everturn_connections").decrement(1.0);
            drop(place);
        });
    }
    drop(listener);
    server.stop_streams();
    if tokio::time::timeout(config.stop_timeout, graceful.shutdown()).await.is_err() {
        tracing::info!("some requests did not end in time and are cut off");
    }
    cut.cancel();
    upkeep.abort();
}

type HttpConnection<S> = http1::Connection<TokioIo<Connection>, S>;

/// One connection, to be driven.
fn handle(
    config: &ServerConfig,
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
) -> HttpConnection<
    impl hyper::service::Service<
        http::Request<Incoming>,
        Response = axum::response::Response,
        Error = Infallible,
        Future: Send,
    > + Send
    + use<>,
> {
    prepare(&stream, config.write_timeout);
    let exchange = Arc::new(Exchange::default());
    let connection = Connection::new(stream, Arc::clone(&exchange), config.write_timeout);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let in_flight = exchange.begin();
        let router = router.clone();
        async move {
            let mut request: Request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer));
            router.oneshot(request).await.map(|response| in_flight.answer(response))
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.read_timeout)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(connection), service)
}

/// Small writes go out at once, and a peer that vanished without a word is noticed: a viewer that is
/// none must not count as one.
fn prepare(stream: &TcpStream, patience: Duration) {
    let socket = socket2::SockRef::from(stream);
    let done =
        socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_user_timeout(Some(patience)));
    if let Err(error) = done {
        tracing::debug!(%error, "cannot set up a connection");
    }
}

async fn upkeep(server: Server) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        if let Some(recorder) = &server.config().metrics {
            recorder.run_upkeep();
        }
        server.access().tidy();
    }
}
