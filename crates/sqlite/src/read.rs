//! Reading: each question in one transaction of a connection that cannot write.

use async_trait::async_trait;
use everturn_core::{
    CallId, Input, InputId, InputStatus, Lease, LeaseExpiry, Message, NodeId, Principal, Prompt,
    PromptId, PromptState, RequestId, Run, RunId, Session, SessionId, SessionKey, SessionState,
    ToolCall,
};
use everturn_store::Read;
use everturn_store::read::{Counts, MessageWindow, SessionFilter, SessionView, StoredEvent, Work};
use everturn_store::rows::{Gap, Node, Token, Tombstone};
use everturn_store::search::Needle;
use rusqlite::{Connection, Params, params};

use crate::SqliteStore;
use crate::errors::{Result, failure};
use crate::rows::{self, Cols, EventReader, all, big, first};

/// Links of a chain of continuations that are followed at most.
const CHAIN_LINKS: u32 = 100;

/// Everything that belongs to a session's snapshot.
fn view(conn: &Connection, no: i64, session: Session) -> Result<SessionView> {
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
fn list(
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
fn window(
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
    let read = |sql: &str, params: &dyn Fn() -> rusqlite::Result<Vec<rusqlite::types::Value>>| {
        let params = params().map_err(|error| failure(&error))?;
        all(conn, "messages", sql, rusqlite::params_from_iter(params), rows::message)
    };
    let (no_value, more) = (rusqlite::types::Value::from(no), limit + 1);
    let (mut out, backwards) = match window {
        MessageWindow::Last => {
            let sql = select("", "DESC") + "?2";
            (read(&sql, &|| Ok(vec![no_value.clone(), more.into()]))?, true)
        }
        MessageWindow::Before(id) => {
            let at = place(id)?;
            let sql = select("AND (position, id) < (?2, ?3)", "DESC") + "?4";
            let params =
                || Ok(vec![no_value.clone(), at.clone().into(), big(id).into(), more.into()]);
            (read(&sql, &params)?, true)
        }
        MessageWindow::After(id) => {
            let at = place(id)?;
            let sql = select("AND (position, id) > (?2, ?3)", "ASC") + "?4";
            let params =
                || Ok(vec![no_value.clone(), at.clone().into(), big(id).into(), more.into()]);
            (read(&sql, &params)?, false)
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

fn with_call(conn: &Connection, prompt: Prompt) -> Result<(Prompt, Option<ToolCall>)> {
    let call = match &prompt.call_id {
        Some(id) => rows::call_of(conn, id)?,
        None => None,
    };
    Ok((prompt, call))
}

#[async_trait]
impl Read for SqliteStore {
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionView>> {
        let key = key.clone();
        self.read(move |conn| match rows::session_of(conn, &key)? {
            Some((no, session)) => view(conn, no, session).map(Some),
            None => Ok(None),
        })
        .await
    }

    async fn tombstone(&self, key: &SessionKey) -> Result<Option<Tombstone>> {
        let key = key.clone();
        self.read(move |conn| rows::tombstone_of(conn, &key)).await
    }

    async fn sessions(
        &self,
        principal: &Principal,
        filter: &SessionFilter,
        limit: u32,
    ) -> Result<Vec<SessionView>> {
        let (principal, filter) = (principal.clone(), filter.clone());
        self.read(move |conn| list(conn, &principal, &filter, limit)).await
    }

    async fn messages(
        &self,
        key: &SessionKey,
        place: MessageWindow,
        limit: u32,
    ) -> Result<(Vec<Message>, bool)> {
        let key = key.clone();
        self.read(move |conn| match rows::session_of(conn, &key)? {
            Some((no, _)) => window(conn, no, place, i64::from(limit)),
            None => Ok((Vec::new(), false)),
        })
        .await
    }

    async fn transcript(&self, key: &SessionKey) -> Result<Vec<Message>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, _)) = rows::session_of(conn, &key)? else { return Ok(Vec::new()) };
            Ok(window(conn, no, MessageWindow::After(0), i64::MAX - 1)?.0)
        })
        .await
    }

    async fn input(&self, id: &InputId) -> Result<Option<(Input, Option<u32>)>> {
        let id = id.clone();
        self.read(move |conn| {
            let Some(input) = rows::input_of(conn, &id)? else { return Ok(None) };
            let no = match input.status {
                InputStatus::Queued => rows::session_no(conn, &input.session_key())?,
                InputStatus::Started | InputStatus::Terminal => None,
            };
            let position = match no {
                Some(no) => Some(rows::queue_position(conn, no, input.queue_key)?),
                None => None,
            };
            Ok(Some((input, position)))
        })
        .await
    }

    async fn input_by_identity(
        &self,
        key: &SessionKey,
        request: &RequestId,
    ) -> Result<Option<Input>> {
        let (key, request) = (key.clone(), request.clone());
        self.read(move |conn| rows::input_by_identity(conn, &key, &request)).await
    }

    async fn inputs(
        &self,
        key: &SessionKey,
        status: Option<InputStatus>,
        limit: u32,
    ) -> Result<Vec<Input>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            match status {
                Some(InputStatus::Queued) => rows::queued(conn, no, limit),
                Some(status) => {
                    let sql = concat!(
                        "SELECT ",
                        rows::input_columns!(),
                        " WHERE i.session_no = ?1 AND i.status = ?2 ORDER BY i.input_no LIMIT ?3"
                    );
                    all(conn, "inputs", sql, (no, status.as_str(), limit), rows::input)
                }
                None => {
                    let sql = concat!(
                        "SELECT ",
                        rows::input_columns!(),
                        " WHERE i.session_no = ?1 ORDER BY i.input_no LIMIT ?2"
                    );
                    all(conn, "inputs", sql, (no, limit), rows::input)
                }
            }
        })
        .await
    }

    async fn run(&self, id: &RunId) -> Result<Option<Run>> {
        let id = id.clone();
        self.read(move |conn| Ok(rows::run_of(conn, &id)?.map(|(_, run)| run))).await
    }

    async fn runs(&self, key: &SessionKey, before: Option<u64>, limit: u32) -> Result<Vec<Run>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            let sql = concat!(
                "SELECT ",
                rows::run_columns!(),
                " WHERE r.session_no = ?1 AND r.generation < ?2 \
                 ORDER BY r.generation DESC LIMIT ?3"
            );
            let before = before.map_or(i64::MAX, big);
            all(conn, "runs", sql, (no, before, limit), |c| Ok(rows::run(c)?.1))
        })
        .await
    }

    async fn run_events(
        &self,
        run: &Run,
        after: u64,
        max: Option<u64>,
        limit: u32,
    ) -> Result<Vec<StoredEvent>> {
        let run = run.clone();
        self.read(move |conn| {
            // What the caller knows of the run may be old.
            let Some((run_no, now)) = rows::run_of(conn, &run.id)? else { return Ok(Vec::new()) };
            let Some(no) = rows::session_no(conn, &now.session_key())? else {
                return Ok(Vec::new());
            };
            // The seq q of a run never stands before offset first + q - 1: no index is needed.
            events(
                conn,
                &now.session_id,
                "session_no = ?1 AND \"offset\" >= ?2 AND \"offset\" <= ?3 AND run_no = ?4 \
                 AND seq > ?5 AND seq <= ?6 ORDER BY \"offset\" LIMIT ?7",
                params![
                    no,
                    big(now.first_offset.saturating_add(after)),
                    big(now.last_offset),
                    run_no,
                    big(after),
                    max.map_or(i64::MAX, big),
                    limit,
                ],
            )
        })
        .await
    }

    async fn feed(&self, key: &SessionKey, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, _)) = rows::session_of(conn, &key)? else { return Ok(Vec::new()) };
            events(
                conn,
                &key.id,
                "session_no = ?1 AND \"offset\" > ?2 ORDER BY \"offset\" LIMIT ?3",
                (no, big(after), limit),
            )
        })
        .await
    }

    async fn feed_bounds(&self, key: &SessionKey) -> Result<(u64, u64)> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, session)) = rows::session_of(conn, &key)? else { return Ok((1, 0)) };
            let earliest = first(
                conn,
                "events",
                "SELECT \"offset\" FROM events WHERE session_no = ?1 ORDER BY \"offset\" LIMIT 1",
                [no],
                |c| c.number(0),
            )?;
            Ok((earliest.unwrap_or(session.last_offset + 1), session.last_offset))
        })
        .await
    }

    async fn gaps(&self, key: &SessionKey) -> Result<Vec<Gap>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, _)) = rows::session_of(conn, &key)? else { return Ok(Vec::new()) };
            all(
                conn,
                "gaps",
                "SELECT from_offset, to_offset, from_seq, to_seq FROM gaps \
                 WHERE session_no = ?1 ORDER BY from_offset",
                [no],
                rows::gap,
            )
        })
        .await
    }

    async fn run_calls(&self, run: &RunId) -> Result<Vec<ToolCall>> {
        let run = run.clone();
        self.read(move |conn| rows::run_calls(conn, &run)).await
    }

    async fn call(&self, id: &CallId) -> Result<Option<ToolCall>> {
        let id = id.clone();
        self.read(move |conn| rows::call_of(conn, &id)).await
    }

    async fn prompt(&self, id: &PromptId) -> Result<Option<(Prompt, Option<ToolCall>)>> {
        let id = id.clone();
        self.read(move |conn| match rows::prompt_of(conn, &id)? {
            Some(prompt) => with_call(conn, prompt).map(Some),
            None => Ok(None),
        })
        .await
    }

    async fn prompts(
        &self,
        key: &SessionKey,
        state: PromptState,
        limit: u32,
    ) -> Result<Vec<(Prompt, Option<ToolCall>)>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            let sql = concat!(
                "SELECT ",
                rows::prompt_columns!(),
                " WHERE p.session_no = ?1 AND p.state = ?2 ORDER BY p.opened_at, p.id LIMIT ?3"
            );
            let prompts = all(conn, "prompts", sql, (no, state.as_str(), limit), rows::prompt)?;
            prompts.into_iter().map(|prompt| with_call(conn, prompt)).collect()
        })
        .await
    }

    async fn granted(&self, principal: &Principal, tool: &str) -> Result<bool> {
        let (principal, tool) = (principal.clone(), tool.to_owned());
        self.read(move |conn| rows::granted(conn, &principal, &tool)).await
    }

    async fn work(&self, limit: u32) -> Result<Vec<Work>> {
        self.read(move |conn| {
            let found = all(
                conn,
                "sessions",
                "SELECT session_no, principal, id, lease_holder, lease_boot_id, lease_boot_ms, \
                 lease_since, epoch, running, queue_length FROM sessions \
                 WHERE running IS NOT NULL OR queue_length > 0 \
                 ORDER BY updated_at, session_no LIMIT ?1",
                [limit],
                work,
            )?;
            let mut out = Vec::with_capacity(found.len());
            for (mut work, running) in found {
                if let Some(id) = running {
                    work.running = rows::run_of(conn, &id)?.map(|(_, run)| run);
                }
                out.push(work);
            }
            Ok(out)
        })
        .await
    }

    async fn node(&self, id: &NodeId) -> Result<Option<Node>> {
        let id = id.clone();
        self.read(move |conn| rows::node_of(conn, &id)).await
    }

    async fn nodes(&self, limit: u32) -> Result<Vec<Node>> {
        self.read(move |conn| {
            let sql = format!(
                "SELECT {} WHERE ended_at IS NULL ORDER BY node_no DESC LIMIT ?1",
                rows::NODE_COLUMNS
            );
            all(conn, "nodes", &sql, [limit], rows::node)
        })
        .await
    }

    async fn serve_starts(&self, home: &str, limit: u32) -> Result<Vec<Node>> {
        let home = home.to_owned();
        self.read(move |conn| rows::serve_starts(conn, &home, limit)).await
    }

    async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Token>> {
        let hash = *hash;
        self.read(move |conn| {
            let sql = format!("SELECT {} WHERE hash = ?1", rows::TOKEN_COLUMNS);
            first(conn, "tokens", &sql, [hash], rows::token)
        })
        .await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(move |conn| {
            let sql = format!("SELECT {} ORDER BY token_no", rows::TOKEN_COLUMNS);
            all(conn, "tokens", &sql, [], rows::token)
        })
        .await
    }

    async fn counts(&self) -> Result<Counts> {
        self.read(move |conn| {
            let count = |sql: &str| -> Result<u64> {
                Ok(first(conn, "sessions", sql, [], |c| c.number(0))?.unwrap_or(0))
            };
            Ok(Counts {
                sessions: count("SELECT coalesce(sum(sessions), 0) FROM principals")?,
                messages: count("SELECT coalesce(max(message_no), 0) FROM messages")?,
                queued: count("SELECT count(*) FROM inputs WHERE status = 'queued'")?,
                unfinished: count("SELECT count(*) FROM sessions WHERE running IS NOT NULL")?,
            })
        })
        .await
    }
}

/// A session that needs attention, and its unfinished run's id.
fn work(c: &Cols<'_, '_>) -> Result<(Work, Option<RunId>)> {
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
    let work = Work { key, lease, epoch: c.number(7)?, running: None, queue_length: c.number(9)? };
    Ok((work, running))
}
