//! Sessions: listing, creating, reading, changing, closing, deleting.

use axum::Json as JsonReply;
use axum::extract::{RawQuery, State};
use axum::response::IntoResponse;
use everturn_api::Code;
use everturn_api::message::Message;
use everturn_api::page::{CursorPage, Page};
use everturn_api::policy::{Permission, PolicyPatch};
use everturn_api::request::{CreateSession, EndSession, PatchSession};
use everturn_api::session::Session;
use everturn_core::{SessionId, SessionKey, SessionState, limits};
use everturn_engine::NewSession;
use everturn_store::op::SessionPatch;
use everturn_store::read::{MessageWindow, SessionFilter};
use http::{StatusCode, header};

use super::{key, view};
use crate::access::{Caller, Controller, Reader, Scope, Submitter};
use crate::cursor::{list_cursor, read_list_cursor};
use crate::extract::{Id, Json, OptionalJson, Query, id};
use crate::problem::{Answer, Refused};
use crate::state::Server;
use crate::wire;

/// Characters of a search.
const QUERY_CHARS_MAX: usize = 500;
/// Characters of a model's name.
const MODEL_CHARS_MAX: usize = 256;

/// Sessions, the last changed first
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions",
    params(
        ("limit" = Option<u32>, Query, description = "Rows, 1 to 500; 50 if absent"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("state" = Option<String>, Query, description = "`idle`, `running`, `waiting`, `interrupted`, `ended`"),
        ("q" = Option<String>, Query, description = "Text in a title or a message"),
    ),
    responses((status = 200, body = CursorPage<Session>)))]
pub(super) async fn list(
    State(server): State<Server>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<CursorPage<Session>>> {
    let mut query = Query::new(query.as_deref());
    let limit = query.limit()?;
    let cursor = query.one("cursor")?.map(|text| read_list_cursor(&text)).transpose()?;
    let state = query.one("state")?.map(|word| read_state(&word)).transpose()?;
    let text = query.one("q")?.map(|text| text.into_owned()).filter(|text| !text.is_empty());
    query.finish()?;
    if text.as_ref().is_some_and(|text| text.chars().count() > QUERY_CHARS_MAX) {
        return Err(Refused::field(
            "q",
            format_args!("has more than {QUERY_CHARS_MAX} characters"),
        ));
    }
    let filter = SessionFilter { state, query: text, cursor };
    // One row more than asked for tells whether another page follows.
    let mut rows = server.engine().read().sessions(&caller.principal, &filter, limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next_cursor = rows
        .last()
        .filter(|_| has_more)
        .map(|last| list_cursor(last.session.updated_at.0, &last.session.id));
    let mut data = Vec::with_capacity(rows.len());
    for row in rows {
        data.push(wire::session(&server, row).await?);
    }
    Ok(JsonReply(CursorPage { data, next_cursor }))
}

fn read_state(word: &str) -> Answer<SessionState> {
    SessionState::parse(word).ok_or_else(|| {
        Refused::field("state", "must be idle, running, waiting, interrupted or ended")
    })
}

/// Creates a session
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = CreateSession,
    responses((status = 201, body = Session)))]
pub(super) async fn create(
    State(server): State<Server>,
    Submitter(caller): Submitter,
    OptionalJson(body): OptionalJson<CreateSession>,
) -> Answer<impl IntoResponse> {
    let session_id = match body.id.as_deref() {
        Some(text) => id::<SessionId>(text)?,
        None => SessionId::from_uuid(server.engine().clock().uuid()),
    };
    check_title(body.title.as_deref())?;
    check_model(body.model.as_deref())?;
    check_system(body.system.as_deref())?;
    let mut policy = server.engine().default_policy();
    if let Some(patch) = &body.policy {
        check_policy(&caller, patch)?;
        patch.apply(&mut policy);
    }
    let metadata = body.metadata.map(|map| read_metadata(&map)).transpose()?;
    server.disk().require_space()?;
    let new =
        NewSession { title: body.title, model: body.model, system: body.system, policy, metadata };
    let key = key(&caller.principal, session_id);
    server.engine().create_session(key.clone(), new).await?;
    let location = format!("/v1/sessions/{}", key.id);
    let session = shown(&server, &key).await?;
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], JsonReply(session)))
}

/// A session after a change.
async fn shown(server: &Server, key: &SessionKey) -> Answer<Session> {
    let view = view(server, key).await?;
    Ok(wire::session(server, view).await?)
}

fn check_title(title: Option<&str>) -> Answer<()> {
    let max = limits::TITLE_CHARS_MAX;
    match title {
        Some(title) if title.chars().count() > max => {
            Err(Refused::field("title", format_args!("has more than {max} characters")))
        }
        _ => Ok(()),
    }
}

fn check_model(model: Option<&str>) -> Answer<()> {
    let Some(model) = model else { return Ok(()) };
    let is_well_formed = model.len() <= MODEL_CHARS_MAX
        && !model.chars().any(|c| c.is_control() || c.is_whitespace())
        && model
            .split_once('/')
            .is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty());
    if is_well_formed {
        return Ok(());
    }
    Err(Refused::field("model", "must be PROVIDER/NAME, for example openai/gpt-5"))
}

fn check_system(system: Option<&str>) -> Answer<()> {
    let max = limits::SYSTEM_BYTES_MAX;
    match system {
        Some(system) if system.len() > max => {
            Err(Refused::field("system", format_args!("has more than {max} bytes")))
        }
        _ => Ok(()),
    }
}

/// A rule that allows a tool answers every question in advance, so that it needs the same scope.
fn check_policy(caller: &Caller, patch: &PolicyPatch) -> Answer<()> {
    if let Some(fault) = patch.fault() {
        return Err(Refused::new(Code::BadRequest, fault));
    }
    let mut rules = patch.tools.iter().flatten();
    if rules.any(|(_, rule)| *rule != Some(Permission::Ask) && *rule != Some(Permission::Deny)) {
        caller.require(Scope::Approve)?;
    }
    Ok(())
}

fn read_metadata(map: &serde_json::Map<String, serde_json::Value>) -> Answer<String> {
    let text = serde_json::to_string(map)
        .map_err(|error| Refused::field("metadata", error.to_string()))?;
    check_metadata_bytes(text.len())?;
    Ok(text)
}

pub(super) fn check_metadata_bytes(bytes: usize) -> Answer<()> {
    let max = limits::METADATA_BYTES_MAX;
    if bytes > max {
        return Err(Refused::field("metadata", format_args!("has more than {max} bytes")));
    }
    Ok(())
}

/// One session
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "Session id")),
    responses((status = 200, body = Session)))]
pub(super) async fn show(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
) -> Answer<JsonReply<Session>> {
    let key = key(&caller.principal, session);
    match server.engine().read().session_in_flight(&key).await? {
        Some((view, picture)) => {
            Ok(JsonReply(wire::session_in_flight(&server, view, picture).await?))
        }
        None => Err(super::absent(&server, &key).await?),
    }
}

/// Changes a session
#[utoipa::path(patch, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "Session id")), request_body = PatchSession,
    responses((status = 200, body = Session)))]
pub(super) async fn change(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
    Json(body): Json<PatchSession>,
) -> Answer<JsonReply<Session>> {
    check_title(body.title.as_ref().and_then(Option::as_deref))?;
    check_model(body.model.as_ref().and_then(Option::as_deref))?;
    check_system(body.system.as_ref().and_then(Option::as_deref))?;
    if let Some(patch) = &body.policy {
        check_policy(&caller, patch)?;
    }
    if let Some(map) = &body.metadata {
        read_metadata(map)?;
    }
    let Some(revision) = body.expected_revision else {
        let refused = Refused::field("expected_revision", "is needed");
        return Err(
            refused.hint("it is the `revision` of the session that the change was made for")
        );
    };
    server.disk().require_space()?;
    let patch = SessionPatch {
        title: body.title,
        model: body.model,
        system: body.system,
        policy: body.policy,
        metadata: body.metadata,
    };
    let key = key(&caller.principal, session);
    server.engine().patch_session(key.clone(), Some(revision), patch).await?;
    shown(&server, &key).await.map(JsonReply)
}

/// Closes a session
#[utoipa::path(post, path = "/v1/sessions/{id}/end", tag = "sessions",
    params(("id" = String, Path, description = "Session id")), request_body = EndSession,
    responses((status = 200, body = Session)))]
pub(super) async fn end(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
    OptionalJson(body): OptionalJson<EndSession>,
) -> Answer<JsonReply<Session>> {
    let reason = body.reason.unwrap_or_else(|| "closed".to_owned());
    let max = limits::TITLE_CHARS_MAX;
    if reason.chars().count() > max {
        return Err(Refused::field("reason", format_args!("has more than {max} characters")));
    }
    let key = key(&caller.principal, session);
    server.engine().end_session(key.clone(), reason).await?;
    shown(&server, &key).await.map(JsonReply)
}

/// Deletes a session; its id stays taken
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(
        ("id" = String, Path, description = "Session id"),
        ("expected_generation" = Option<u64>, Query, description = "Refuse if the session is at another turn"),
        ("force" = Option<bool>, Query, description = "Stop a running turn first"),
    ),
    responses((status = 204, description = "It is deleted, now or before")))]
pub(super) async fn delete(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
) -> Answer<StatusCode> {
    let mut query = Query::new(query.as_deref());
    let expected = query.number("expected_generation", i64::MAX.unsigned_abs())?;
    let force = query.flag("force", false)?;
    query.finish()?;
    server.engine().delete_session(key(&caller.principal, session), expected, force).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The transcript, a window of it
#[utoipa::path(get, path = "/v1/sessions/{id}/messages", tag = "sessions",
    params(
        ("id" = String, Path, description = "Session id"),
        ("limit" = Option<u32>, Query, description = "Rows, 1 to 500; 50 if absent"),
        ("before" = Option<u64>, Query, description = "Rows directly before this message"),
        ("after" = Option<u64>, Query, description = "Rows directly after this message"),
    ),
    responses((status = 200, body = Page<Message>)))]
pub(super) async fn messages(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<Page<Message>>> {
    let mut query = Query::new(query.as_deref());
    let limit = query.limit()?;
    let window = match (query.position("before")?, query.position("after")?) {
        (None, None) => MessageWindow::Last,
        (Some(id), None) => MessageWindow::Before(id),
        (None, Some(id)) => MessageWindow::After(id),
        (Some(_), Some(_)) => return Err(Refused::field("before", "not together with after")),
    };
    query.finish()?;
    let key = key(&caller.principal, session);
    super::require_not_deleted(&server, &key).await?;
    server.engine().look_late(&key);
    let (rows, has_more) = server.engine().read().messages(&key, window, limit).await?;
    Ok(JsonReply(Page { data: rows.iter().map(Message::from).collect(), has_more }))
}
