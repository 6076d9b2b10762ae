//! Inputs that were accepted: the queue, one of them, withdrawing one.

use std::time::Duration;

use axum::Json as JsonReply;
use axum::extract::{RawQuery, State};
use everturn_api::Code;
use everturn_api::input::{Input, WaitingFor};
use everturn_api::page::Page;
use everturn_core::{InputId, InputStatus, Principal, SessionId, limits};

use super::{key, require_not_deleted};
use crate::access::{Controller, Reader};
use crate::extract::{Id, Query, id};
use crate::problem::{Answer, Refused};
use crate::state::Server;
use crate::wire;

/// Inputs of a session
#[utoipa::path(get, path = "/v1/sessions/{id}/inputs", tag = "inputs",
    params(
        ("id" = String, Path, description = "Session id"),
        ("status" = Option<String>, Query, description = "`queued`, `started`, `terminal`"),
        ("after" = Option<String>, Query, description = "Go on behind this input, the last one of the page before"),
        ("limit" = Option<u32>, Query, description = "Rows, 1 to 500; 50 if absent"),
    ),
    responses((status = 200, body = Page<Input>)))]
pub(super) async fn list(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<Page<Input>>> {
    let mut query = Query::new(query.as_deref());
    let limit = query.limit()?;
    let status = match query.one("status")? {
        None => None,
        Some(word) => Some(
            InputStatus::parse(&word)
                .ok_or_else(|| Refused::field("status", "must be queued, started or terminal"))?,
        ),
    };
    let after = query.one("after")?.map(|text| id::<InputId>(&text)).transpose()?;
    query.finish()?;
    let key = key(&caller.principal, session);
    require_not_deleted(&server, &key).await?;
    let read = server.engine().read();
    if let Some(after) = &after
        && read.input(after).await?.is_none_or(|(input, _)| input.session_key() != key)
    {
        let fault = format!("after: {after} is no input of this session");
        return Err(Refused::new(Code::BadCursor, fault));
    }
    let mut rows = read.inputs(&key, status, after.as_ref(), limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    // What waits comes in the order in which it runs; a later page begins somewhere in the queue.
    let mut waiting = match rows.iter().find(|input| input.status == InputStatus::Queued) {
        Some(first) if after.is_some() => {
            let place = read.input(&first.id).await?.and_then(|(_, position)| position);
            place.map_or(0, |position| position.saturating_sub(1))
        }
        _ => 0,
    };
    let data = rows
        .iter()
        .map(|input| {
            let position = (input.status == InputStatus::Queued).then(|| {
                waiting += 1;
                waiting
            });
            Input::new(input, position)
        })
        .collect();
    Ok(JsonReply(Page { data, has_more }))
}

/// An input of this principal whose session is still there.
async fn require_own(server: &Server, principal: &Principal, id: &InputId) -> Answer<()> {
    let found = server.engine().read().input(id).await?;
    match found {
        Some((input, _)) if input.principal == *principal => {
            require_not_deleted(server, &input.session_key()).await
        }
        _ => Err(not_found(id)),
    }
}

fn not_found(id: &InputId) -> Refused {
    Refused::new(Code::InputNotFound, format!("there is no input {id}"))
}

/// One input; waits for its end if asked to
#[utoipa::path(get, path = "/v1/inputs/{id}", tag = "inputs",
    params(
        ("id" = String, Path, description = "Input id"),
        ("wait" = Option<u32>, Query, description = "Seconds to wait for its end, 0 to 60"),
    ),
    responses((status = 200, body = Input)))]
pub(super) async fn show(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(id): Id<InputId>,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<Input>> {
    let mut query = Query::new(query.as_deref());
    let wait_s = query.number("wait", limits::WAIT_S_MAX)?.unwrap_or(0);
    query.finish()?;
    require_own(&server, &caller.principal, &id).await?;
    let waited = server.engine().wait_input(&id, Duration::from_secs(wait_s));
    let found = tokio::select! {
        found = waited => found?,
        // A server that stops answers what it knows.
        () = server.stopping().cancelled() => server.engine().read().input(&id).await?,
    };
    let (input, position) = found.ok_or_else(|| not_found(&id))?;
    let mut shown = Input::new(&input, position);
    if input.status == InputStatus::Queued
        && let Some(view) = server.engine().read().session(&input.session_key()).await?
        && let Some(lease) = wire::other_holder(&server, view.session.lease.as_ref()).await
    {
        shown.receipt.waiting_for =
            Some(WaitingFor { node: lease.holder.to_string(), since: lease.since.rfc3339() });
    }
    Ok(JsonReply(shown))
}

/// Withdraws an input that still waits
#[utoipa::path(delete, path = "/v1/inputs/{id}", tag = "inputs",
    params(("id" = String, Path, description = "Input id")),
    responses((status = 200, body = Input)))]
pub(super) async fn cancel(
    State(server): State<Server>,
    Controller(caller): Controller,
    Id(id): Id<InputId>,
) -> Answer<JsonReply<Input>> {
    require_own(&server, &caller.principal, &id).await?;
    let input = server.engine().cancel_input(caller.principal, id).await?;
    Ok(JsonReply(Input::new(&input, None)))
}
