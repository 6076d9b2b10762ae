//! The store: whether it is whole, and what is in it.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use everturn_core::{RunState, limits, recovery};
use everturn_sqlite::{Depth, SqliteStore};
use everturn_store::read::Work;
use everturn_store::{Read as _, Store as _};

use super::Findings;
use crate::error::Result;
use crate::home::{self, Home};
use crate::open;
use crate::settings::Settings;
use crate::table;

/// A write-ahead log beyond this was not moved into the database for long.
const WAL_MUCH_BYTES: u64 = 256 << 20;
/// Reading a store beyond this takes long enough to be said.
const LARGE_BYTES: u64 = 256 << 20;
/// Sessions that are named.
const SESSIONS_SHOWN: usize = 20;

/// Looks at the file. Answers whether it may be opened.
pub(super) async fn database(settings: &Settings, home: &Home, found: &mut Findings) -> bool {
    let folder = match open::store_folder(settings, home) {
        Ok(folder) => folder,
        // Said by the check of the disk.
        Err(_) => return false,
    };
    let path = folder.join("everturn.db");
    if !path.exists() {
        let left = path.with_extension("db-wal");
        if left.exists() {
            found.problem(
                "store",
                format!("{} is gone but {} is there", path.display(), left.display()),
                "bring the database back from where it went; nothing is made in its place",
            );
        } else {
            let detail = format!("there is none yet at {}", path.display());
            found.note("store", detail, "`everturn serve`, `run` or `chat` makes it");
        }
        return false;
    }
    let bytes = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    if bytes > LARGE_BYTES {
        tell(&format!("reading all {} of the store", table::bytes(bytes)));
    }
    let looked =
        tokio::task::spawn_blocking(move || SqliteStore::check(&folder, Depth::Full)).await;
    let report = match looked {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            found.error("store", &error.into());
            return false;
        }
        Err(panic) => {
            found.problem("store", format!("looking at it broke: {panic}"), "report this, please");
            return false;
        }
    };
    for problem in &report.problems {
        found.problem(
            "store",
            format!("{} is damaged: {problem}", report.path.display()),
            "stop everything, keep a copy of all its files, then restore a backup; nothing overwrites it meanwhile",
        );
    }
    if !report.problems.is_empty() {
        return false;
    }
    found.ok(
        "store",
        format!(
            "{}: whole, schema {}, {}, {} of them free",
            report.path.display(),
            report.schema_version,
            table::bytes(report.bytes),
            table::bytes(report.free_bytes)
        ),
    );
    match journal_is_wal(&report.path) {
        Ok(true) if report.wal_bytes > WAL_MUCH_BYTES => found.note(
            "store",
            format!("its write-ahead log has {}", table::bytes(report.wal_bytes)),
            "a reader that never ends keeps it from being emptied; restart long-running processes",
        ),
        Ok(true) => {
            found.ok("store", format!("write-ahead log, {}", table::bytes(report.wal_bytes)));
        }
        Ok(false) => found.problem(
            "store",
            "the database is not in write-ahead mode: writers and readers block each other",
            "stop everything and start `everturn serve` once; if it stays so, the file system may not support shared memory (network folders do not)",
        ),
        Err(error) => found.problem("store", format!("{error}"), "is the file readable?"),
    }
    true
}

#[allow(clippy::print_stderr, reason = "progress of a command")]
fn tell(line: &str) {
    eprintln!("{line}");
}

/// What the file itself says of its journal: bytes 18 and 19 of a database in write-ahead mode are 2.
fn journal_is_wal(path: &Path) -> std::io::Result<bool> {
    let mut head = [0_u8; 20];
    std::fs::File::open(path)?.read_exact(&mut head)?;
    Ok(head.ends_with(&[2, 2]))
}

/// Looks at what is in it: who holds which session, since when, and who is allowed in.
pub(super) async fn contents(settings: &Settings, home: &Home, found: &mut Findings) {
    if let Err(error) = look(settings, home, found).await {
        found.error("store", &error);
    }
}

async fn look(settings: &Settings, home: &Home, found: &mut Findings) -> Result<()> {
    let folder = open::store_folder(settings, home)?;
    let store = open::store(settings, &folder, "doctor").await?;
    let counts = store.counts().await?;
    found.ok(
        "sessions",
        format!(
            "{}, {}, {} waiting, {} without an end",
            table::count(counts.sessions, "session"),
            table::count(counts.messages, "message"),
            table::count(counts.queued, "input"),
            table::count(counts.unfinished, "turn"),
        ),
    );
    let work = store.work(None, limits::PAGE_ROWS_MAX).await?;
    let held: Vec<&Work> =
        work.iter().filter(|work| work.lease.is_some() || work.running.is_some()).collect();
    for work in held.iter().take(SESSIONS_SHOWN) {
        session(&store, work, found).await?;
    }
    if held.len() > SESSIONS_SHOWN {
        let more = held.len() - SESSIONS_SHOWN;
        found.ok("sessions", format!("and {more} more that are held or running"));
    }
    let waiting = work.iter().filter(|work| work.lease.is_none() && work.running.is_none()).count();
    if waiting > 0 {
        found.note(
            "sessions",
            match waiting {
                1 => "1 session has inputs that wait, and nobody works on it".to_owned(),
                more => {
                    format!("{more} sessions have inputs that wait, and nobody works on them")
                }
            },
            "start `everturn serve`",
        );
    }
    breaker(settings, home, &store, found).await?;
    access(settings, home, &store, found).await
}

/// One session that somebody holds, or held.
async fn session(store: &Arc<SqliteStore>, work: &Work, found: &mut Findings) -> Result<()> {
    let name = &work.key;
    let turn = work.running.as_ref().map_or_else(String::new, |run| {
        format!(
            ", turn {} {} since {}",
            run.generation,
            run.state,
            table::time(&run.started_at.rfc3339())
        )
    });
    let Some(lease) = &work.lease else {
        let handed = work.running.as_ref().is_some_and(|run| run.state == RunState::HandedOver);
        if handed {
            let detail = format!("{name}: handed over by a process that left{turn}");
            found.note("sessions", detail, "the next `everturn serve` goes on with it");
        } else {
            let detail = format!("{name}: nobody holds it{turn}");
            found.note("sessions", detail, "the next `everturn serve` resolves it");
        }
        return Ok(());
    };
    let role = store.node(&lease.holder).await?.map_or_else(String::new, |node| {
        format!(" ({}, started {})", node.role, table::time(&node.started_at.rfc3339()))
    });
    let since = table::time(&lease.since.rfc3339());
    let held = format!("{name}: held by {}{role} since {since}{turn}", lease.holder);
    match store.node_gone(&lease.holder).await {
        Some(true) => found.note(
            "sessions",
            format!("{held}; that process is gone"),
            "the next `everturn serve`, or `run --session` with the same request id, resolves it",
        ),
        Some(false) => found.ok("sessions", held),
        None => found.note(
            "sessions",
            format!("{held}; whether that process lives cannot be told"),
            "its lease runs out by itself",
        ),
    }
    Ok(())
}

/// Whether starts end in interruptions again and again.
async fn breaker(
    settings: &Settings,
    home: &Home,
    store: &Arc<SqliteStore>,
    found: &mut Findings,
) -> Result<()> {
    let starts = settings.loop_breaker_starts.value.as_usize();
    let limit = settings.loop_breaker_starts.value.as_u32().saturating_add(1);
    let recent = store.serve_starts(&home.name(), limit).await?;
    let recent: Vec<_> =
        recent.iter().map(|node| (node.started_at.0, node.interrupted_start)).collect();
    let gap = settings.loop_breaker_window_s.value.0.saturating_mul(1_000);
    if recovery::loop_broken(&recent, starts, i64::try_from(gap).unwrap_or(i64::MAX)) {
        found.problem(
            "recovery",
            format!("the last {starts} starts found interrupted turns, each soon after the last: nothing is continued by itself"),
            "find out what ends the server (its log, the kernel's log, memory); then decide about the turns with `everturn sessions list --state interrupted`",
        );
    }
    Ok(())
}

/// Who is let in, against the address that is listened on.
async fn access(
    settings: &Settings,
    home: &Home,
    store: &Arc<SqliteStore>,
    found: &mut Findings,
) -> Result<()> {
    let now = store.clock().now();
    let tokens = store.tokens().await?;
    let valid = tokens
        .iter()
        .filter(|token| token.revoked_at.is_none())
        .filter(|token| token.expires_at.is_none_or(|at| at > now))
        .count();
    let listen = settings.listen.value;
    if let Err(error) = everturn_server::check_bind(listen, !tokens.is_empty()) {
        found.problem("access", format!("{error} ({})", error.code()), error.hint());
    } else if tokens.is_empty() {
        // A server that runs is where it says, whatever the settings of this command say.
        let at = match home::running_server(home) {
            Ok(Some(said)) => said.address,
            _ => listen.to_string(),
        };
        found.ok("access", format!("no token: {at} is open to everybody on this machine"));
    } else if valid == 0 {
        found.note(
            "access",
            "every token has run out or was revoked: only this home's command line gets in",
            "everturn token create --principal NAME",
        );
    } else {
        found.ok("access", format!("{valid} of {} tokens are valid", tokens.len()));
    }
    Ok(())
}
