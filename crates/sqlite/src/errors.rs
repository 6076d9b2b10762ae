//! What SQLite says, as the contract's storage failures (promise P13).

use std::io::Write as _;
use std::path::Path;

use everturn_store::{StorageError, StorageErrorKind};
use rusqlite::ffi::ErrorCode;

/// The result of everything that touches the store.
pub(crate) type Result<T> = std::result::Result<T, StorageError>;

/// Bytes that must still fit for a failed write not to be the disk's fullness.
const PROBE_BYTES: usize = 64 << 10;

/// The failure behind an error of SQLite.
pub(crate) fn failure(error: &rusqlite::Error) -> StorageError {
    StorageError::new(kind(error), format!("SQLite: {error}"))
}

fn kind(error: &rusqlite::Error) -> StorageErrorKind {
    let Some(sqlite) = error.sqlite_error() else {
        return match error {
            rusqlite::Error::InvalidPath(_) | rusqlite::Error::NulError(_) => {
                StorageErrorKind::Unavailable
            }
            // A value that is not of its column's type.
            _ => StorageErrorKind::Corrupt,
        };
    };
    match sqlite.code {
        ErrorCode::DiskFull => StorageErrorKind::Full,
        ErrorCode::DatabaseCorrupt
        | ErrorCode::NotADatabase
        | ErrorCode::ConstraintViolation
        | ErrorCode::TypeMismatch
        | ErrorCode::SchemaChanged
        | ErrorCode::Unknown => StorageErrorKind::Corrupt,
        ErrorCode::ReadOnly if sqlite.extended_code == rusqlite::ffi::SQLITE_READONLY_DBMOVED => {
            StorageErrorKind::Replaced
        }
        _ => StorageErrorKind::Unavailable,
    }
}

/// Whether another connection is in the way, so that waiting may help.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

/// Whether the operating system failed: what was written may not be where it should be.
pub(crate) fn is_io(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly)
    )
}

/// The failure behind an error of the operating system.
pub(crate) fn io_failure(what: &str, path: &Path, error: &std::io::Error) -> StorageError {
    let kind = if is_full(error) { StorageErrorKind::Full } else { StorageErrorKind::Unavailable };
    StorageError::new(kind, format!("{what} {}: {error}", path.display()))
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Whether the home takes no more bytes. SQLite reports some full disks and all full quotas as plain
/// I/O errors; only trying tells.
pub(crate) fn no_space(folder: &Path) -> bool {
    let probe = || -> std::io::Result<()> {
        let mut file = tempfile_in(folder)?;
        file.write_all(&[0_u8; PROBE_BYTES])?;
        file.sync_data()
    };
    probe().is_err_and(|error| is_full(&error))
}

/// A file without a name: gone when it is closed.
fn tempfile_in(folder: &Path) -> std::io::Result<std::fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// A column that does not hold what it should.
pub(crate) fn corrupt(message: String) -> StorageError {
    StorageError::new(StorageErrorKind::Corrupt, message)
}
