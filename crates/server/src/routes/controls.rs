//! Controls: stopping a turn, deciding about an interrupted one.

use axum::Json as JsonReply;
use axum::extract::State;
use everturn_api::Code;
use everturn_api::request::{ResolveInterruption, StopSession};
use everturn_api::run::Run as WireRun;
use everturn_api::session::Session;
use everturn_core::{RunId, SessionId, limits};
use everturn_store::op::Decision;

use super::runs::own_run;
use super::{key, view};
use crate::access::Controller;
use crate::extract::{Id, Json, OptionalJson};
use crate::problem::{Answer, Refused};
use crate::state::Server;
use crate::wire;

/// Stops the running turn
#[utoipa::path(post, path = "/v1/sessions/{id}/stop", tag = "control",
    params(("id" = String, Path, description = "Session id")), request_body = StopSession,
    responses((status = 200, body = WireRun, description = "The stop is durable; the turn ends as cancelled")))]
pub(super) async fn stop_session(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
    OptionalJson(body): OptionalJson<StopSession>,
) -> Answer<JsonReply<WireRun>> {
    let keep_queue = match body.queue.as_deref() {
        None | Some("cancel") => false,
        Some("keep") => true,
        Some(_) => return Err(Refused::field("queue", "must be cancel or keep")),
    };
    let key = key(&caller.principal, session);
    let run =
        server.engine().stop(key, body.generation, None, caller.principal, keep_queue).await?;
    Ok(JsonReply(WireRun::from(&run)))
}

/// Stops one run, if it is the one that runs
#[utoipa::path(post, path = "/v1/runs/{id}/stop", tag = "control",
    params(("id" = String, Path, description = "Run id")), request_body = StopSession,
    responses((status = 200, body = WireRun, description = "The stop is durable; the turn ends as cancelled")))]
pub(super) async fn stop_run(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(id): Id<RunId>,
    OptionalJson(body): OptionalJson<StopSession>,
) -> Answer<JsonReply<WireRun>> {
    let keep_queue = match body.queue.as_deref() {
        None | Some("cancel") => false,
        Some("keep") => true,
        Some(_) => return Err(Refused::field("queue", "must be cancel or keep")),
    };
    let run = own_run(&server, &caller.principal, &id).await?;
    let key = run.session_key();
    let run =
        server.engine().stop(key, body.generation, Some(id), caller.principal, keep_queue).await?;
    Ok(JsonReply(WireRun::from(&run)))
}

/// The text that is sent again; without one it is the same.
fn resent(server: &Server, text: Option<&str>) -> Answer<Option<String>> {
    server.disk().require_space()?;
    let Some(text) = text else { return Ok(None) };
    if text.trim().is_empty() {
        return Err(Refused::new(Code::EmptyInput, "the text is empty"));
    }
    if text.len() > limits::TEXT_BYTES_MAX {
        let detail = format!("the text has {} bytes", text.len());
        return Err(Refused::new(Code::TextTooLarge, detail));
    }
    Ok(Some(text.to_owned()))
}

/// Decides about an interrupted turn
#[utoipa::path(post, path = "/v1/sessions/{id}/resolve", tag = "control",
    params(("id" = String, Path, description = "Session id")), request_body = ResolveInterruption,
    responses((status = 200, body = Session)))]
pub(super) async fn resolve(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
    Json(body): Json<ResolveInterruption>,
) -> Answer<JsonReply<Session>> {
    let decision = match body.decision.as_str() {
        "continue" => Decision::Continue,
        "discard" => Decision::Discard,
        "resend" => Decision::Resend(resent(&server, body.text.as_deref())?),
        _ => return Err(Refused::field("decision", "must be continue, discard or resend")),
    };
    if body.text.is_some() && !matches!(decision, Decision::Resend(_)) {
        return Err(Refused::field("text", "goes with decision resend only"));
    }
    let key = key(&caller.principal, session);
    server.engine().decide(key.clone(), body.generation, decision).await?;
    let view = view(&server, &key).await?;
    Ok(JsonReply(wire::session(&server, view).await?))
}
