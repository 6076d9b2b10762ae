//! Runs: a session's turns, one of them, and its journal.

use axum::Json as JsonReply;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use everturn_api::page::Page;
use everturn_api::run::{Malformed, Run as WireRun, RunEvents};
use everturn_api::{Code, event};
use everturn_core::{Principal, Run, RunId, SessionId};
use everturn_engine::live::RunCursor;
use everturn_store::read::StoredEvent;
use everturn_store::rows::EventRow;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::{key, require_not_deleted};
use crate::access::{Caller, Reader};
use crate::cursor::{RunPosition, run_position};
use crate::extract::{Id, Query, stream_cursor};
use crate::problem::{Answer, Refused};
use crate::sse;
use crate::state::Server;
use crate::wire;

/// Events and bytes of one JSON window.
const WINDOW_EVENTS: usize = 1_000;
const WINDOW_BYTES: usize = 4 << 20;
/// Events read at once for it.
const READ_EVENTS: u32 = 100;

/// A session's turns, the newest first
#[utoipa::path(get, path = "/v1/sessions/{id}/turns", tag = "runs",
    params(
        ("id" = String, Path, description = "Session id"),
        ("limit" = Option<u32>, Query, description = "Rows, 1 to 500; 50 if absent"),
        ("before" = Option<u64>, Query, description = "Turns below this generation"),
    ),
    responses((status = 200, body = Page<WireRun>)))]
pub(super) async fn list(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(session): Id<SessionId>,
    RawQuery(query): RawQuery,
) -> Answer<JsonReply<Page<WireRun>>> {
    let mut query = Query::new(query.as_deref());
    let limit = query.limit()?;
    let before = query.position("before")?;
    query.finish()?;
    let key = key(&caller.principal, session);
    require_not_deleted(&server, &key).await?;
    let mut rows = server.engine().read().runs(&key, before, limit + 1).await?;
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let mut data = Vec::with_capacity(rows.len());
    for row in &rows {
        data.push(wire::run(&server, row).await?);
    }
    Ok(JsonReply(Page { data, has_more }))
}

/// A run of this principal whose session is still there.
pub(super) async fn own_run(server: &Server, principal: &Principal, id: &RunId) -> Answer<Run> {
    match server.engine().read().run(id).await? {
        Some(run) if run.principal == *principal => {
            require_not_deleted(server, &run.session_key()).await?;
            Ok(run)
        }
        _ => Err(Refused::new(Code::RunNotFound, format!("there is no run {id}"))),
    }
}

/// One run
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs",
    params(("id" = String, Path, description = "Run id")),
    responses((status = 200, body = WireRun)))]
pub(super) async fn show(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(id): Id<RunId>,
) -> Answer<JsonReply<WireRun>> {
    let run = own_run(&server, &caller.principal, &id).await?;
    Ok(JsonReply(wire::run(&server, &run).await?))
}

/// A run's journal, as a stream or as a window
///
/// With `Accept: text/event-stream` a stream that closes after the run's last event, else JSON: at
/// most 1 000 events or 4 MiB; go on with `after`.
#[utoipa::path(get, path = "/v1/runs/{id}/events", tag = "runs",
    params(
        ("id" = String, Path, description = "Run id"),
        ("after" = Option<String>, Query, description = "Events behind this seq (or `<run>:<seq>`)"),
        ("max" = Option<u64>, Query, description = "Events up to this seq"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, before which it goes"),
    ),
    responses(
        (status = 200, content(
            (RunEvents = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 204, description = "The run has ended and nothing lies behind the cursor"),
    ))]
pub(super) async fn events(
    State(server): State<Server>,
    Reader(caller): Reader,
    Id(id): Id<RunId>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let mut query = Query::new(query.as_deref());
    let cursor = stream_cursor(&headers, &mut query)?;
    let max = query.position("max")?;
    query.finish()?;
    let cursor = match cursor {
        None => RunPosition::After(0),
        Some(text) => run_position(&text, &id)?,
    };
    let run = own_run(&server, &caller.principal, &id).await?;
    if sse::is_asked_for(&headers) {
        stream(&server, caller, run, cursor, max).await
    } else {
        window(&server, &run, cursor, max).await
    }
}

async fn stream(
    server: &Server,
    caller: Caller,
    run: Run,
    cursor: RunPosition,
    max: Option<u64>,
) -> Answer<Response> {
    let has_ended = run.terminal_state.is_some();
    if has_ended && cursor == RunPosition::After(run.last_seq) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let slot = server.streams().open(&caller.principal)?;
    let after = match cursor {
        RunPosition::After(seq) => RunCursor::After(seq),
        RunPosition::Foreign => RunCursor::Foreign,
    };
    let (session, id) = (run.session_id.clone(), run.id.clone());
    let stream = server.engine().run_stream(run, after).await?;
    let mut feed = sse::One::run(server, stream, session, id, max);
    let prelude = feed.prelude().await?;
    Ok(sse::response(server, caller, slot, feed, &prelude))
}

async fn window(
    server: &Server,
    run: &Run,
    cursor: RunPosition,
    max: Option<u64>,
) -> Answer<Response> {
    let last_seq = run.last_seq;
    let mut after = match cursor {
        RunPosition::After(seq) if seq <= last_seq => {
            if server.engine().is_lost(run, seq).await? {
                let fault = "it lies in what was lost with the power; read from the beginning";
                return Err(Refused::cursor(fault));
            }
            seq
        }
        RunPosition::After(seq) => {
            return Err(Refused::cursor(format!(
                "{seq} lies behind the run's last event, {last_seq}"
            )));
        }
        RunPosition::Foreign => return Err(Refused::cursor("it names another run")),
    };
    // What is committed meanwhile is for the next window, so that `last_seq` is true of this one.
    let max = max.map_or(last_seq, |max| max.min(last_seq));
    let mut events: Vec<String> = Vec::new();
    let mut seqs: Vec<u64> = Vec::new();
    let mut malformed = Vec::new();
    let mut bytes = 0;
    'pages: while after < max {
        let rows = server.engine().read().run_events(run, after, Some(max), READ_EVENTS).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            if events.len() + malformed.len() >= WINDOW_EVENTS || bytes >= WINDOW_BYTES {
                break 'pages;
            }
            match row {
                StoredEvent::Good(row) => {
                    let Some((_, seq)) = &row.head.run else { continue };
                    after = *seq;
                    let text = event::render(&row.head, &row.body);
                    bytes += text.len();
                    // Pruned between two pages: what was read of the range is in its snapshot.
                    if let Some(from) = snapshot_from(&row) {
                        let kept = seqs.partition_point(|seq| *seq < from);
                        events.truncate(kept);
                        seqs.truncate(kept);
                    }
                    events.push(text);
                    seqs.push(*seq);
                }
                StoredEvent::Malformed { seq, error, .. } => {
                    let Some(seq) = seq else { continue };
                    after = seq;
                    malformed.push(Malformed { seq, error });
                }
            }
        }
    }
    let seen = wire::run(server, run).await?;
    let rest = RunEvents {
        run_id: run.id.to_string(),
        events: Vec::new(),
        malformed,
        last_seq,
        terminal: run.terminal_state.is_some(),
        terminal_state: run.terminal_state.map(|state| state.to_string()),
        interrupted_virtually: seen.interrupted_virtually,
        evidence: seen.evidence.filter(|_| seen.interrupted_virtually),
    };
    Ok(assemble(&rest, &events)?.into_response())
}

/// Where the range begins that an event stands for, if it is a snapshot.
fn snapshot_from(row: &EventRow) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Snapshot {
        from: u64,
    }
    if row.head.name != "text.snapshot" {
        return None;
    }
    serde_json::from_str::<Snapshot>(&row.body).ok().map(|snapshot| snapshot.from)
}

/// The reply with the events' own bytes, which are not read and written again.
fn assemble(rest: &RunEvents, events: &[String]) -> Answer<Response> {
    const EMPTY: &str = r#""events":[]"#;
    let failed = || Refused::new(Code::Internal, "the window could not be written");
    let frame = serde_json::to_string(rest).map_err(|_| failed())?;
    let at = frame.find(EMPTY).ok_or_else(failed)? + EMPTY.len() - 1;
    let (head, tail) = frame.split_at(at);
    let body = [head, &events.join(","), tail].concat();
    let mut response = Response::new(Bytes::from(body).into());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
