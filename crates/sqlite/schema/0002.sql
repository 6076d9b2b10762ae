-- Version 2: token events of runs that ended long ago are pruned.

-- Seq up to which the run has no token events left; NULL: it has none at all.
ALTER TABLE runs ADD COLUMN pruned_to INTEGER DEFAULT 0;
-- Runs that may have some, in the order of their ends.
CREATE INDEX runs_prunable ON runs (ended_at, id)
    WHERE ended_at IS NOT NULL AND pruned_to IS NOT NULL;
