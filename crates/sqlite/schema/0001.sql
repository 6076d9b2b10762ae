-- Version 1. Times are milliseconds since the Unix epoch. Words are those of the vocabulary.
-- `session_no` and `run_no` stand for names inside the store, so that rows stay small.

-- "EvTn": tells an Everturn database from any other.
PRAGMA application_id = 0x4576546e;

-- What a session number stands for; outlives the session as long as its receipts do.
CREATE TABLE names (
    session_no INTEGER PRIMARY KEY,
    principal  TEXT NOT NULL,
    id         TEXT NOT NULL,
    UNIQUE (principal, id)
) STRICT;

CREATE TABLE sessions (
    session_no      INTEGER PRIMARY KEY,
    principal       TEXT NOT NULL,
    id              TEXT NOT NULL,
    -- Changed by every event; in no index.
    last_offset     INTEGER NOT NULL,
    offset_ceiling  INTEGER NOT NULL,
    last_message_id INTEGER NOT NULL,
    -- Changed by what people and turns do.
    generation      INTEGER NOT NULL,
    revision        INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    lease_holder    TEXT,
    lease_boot_id   TEXT,
    lease_boot_ms   INTEGER,
    lease_since     INTEGER,
    last_queue_key  INTEGER NOT NULL,
    queue_length    INTEGER NOT NULL,
    running         TEXT,
    interrupted     TEXT,
    quiet           INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    ended_at        INTEGER,
    end_reason      TEXT,
    title           TEXT,
    model           TEXT,
    policy          TEXT NOT NULL,
    metadata        TEXT,
    system          TEXT
) STRICT;
-- A principal's list, newest change first; the narrow states have lists of their own.
CREATE INDEX sessions_listed ON sessions (principal, updated_at, id);
CREATE INDEX sessions_running ON sessions (principal, updated_at, id) WHERE running IS NOT NULL;
CREATE INDEX sessions_interrupted ON sessions (principal, updated_at, id)
    WHERE interrupted IS NOT NULL;
-- What needs a node, oldest change first.
CREATE INDEX sessions_work ON sessions (updated_at, session_no)
    WHERE running IS NOT NULL OR queue_length > 0;
CREATE INDEX sessions_leased ON sessions (lease_holder) WHERE lease_holder IS NOT NULL;

-- How many sessions a principal has: a limit must not cost a count.
CREATE TABLE principals (
    principal TEXT PRIMARY KEY,
    sessions  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What remains of a deleted session.
CREATE TABLE tombstones (
    session_no INTEGER PRIMARY KEY,
    deleted_at INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE INDEX tombstones_by_age ON tombstones (deleted_at);

-- Deleted sessions whose events and messages are still being removed, a piece at a time.
CREATE TABLE trash (
    session_no INTEGER PRIMARY KEY
) STRICT;

CREATE TABLE inputs (
    input_no    INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    session_no  INTEGER NOT NULL,
    request_id  TEXT NOT NULL,
    digest      BLOB NOT NULL,
    kind        TEXT NOT NULL,
    mode        TEXT NOT NULL,
    queue_key   INTEGER NOT NULL,
    status      TEXT NOT NULL,
    delivery    TEXT NOT NULL,
    outcome     TEXT,
    generation  INTEGER,
    run_id      TEXT,
    attempt     INTEGER NOT NULL,
    continues   TEXT,
    decides     TEXT,
    accepted_at INTEGER NOT NULL,
    ended_at    INTEGER,
    metadata    TEXT,
    text        TEXT NOT NULL,
    -- The list of parts, where it is more than one text.
    parts       TEXT,
    UNIQUE (session_no, request_id)
) STRICT;
CREATE INDEX inputs_queued ON inputs (session_no, queue_key) WHERE status = 'queued';
CREATE INDEX inputs_by_status ON inputs (session_no, status, input_no);

CREATE TABLE runs (
    run_no         INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    session_no     INTEGER NOT NULL,
    -- Changed by every event; in no index.
    last_seq       INTEGER NOT NULL,
    last_offset    INTEGER NOT NULL,
    last_event     TEXT NOT NULL,
    last_event_at  INTEGER NOT NULL,
    step_seq       INTEGER NOT NULL,
    writes         INTEGER NOT NULL,
    writes_epoch   INTEGER NOT NULL,
    first_offset   INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    state          TEXT NOT NULL,
    terminal_state TEXT,
    node           TEXT NOT NULL,
    model          TEXT NOT NULL,
    stop_by        TEXT,
    stop_at        INTEGER,
    cause          TEXT,
    continues      TEXT,
    interrupted_at INTEGER,
    started_at     INTEGER NOT NULL,
    ended_at       INTEGER,
    input_ids      TEXT NOT NULL,
    usage          TEXT,
    error          TEXT,
    evidence       TEXT
) STRICT;
CREATE INDEX runs_of_session ON runs (session_no, generation);

-- A session's feed. `kind` stands for the event's name and the form of its body; an unknown name is
-- written out.
CREATE TABLE events (
    session_no INTEGER NOT NULL,
    "offset"   INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    run_no     INTEGER,
    seq        INTEGER,
    at         INTEGER NOT NULL,
    name       TEXT,
    body       TEXT NOT NULL,
    PRIMARY KEY (session_no, "offset")
) STRICT, WITHOUT ROWID;

-- Numbers that were reserved and then lost with unsynced events.
CREATE TABLE gaps (
    session_no  INTEGER NOT NULL,
    from_offset INTEGER NOT NULL,
    to_offset   INTEGER NOT NULL,
    run_id      TEXT NOT NULL,
    from_seq    INTEGER NOT NULL,
    to_seq      INTEGER NOT NULL,
    PRIMARY KEY (session_no, from_offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
    message_no   INTEGER PRIMARY KEY,
    session_no   INTEGER NOT NULL,
    id           INTEGER NOT NULL,
    position     TEXT NOT NULL,
    role         TEXT NOT NULL,
    kind         TEXT NOT NULL,
    tool_call_id TEXT,
    generation   INTEGER,
    run_id       TEXT,
    input_id     TEXT,
    recovered    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    text         TEXT NOT NULL,
    -- The list of parts, where it is more than one text.
    parts        TEXT,
    reasoning    TEXT,
    UNIQUE (session_no, id)
) STRICT;
CREATE INDEX messages_in_order ON messages (session_no, position, id);

CREATE TABLE calls (
    call_no     INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    session_no  INTEGER NOT NULL,
    run_id      TEXT NOT NULL,
    message_id  INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    provider_id TEXT NOT NULL,
    name        TEXT NOT NULL,
    effect      TEXT NOT NULL,
    schema      TEXT NOT NULL,
    state       TEXT NOT NULL,
    started_at  INTEGER,
    ended_at    INTEGER,
    arguments   TEXT NOT NULL,
    result      TEXT
) STRICT;
CREATE INDEX calls_of_message ON calls (session_no, message_id, place);
CREATE INDEX calls_of_run ON calls (run_id, message_id, place);

CREATE TABLE prompts (
    prompt_no   INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    session_no  INTEGER NOT NULL,
    run_id      TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL,
    call_id     TEXT,
    choice      TEXT,
    answered_by TEXT,
    opened_at   INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    settled_at  INTEGER,
    question    TEXT NOT NULL,
    text        TEXT
) STRICT;
CREATE INDEX prompts_open ON prompts (run_id) WHERE state = 'open';
CREATE INDEX prompts_of_session ON prompts (session_no, state, opened_at, id);

-- Tools that a principal allowed for ever.
CREATE TABLE grants (
    principal TEXT NOT NULL,
    tool      TEXT NOT NULL,
    PRIMARY KEY (principal, tool)
) STRICT, WITHOUT ROWID;

-- `node_no` is the order in which nodes became known, whatever their clocks said.
CREATE TABLE nodes (
    node_no           INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    home              TEXT NOT NULL,
    boot_id           TEXT NOT NULL,
    role              TEXT NOT NULL,
    started_at        INTEGER NOT NULL,
    interrupted_start INTEGER NOT NULL,
    ended_at          INTEGER
) STRICT;
CREATE INDEX nodes_serving ON nodes (home, node_no) WHERE role = 'serve';
CREATE INDEX nodes_present ON nodes (node_no) WHERE ended_at IS NULL;

-- Which nodes have viewers of a session.
CREATE TABLE presence (
    session_no INTEGER NOT NULL,
    node       TEXT NOT NULL,
    PRIMARY KEY (session_no, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX presence_of_node ON presence (node);

CREATE TABLE tokens (
    token_no     INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    hash         BLOB NOT NULL UNIQUE,
    principal    TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;

-- One row, written when a commit must be synced although nothing else changes.
CREATE TABLE heartbeat (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    count INTEGER NOT NULL
) STRICT;
INSERT INTO heartbeat VALUES (1, 0);
