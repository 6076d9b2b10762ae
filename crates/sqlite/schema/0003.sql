-- Version 3: interruptions that are settled later.

-- The transcript row that stands for the run's interruption, and why nothing went on by itself.
ALTER TABLE runs ADD COLUMN marker_id INTEGER;
ALTER TABLE runs ADD COLUMN parked TEXT;
-- While what its executor still held may arrive: since when, and how often that was found empty.
ALTER TABLE runs ADD COLUMN late_since INTEGER;
ALTER TABLE runs ADD COLUMN late_attempts INTEGER;
-- Where its tools work: host and folder; empty: not known.
ALTER TABLE runs ADD COLUMN workspace TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_late ON runs (session_no, run_no) WHERE late_since IS NOT NULL;
CREATE INDEX sessions_parked ON sessions (principal, id) WHERE interrupted IS NOT NULL;

-- What arrived so: outside every run, feed and transcript until the owner puts it there.
CREATE TABLE late_records (
    run_no INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    -- The write of its owner that it belonged to.
    write  INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (run_no, number)
) STRICT, WITHOUT ROWID;
