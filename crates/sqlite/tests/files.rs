//! The files of a home: what is made, what is refused, and that nothing is ever overwritten (P13).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use common::{admit, key, open, options, rows};
use everturn_sqlite::{Depth, SqliteStore, schema_version};
use everturn_store::{Read as _, StorageErrorKind, Store as _};

fn refused(home: &Path) -> everturn_store::StorageError {
    match SqliteStore::open(options(home)) {
        Ok(_) => panic!("the store should not open"),
        Err(error) => error,
    }
}

/// A home with some rows, closed.
async fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    for n in 0..50 {
        store.submit(admit(&key("s"), n, &"x".repeat(2_000))).await.unwrap();
    }
    drop(store);
    home
}

#[tokio::test]
async fn a_fresh_home_is_only_its_owners() {
    let parent = tempfile::tempdir().unwrap();
    let home = parent.path().join("deep").join("home");
    let store = open(&home);
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    let mode =
        |path: &str| std::fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("nodes"), 0o700);
    for file in ["everturn.db", "everturn.db-wal", "everturn.db-shm"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    let lock = format!("nodes/{}.lock", store.node_id());
    assert_eq!(mode(&lock), 0o600);
    assert!(std::fs::read_to_string(home.join(&lock)).unwrap().starts_with("library process "));
    drop(store);
    assert!(!home.join(lock).exists(), "a node that leaves takes its lock with it");
    assert!(!home.join("everturn.db-wal").exists(), "the last one out moves the log");
    let left: Vec<_> = std::fs::read_dir(home.join("nodes")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn what_was_written_is_there_again() {
    let home = home().await;
    let store = open(home.path());
    let feed = store.feed(&key("s"), 0, 100).await.unwrap();
    assert_eq!(feed.len(), 50);
    assert_eq!(rows(&store).await, 50);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_touched() {
    let home = home().await;
    let path = home.path().join("everturn.db");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.pragma_update(None, "user_version", schema_version() + 6).unwrap();
    raw.execute_batch("CREATE TABLE from_the_future (x)").unwrap();
    raw.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = refused(home.path());
    assert_eq!(error.kind, StorageErrorKind::TooNew);
    let (newer, ours) = ((schema_version() + 6).to_string(), schema_version().to_string());
    assert!(error.message.contains(&newer) && error.message.contains(&ours), "{error}");
    assert_eq!(before, std::fs::read(&path).unwrap(), "byte for byte");
    let checked = SqliteStore::check(home.path(), Depth::Quick).unwrap_err();
    assert_eq!(checked.kind, StorageErrorKind::TooNew);
    assert_eq!(before, std::fs::read(&path).unwrap());
}

#[tokio::test]
async fn a_newer_schema_is_seen_in_the_log_as_well() {
    let home = home().await;
    let path = home.path().join("everturn.db");
    // As a newer process that was killed leaves it: the version is in the log only.
    let copy = tempfile::tempdir().unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    raw.pragma_update(None, "user_version", schema_version() + 1).unwrap();
    for file in ["everturn.db", "everturn.db-wal"] {
        std::fs::copy(home.path().join(file), copy.path().join(file)).unwrap();
    }
    let read = |file: &str| std::fs::read(copy.path().join(file)).unwrap();
    let before = (read("everturn.db"), read("everturn.db-wal"));
    assert_eq!(refused(copy.path()).kind, StorageErrorKind::TooNew);
    assert_eq!(before, (read("everturn.db"), read("everturn.db-wal")));
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused_and_kept() {
    for content in [
        Vec::new(),
        b"short".to_vec(),
        vec![b'x'; 8_192],
        b"SQLite format 3\0 but nothing else".to_vec(),
        [b"SQLite format 3\0".to_vec(), vec![0; 8_192]].concat(),
    ] {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("everturn.db");
        std::fs::write(&path, &content).unwrap();
        let error = refused(home.path());
        assert_eq!(error.kind, StorageErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("everturn.db"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(
            SqliteStore::check(home.path(), Depth::Quick).unwrap_err().kind,
            StorageErrorKind::Corrupt
        );
    }
}

#[tokio::test]
async fn another_programs_database_is_refused_and_kept() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("everturn.db");
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
    raw.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = refused(home.path());
    assert_eq!(error.kind, StorageErrorKind::Corrupt);
    assert!(error.message.contains("another program"), "{error}");
    assert_eq!(before, std::fs::read(&path).unwrap());
}

#[tokio::test]
async fn a_log_without_its_database_is_refused() {
    let home = home().await;
    let path = home.path().join("everturn.db");
    std::fs::rename(&path, home.path().join("elsewhere")).unwrap();
    std::fs::write(home.path().join("everturn.db-wal"), "a log").unwrap();
    let error = refused(home.path());
    assert_eq!(error.kind, StorageErrorKind::Corrupt);
    assert!(!path.exists());
    // Both back: all is well.
    std::fs::remove_file(home.path().join("everturn.db-wal")).unwrap();
    std::fs::rename(home.path().join("elsewhere"), &path).unwrap();
    assert_eq!(rows(&open(home.path())).await, 50);
}

#[tokio::test]
async fn a_truncated_database_is_refused_and_kept() {
    for part in [2, 3, 10] {
        let home = home().await;
        let path = home.path().join("everturn.db");
        let whole = std::fs::read(&path).unwrap();
        let cut = whole.len() - whole.len() / part;
        std::fs::write(&path, &whole[..cut]).unwrap();
        let error = refused(home.path());
        assert_eq!(error.kind, StorageErrorKind::Corrupt, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), &whole[..cut]);
        // Mended, nothing is lost.
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(rows(&open(home.path())).await, 50);
    }
}

#[tokio::test]
async fn a_damaged_database_is_refused_and_kept() {
    let home = home().await;
    let path = home.path().join("everturn.db");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    // Somewhere behind the first pages: the structure, not the header.
    for byte in damaged.iter_mut().skip(4_096 * 3).step_by(3).take(20_000) {
        *byte = 0xa5;
    }
    std::fs::write(&path, &damaged).unwrap();
    let error = refused(home.path());
    assert_eq!(error.kind, StorageErrorKind::Corrupt, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), damaged);
    let report = SqliteStore::check(home.path(), Depth::Quick).unwrap();
    assert!(!report.problems.is_empty());
    assert!(report.problems.len() <= 20);
}

#[tokio::test]
async fn a_check_changes_nothing_and_counts() {
    let home = home().await;
    let before = std::fs::read(home.path().join("everturn.db")).unwrap();
    for depth in [Depth::Quick, Depth::Full] {
        let report = SqliteStore::check(home.path(), depth).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.schema_version, schema_version());
        assert_eq!(report.bytes, before.len() as u64);
        assert_eq!(report.wal_bytes, 0);
    }
    assert_eq!(before, std::fs::read(home.path().join("everturn.db")).unwrap());
    // Beside a running store as well, log included.
    let store = open(home.path());
    store.submit(admit(&key("s"), 99, "x")).await.unwrap();
    let report = SqliteStore::check(home.path(), Depth::Full).unwrap();
    assert!(report.problems.is_empty() && report.wal_bytes > 0);
    store.submit(admit(&key("s"), 100, "x")).await.unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let error = SqliteStore::check(nowhere.path(), Depth::Quick).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::Unavailable);
}

#[tokio::test]
async fn a_home_that_cannot_be_made_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let error = refused(&file.join("home"));
    assert_eq!(error.kind, StorageErrorKind::Unavailable);
    assert!(error.message.contains("home"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a folder");
}

#[tokio::test]
async fn the_home_may_be_a_link_the_database_may_not() {
    let parent = tempfile::tempdir().unwrap();
    let home = home().await;
    let link = parent.path().join("link");
    symlink(home.path(), &link).unwrap();
    let store = open(&link);
    assert_eq!(rows(&store).await, 50);
    assert_eq!(store.home(), home.path().canonicalize().unwrap());
    drop(store);
    let other = tempfile::tempdir().unwrap();
    symlink(home.path().join("everturn.db"), other.path().join("everturn.db")).unwrap();
    assert_eq!(refused(other.path()).kind, StorageErrorKind::Unavailable);
}

#[tokio::test]
async fn a_backup_is_a_whole_database() {
    let home = home().await;
    let store = open(home.path());
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("everturn.db");
    store.backup_to(&path).await.unwrap();
    assert!(store.backup_to(&path).await.is_err(), "nothing is overwritten");
    store.submit(admit(&key("s"), 99, "after")).await.unwrap();
    let restored = open(copy.path());
    assert_eq!(rows(&restored).await, 50);
    assert!(SqliteStore::check(copy.path(), Depth::Full).unwrap().problems.is_empty());
}

#[tokio::test]
async fn two_that_begin_at_once_share_one_fresh_database() {
    let home = tempfile::tempdir().unwrap();
    let stores: Vec<_> = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..6).map(|_| scope.spawn(|| open(home.path()))).collect();
        begun.into_iter().map(|store| store.join().unwrap()).collect()
    });
    for (n, store) in stores.iter().enumerate() {
        store.submit(admit(&key(&format!("s-{n}")), 1, "x")).await.unwrap();
    }
    assert_eq!(stores[0].counts().await.unwrap().sessions, 6);
}
