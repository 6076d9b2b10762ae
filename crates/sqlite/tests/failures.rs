//! Storage failures are typed and loud, nothing diverges, and mending is enough (P13).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{admit, claim, delta, key, open, options, rows, write};
use everturn_core::event::Record;
use everturn_sqlite::{Depth, SqliteStore};
use everturn_store::read::StoredEvent;
use everturn_store::{OpError, Read as _, StorageErrorKind, Store as _};

fn kind<T: std::fmt::Debug>(result: Result<T, OpError>) -> StorageErrorKind {
    match result {
        Err(OpError::Storage(error)) => error.kind,
        other => panic!("should have failed: {other:?}"),
    }
}

/// A small file system of its own.
struct Mount(tempfile::TempDir);

impl Mount {
    /// Where this process may not make one, the test of this name is run by one that may, in a user
    /// namespace of its own, and there is `None` once it passed.
    fn new(test: &str, size: &str) -> Option<Self> {
        const INSIDE: &str = "EVERTURN_TEST_INSIDE";
        if let Some(disk) = Self::mounted(size) {
            return Some(disk);
        }
        assert!(std::env::var_os(INSIDE).is_none(), "no file system can be mounted here");
        let again = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(INSIDE, "1")
            .status()
            .unwrap();
        assert!(again.success(), "{test} needs a file system of its own, and failed with one");
        None
    }

    fn mounted(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .output();
        made.is_ok_and(|made| made.status.success()).then(|| Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, how: &str) -> bool {
        let options = format!("remount,{how}");
        let done = Command::new("mount").args(["-o", &options]).arg(self.path()).status();
        done.is_ok_and(|status| status.success())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_space() {
    let test = "a_full_disk_refuses_and_goes_on_when_there_is_space";
    let Some(disk) = Mount::new(test, "3m") else { return };
    let home = disk.path().join("home");
    let store = open(&home);
    let mut accepted = Vec::new();
    let mut n = 0;
    let error = loop {
        n += 1;
        match store.submit(admit(&key("s"), n, &"x".repeat(100_000))).await {
            Ok(_) => accepted.push(n),
            Err(OpError::Storage(error)) => break error,
            Err(error) => panic!("{error}"),
        }
        assert!(n < 100, "the disk is never full");
    };
    assert_eq!(error.kind, StorageErrorKind::Full, "{error}");
    assert!(!accepted.is_empty());
    // Again and again the same; readers are not concerned, nothing half is there.
    for _ in 0..3 {
        let again = store.submit(admit(&key("s"), n, &"x".repeat(100_000))).await;
        assert_eq!(kind(again), StorageErrorKind::Full);
    }
    assert_eq!(rows(&store).await, accepted.len());
    let feed = store.feed(&key("s"), 0, 1_000).await.unwrap();
    assert_eq!(feed.len(), accepted.len());
    // Space: the same operation is accepted, once, without a restart.
    assert!(disk.remount("size=30m"));
    let reply = store.submit(admit(&key("s"), n, &"x".repeat(100_000))).await.unwrap();
    assert!(format!("{reply:?}").contains("replayed: false"));
    accepted.push(n);
    for n in 1_000..1_020 {
        store.submit(admit(&key("s"), n, &"x".repeat(100_000))).await.unwrap();
    }
    assert_eq!(rows(&store).await, accepted.len() + 20);
    drop(store);
    assert!(SqliteStore::check(&home, Depth::Full).unwrap().problems.is_empty());
    assert_eq!(rows(&open(&home)).await, accepted.len() + 20);
}

#[tokio::test]
async fn a_home_on_a_full_disk_does_not_open_and_leaves_nothing() {
    let test = "a_home_on_a_full_disk_does_not_open_and_leaves_nothing";
    let Some(disk) = Mount::new(test, "1m") else { return };
    std::fs::write(disk.path().join("filler"), vec![b'x'; 1_000_000]).unwrap();
    let home = disk.path().join("home");
    let error = SqliteStore::open(options(&home)).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::Full, "{error}");
    assert!(!home.join("everturn.db").exists());
    std::fs::remove_file(disk.path().join("filler")).unwrap();
    let store = open(&home);
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
}

#[tokio::test]
async fn a_read_only_disk_refuses_and_goes_on_when_it_is_writable() {
    let test = "a_read_only_disk_refuses_and_goes_on_when_it_is_writable";
    let Some(disk) = Mount::new(test, "30m") else { return };
    let home = disk.path().join("home");
    let store = open(&home);
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    drop(store);
    // A file that is open for writing keeps a disk writable, so it is made so while none is.
    assert!(disk.remount("ro"));
    let error = SqliteStore::open(options(&home)).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::Unavailable, "{error}");
    assert!(disk.remount("rw"));
    assert_eq!(rows(&open(&home)).await, 1);
}

#[tokio::test]
async fn a_replaced_file_is_noticed_and_never_written() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    store.submit(admit(&key("s"), 1, "x")).await.unwrap();
    let path = store.path().to_owned();
    let aside = home.path().join("aside.db");
    // A copy in its place looks the same, and is another file.
    std::fs::rename(&path, &aside).unwrap();
    std::fs::copy(&aside, &path).unwrap();
    let copy = std::fs::read(&path).unwrap();
    assert_eq!(kind(store.submit(admit(&key("s"), 2, "x")).await), StorageErrorKind::Replaced);
    assert_eq!(store.session(&key("s")).await.unwrap_err().kind, StorageErrorKind::Replaced);
    assert_eq!(std::fs::read(&path).unwrap(), copy);
    // Gone altogether.
    std::fs::remove_file(&path).unwrap();
    let error = store.submit(admit(&key("s"), 2, "x")).await.unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
    assert!(!path.exists(), "nobody makes an empty one in its place");
    // Back: the same store goes on, without loss.
    std::fs::rename(&aside, &path).unwrap();
    store.submit(admit(&key("s"), 2, "x")).await.unwrap();
    assert_eq!(rows(&store).await, 2);
}

#[tokio::test]
async fn a_log_that_is_gone_is_noticed_before_anything_is_lost() {
    for side in ["-wal", "-shm"] {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path());
        store.submit(admit(&key("s"), 1, "x")).await.unwrap();
        let log = home.path().join(format!("everturn.db{side}"));
        let aside = home.path().join("aside");
        std::fs::rename(&log, &aside).unwrap();
        let lost = store.submit(admit(&key("s"), 2, "x")).await;
        assert_eq!(kind(lost), StorageErrorKind::Replaced, "{side}");
        std::fs::rename(&aside, &log).unwrap();
        store.submit(admit(&key("s"), 2, "x")).await.unwrap();
        assert_eq!(rows(&store).await, 2);
    }
}

#[tokio::test]
async fn a_bad_event_is_shown_in_its_place_and_hides_no_other() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    let key = key("s");
    store.submit(admit(&key, 1, "x")).await.unwrap();
    let fence = claim(&store, &key, "n1").await;
    for n in 0..8 {
        store.submit(delta(&fence, &format!("piece {n}"))).await.unwrap();
    }
    let run = store.run(fence.run_id()).await.unwrap().unwrap();
    // Seqs 2 to 9 are the pieces.
    let damage = [
        (2, "kind = 99"),
        (3, "body = CAST(x'ff' AS TEXT)"),
        (4, "kind = 3, body = '{\"text\":'"),
        (5, "kind = 3, body = 'no object'"),
        (6, "kind = 0, name = 'a\"b'"),
        (7, "run_no = 4711"),
        (8, "kind = 3, body = '{\"text\":\"mended by hand\"}'"),
    ];
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    for (seq, set) in damage {
        let sql = format!("UPDATE events SET {set} WHERE seq = {seq}");
        assert_eq!(raw.execute(&sql, []).unwrap(), 1, "{sql}");
    }
    let feed = store.feed(&key, 0, 100).await.unwrap();
    let bad: Vec<(Option<u64>, String)> = feed
        .iter()
        .filter_map(|event| match event {
            StoredEvent::Malformed { seq, error, .. } => Some((*seq, error.clone())),
            StoredEvent::Good(_) => None,
        })
        .collect();
    assert_eq!(
        bad.iter().map(|bad| bad.0).collect::<Vec<_>>(),
        (2..=7).map(Some).collect::<Vec<_>>()
    );
    assert!(bad.iter().all(|bad| bad.1.contains("table events")), "{bad:?}");
    let offsets: Vec<u64> = feed
        .iter()
        .map(|event| match event {
            StoredEvent::Good(row) => row.head.offset,
            StoredEvent::Malformed { offset, .. } => *offset,
        })
        .collect();
    assert_eq!(offsets, (1..=feed.len() as u64).collect::<Vec<_>>());
    // In the run's journal as well, but for the one that no longer says whose it is.
    let journal = store.run_events(&run, 0, None, 100).await.unwrap();
    let bad = journal.iter().filter(|event| matches!(event, StoredEvent::Malformed { .. }));
    assert_eq!((journal.len(), bad.count()), (8, 5));
    // The turn goes on, and ends.
    store.submit(delta(&fence, "more")).await.unwrap();
    let end = everturn_core::event::End::Completed {
        text: "done".to_owned(),
        reasoning: None,
        usage: None,
    };
    store.submit(write(&fence, vec![Record::End(end)])).await.unwrap();
}

#[tokio::test]
async fn a_bad_row_is_named_and_concerns_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    store.submit(admit(&key("good"), 1, "x")).await.unwrap();
    let raw = rusqlite::Connection::open(store.path()).unwrap();
    for (n, (set, column)) in [
        ("policy = '{'", "policy"),
        ("running = 'not an id!'", "running"),
        ("generation = -1", "generation"),
        ("title = CAST(x'c328' AS TEXT)", "title"),
    ]
    .into_iter()
    .enumerate()
    {
        let bad = key(&format!("bad-{n}"));
        store.submit(admit(&bad, 1, "x")).await.unwrap();
        let sql = format!("UPDATE sessions SET {set} WHERE id = 'bad-{n}'");
        assert_eq!(raw.execute(&sql, []).unwrap(), 1);
        let error = store.session(&bad).await.unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Corrupt);
        assert!(error.message.contains("table sessions"), "{error}");
        assert!(error.message.contains(&format!("column {column}")), "{error}");
        let failed = store.submit(admit(&bad, 2, "x")).await;
        assert_eq!(kind(failed), StorageErrorKind::Corrupt);
        store.submit(admit(&key("good"), 100 + u32::try_from(n).unwrap(), "x")).await.unwrap();
    }
    assert!(store.session(&key("good")).await.unwrap().is_some());
    assert_eq!(
        raw.execute("UPDATE inputs SET status = 'lost' WHERE request_id = 'r-1'", []).unwrap(),
        5
    );
    let error = store.inputs(&key("good"), None, None, 10).await.unwrap_err();
    assert!(error.message.contains("the word \"lost\" is not known"), "{error}");
}

/// However large a database is, a start does not go on with a damaged one for long: what it did not
/// look at in time is looked at behind it (P13).
#[tokio::test]
async fn damage_that_the_start_did_not_see_is_found_and_stops_writing() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path());
    for n in 0..64 {
        store.submit(admit(&key("s"), n, &"x".repeat(100_000))).await.unwrap();
    }
    let path = store.path().to_owned();
    drop(store);
    let mut damaged = std::fs::read(&path).unwrap();
    // Pages in the middle of a long text: reading the texts around does not meet them.
    let middle = damaged.len() / 2 / 4_096 * 4_096;
    damaged[middle..middle + 4_096].fill(0x5a);
    std::fs::write(&path, &damaged).unwrap();

    let never = std::time::Duration::ZERO;
    let mut hurried = options(home.path());
    hurried.check_for = never;
    let store = SqliteStore::open(hurried).unwrap();
    let begun = std::time::Instant::now();
    let error = loop {
        match store.submit(admit(&key("other"), 1, "x")).await {
            Err(OpError::Storage(error)) if error.message.contains("is damaged") => break error,
            // A write may meet the damage by itself.
            Ok(_) | Err(OpError::Storage(_)) => {
                assert!(begun.elapsed().as_secs() < 60, "the damage is never found");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(error.kind, StorageErrorKind::Corrupt, "{error}");
    // What can be read, can be read; and a start that has the time refuses.
    assert!(store.session(&key("s")).await.unwrap().is_some());
    drop(store);
    let mut patient = options(home.path());
    patient.check_for = std::time::Duration::from_secs(60);
    let error = SqliteStore::open(patient).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::Corrupt, "{error}");
}
