//! How much work the queries of a test were.
use std::cell::Cell;

use rusqlite::{Rows, StatementStatus};

thread_local! {
    static STEPS: Cell<i64> = const { Cell::new(0) };
    static SCANS: Cell<i64> = const { Cell::new(0) };
}

/// Adds what a statement did since this was last asked.
pub(crate) fn note(rows: &Rows<'_>) {
    let Some(statement) = rows.as_ref() else { return };
    let take = |status| i64::from(statement.reset_status(status));
    STEPS.set(STEPS.get() + take(StatementStatus::VmStep));
    SCANS.set(SCANS.get() + take(StatementStatus::FullscanStep));
}

/// Steps of SQLite's machine, and rows passed over without an index, since this was last asked.
pub(crate) fn take() -> (i64, i64) {
    (STEPS.take(), SCANS.take())
}
