//! Feeds: one session's, and many at once.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use everturn_core::{SessionId, limits};
use http::HeaderMap;

use super::{key, view};
use crate::access::{Caller, Reader, Scope};
use crate::cursor::{FeedCursor, position};
use crate::extract::{Id, Query, id, stream_cursor};
use crate::problem::{Answer, Refused};
use crate::sse;
use crate::state::Server;

/// Whether a reader counts as a viewer. Policy continues turns for viewers who may submit, so that
/// one who may not is none.
fn may_view(caller: &Caller) -> bool {
    caller.scopes.has(Scope::Submit)
}

/// A session's feed, across its runs
///
/// Without a cursor: a snapshot, then live. `after=0` is everything.
#[utoipa::path(get, path = "/v1/sessions/{id}/events", tag = "events",
    params(
        ("id" = String, Path, description = "Session id"),
        ("after" = Option<u64>, Query, description = "Events behind this offset"),
        ("viewer" = Option<bool>, Query, description = "Whether the client counts as a viewer; `true` if absent"),
        ("Last-Event-ID" = Option<u64>, Header, description = "As `after`, before which it goes"),
    ),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(super) async fn session(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let mut query = Query::new(query.as_deref());
    let after = stream_cursor(&headers, &mut query)?.map(|text| position(&text)).transpose()?;
    let viewer = query.flag("viewer", true)? && may_view(&caller);
    query.finish()?;
    sse::require_accepted(&headers)?;
    let key = key(&caller.principal, session);
    view(&server, &key).await?;
    let slot = server.streams().open(&caller.principal)?;
    let stream = server.engine().session_stream(&key, after, viewer).await?;
    let mut feed = sse::One::session(&server, stream, key.id);
    let prelude = feed.prelude().await?;
    Ok(sse::response(&server, caller, slot, feed, &prelude))
}

/// The feeds of many sessions on one connection
///
/// Every event names its session; the id of an event is an opaque cursor over all of them.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(
        ("session" = Vec<String>, Query, description = "Sessions, 1 to 64, each as its own parameter"),
        ("after" = Option<String>, Query, description = "The id of an event of this feed; `0` is everything"),
        ("viewer" = Option<Vec<String>>, Query, description = "Sessions that the client counts as a viewer of"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, before which it goes"),
    ),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(super) async fn many(
    State(server): State<Server>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let mut query = Query::new(query.as_deref());
    let sessions = distinct(&mut query, "session")?;
    let viewers = distinct(&mut query, "viewer")?;
    let cursor = stream_cursor(&headers, &mut query)?;
    query.finish()?;
    sse::require_accepted(&headers)?;
    let max = limits::FEED_SESSIONS_MAX;
    if sessions.is_empty() || sessions.len() > max {
        return Err(Refused::field("session", format_args!("1 to {max} sessions are needed")));
    }
    if let Some(other) = viewers.iter().find(|id| !sessions.contains(id)) {
        return Err(Refused::field("viewer", format_args!("{other} is not among the sessions")));
    }
    let cursor = match cursor.as_deref() {
        None => None,
        Some("0") => Some(FeedCursor::new(&caller.principal, sessions.iter().map(|id| (id, 0)))),
        Some(text) => Some(FeedCursor::decode(text)?),
    };
    let place = |id: &SessionId| cursor.as_ref()?.offset(&caller.principal, id);
    let is_foreign = cursor.is_some() && !sessions.iter().any(|id| place(id).is_some());
    for id in &sessions {
        view(&server, &key(&caller.principal, id.clone())).await?;
    }
    let slot = server.streams().open(&caller.principal)?;
    let mut streams = Vec::with_capacity(sessions.len());
    for id in sessions {
        let after = place(&id);
        let viewer = viewers.contains(&id) && may_view(&caller);
        let key = key(&caller.principal, id.clone());
        streams.push((id, server.engine().session_stream(&key, after, viewer).await?));
    }
    let (feed, prelude) = sse::Many::open(&server, &caller.principal, streams, is_foreign).await?;
    Ok(sse::response(&server, caller, slot, feed, &prelude))
}

/// Session ids of a repeated parameter, each once.
fn distinct(query: &mut Query<'_>, name: &str) -> Answer<Vec<SessionId>> {
    let mut ids: Vec<SessionId> = Vec::new();
    for text in query.all(name) {
        let id = id(&text)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}
