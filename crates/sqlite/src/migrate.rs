//! The schema and its versions.
//!
//! `user_version` is the number of migrations that a database has seen. Each migration is one file,
//! never changed once released, applied in one transaction. A database of a newer version is refused
//! and not touched.

use everturn_crash::Point;
use everturn_store::{StorageError, StorageErrorKind};
use rusqlite::{Connection, TransactionBehavior};

use crate::conn::query;
use crate::errors::{Result, corrupt, failure};

/// "EvTn": SQLite's `application_id` of every Everturn database.
pub(crate) const APPLICATION_ID: u32 = 0x4576_546e;

const MIGRATIONS: &[&str] = &[
    include_str!("../schema/0001.sql"),
    include_str!("../schema/0002.sql"),
    include_str!("../schema/0003.sql"),
];

/// The schema version that this program knows.
#[must_use]
pub fn schema_version() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

/// Refuses a database that a newer program made.
pub(crate) fn check_version(found: u32) -> Result<()> {
    let known = schema_version();
    if found > known {
        return Err(StorageError::new(
            StorageErrorKind::TooNew,
            format!(
                "the database has schema version {found} and this Everturn knows versions up to \
                 {known}: use the newer Everturn, or another home; nothing was changed"
            ),
        ));
    }
    Ok(())
}

/// The schema version of an open database.
pub(crate) fn version(conn: &Connection) -> Result<u32> {
    let found: i64 = query(conn.query_row("PRAGMA user_version", [], |row| row.get(0)))?;
    u32::try_from(found).map_err(|_| corrupt(format!("schema version {found} makes no sense")))
}

/// Brings a database to the version that this program knows, all or nothing.
pub(crate) fn migrate(conn: &mut Connection) -> Result<()> {
    if version(conn)? == schema_version() {
        return Ok(());
    }
    let tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| failure(&error))?;
    // Again, now that nobody else can migrate.
    let found = version(&tx)?;
    check_version(found)?;
    for sql in MIGRATIONS.iter().skip(found as usize) {
        query(tx.execute_batch(sql))?;
    }
    query(tx.pragma_update(None, "user_version", schema_version()))?;
    everturn_crash::pass(Point::MigrateApplied);
    query(tx.commit())?;
    everturn_crash::pass(Point::MigrateCommitted);
    if found > 0 {
        tracing::info!(from = found, to = schema_version(), "the database was migrated");
    }
    Ok(())
}
