//! Reading: each question in one transaction of a connection that cannot write.

use async_trait::async_trait;
use everturn_core::{
    CallId, Input, InputId, InputStatus, Message, NodeId, Principal, Prompt, PromptId, PromptState,
    RequestId, Run, RunId, SessionKey, ToolCall,
};
use everturn_store::Read;
use everturn_store::in_flight::{self, InFlight};
use everturn_store::read::{Counts, MessageWindow, SessionFilter, SessionView, StoredEvent, Work};
use everturn_store::rows::{Gap, Node, Token, Tombstone};

use crate::SqliteStore;
use crate::ask;
use crate::errors::Result;
use crate::rows::{self, all, big, first};

/// The rows for the picture of a turn of the session with this number.
struct Of<'a> {
    conn: &'a rusqlite::Connection,
    no: i64,
}

impl in_flight::Rows for Of<'_> {
    fn input(&mut self, id: &InputId) -> Result<Option<Input>> {
        rows::input_of(self.conn, id)
    }

    fn events(&mut self, run: &Run, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let Some((run_no, _)) = rows::run_of(self.conn, &run.id)? else { return Ok(Vec::new()) };
        ask::journal(self.conn, self.no, (run_no, run), after, None, limit)
    }

    fn calls(&mut self, run: &Run) -> Result<Vec<ToolCall>> {
        rows::run_calls(self.conn, &run.id)
    }

    fn open_prompts(&mut self, run: &Run) -> Result<Vec<(Prompt, Option<ToolCall>)>> {
        let sql = concat!(
            "SELECT ",
            rows::prompt_columns!(),
            " WHERE p.session_no = ?1 AND p.state = 'open' AND p.run_id = ?2 \
             ORDER BY p.opened_at, p.id"
        );
        let open = all(self.conn, "prompts", sql, (self.no, run.id.as_str()), rows::prompt)?;
        open.into_iter().map(|prompt| ask::with_call(self.conn, prompt)).collect()
    }
}

#[async_trait]
impl Read for SqliteStore {
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionView>> {
        let key = key.clone();
        self.read(move |conn| match rows::session_of(conn, &key)? {
            Some((no, session)) => ask::view(conn, no, session).map(Some),
            None => Ok(None),
        })
        .await
    }

    async fn session_in_flight(
        &self,
        key: &SessionKey,
    ) -> Result<Option<(SessionView, Option<InFlight>)>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, session)) = rows::session_of(conn, &key)? else { return Ok(None) };
            let view = ask::view(conn, no, session)?;
            let mut of = Of { conn, no };
            let picture =
                view.running.as_ref().map(|run| InFlight::read(&mut of, run)).transpose()?;
            Ok(Some((view, picture)))
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
        let searches = filter.query.is_some();
        let read = move |conn: &rusqlite::Connection| ask::list(conn, &principal, &filter, limit);
        if searches { self.search(read).await } else { self.read(read).await }
    }

    async fn messages(
        &self,
        key: &SessionKey,
        place: MessageWindow,
        limit: u32,
    ) -> Result<(Vec<Message>, bool)> {
        let key = key.clone();
        self.read(move |conn| match rows::session_of(conn, &key)? {
            Some((no, _)) => ask::window(conn, no, place, i64::from(limit)),
            None => Ok((Vec::new(), false)),
        })
        .await
    }

    async fn transcript(&self, key: &SessionKey) -> Result<Vec<Message>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, _)) = rows::session_of(conn, &key)? else { return Ok(Vec::new()) };
            Ok(ask::window(conn, no, MessageWindow::After(0), i64::MAX - 1)?.0)
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
        after: Option<&InputId>,
        limit: u32,
    ) -> Result<Vec<Input>> {
        let (key, after) = (key.clone(), after.cloned());
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            let (after_key, after_no) = match &after {
                None => (i64::MIN, i64::MIN),
                Some(id) => {
                    let sql = "SELECT queue_key, input_no FROM inputs \
                               WHERE session_no = ?1 AND id = ?2";
                    let place = |c: &rows::Cols<'_, '_>| Ok((c.int(0)?, c.int(1)?));
                    match first(conn, "inputs", sql, (no, id.as_str()), place)? {
                        Some(place) => place,
                        None => return Ok(Vec::new()),
                    }
                }
            };
            match status {
                Some(InputStatus::Queued) => rows::queued(conn, no, after_key, limit),
                Some(status) => {
                    let sql = concat!(
                        "SELECT ",
                        rows::input_columns!(),
                        " WHERE i.session_no = ?1 AND i.status = ?2 AND i.input_no > ?3 \
                         ORDER BY i.input_no LIMIT ?4"
                    );
                    all(conn, "inputs", sql, (no, status.as_str(), after_no, limit), rows::input)
                }
                None => {
                    let sql = concat!(
                        "SELECT ",
                        rows::input_columns!(),
                        " WHERE i.session_no = ?1 AND i.input_no > ?2 ORDER BY i.input_no LIMIT ?3"
                    );
                    all(conn, "inputs", sql, (no, after_no, limit), rows::input)
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
            ask::journal(conn, no, (run_no, &now), after, max, limit)
        })
        .await
    }

    async fn feed(&self, key: &SessionKey, after: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some((no, _)) = rows::session_of(conn, &key)? else { return Ok(Vec::new()) };
            ask::feed(conn, no, &key.id, after, limit)
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
            Some(prompt) => ask::with_call(conn, prompt).map(Some),
            None => Ok(None),
        })
        .await
    }

    async fn prompts(
        &self,
        key: &SessionKey,
        state: PromptState,
        after: Option<&PromptId>,
        limit: u32,
    ) -> Result<Vec<(Prompt, Option<ToolCall>)>> {
        let (key, after) = (key.clone(), after.cloned());
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            let sql = concat!(
                "SELECT ",
                rows::prompt_columns!(),
                " WHERE p.session_no = ?1 AND p.state = ?2 AND (p.opened_at, p.id) > (?3, ?4) \
                 ORDER BY p.opened_at, p.id LIMIT ?5"
            );
            let (at, id) = match &after {
                None => (i64::MIN, String::new()),
                Some(id) => {
                    let place =
                        "SELECT opened_at, id FROM prompts WHERE session_no = ?1 AND id = ?2";
                    let read = |c: &rows::Cols<'_, '_>| Ok((c.int(0)?, c.str(1)?.to_owned()));
                    match first(conn, "prompts", place, (no, id.as_str()), read)? {
                        Some(place) => place,
                        None => return Ok(Vec::new()),
                    }
                }
            };
            let params = (no, state.as_str(), at, id, limit);
            let prompts = all(conn, "prompts", sql, params, rows::prompt)?;
            prompts.into_iter().map(|prompt| ask::with_call(conn, prompt)).collect()
        })
        .await
    }

    async fn grants(&self, principal: &Principal) -> Result<Vec<String>> {
        let principal = principal.clone();
        self.read(move |conn| {
            let sql = "SELECT tool FROM grants WHERE principal = ?1 ORDER BY tool";
            all(conn, "grants", sql, [principal.as_str()], |c| Ok(c.str(0)?.to_owned()))
        })
        .await
    }

    async fn late_runs(&self, key: &SessionKey, limit: u32) -> Result<Vec<Run>> {
        let key = key.clone();
        self.read(move |conn| {
            let Some(no) = rows::session_no(conn, &key)? else { return Ok(Vec::new()) };
            let sql = concat!(
                "SELECT ",
                rows::run_columns!(),
                " WHERE r.session_no = ?1 AND r.late_since IS NOT NULL \
                 ORDER BY r.run_no LIMIT ?2"
            );
            let found = all(conn, "runs", sql, (no, limit), rows::run)?;
            Ok(found.into_iter().map(|(_, run)| run).collect())
        })
        .await
    }

    async fn all_late_runs(&self, after: Option<&RunId>, limit: u32) -> Result<Vec<Run>> {
        let after = after.map(ToString::to_string).unwrap_or_default();
        self.read(move |conn| {
            let sql = concat!(
                "SELECT ",
                rows::run_columns!(),
                " WHERE r.late_since IS NOT NULL AND r.id > ?1 ORDER BY r.id LIMIT ?2"
            );
            let found = all(conn, "runs", sql, (after, limit), rows::run)?;
            Ok(found.into_iter().map(|(_, run)| run).collect())
        })
        .await
    }

    async fn parked(
        &self,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<(SessionKey, Run)>> {
        let after = after.cloned();
        self.read(move |conn| {
            let (principal, id) = match &after {
                Some(key) => (key.principal.as_str(), key.id.as_str()),
                None => ("", ""),
            };
            let sql = "SELECT principal, id, interrupted FROM sessions \
                       WHERE interrupted IS NOT NULL AND (principal, id) > (?1, ?2) \
                       ORDER BY principal, id LIMIT ?3";
            let found = all(conn, "sessions", sql, (principal, id, limit), |c| {
                let principal = c.parsed(0, Principal::new)?;
                let id = c.parsed(1, everturn_core::SessionId::new)?;
                Ok((SessionKey { principal, id }, c.parsed(2, RunId::new)?))
            })?;
            let mut parked = Vec::with_capacity(found.len());
            for (key, id) in found {
                if let Some((_, run)) = rows::run_of(conn, &id)? {
                    parked.push((key, run));
                }
            }
            Ok(parked)
        })
        .await
    }

    async fn work(&self, after: Option<&Work>, limit: u32) -> Result<Vec<Work>> {
        let after = after.cloned();
        self.read(move |conn| ask::work(conn, after.as_ref(), limit)).await
    }

    async fn node(&self, id: &NodeId) -> Result<Option<Node>> {
        let id = id.clone();
        self.read(move |conn| rows::node_of(conn, &id)).await
    }

    async fn node_number(&self, id: &NodeId) -> Result<Option<u64>> {
        let id = id.clone();
        self.read(move |conn| {
            let sql = "SELECT node_no FROM nodes WHERE id = ?1";
            first(conn, "nodes", sql, [id.as_str()], |c| c.number(0))
        })
        .await
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
