//! Raw limits and peers: the disk, SQLite by itself, and a journal of files.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::{Connection, params};

use super::stats::{Times, rate};

/// The bytes of a usual small event.
pub(crate) const EVENT: &str = r#"{"session_id":"bench-00","offset":1234567,"run_id":"run_0199f3c4-7b1e-7c5a-9d0e-5f6a7b8c9d0e","seq":1234567,"event":"text.delta","at":"2026-01-01T00:00:00.000Z","text":" word"}"#;

/// Any moment.
const AT_MS: i64 = 1_796_018_324_123;

/// Appends a page to a file and waits for the disk, again and again.
pub(crate) struct Syncer {
    file: File,
    at: u64,
}

impl Syncer {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        Ok(Self { file: File::create(folder.join("synced"))?, at: 0 })
    }

    /// One `fdatasync`.
    pub(crate) fn once(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.file.write_all_at(&[7; 4096], self.at)?;
        self.at += 4096;
        self.file.sync_data()?;
        Ok(begun.elapsed())
    }

    /// As many as fit into a time.
    pub(crate) fn for_a_while(&mut self, time: Duration) -> Result<Times> {
        let begun = Instant::now();
        let mut times = Vec::new();
        while begun.elapsed() < time {
            times.push(self.once()?);
        }
        Ok(Times::of(times))
    }

    /// One every few milliseconds, until told to stop: what a sync takes under the load of the moment.
    pub(crate) fn beside(
        mut self,
        stop: Arc<AtomicBool>,
    ) -> std::thread::JoinHandle<Result<Times>> {
        std::thread::spawn(move || {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                times.push(self.once()?);
                // A pace, not a wait for something: whoever joins does not wait for it to pass.
                std::thread::park_timeout(Duration::from_millis(10));
            }
            Ok(Times::of(times))
        })
    }
}

/// A database with nothing but a table of events, keyed and shaped as the store's own.
fn database(folder: &Path, synchronous: &str) -> Result<Connection> {
    let connection = Connection::open(folder.join(format!("raw-{synchronous}.db")))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS events (
            session INTEGER NOT NULL, offset INTEGER NOT NULL, kind INTEGER NOT NULL,
            run INTEGER, seq INTEGER, at INTEGER NOT NULL, name TEXT, body TEXT NOT NULL,
            PRIMARY KEY (session, offset)) STRICT, WITHOUT ROWID",
    )?;
    Ok(connection)
}

const INSERT: &str = "INSERT INTO events VALUES (?, ?, 2, ?, ?, ?, NULL, ?)";

/// Raw inserts of events, so many to a transaction, which is not synced. Events per second.
pub(crate) fn sqlite_inserts(folder: &Path, batch: usize, time: Duration) -> Result<f64> {
    let mut connection = database(folder, "NORMAL")?;
    let (begun, mut count) = (Instant::now(), 0_i64);
    while begun.elapsed() < time {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            for _ in 0..batch {
                count += 1;
                let (session, offset) = (count % 64, count / 64);
                insert.execute(params![session, offset, session, offset, AT_MS, " word"])?;
            }
        }
        transaction.commit()?;
    }
    Ok(rate(count as usize, begun.elapsed()))
}

/// Raw inserts, one to a transaction, each synced. Transactions per second.
pub(crate) fn sqlite_commits(folder: &Path, time: Duration) -> Result<f64> {
    let connection = database(folder, "FULL")?;
    let mut insert = connection.prepare(INSERT)?;
    let (begun, mut count) = (Instant::now(), 0_i64);
    while begun.elapsed() < time {
        count += 1;
        insert.execute(params![1, count, 1, count, AT_MS, EVENT])?;
    }
    Ok(rate(count as usize, begun.elapsed()))
}

/// A journal of JSON lines whose file is opened, written and closed for each event, not synced.
/// Events per second.
pub(crate) fn file_journal(folder: &Path, time: Duration) -> Result<f64> {
    let path = folder.join("journal.jsonl");
    let (begun, mut count) = (Instant::now(), 0_usize);
    while begun.elapsed() < time {
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.write_all(EVENT.as_bytes())?;
        file.write_all(b"\n")?;
        count += 1;
    }
    Ok(rate(count, begun.elapsed()))
}

/// What an append was in the web interface whose journals are of this kind, in its language: ids checked,
/// a number taken under the file's lock, and under the same lock a record appended to the file, which is
/// opened, written, flushed and closed for each of them; a record that ends the run is synced (and its
/// folder, where the file is new). One run of tokens with its end; it prints events per second.
const PYTHON: &str = r#"
import json, os, re, sys, threading, time
from pathlib import Path

SAFE = re.compile(r"[A-Za-z0-9_.-]+")
GUARD = threading.Lock()
LOCKS, NEXT, SUMMARIES = {}, {}, {}
ENDS = {"done": "completed", "stream_end": "completed", "cancel": "interrupted-by-user",
        "apperror": "errored", "error": "errored"}


def checked(text):
    text = str(text).strip()
    if not text or not SAFE.fullmatch(text):
        raise ValueError(text)
    return text


def lock_of(path):
    with GUARD:
        return LOCKS.setdefault(path, threading.RLock())


def numbers(path):
    found = 0
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found = max(found, int(json.loads(line).get("seq", 0)))
            except (ValueError, AttributeError):
                continue
    return found


def sync(number):
    os.fsync(number)


def take(path):
    with lock_of(path):
        if path not in NEXT:
            NEXT[path] = numbers(path) + 1
        NEXT[path] += 1
        return NEXT[path] - 1


def append(root, session, run, name, payload, eager):
    session, run = checked(session), checked(run)
    path = root / session / (run + ".jsonl")
    seq = take(path)
    state = ENDS.get(name)
    record = {"version": 1, "event_id": f"{run}:{seq}", "seq": seq, "run_id": run,
              "session_id": session, "event": name, "type": name, "created_at": time.time(),
              "terminal": state is not None, "terminal_state": state, "payload": payload}
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
    with lock_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(number, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            if eager or state is not None:
                sync(file.fileno())
        if is_new:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                sync(folder)
            finally:
                os.close(folder)
        SUMMARIES.pop(path, None)
    return record


root, seconds = Path(sys.argv[1]), float(sys.argv[2])
begun = time.perf_counter()
count = 0
while time.perf_counter() - begun < seconds:
    append(root, "0c5a9d7e1f2b", "3f0d6c0e5b7a4b1c9e8d7f6a5b4c3d2e", "token", {"text": " word"}, False)
    count += 1
append(root, "0c5a9d7e1f2b", "3f0d6c0e5b7a4b1c9e8d7f6a5b4c3d2e", "done", {}, False)
print((count + 1) / (time.perf_counter() - begun))
"#;

/// Appends per second of [`PYTHON`]; `None` where there is no Python.
pub(crate) fn python_journal(folder: &Path, time: Duration) -> Option<f64> {
    let output = std::process::Command::new("python3")
        .args(["-I", "-c", PYTHON])
        .arg(folder.join("python"))
        .arg(time.as_secs_f64().to_string())
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// A run in the way of a journal of JSON lines: one record a line, and every question is answered by
/// reading the file from its beginning.
pub(crate) struct Lines {
    path: std::path::PathBuf,
}

impl Lines {
    /// A record as the earlier web interface's journal has it, with every field of one. The ids are
    /// short, as they were where its 211 bytes for a token were measured; those of its real runs (32
    /// and 12 characters) make 66 bytes more.
    fn record(seq: usize) -> String {
        format!(
            r#"{{"version":1,"event_id":"r1:{seq}","seq":{seq},"run_id":"r1","session_id":"sess-1","event":"token","type":"token","created_at":1796018324.123456,"terminal":false,"terminal_state":null,"payload":{{"text":" token"}}}}"#
        )
    }

    /// What one token of six characters takes there.
    pub(crate) fn bytes_per_token() -> usize {
        Self::record(1_000).len() + 1
    }

    /// A file with so many records.
    pub(crate) fn write(path: &Path, events: usize) -> Result<Self> {
        let mut file = std::io::BufWriter::new(File::create(path)?);
        for seq in 1..=events {
            writeln!(file, "{}", Self::record(seq))?;
        }
        file.flush()?;
        Ok(Self { path: path.to_owned() })
    }

    /// Reads all events behind a seq: how long that took, and how many there are.
    pub(crate) fn read_after(&self, after: usize) -> Result<(Duration, usize)> {
        use std::io::BufRead as _;
        let begun = Instant::now();
        let mut found = 0;
        for line in std::io::BufReader::new(File::open(&self.path)?).lines() {
            let record: serde_json::Value = serde_json::from_str(&line?)?;
            found += usize::from(record["seq"].as_u64() > Some(after as u64));
        }
        Ok((begun.elapsed(), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer's line is as long as the earlier journal's was measured to be, with all of its fields.
    #[test]
    fn a_line_of_the_file_journal_is_as_long_as_the_earlier_ones() {
        assert_eq!(Lines::bytes_per_token(), 211);
        let record: serde_json::Value = serde_json::from_str(&Lines::record(1_000)).unwrap();
        let mut fields: Vec<&str> =
            record.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let mut all = [
            "version",
            "event_id",
            "seq",
            "run_id",
            "session_id",
            "event",
            "type",
            "created_at",
            "terminal",
            "terminal_state",
            "payload",
        ];
        all.sort_unstable();
        assert_eq!(fields, all);
        assert_eq!(record["payload"]["text"].as_str().map(str::len), Some(6));
    }
}
