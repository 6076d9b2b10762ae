//! Questions to one connection, as plain functions.

use everturn_core::{
    Lease, LeaseExpiry, Message, NodeId, Principal, Prompt, Run, RunId, Session, SessionId,
    SessionKey, SessionState, ToolCall,
};
use everturn_store::read::{MessageWindow, SessionFilter, SessionView, StoredEvent, Work};
use everturn_store::search::Needle;
use rusqlite::types::Value;
use rusqlite::{Connection, Params, params, params_from_iter};

use crate::errors::{Result, failure};
use crate::rows::{self, Cols, EventReader, all, big, first};

/// Links of a chain of continuations that are followed at most.
const CHAIN_LINKS: u32 = 100;

/// Everything that belongs to a session's snapshot.
pub(crate) fn view(conn: &Connection, no: i64, session: Session) -> Result<SessionView> {
    let run = |id: &Option<RunId>| match id {
        Some(id) => Ok(rows::run_of(conn, id)?.map(|(_, run)| run)),
        None => Ok(None),
    };
    let running = run(&session.running)?;
    let interrupted = run(&session.interrupted)?;
    let chain_generation = match &running {
        Some(run) => Some(chain_start(conn, run)?),
        None => None,
    };
    let present = rows::presence_of(conn, no)?;
    Ok(SessionView { session, running, interrupted, chain_generation, present })
}

/// Number of the turn that a chain of continuations began with.
fn chain_start(conn: &Connection, run: &Run) -> Result<u64> {
    let mut generation = run.generation;
    let mut before = run.continues.clone();
    for _ in 0..CHAIN_LINKS {
        let Some(id) = before else { break };
        let Some((_, run)) = rows::run_of(conn, &id)? else { break };
        generation = run.generation;
        before = run.continues;
    }
    Ok(generation)
}

/// What a state is in the columns of a session `s`. The narrow ones name their index's condition.
fn state_condition(state: Option<SessionState>) -> &'static str {
    const RUN_WAITS: &str = "s.running IS NOT NULL AND EXISTS \
         (SELECT 1 FROM runs r WHERE r.id = s.running AND r.state = 'waiting')";
    const RUN_GOES: &str = "s.running IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM runs r WHERE r.id = s.running AND r.state = 'waiting')";
    match state {
        None => "1",
        Some(SessionState::Running) => RUN_GOES,
        Some(SessionState::Waiting) => RUN_WAITS,
        Some(SessionState::Ended) => "s.running IS NULL AND s.ended_at IS NOT NULL",
        Some(SessionState::Interrupted) => {
            "s.interrupted IS NOT NULL AND s.running IS NULL AND s.ended_at IS NULL"
        }
        Some(SessionState::Idle) => {
            "s.running IS NULL AND s.ended_at IS NULL AND s.interrupted IS NULL"
        }
    }
}

/// A page of a principal's list.
pub(crate) fn list(
    conn: &Connection,
    principal: &Principal,
    filter: &SessionFilter,
    limit: u32,
) -> Result<Vec<SessionView>> {
    let needle = filter.query.as_deref().filter(|text| !text.is_empty()).map(Needle::new);
    // A listed session is read by its number, so that a row is passed over cheaply.
    let sql = format!(
        "SELECT s.session_no, s.title FROM sessions s \
         WHERE s.principal = ?1 AND (s.updated_at, s.id) < (?2, ?3) AND {} \
         ORDER BY s.updated_at DESC, s.id DESC",
        state_condition(filter.state)
    );
    let (at, id) = match &filter.cursor {
        Some((at, id)) => (*at, id.as_str()),
        // Above every id: ids are ASCII.
        None => (i64::MAX, "\u{7f}"),
    };
    let mut statement = conn.prepare_cached(&sql).map_err(|error| failure(&error))?;
    let mut found =
        statement.query((principal.as_str(), at, id)).map_err(|error| failure(&error))?;
    let mut out = Vec::new();
    while out.len() < limit as usize {
        let Some(row) = found.next().map_err(|error| failure(&error))? else { break };
        let c = Cols::new("sessions", row);
        let no = c.int(0)?;
        if let Some(needle) = &needle
            && !c.opt_str(1)?.is_some_and(|title| needle.is_in(title))
            && !says(conn, no, needle)?
        {
            continue;
        }
        if let Some((no, session)) = rows::session_by_no(conn, no)? {
            out.push(view(conn, no, session)?);
        }
        #[cfg(test)]
        crate::work::note(&found);
    }
    Ok(out)
}

/// Whether a message of a session holds a text.
fn says(conn: &Connection, session_no: i64, needle: &Needle) -> Result<bool> {
    let mut statement = conn
        .prepare_cached("SELECT id, text FROM messages WHERE session_no = ?1")
        .map_err(|error| failure(&error))?;
    let mut found = statement.query([session_no]).map_err(|error| failure(&error))?;
    while let Some(row) = found.next().map_err(|error| failure(&error))? {
        if needle.is_in(Cols::new("messages", row).str(1)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A window of a transcript, one row more than asked for where there is one.
pub(crate) fn window(
    conn: &Connection,
    no: i64,
    window: MessageWindow,
    limit: i64,
) -> Result<(Vec<Message>, bool)> {
    let place = |id: u64| -> Result<String> {
        let known = first(
            conn,
            "messages",
            "SELECT id, position FROM messages WHERE session_no = ?1 AND id = ?2",
            (no, big(id)),
            |c| Ok(c.str(1)?.to_owned()),
        )?;
        // An id that nothing has stands where it would be appended.
        Ok(known.unwrap_or_else(|| everturn_core::message::appended_position(id)))
    };
    let select = |condition: &str, order: &str| {
        format!(
            "SELECT {} FROM messages WHERE session_no = ?1 {condition} \
             ORDER BY position {order}, id {order} LIMIT ",
            rows::MESSAGE_COLUMNS
        )
    };
    let read = |sql: String, values: Vec<Value>| {
        all(conn, "messages", &sql, params_from_iter(values), rows::message)
    };
    let more = limit.saturating_add(1);
    let (mut out, backwards) = match window {
        MessageWindow::Last => {
            let sql = select("", "DESC") + "?2";
            (read(sql, vec![no.into(), more.into()])?, true)
        }
        MessageWindow::Before(id) => {
            let sql = select("AND (position, id) < (?2, ?3)", "DESC") + "?4";
            (read(sql, vec![no.into(), place(id)?.into(), big(id).into(), more.into()])?, true)
        }
        MessageWindow::After(id) => {
            let sql = select("AND (position, id) > (?2, ?3)", "ASC") + "?4";
            (read(sql, vec![no.into(), place(id)?.into(), big(id).into(), more.into()])?, false)
        }
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = out.len() > limit;
    out.truncate(limit);
    if backwards {
        out.reverse();
    }
    rows::fill_calls(conn, no, &mut out)?;
    Ok((out, has_more))
}

/// Stored events of a query whose columns are [`rows::EVENT_COLUMNS`].
fn events(
    conn: &Connection,
    session_id: &SessionId,
    condition: &str,
    params: impl Params,
) -> Result<Vec<StoredEvent>> {
    let mut reader = EventReader::new(conn, session_id.clone());
    let sql = format!("SELECT {} WHERE {condition}", rows::EVENT_COLUMNS);
    all(conn, "events", &sql, params, |c| reader.read(c))
}

pub(crate) fn with_call(conn: &Connection, prompt: Prompt) -> Result<(Prompt, Option<ToolCall>)> {
    let call = match &prompt.call_id {
        Some(id) => rows::call_of(conn, id)?,
        None => None,
    };
    Ok((prompt, call))
}

/// A session's feed behind an offset.
pub(crate) fn feed(
    conn: &Connection,
    no: i64,
    session_id: &SessionId,
    after: u64,
    limit: u32,
) -> Result<Vec<StoredEvent>> {
    events(
        conn,
        session_id,
        "session_no = ?1 AND \"offset\" > ?2 ORDER BY \"offset\" LIMIT ?3",
        (no, big(after), limit),
    )
}

/// An offset from which on the events of a run with a seq above `after` stand, and few others.
///
/// A run's seqs and offsets grow together, but for events of the session that are in no run. So the
/// seq q never stands before offset first + q - 1, and its place is found by halving: no index is
/// needed, which would cost as much as the events themselves.
fn seek(conn: &Connection, no: i64, (run_no, run): (i64, &Run), after: u64) -> Result<i64> {
    /// Rows that are read faster than they are halved.
    const FEW: i64 = 64;
    let mut low = big(run.first_offset.saturating_add(after));
    let mut high = big(run.last_offset);
    if after == 0 {
        return Ok(low);
    }
    while high.saturating_sub(low) > FEW {
        let middle = low + (high - low) / 2;
        let next = first(
            conn,
            "events",
            // A damaged row tells no place.
            "SELECT \"offset\", seq FROM events WHERE session_no = ?1 AND \"offset\" >= ?2 \
             AND \"offset\" <= ?3 AND run_no = ?4 AND seq > 0 ORDER BY \"offset\" LIMIT 1",
            (no, middle, high, run_no),
            |c| Ok((c.int(0)?, c.number::<u64>(1)?)),
        )?;
        match next {
            Some((offset, seq)) if seq <= after => low = offset + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// A run's journal behind a seq.
pub(crate) fn journal(
    conn: &Connection,
    no: i64,
    (run_no, run): (i64, &Run),
    after: u64,
    max: Option<u64>,
    limit: u32,
) -> Result<Vec<StoredEvent>> {
    let from = seek(conn, no, (run_no, run), after)?;
    events(
        conn,
        &run.session_id,
        "session_no = ?1 AND \"offset\" >= ?2 AND \"offset\" <= ?3 AND run_no = ?4 \
         AND seq > ?5 AND seq <= ?6 ORDER BY \"offset\" LIMIT ?7",
        params![
            no,
            from,
            big(run.last_offset),
            run_no,
            big(after),
            max.map_or(i64::MAX, big),
            limit,
        ],
    )
}

/// Sessions that need attention, oldest change first, behind one.
pub(crate) fn work(conn: &Connection, after: Option<&Work>, limit: u32) -> Result<Vec<Work>> {
    let (changed, no) = match after {
        // The name outlives the session: one that was deleted meanwhile keeps its place.
        Some(after) => {
            let sql = "SELECT session_no FROM names WHERE principal = ?1 AND id = ?2";
            let key = (after.key.principal.as_str(), after.key.id.as_str());
            (after.updated_at.0, first(conn, "names", sql, key, |c| c.int(0))?.unwrap_or(-1))
        }
        None => (i64::MIN, -1),
    };
    let found = all(
        conn,
        "sessions",
        "SELECT session_no, principal, id, lease_holder, lease_boot_id, lease_boot_ms, \
         lease_since, epoch, running, queue_length, updated_at FROM sessions \
         WHERE (running IS NOT NULL OR queue_length > 0) AND (updated_at, session_no) > (?1, ?2) \
         ORDER BY updated_at, session_no LIMIT ?3",
        (changed, no, limit),
        needing,
    )?;
    let mut out = Vec::with_capacity(found.len());
    for (mut work, running) in found {
        if let Some(id) = running {
            work.running = rows::run_of(conn, &id)?.map(|(_, run)| run);
        }
        out.push(work);
    }
    Ok(out)
}

/// A session that needs attention, and its unfinished run's id.
fn needing(c: &Cols<'_, '_>) -> Result<(Work, Option<RunId>)> {
    let key =
        SessionKey { principal: c.parsed(1, Principal::new)?, id: c.parsed(2, SessionId::new)? };
    let lease = match c.opt_str(3)? {
        Some(_) => Some(Lease {
            holder: c.parsed(3, NodeId::new)?,
            expiry: LeaseExpiry { boot_id: c.str(4)?.to_owned(), boot_ms: c.number(5)? },
            since: c.time(6)?,
        }),
        None => None,
    };
    let running = match c.opt_str(8)? {
        Some(_) => Some(c.parsed(8, RunId::new)?),
        None => None,
    };
    let work = Work {
        updated_at: c.time(10)?,
        key,
        lease,
        epoch: c.number(7)?,
        running: None,
        queue_length: c.number(9)?,
    };
    Ok((work, running))
}
