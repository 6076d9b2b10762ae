//! Figures: what is counted, and the recorder behind `/metrics`. docs/api.md lists every name.
//!
//! Labels come from closed sets (routes, methods, statuses, kinds): no id, no name of a person, and
//! nothing that a client could make up.

use std::sync::{Mutex, PoisonError};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::state::Server;

/// Bounds of the time buckets, in seconds.
const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Installs the recorder of this process, once; later calls answer the same one.
///
/// # Errors
/// Another recorder was installed by somebody else.
pub fn install_metrics() -> Result<PrometheusHandle, BuildError> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .install_recorder()?;
    describe();
    *installed = Some(recorder.clone());
    Ok(recorder)
}

fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!("everturn_http_requests_total", "Requests answered");
    describe_histogram!(
        "everturn_http_request_duration_seconds",
        Unit::Seconds,
        "Time to the beginning of an answer"
    );
    describe_counter!("everturn_rate_limited_total", "Requests refused for being too many");
    describe_counter!("everturn_storage_failures_total", "Requests that met a store that failed");
    describe_counter!(
        "everturn_slow_peers_total",
        "Connections cut because their peer did not read"
    );
    describe_counter!("everturn_inputs_total", "Inputs accepted");
    describe_counter!("everturn_interruptions_total", "Interruptions recorded");
    describe_counter!("everturn_turns_started_total", "Turns begun");
    describe_counter!("everturn_turns_ended_total", "Turns ended");
    describe_histogram!("everturn_turn_seconds", Unit::Seconds, "From a turn's claim to its end");
    describe_counter!("everturn_tool_calls_total", "Tool calls begun");
    describe_counter!("everturn_model_retries_total", "Model requests made again");
    describe_counter!("everturn_store_retries_total", "Writes of turns made again");
    describe_gauge!("everturn_workers", "Sessions that are being worked on");
    describe_counter!("everturn_events_pruned_total", "Token events pruned");
    describe_counter!("everturn_prune_failures_total", "Tries to prune that failed");
    describe_gauge!("everturn_connections", "Open connections");
    describe_gauge!("everturn_streams", "Open streams");
    describe_gauge!("everturn_turns", "Turns that run in this process");
    describe_gauge!("everturn_sessions", "Sessions in the store");
    describe_gauge!("everturn_inputs_queued", "Inputs that wait");
    describe_gauge!("everturn_runs_unfinished", "Runs without an end");
    describe_gauge!("everturn_free_bytes", Unit::Bytes, "Space free where the store is");
    describe_gauge!("everturn_draining", "1 while this process is leaving");
}

/// Sets the figures that are only worth knowing when somebody asks.
pub(crate) async fn observe(server: &Server) {
    let engine = server.engine();
    metrics::gauge!("everturn_streams").set(server.streams().count() as f64);
    metrics::gauge!("everturn_turns").set(engine.turns() as f64);
    metrics::gauge!("everturn_draining").set(f64::from(u8::from(engine.is_draining())));
    if let Some(free) = server.disk().free_bytes() {
        metrics::gauge!("everturn_free_bytes").set(free as f64);
    }
    match engine.read().counts().await {
        Ok(counts) => {
            metrics::gauge!("everturn_sessions").set(counts.sessions as f64);
            metrics::gauge!("everturn_inputs_queued").set(counts.queued as f64);
            metrics::gauge!("everturn_runs_unfinished").set(counts.unfinished as f64);
        }
        Err(error) => {
            // The other figures are still good.
            server.health().store_failed(error.kind);
            tracing::warn!(%error, "cannot count");
        }
    }
}
