//! What a server is told when it is started, and every limit that is its own.

use std::path::PathBuf;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

/// Bytes of a request's line and headers together; docs/limits.md lists every limit.
pub const HEADER_BYTES_MAX: usize = 32 << 10;

/// A server's settings.
#[derive(Clone)]
pub struct ServerConfig {
    /// SHA-256 of the key with which the command line of the same home speaks for `local`, with
    /// every scope; see [`crate::hash_secret`].
    pub local_key: Option<[u8; 32]>,
    /// Host names, besides loopback's and the bound address, under which the server is reached.
    pub hosts: Vec<String>,
    /// Requests per second of one principal, on average.
    pub rate_per_s: u32,
    /// Requests of one principal at once, after a pause.
    pub rate_burst: u32,
    /// Requests per second with tokens that are not known, on average, all together.
    pub unknown_per_s: u32,
    /// Requests with tokens that are not known at once, after a pause.
    pub unknown_burst: u32,
    /// Open streams of one principal.
    pub streams_per_principal: usize,
    /// Open streams.
    pub streams_max: usize,
    /// Open connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// A folder on the file system whose free space is watched.
    pub data_dir: Option<PathBuf>,
    /// Bytes that stay free there: with less, nothing new is accepted.
    pub min_free_bytes: u64,
    /// Silence after which a stream sends a comment.
    pub heartbeat: Duration,
    /// How long a peer may leave what was sent to it unread.
    pub write_timeout: Duration,
    /// How long a request's headers may take, and its body.
    pub read_timeout: Duration,
    /// How long open requests may take to end when the server stops.
    pub stop_timeout: Duration,
    /// Something that people should know, shown on the page.
    pub notice: Option<String>,
    /// The home's name, for people; never a path of the machine.
    pub home: Option<String>,
    /// Kind of the store, for example `sqlite`.
    pub store_kind: String,
    /// Version of the store's schema.
    pub store_schema: Option<u64>,
    /// Inputs that may wait in one session; told, enforced by the engine.
    pub queue_max: u32,
    /// Sessions of a principal; told, enforced by the engine.
    pub sessions_max: u64,
    /// Where `/metrics` comes from; see [`crate::install_metrics`].
    pub metrics: Option<PrometheusHandle>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            local_key: None,
            hosts: Vec::new(),
            rate_per_s: 10_000,
            rate_burst: 40_000,
            unknown_per_s: 100,
            unknown_burst: 400,
            streams_per_principal: 10_000,
            streams_max: 20_000,
            connections_max: 25_000,
            data_dir: None,
            min_free_bytes: 64 << 20,
            heartbeat: Duration::from_secs(5),
            write_timeout: Duration::from_secs(20),
            read_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(5),
            notice: None,
            home: None,
            store_kind: "unknown".to_owned(),
            store_schema: None,
            queue_max: everturn_core::limits::QUEUE_INPUTS_MAX,
            sessions_max: 100_000,
            metrics: None,
        }
    }
}

impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("hosts", &self.hosts)
            .field("rate_per_s", &self.rate_per_s)
            .field("streams_max", &self.streams_max)
            .field("min_free_bytes", &self.min_free_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-66, W-67: unless a person sets something else, silence is broken every 5 s (twice within the
    /// time in which a kernel gives a dead peer up), and who does not read is let go after 20 s.
    #[test]
    fn streams_beat_and_wait_as_documented() {
        let config = ServerConfig::default();
        assert_eq!(config.heartbeat, Duration::from_secs(5));
        assert_eq!(config.write_timeout, Duration::from_secs(20));
    }
}
