//! How the server is: for people, for supervisors, for graphs.

use axum::Json as JsonReply;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use everturn_api::Code;
use everturn_core::limits;
use everturn_store::StorageErrorKind;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Admin, Reader};
use crate::config::HEADER_BYTES_MAX;
use crate::problem::{Answer, Refused};
use crate::state::Server;

/// `GET /v1/info`.
#[derive(Serialize, ToSchema)]
pub(super) struct Info {
    /// Version of the program.
    version: String,
    /// Version of this API.
    api: String,
    /// `provider/name` of sessions that name none.
    model: String,
    /// This process.
    node: String,
    /// The home's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    home: Option<String>,
    /// Something that people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
    /// Whether the process is leaving and takes no new inputs.
    draining: bool,
    /// The store.
    store: StoreInfo,
    /// Who asks.
    caller: CallerInfo,
    /// The limits that hold here.
    limits: Limits,
}

/// The store.
#[derive(Serialize, ToSchema)]
pub(super) struct StoreInfo {
    /// Its kind, for example `sqlite`.
    kind: String,
    /// Version of its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<u64>,
}

/// Who asks.
#[derive(Serialize, ToSchema)]
pub(super) struct CallerInfo {
    /// On whose behalf.
    principal: String,
    /// What it may do.
    scopes: Vec<String>,
}

/// Limits, each with its unit in its name; docs/limits.md explains them.
#[derive(Serialize, ToSchema)]
pub(super) struct Limits {
    body_bytes: usize,
    text_bytes: usize,
    header_bytes: usize,
    system_bytes: usize,
    metadata_bytes: usize,
    id_chars: usize,
    request_id_chars: usize,
    title_chars: usize,
    page_rows: u32,
    wait_s: u64,
    queue_inputs: u32,
    sessions: u64,
    feed_sessions: usize,
    requests_per_s: u32,
    requests_burst: u32,
    streams: usize,
    streams_per_principal: usize,
    min_free_bytes: u64,
    receipt_days: u64,
}

/// What this server is, and what it allows
#[utoipa::path(get, path = "/v1/info", tag = "operation", responses((status = 200, body = Info)))]
pub(super) async fn info(State(server): State<Server>, Reader(caller): Reader) -> JsonReply<Info> {
    let (engine, config) = (server.engine(), server.config());
    JsonReply(Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: "v1".to_owned(),
        model: engine.models().default_model(),
        node: engine.node().to_string(),
        home: config.home.clone(),
        notice: config.notice.clone(),
        draining: engine.is_draining(),
        store: StoreInfo { kind: config.store_kind.clone(), schema: config.store_schema },
        caller: CallerInfo {
            principal: caller.principal.to_string(),
            scopes: caller.scopes.words(),
        },
        limits: Limits {
            body_bytes: limits::BODY_BYTES_MAX,
            text_bytes: limits::TEXT_BYTES_MAX,
            header_bytes: HEADER_BYTES_MAX,
            system_bytes: limits::SYSTEM_BYTES_MAX,
            metadata_bytes: limits::METADATA_BYTES_MAX,
            id_chars: limits::ID_CHARS_MAX,
            request_id_chars: limits::REQUEST_ID_CHARS_MAX,
            title_chars: limits::TITLE_CHARS_MAX,
            page_rows: limits::PAGE_ROWS_MAX,
            wait_s: limits::WAIT_S_MAX,
            queue_inputs: config.queue_max,
            sessions: config.sessions_max,
            feed_sessions: limits::FEED_SESSIONS_MAX,
            requests_per_s: config.rate_per_s,
            requests_burst: config.rate_burst,
            streams: config.streams_max,
            streams_per_principal: config.streams_per_principal,
            min_free_bytes: config.min_free_bytes,
            receipt_days: limits::RECEIPT_DAYS,
        },
    })
}

/// How the server is, in a word.
#[derive(Serialize, ToSchema)]
pub(super) struct Status {
    /// `ok`, `ready` or `draining`.
    status: &'static str,
}

/// Whether the process lives
#[utoipa::path(get, path = "/healthz", tag = "operation", security(()),
    responses((status = 200, body = Status)))]
pub(super) async fn healthz() -> JsonReply<Status> {
    JsonReply(Status { status: "ok" })
}

/// Whether it is worth sending inputs to
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses((status = 200, body = Status)))]
pub(super) async fn readyz(
    State(server): State<Server>,
    _caller: Reader,
) -> Answer<JsonReply<Status>> {
    if server.engine().is_draining() {
        return Err(Refused::new(Code::Draining, "this process is leaving").retry_after(2));
    }
    server.disk().require_space()?;
    match server.health().store(server.engine()).await {
        Ok(()) => Ok(JsonReply(Status { status: "ready" })),
        Err(StorageErrorKind::Full) => {
            Err(Refused::new(Code::StorageFull, "the last write found no space").retry_after(5))
        }
        Err(kind) => {
            let detail = format!("the last use of the store failed: {kind:?}");
            Err(Refused::new(Code::StorageUnavailable, detail).retry_after(1))
        }
    }
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(server): State<Server>, _caller: Reader) -> Answer<Response> {
    let Some(recorder) = &server.config().metrics else {
        return Err(Refused::new(Code::NotFound, "this server keeps no figures"));
    };
    crate::metrics::observe(&server).await;
    let text = recorder.render();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "operation",
    responses((status = 200, body = Object)))]
pub(super) async fn openapi(State(server): State<Server>, _caller: Reader) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], server.openapi()).into_response()
}

/// Lets the process leave: no new inputs, turns end or are handed over
#[utoipa::path(post, path = "/v1/admin/drain", tag = "operation",
    responses((status = 202, body = Status, description = "It drains; the process stays and answers")))]
pub(super) async fn drain(State(server): State<Server>, Admin(caller): Admin) -> impl IntoResponse {
    tracing::info!(principal = %caller.principal, "asked to drain");
    let engine = server.engine().clone();
    tokio::spawn(async move { engine.drain().await });
    (StatusCode::ACCEPTED, JsonReply(Status { status: "draining" }))
}
