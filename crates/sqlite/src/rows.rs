//! Rows as values of the vocabulary, and the look-ups that the writer and the readers share.
//!
//! Column 0 of every list here is the row's key: a column that cannot be read is reported with its
//! table, key and name, and is never a panic.

use everturn_core::digest::Digest;
use everturn_core::event::EventHead;
use everturn_core::{
    CallId, Input, InputId, Lease, LeaseExpiry, Message, NodeId, Principal, Prompt, PromptId,
    RequestId, Run, RunId, Session, SessionId, SessionKey, Stop, Timestamp, TokenId, ToolCall,
};
use everturn_store::columns;
use everturn_store::read::StoredEvent;
use everturn_store::rows::{EventRow, Gap, Node, Token, Tombstone};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};

use crate::errors::{Result, corrupt, failure};
use crate::events;
#[cfg(test)]
use crate::work;

/// One row, with the name of its table for what is wrong with it.
pub(crate) struct Cols<'r, 's> {
    row: &'r Row<'s>,
    table: &'static str,
}

impl<'r, 's> Cols<'r, 's> {
    pub(crate) fn new(table: &'static str, row: &'r Row<'s>) -> Self {
        Self { row, table }
    }

    fn bad(&self, at: usize, why: impl std::fmt::Display) -> everturn_store::StorageError {
        let column = self.row.as_ref().column_name(at).unwrap_or("?").to_owned();
        let key = match self.row.get_ref(0) {
            Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            Ok(ValueRef::Integer(number)) => number.to_string(),
            _ => "?".to_owned(),
        };
        corrupt(format!("table {}, row {key}, column {column}: {why}", self.table))
    }

    fn value(&self, at: usize) -> Result<ValueRef<'r>> {
        self.row.get_ref(at).map_err(|error| self.bad(at, error))
    }

    /// The text of a column, where it is.
    pub(crate) fn opt_str(&self, at: usize) -> Result<Option<&'r str>> {
        match self.value(at)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => {
                std::str::from_utf8(bytes).map(Some).map_err(|error| self.bad(at, error))
            }
            other => Err(self.bad(at, format_args!("{} instead of text", other.data_type()))),
        }
    }

    pub(crate) fn str(&self, at: usize) -> Result<&'r str> {
        self.opt_str(at)?.ok_or_else(|| self.bad(at, "nothing instead of text"))
    }

    pub(crate) fn opt_string(&self, at: usize) -> Result<Option<String>> {
        Ok(self.opt_str(at)?.map(str::to_owned))
    }

    pub(crate) fn opt_int(&self, at: usize) -> Result<Option<i64>> {
        match self.value(at)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(number)),
            other => Err(self.bad(at, format_args!("{} instead of a number", other.data_type()))),
        }
    }

    pub(crate) fn int(&self, at: usize) -> Result<i64> {
        self.opt_int(at)?.ok_or_else(|| self.bad(at, "nothing instead of a number"))
    }

    /// A number that fits its type (no negative count, no huge index).
    pub(crate) fn number<T: TryFrom<i64>>(&self, at: usize) -> Result<T> {
        let number = self.int(at)?;
        T::try_from(number).map_err(|_| self.bad(at, format_args!("{number} is out of range")))
    }

    fn opt_number<T: TryFrom<i64>>(&self, at: usize) -> Result<Option<T>> {
        self.opt_int(at)?.map(|_| self.number(at)).transpose()
    }

    pub(crate) fn bool(&self, at: usize) -> Result<bool> {
        Ok(self.int(at)? != 0)
    }

    pub(crate) fn time(&self, at: usize) -> Result<Timestamp> {
        self.int(at).map(Timestamp)
    }

    fn opt_time(&self, at: usize) -> Result<Option<Timestamp>> {
        Ok(self.opt_int(at)?.map(Timestamp))
    }

    /// An id, or anything else that text is parsed to.
    pub(crate) fn parsed<T, E: std::fmt::Display>(
        &self,
        at: usize,
        parse: impl FnOnce(&'r str) -> std::result::Result<T, E>,
    ) -> Result<T> {
        parse(self.str(at)?).map_err(|error| self.bad(at, error))
    }

    fn opt_parsed<T, E: std::fmt::Display>(
        &self,
        at: usize,
        parse: impl FnOnce(&'r str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        self.opt_str(at)?.map(parse).transpose().map_err(|error| self.bad(at, error))
    }

    /// A word of the vocabulary.
    fn word<T>(&self, at: usize, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let word = self.str(at)?;
        parse(word).ok_or_else(|| self.bad(at, format_args!("the word {word:?} is not known")))
    }

    fn opt_word<T>(&self, at: usize, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        self.opt_str(at)?.map(|_| self.word(at, parse)).transpose()
    }

    fn bytes32(&self, at: usize) -> Result<[u8; 32]> {
        match self.value(at)? {
            ValueRef::Blob(bytes) => bytes.try_into().map_err(|_| self.bad(at, "not 32 bytes")),
            other => Err(self.bad(at, format_args!("{} instead of bytes", other.data_type()))),
        }
    }
}

/// The first row of a query.
pub(crate) fn first<T>(
    conn: &Connection,
    table: &'static str,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Cols<'_, '_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = conn.prepare_cached(sql).map_err(|error| failure(&error))?;
    let mut rows = statement.query(params).map_err(|error| failure(&error))?;
    let found = match rows.next().map_err(|error| failure(&error))? {
        Some(row) => Some(read(&Cols::new(table, row))?),
        None => None,
    };
    #[cfg(test)]
    work::note(&rows);
    Ok(found)
}

/// All rows of a query.
pub(crate) fn all<T>(
    conn: &Connection,
    table: &'static str,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Cols<'_, '_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut statement = conn.prepare_cached(sql).map_err(|error| failure(&error))?;
    let mut rows = statement.query(params).map_err(|error| failure(&error))?;
    let mut out = Vec::new();
    while let Some(row) = rows.next().map_err(|error| failure(&error))? {
        out.push(read(&Cols::new(table, row))?);
        #[cfg(test)]
        work::note(&rows);
    }
    Ok(out)
}

/// Runs a statement that answers no rows. Returns how many it changed.
pub(crate) fn run_sql(conn: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    let mut statement = conn.prepare_cached(sql).map_err(|error| failure(&error))?;
    statement.execute(params).map_err(|error| failure(&error))
}

/// A number as SQLite keeps it. Beyond 2^63 there is nothing.
pub(crate) fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

macro_rules! session_columns {
    () => {
        "session_no, principal, id, last_offset, offset_ceiling, last_message_id, generation, \
         revision, epoch, lease_holder, lease_boot_id, lease_boot_ms, lease_since, \
         last_queue_key, queue_length, running, interrupted, quiet, created_at, updated_at, \
         ended_at, end_reason, title, model, policy, metadata, system"
    };
}

/// A session and its number.
pub(crate) fn session(c: &Cols<'_, '_>) -> Result<(i64, Session)> {
    let lease = match c.opt_parsed(9, NodeId::new)? {
        Some(holder) => Some(Lease {
            holder,
            expiry: LeaseExpiry { boot_id: c.str(10)?.to_owned(), boot_ms: c.number(11)? },
            since: c.time(12)?,
        }),
        None => None,
    };
    let session = Session {
        principal: c.parsed(1, Principal::new)?,
        id: c.parsed(2, SessionId::new)?,
        last_offset: c.number(3)?,
        offset_ceiling: c.number(4)?,
        last_message_id: c.number(5)?,
        generation: c.number(6)?,
        revision: c.number(7)?,
        epoch: c.number(8)?,
        lease,
        last_queue_key: c.int(13)?,
        queue_length: c.number(14)?,
        running: c.opt_parsed(15, RunId::new)?,
        interrupted: c.opt_parsed(16, RunId::new)?,
        quiet: c.bool(17)?,
        created_at: c.time(18)?,
        updated_at: c.time(19)?,
        ended_at: c.opt_time(20)?,
        end_reason: c.opt_string(21)?,
        title: c.opt_string(22)?,
        model: c.opt_string(23)?,
        policy: c.parsed(24, columns::read_policy)?,
        metadata: c.opt_string(25)?,
        system: c.opt_string(26)?,
    };
    Ok((c.int(0)?, session))
}

/// The number that stands for a session's name, also after its deletion.
pub(crate) fn session_no(conn: &Connection, key: &SessionKey) -> Result<Option<i64>> {
    first(
        conn,
        "names",
        "SELECT session_no FROM names WHERE principal = ?1 AND id = ?2",
        (key.principal.as_str(), key.id.as_str()),
        |c| c.int(0),
    )
}

/// The session of a key, with its number.
pub(crate) fn session_of(conn: &Connection, key: &SessionKey) -> Result<Option<(i64, Session)>> {
    let Some(no) = session_no(conn, key)? else { return Ok(None) };
    session_by_no(conn, no)
}

pub(crate) fn session_by_no(conn: &Connection, no: i64) -> Result<Option<(i64, Session)>> {
    first(
        conn,
        "sessions",
        concat!("SELECT ", session_columns!(), " FROM sessions WHERE session_no = ?1"),
        [no],
        session,
    )
}

/// What remains of a deleted session.
pub(crate) fn tombstone_of(conn: &Connection, key: &SessionKey) -> Result<Option<Tombstone>> {
    first(
        conn,
        "tombstones",
        "SELECT t.session_no, t.deleted_at, t.generation FROM names n \
         JOIN tombstones t ON t.session_no = n.session_no WHERE n.principal = ?1 AND n.id = ?2",
        (key.principal.as_str(), key.id.as_str()),
        |c| Ok(Tombstone { deleted_at: c.time(1)?, generation: c.number(2)? }),
    )
}

macro_rules! run_columns {
    () => {
        "r.id, r.run_no, n.principal, n.id, r.last_seq, r.last_offset, r.last_event, \
         r.last_event_at, r.step_seq, r.first_offset, r.generation, r.attempt, r.state, \
         r.terminal_state, r.node, r.model, r.stop_by, r.stop_at, r.cause, r.continues, \
         r.interrupted_at, r.started_at, r.ended_at, r.input_ids, r.usage, r.error, r.evidence, \
         r.writes, r.writes_epoch, r.marker_id, r.parked, r.late_since, r.late_attempts, \
         r.workspace \
         FROM runs r JOIN names n ON n.session_no = r.session_no"
    };
}
pub(crate) use run_columns;

/// A run and its number.
pub(crate) fn run(c: &Cols<'_, '_>) -> Result<(i64, Run)> {
    use everturn_core::recovery::Parked;
    use everturn_core::{Cause, RunState, TerminalState, late};
    let stop = match c.opt_parsed(16, Principal::new)? {
        Some(by) => Some(Stop { by, at: c.time(17)? }),
        None => None,
    };
    let late = match c.opt_time(31)? {
        Some(since) => Some(late::Pending { since, attempts: c.number(32)? }),
        None => None,
    };
    let run = Run {
        id: c.parsed(0, RunId::new)?,
        principal: c.parsed(2, Principal::new)?,
        session_id: c.parsed(3, SessionId::new)?,
        last_seq: c.number(4)?,
        last_offset: c.number(5)?,
        last_event: c.str(6)?.to_owned(),
        last_event_at: c.time(7)?,
        step_seq: c.number(8)?,
        first_offset: c.number(9)?,
        generation: c.number(10)?,
        attempt: c.number(11)?,
        state: c.word(12, RunState::parse)?,
        terminal_state: c.opt_word(13, TerminalState::parse)?,
        node: c.parsed(14, NodeId::new)?,
        model: c.str(15)?.to_owned(),
        stop,
        cause: c.opt_word(18, Cause::parse)?,
        continues: c.opt_parsed(19, RunId::new)?,
        interrupted_at: c.opt_time(20)?,
        started_at: c.time(21)?,
        ended_at: c.opt_time(22)?,
        input_ids: c.parsed(23, columns::read_input_ids)?,
        usage: c.opt_parsed(24, columns::read_usage)?,
        error: c.opt_parsed(25, columns::read_failure)?,
        evidence: c.opt_parsed(26, columns::read_evidence)?,
        writes: c.number(27)?,
        writes_epoch: c.number(28)?,
        marker_id: c.opt_number(29)?,
        parked: c.opt_word(30, Parked::parse)?,
        late,
        workspace: c.str(33)?.to_owned(),
    };
    Ok((c.int(1)?, run))
}

/// The run of an id, with its number.
pub(crate) fn run_of(conn: &Connection, id: &RunId) -> Result<Option<(i64, Run)>> {
    let sql = concat!("SELECT ", run_columns!(), " WHERE r.id = ?1");
    first(conn, "runs", sql, [id.as_str()], run)
}

macro_rules! input_columns {
    () => {
        "i.id, n.principal, n.id, i.request_id, i.digest, i.kind, i.mode, i.queue_key, \
         i.status, i.delivery, i.outcome, i.generation, i.run_id, i.attempt, i.continues, \
         i.decides, i.accepted_at, i.ended_at, i.metadata, i.text, i.parts \
         FROM inputs i JOIN names n ON n.session_no = i.session_no"
    };
}
pub(crate) use input_columns;

pub(crate) fn input(c: &Cols<'_, '_>) -> Result<Input> {
    use everturn_core::{Delivery, InputKind, InputStatus, Mode, Outcome};
    Ok(Input {
        id: c.parsed(0, InputId::new)?,
        principal: c.parsed(1, Principal::new)?,
        session_id: c.parsed(2, SessionId::new)?,
        request_id: c.parsed(3, RequestId::new)?,
        digest: Digest(c.bytes32(4)?),
        kind: c.word(5, InputKind::parse)?,
        mode: c.word(6, Mode::parse)?,
        queue_key: c.int(7)?,
        status: c.word(8, InputStatus::parse)?,
        delivery: c.word(9, Delivery::parse)?,
        outcome: c.opt_word(10, Outcome::parse)?,
        generation: c.opt_number(11)?,
        run_id: c.opt_parsed(12, RunId::new)?,
        attempt: c.number(13)?,
        continues: c.opt_parsed(14, RunId::new)?,
        decides: c.opt_parsed(15, InputId::new)?,
        accepted_at: c.time(16)?,
        ended_at: c.opt_time(17)?,
        metadata: c.opt_string(18)?,
        content: content(c, 19, 20)?,
    })
}

fn content(c: &Cols<'_, '_>, text: usize, parts: usize) -> Result<everturn_core::Content> {
    columns::read_content(c.str(text)?.to_owned(), c.opt_str(parts)?)
        .map_err(|error| c.bad(parts, error))
}

pub(crate) fn input_of(conn: &Connection, id: &InputId) -> Result<Option<Input>> {
    let sql = concat!("SELECT ", input_columns!(), " WHERE i.id = ?1");
    first(conn, "inputs", sql, [id.as_str()], input)
}

pub(crate) fn input_by_identity(
    conn: &Connection,
    key: &SessionKey,
    request: &RequestId,
) -> Result<Option<Input>> {
    let Some(no) = session_no(conn, key)? else { return Ok(None) };
    let sql =
        concat!("SELECT ", input_columns!(), " WHERE i.session_no = ?1 AND i.request_id = ?2");
    first(conn, "inputs", sql, (no, request.as_str()), input)
}

/// Queued inputs in queue order.
pub(crate) fn queued(
    conn: &Connection,
    session_no: i64,
    after: i64,
    limit: u32,
) -> Result<Vec<Input>> {
    let sql = concat!(
        "SELECT ",
        input_columns!(),
        " WHERE i.session_no = ?1 AND i.status = 'queued' AND i.queue_key > ?2 \
         ORDER BY i.queue_key LIMIT ?3"
    );
    all(conn, "inputs", sql, (session_no, after, limit), input)
}

/// Place in the queue, from 1.
pub(crate) fn queue_position(conn: &Connection, session_no: i64, queue_key: i64) -> Result<u32> {
    let count = first(
        conn,
        "inputs",
        "SELECT count(*) FROM inputs \
         WHERE session_no = ?1 AND status = 'queued' AND queue_key <= ?2",
        (session_no, queue_key),
        |c| c.number(0),
    )?;
    Ok(count.unwrap_or(0))
}

macro_rules! call_columns {
    () => {
        "c.id, n.principal, n.id, c.run_id, c.message_id, c.place, c.provider_id, c.name, \
         c.effect, c.schema, c.state, c.started_at, c.ended_at, c.arguments, c.result \
         FROM calls c JOIN names n ON n.session_no = c.session_no"
    };
}

pub(crate) fn call(c: &Cols<'_, '_>) -> Result<ToolCall> {
    use everturn_core::{CallState, Effect};
    Ok(ToolCall {
        id: c.parsed(0, CallId::new)?,
        session: SessionKey {
            principal: c.parsed(1, Principal::new)?,
            id: c.parsed(2, SessionId::new)?,
        },
        run_id: c.parsed(3, RunId::new)?,
        message_id: c.number(4)?,
        index: c.number(5)?,
        provider_id: c.str(6)?.to_owned(),
        name: c.str(7)?.to_owned(),
        effect: c.word(8, Effect::parse)?,
        schema: c.str(9)?.to_owned(),
        state: c.word(10, CallState::parse)?,
        started_at: c.opt_time(11)?,
        ended_at: c.opt_time(12)?,
        arguments: c.str(13)?.to_owned(),
        result: c.opt_string(14)?,
    })
}

pub(crate) fn call_of(conn: &Connection, id: &CallId) -> Result<Option<ToolCall>> {
    let sql = concat!("SELECT ", call_columns!(), " WHERE c.id = ?1");
    first(conn, "calls", sql, [id.as_str()], call)
}

/// The calls that a run owns, by message and place.
pub(crate) fn run_calls(conn: &Connection, run: &RunId) -> Result<Vec<ToolCall>> {
    let sql =
        concat!("SELECT ", call_columns!(), " WHERE c.run_id = ?1 ORDER BY c.message_id, c.place");
    all(conn, "calls", sql, [run.as_str()], call)
}

macro_rules! prompt_columns {
    () => {
        "p.id, n.principal, n.id, p.run_id, p.generation, p.kind, p.state, p.call_id, p.choice, \
         p.answered_by, p.opened_at, p.expires_at, p.settled_at, p.question, p.text \
         FROM prompts p JOIN names n ON n.session_no = p.session_no"
    };
}
pub(crate) use prompt_columns;

pub(crate) fn prompt(c: &Cols<'_, '_>) -> Result<Prompt> {
    use everturn_core::{Choice, PromptKind, PromptState};
    Ok(Prompt {
        id: c.parsed(0, PromptId::new)?,
        principal: c.parsed(1, Principal::new)?,
        session_id: c.parsed(2, SessionId::new)?,
        run_id: c.parsed(3, RunId::new)?,
        generation: c.number(4)?,
        kind: c.word(5, PromptKind::parse)?,
        state: c.word(6, PromptState::parse)?,
        call_id: c.opt_parsed(7, CallId::new)?,
        choice: c.opt_word(8, Choice::parse)?,
        answered_by: c.opt_parsed(9, Principal::new)?,
        opened_at: c.time(10)?,
        expires_at: c.time(11)?,
        settled_at: c.opt_time(12)?,
        question: c.str(13)?.to_owned(),
        text: c.opt_string(14)?,
    })
}

pub(crate) fn prompt_of(conn: &Connection, id: &PromptId) -> Result<Option<Prompt>> {
    let sql = concat!("SELECT ", prompt_columns!(), " WHERE p.id = ?1");
    first(conn, "prompts", sql, [id.as_str()], prompt)
}

/// Columns of a message, without its calls.
pub(crate) const MESSAGE_COLUMNS: &str = "id, position, role, kind, tool_call_id, generation, \
     run_id, input_id, recovered, created_at, text, parts, reasoning";

pub(crate) fn message(c: &Cols<'_, '_>) -> Result<Message> {
    use everturn_core::{MessageKind, Role};
    Ok(Message {
        id: c.number(0)?,
        position: c.str(1)?.to_owned(),
        role: c.word(2, Role::parse)?,
        kind: c.word(3, MessageKind::parse)?,
        tool_call_id: c.opt_parsed(4, CallId::new)?,
        generation: c.opt_number(5)?,
        run_id: c.opt_parsed(6, RunId::new)?,
        input_id: c.opt_parsed(7, InputId::new)?,
        recovered: c.bool(8)?,
        created_at: c.time(9)?,
        content: content(c, 10, 11)?,
        reasoning: c.opt_string(12)?,
        tool_calls: Vec::new(),
    })
}

/// Gives messages of assistants their calls.
pub(crate) fn fill_calls(
    conn: &Connection,
    session_no: i64,
    messages: &mut [Message],
) -> Result<()> {
    let sql = concat!(
        "SELECT ",
        call_columns!(),
        " WHERE c.session_no = ?1 AND c.message_id = ?2 ORDER BY c.place"
    );
    for message in messages {
        if message.role == everturn_core::Role::Assistant {
            message.tool_calls = all(conn, "calls", sql, (session_no, big(message.id)), call)?;
        }
    }
    Ok(())
}

pub(crate) const NODE_COLUMNS: &str =
    "id, home, boot_id, role, started_at, interrupted_start, ended_at FROM nodes";

pub(crate) fn node(c: &Cols<'_, '_>) -> Result<Node> {
    Ok(Node {
        id: c.parsed(0, NodeId::new)?,
        home: c.str(1)?.to_owned(),
        boot_id: c.str(2)?.to_owned(),
        role: c.str(3)?.to_owned(),
        started_at: c.time(4)?,
        interrupted_start: c.bool(5)?,
        ended_at: c.opt_time(6)?,
    })
}

pub(crate) fn node_of(conn: &Connection, id: &NodeId) -> Result<Option<Node>> {
    first(conn, "nodes", &format!("SELECT {NODE_COLUMNS} WHERE id = ?1"), [id.as_str()], node)
}

/// The last nodes of a home in the role `serve`, newest first.
pub(crate) fn serve_starts(conn: &Connection, home: &str, limit: u32) -> Result<Vec<Node>> {
    let sql = format!(
        "SELECT {NODE_COLUMNS} WHERE home = ?1 AND role = 'serve' ORDER BY node_no DESC LIMIT ?2"
    );
    all(conn, "nodes", &sql, (home, limit), node)
}

/// Nodes that have viewers of a session.
pub(crate) fn presence_of(conn: &Connection, session_no: i64) -> Result<Vec<NodeId>> {
    all(
        conn,
        "presence",
        "SELECT node FROM presence WHERE session_no = ?1 ORDER BY node",
        [session_no],
        |c| c.parsed(0, NodeId::new),
    )
}

pub(crate) const TOKEN_COLUMNS: &str = "id, hash, principal, scopes, created_at, expires_at, \
     last_used_at, revoked_at FROM tokens";

pub(crate) fn token(c: &Cols<'_, '_>) -> Result<Token> {
    Ok(Token {
        id: c.parsed(0, TokenId::new)?,
        hash: c.bytes32(1)?,
        principal: c.parsed(2, Principal::new)?,
        scopes: c.str(3)?.split_whitespace().map(str::to_owned).collect(),
        created_at: c.time(4)?,
        expires_at: c.opt_time(5)?,
        last_used_at: c.opt_time(6)?,
        revoked_at: c.opt_time(7)?,
    })
}

pub(crate) fn gap(c: &Cols<'_, '_>) -> Result<Gap> {
    Ok(Gap {
        from_offset: c.number(0)?,
        to_offset: c.number(1)?,
        from_seq: c.number(2)?,
        to_seq: c.number(3)?,
    })
}

/// Columns of an event.
pub(crate) const EVENT_COLUMNS: &str = "\"offset\", kind, run_no, seq, at, name, body FROM events";

/// Reads stored events; remembers the names of their runs.
pub(crate) struct EventReader<'c> {
    conn: &'c Connection,
    session_id: SessionId,
    runs: Vec<(i64, RunId)>,
}

impl<'c> EventReader<'c> {
    pub(crate) fn new(conn: &'c Connection, session_id: SessionId) -> Self {
        Self { conn, session_id, runs: Vec::new() }
    }

    /// One event, or why it cannot be read.
    pub(crate) fn read(&mut self, c: &Cols<'_, '_>) -> Result<StoredEvent> {
        let offset = c.number(0)?;
        match self.good(c, offset) {
            Ok(row) => Ok(StoredEvent::Good(row)),
            Err(error) if error.kind == everturn_store::StorageErrorKind::Corrupt => {
                let seq = c.opt_number(3).unwrap_or(None);
                Ok(StoredEvent::Malformed { offset, seq, error: error.message })
            }
            Err(error) => Err(error),
        }
    }

    fn good(&mut self, c: &Cols<'_, '_>, offset: u64) -> Result<EventRow> {
        let run = match (c.opt_int(2)?, c.opt_number::<u64>(3)?) {
            (None, None) => None,
            (Some(no), Some(seq)) => Some((self.run_id(c, no)?, seq)),
            _ => return Err(c.bad(3, "a run without a seq, or a seq without a run")),
        };
        let (name, body) =
            events::decode(c.int(1)?, c.opt_str(5)?, c.str(6)?).map_err(|error| c.bad(6, error))?;
        let head =
            EventHead { session_id: self.session_id.clone(), offset, run, name, at: c.time(4)? };
        Ok(EventRow { head, body })
    }

    fn run_id(&mut self, c: &Cols<'_, '_>, no: i64) -> Result<RunId> {
        if let Some((_, id)) = self.runs.iter().find(|(known, _)| *known == no) {
            return Ok(id.clone());
        }
        let id = first(self.conn, "runs", "SELECT id FROM runs WHERE run_no = ?1", [no], |c| {
            c.parsed(0, RunId::new)
        })?
        .ok_or_else(|| c.bad(2, format_args!("there is no run {no}")))?;
        self.runs.push((no, id.clone()));
        Ok(id)
    }
}
