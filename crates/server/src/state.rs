//! What every handler shares.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use everturn_engine::Engine;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, NoRandomness};
use crate::config::ServerConfig;
use crate::disk::Disk;
use crate::health::Health;
use crate::routes;
use crate::sse::Pace;
use crate::streams::Streams;

/// A server around an engine. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    config: ServerConfig,
    access: Access,
    streams: Arc<Streams>,
    pace: Pace,
    disk: Disk,
    health: Health,
    openapi: Bytes,
    stopping: CancellationToken,
}

impl Server {
    /// A server that answers for the engine at this address.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new(
        engine: Engine,
        config: ServerConfig,
        bound: SocketAddr,
    ) -> Result<Self, NoRandomness> {
        let shared = Shared {
            access: Access::new(engine.clone(), &config, bound)?,
            streams: Streams::new(config.streams_max, config.streams_per_principal),
            pace: Pace::default(),
            disk: Disk::new(config.data_dir.clone(), config.min_free_bytes),
            health: Health::default(),
            openapi: routes::openapi_json(),
            stopping: CancellationToken::new(),
            engine,
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// All routes, with the gate in front of them.
    pub fn router(&self) -> Router {
        routes::router(self.clone())
    }

    /// Ends every stream, so that connections can be closed.
    pub fn stop_streams(&self) {
        self.shared.stopping.cancel();
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    pub(crate) fn access(&self) -> &Access {
        &self.shared.access
    }

    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.shared.streams
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.shared.disk
    }

    pub(crate) fn health(&self) -> &Health {
        &self.shared.health
    }

    pub(crate) fn openapi(&self) -> Bytes {
        self.shared.openapi.clone()
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.shared.stopping
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish_non_exhaustive()
    }
}
