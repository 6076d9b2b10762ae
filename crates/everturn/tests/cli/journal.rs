//! `everturn turn export` and `everturn import journal`: runs as JSON lines, out and in.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everturn_hermes::journal::{Window, read, stale_report};
use everturn_sim::follow::Follower;
use everturn_sim::server::Home;
use serde_json::{Value, json};

use crate::support::{QUICK, SLOW, ended, everturn, json as said, stdout};
use crate::terminal::Terminal;

fn line(seq: u64, event: &str, payload: &Value) -> String {
    json!({
        "version": 1, "event_id": format!("run_1:{seq}"), "seq": seq, "run_id": "run_1",
        "session_id": "theirs", "event": event, "type": event, "created_at": 1_700_000_000.5,
        "terminal": false, "terminal_state": null, "payload": payload,
    })
    .to_string()
}

fn token(seq: u64, text: &str) -> String {
    line(seq, "token", &json!({ "text": text }))
}

fn done(seq: u64) -> String {
    line(seq, "done", &json!({ "session": { "session_id": "theirs" } }))
}

/// A file in the home's workspace.
fn file(home: &Home, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = home.work().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

async fn import(home: &Home, file: &str, session: &str) -> Value {
    said(home, &["import", "journal", file, "--session", session, "--json"]).await
}

/// The names and texts of a run's events, as `turn show` has them.
async fn events(home: &Home, run: &str) -> Vec<(String, String)> {
    let shown = said(home, &["turn", "show", run, "--all", "--json"]).await;
    assert_eq!(shown["runs"][0]["malformed"], json!([]));
    let events = shown["runs"][0]["events"].as_array().unwrap();
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let text = |event: &Value| event["text"].as_str().unwrap_or_default().to_owned();
    events.iter().map(|event| (event["event"].as_str().unwrap().to_owned(), text(event))).collect()
}

/// A run leaves one home and comes to another, through a server and without, and is the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_is_imported_elsewhere_and_reads_the_same() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "--allow", "shell", "use the tool"];
    stdout(&home, &words).await;
    let shown = said(&home, &["turn", "show", "s:1", "--json"]).await;
    let run = shown["runs"][0]["run_id"].as_str().unwrap().to_owned();

    let journal = stdout(&home, &["turn", "export", "s:1"]).await;
    let to = home.work().join("run.jsonl");
    let words = ["turn", "export", &run, "--output", to.to_str().unwrap()];
    assert_eq!(stdout(&home, &words).await, "");
    assert_eq!(std::fs::read_to_string(&to).unwrap(), journal, "a file has the same");
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&to).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "conversations are private");
    }
    // What is there is replaced by request only.
    std::fs::write(&to, "mine").unwrap();
    let refused = ended(&home, &words).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("hint: another name, or --force"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "mine");
    assert_eq!(stdout(&home, &[&words[..], &["--force"]].concat()).await, "");
    assert_eq!(std::fs::read_to_string(&to).unwrap(), journal);
    let input = shown["input"]["input_id"].as_str().unwrap();
    assert_eq!(stdout(&home, &["turn", "export", input]).await, journal, "an input with one run");
    let read = read(journal.as_bytes(), Window::default()).unwrap();
    assert_eq!((read.summary.state(), read.malformed_count), ("completed", 0));
    assert_eq!(read.summary.last_seq, shown["runs"][0]["last_seq"]);
    assert!(read.events.iter().any(|record| record.event == "tool_complete"));

    let other = Home::new().unwrap();
    let path = to.to_str().unwrap();
    let told = import(&other, path, "archive").await;
    assert_eq!((&told["replayed"], &told["dry_run"]), (&json!(false), &json!(false)));
    assert_eq!(told["source"]["run_id"], run.as_str());
    let here = told["run_id"].as_str().unwrap();
    assert_ne!(here, run, "an id of its own");
    let ours = said(&home, &["turn", "show", &run, "--all", "--json"]).await;
    let theirs = said(&other, &["turn", "show", here, "--all", "--json"]).await;
    assert_eq!(theirs["input"]["kind"], "import");
    let bodies = |shown: &Value| -> Vec<Value> {
        let events = shown["runs"][0]["events"].as_array().unwrap().clone();
        let strip = |mut event: Value| {
            for field in ["session_id", "offset", "run_id", "message_id"] {
                event.as_object_mut().unwrap().remove(field);
            }
            event
        };
        events.into_iter().map(strip).collect()
    };
    assert_eq!(bodies(&theirs), bodies(&ours), "numbers, names, times and bodies");
    for field in ["terminal_state", "last_seq", "last_event", "model", "usage", "started_at"] {
        assert_eq!(theirs["runs"][0][field], ours["runs"][0][field], "{field}");
    }
    let without = [
        stdout(&other, &["turn", "show", here]).await,
        stdout(&other, &["sessions", "messages", "archive"]).await,
        stdout(&other, &["sessions", "export", "archive", "--events"]).await,
        stdout(&other, &["turn", "export", here]).await,
    ];
    // Through a server: the summary, the window and the stream.
    let model = other.script(QUICK).unwrap();
    let server = other.serve(&model).unwrap().start().await.unwrap();
    let client = server.client().unwrap();
    let run = client.run(here).await.unwrap();
    assert_eq!((&run["state"], &run["terminal"]), (&json!("ended"), &json!(true)));
    let follow = Follower::run(&client, here);
    follow.wait_for_event("run.completed", 1).await.unwrap();
    let streamed = follow.stop().events.len();
    assert_eq!(streamed as u64, run["last_seq"].as_u64().unwrap());
    let with = [
        stdout(&other, &["turn", "show", here]).await,
        stdout(&other, &["sessions", "messages", "archive"]).await,
        stdout(&other, &["sessions", "export", "archive", "--events"]).await,
        stdout(&other, &["turn", "export", here]).await,
    ];
    assert_eq!(with, without);
    // A server that runs is told by the store; the conversation goes on behind what came in.
    let second = import(&other, path, "archive").await;
    assert_eq!((&second["replayed"], &second["run_id"]), (&json!(true), &told["run_id"]));
    let words = ["run", "--session", "archive", "and then?"];
    assert_eq!(stdout(&other, &words).await, "You said and then?.\n");
}

/// P2: the same journal again is the same import, whatever was said; another one is a conflict.
#[tokio::test]
async fn a_journal_is_imported_once() {
    let home = Home::new().unwrap();
    let whole = [token(1, "a"), token(2, "b"), done(3)].join("\n");
    let path = file(&home, "run.jsonl", &whole);
    // Looking makes nothing.
    let looked = said(&home, &["import", "journal", &path, "--dry-run", "--json"]).await;
    assert_eq!((&looked["dry_run"], &looked["events"]), (&json!(true), &json!(3)));
    assert_eq!((looked["run_id"].clone(), &looked["session_id"]), (Value::Null, &json!("theirs")));
    assert!(!home.database().exists());

    let first = said(&home, &["import", "journal", &path, "--json"]).await;
    assert_eq!(first["session_id"], "theirs", "the session that the journal names");
    let feed = stdout(&home, &["sessions", "export", "theirs", "--events"]).await;
    // Looking says what the import itself would.
    let looked = said(&home, &["import", "journal", &path, "--dry-run", "--json"]).await;
    assert_eq!((&looked["replayed"], &looked["run_id"]), (&json!(true), &first["run_id"]));
    let looked = stdout(&home, &["import", "journal", &path, "--dry-run"]).await;
    assert!(looked.contains("here already: nothing would change"), "{looked}");
    // The same records, otherwise written: CRLF, twice, out of order.
    let mangled = [done(3), token(2, "b"), token(1, "a"), token(2, "b")].join("\r\n");
    for again in [whole.clone(), mangled] {
        let again = import(&home, &file(&home, "again.jsonl", again), "theirs").await;
        assert_eq!(again["replayed"], true);
        assert_eq!(again["run_id"], first["run_id"]);
    }
    assert_eq!(stdout(&home, &["sessions", "export", "theirs", "--events"]).await, feed);
    let text = stdout(&home, &["import", "journal", &path]).await;
    assert!(text.contains("here already: nothing changed"), "{text}");

    let other = file(&home, "other.jsonl", [token(1, "other"), done(2)].join("\n"));
    let refused = ended(&home, &["import", "journal", &other]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    assert!(refused.stderr.contains("(input_conflict)"), "{refused:?}");
    assert!(refused.stderr.contains("--session ID"), "{refused:?}");
    assert_eq!(import(&home, &other, "elsewhere").await["replayed"], false);
    stdout(&home, &["sessions", "delete", "elsewhere"]).await;
    let gone = ended(&home, &["import", "journal", &other, "--session", "elsewhere"]).await;
    assert!(gone.stderr.contains("(session_deleted)"), "{gone:?}");
}

/// Whatever is damaged is told of, and every complete record comes in.
#[tokio::test]
async fn damage_is_told_of_and_hides_no_record() {
    let home = Home::new().unwrap();
    let torn = |whole: &str, at: usize| whole[..whole.len() - at].to_owned();
    let long = format!("{{\"seq\":2,\"payload\":{{\"text\":\"{}\"}}}}", "x".repeat(10 << 20));
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    // Name, journal, texts of the deltas, reasons (the beginning of each).
    let rows: Vec<(&str, String, Vec<&str>, Vec<&str>)> = vec![
        ("no line feed at the end", [token(1, "a"), done(2)].join("\n"), vec!["a"], vec![]),
        (
            "carriage returns",
            [token(1, "a"), done(2), String::new()].join("\r\n"),
            vec!["a"],
            vec![],
        ),
        ("blank lines", format!("\n\n{}\n \n{}\n\n", token(1, "a"), done(2)), vec!["a"], vec![]),
        (
            "not objects",
            ["[1]", "7", "null", "{not json}", &token(1, "a"), &done(2)].join("\n"),
            vec!["a"],
            vec!["not_an_object", "not_an_object", "not_an_object", "not_json"],
        ),
        ("separators", [token(1, text), done(2)].join("\n"), vec![text], vec![]),
        (
            "a torn record before others",
            format!("{}{}\n{}\n", torn(&token(1, "lost"), 9), token(2, "b"), done(3)),
            vec!["", "b"],
            vec!["torn"],
        ),
        (
            "a torn tail before the end",
            format!("{}\n{}{}\n", token(1, "a"), torn(&token(2, "lost"), 4), done(2)),
            vec!["a"],
            vec!["torn"],
        ),
        (
            "twice and out of order",
            [token(3, "c"), done(4), token(1, "a"), token(3, "other"), token(2, "b")].join("\n"),
            vec!["a", "b", "c"],
            vec!["duplicate"],
        ),
        (
            "a line over 10 MiB",
            [token(1, "a"), long, done(2)].join("\n"),
            vec!["a"],
            vec!["too_long"],
        ),
    ];
    for (at, (what, journal, texts, reasons)) in rows.into_iter().enumerate() {
        let path = file(&home, "run.jsonl", journal);
        let told = import(&home, &path, &format!("s{at}")).await;
        let found: Vec<&str> = told["malformed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bad| bad["reason"].as_str().unwrap())
            .collect();
        assert_eq!(found, reasons, "{what}");
        assert_eq!(told["malformed_count"], reasons.len(), "{what}");
        assert_eq!(told["terminal_state"], "completed", "{what}");
        let events = events(&home, told["run_id"].as_str().unwrap()).await;
        let (end, before) = events.split_last().unwrap();
        assert_eq!(end.0, "run.completed", "{what}");
        let said: Vec<&str> = before.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(said, texts, "{what}");
    }
    // People are told as well.
    let path = file(&home, "run.jsonl", format!("{}\n{{not json}}\n", token(1, "a")));
    let told = stdout(&home, &["import", "journal", &path, "--dry-run"]).await;
    assert!(told.contains("line 2: not_json, 10 bytes: {not json}"), "{told}");
    assert!(told.contains("none: nobody recorded an end (interrupted here)"), "{told}");
}

/// What came behind the end never overrides it, and a journal without an end gets one that says so.
#[tokio::test]
async fn an_outcome_is_what_the_journal_tells_and_nothing_else() {
    let home = Home::new().unwrap();
    let rows = [
        ("done", json!({}), "completed", "completed"),
        (
            "cancel",
            json!({ "message": "Cancelled by user" }),
            "cancelled-by-user",
            "interrupted-by-user",
        ),
        ("apperror", json!({ "type": "auth_mismatch", "message": "401" }), "failed", "errored"),
        ("apperror", json!({ "type": "interrupted" }), "interrupted", "interrupted-by-crash"),
    ];
    for (at, (event, payload, ours, theirs)) in rows.into_iter().enumerate() {
        let end = [line(3, "title", &json!({ "title": "t" })), line(4, "stream_end", &json!({}))];
        let journal = [token(1, "half"), line(2, event, &payload), end.join("\n")].join("\n");
        let told = import(&home, &file(&home, "run.jsonl", journal), &format!("s{at}")).await;
        assert_eq!(told["terminal_state"], ours, "{event} {payload}");
        assert_eq!(told["source"]["terminal_state"], theirs, "{event} {payload}");
        assert_eq!(told["source"]["last_event"], "stream_end");
        let run = told["run_id"].as_str().unwrap();
        let names: Vec<_> = events(&home, run).await.into_iter().map(|event| event.0).collect();
        assert_eq!(names[..3], ["text.delta", "hermes.title", "hermes.stream_end"]);
        let back = stdout(&home, &["turn", "export", run]).await;
        let back = read(back.as_bytes(), Window::default()).unwrap();
        let word = if ours == "interrupted" { "lost-worker-bookkeeping" } else { theirs };
        assert_eq!(back.summary.state(), word, "what is exported again says the same");
    }
    let journal = [token(1, "half"), token(2, " a word")].join("\n");
    let told = import(&home, &file(&home, "run.jsonl", journal), "open").await;
    assert_eq!(
        (&told["terminal_state"], &told["source"]["terminal"]),
        (&json!("interrupted"), &json!(false))
    );
    let shown = said(&home, &["turn", "show", told["run_id"].as_str().unwrap(), "--json"]).await;
    let last = &shown["runs"][0]["events"].as_array().unwrap()[2];
    assert_eq!((&last["event"], &last["cause"]), (&json!("run.interrupted"), &json!("unknown")));
    let evidence = &last["evidence"];
    assert_eq!((&evidence["last_seq"], &evidence["last_event"]), (&json!(2), &json!("token")));
    let session = said(&home, &["sessions", "show", "open", "--json"]).await;
    assert_eq!(session["state"], "idle", "nothing waits for anybody");
    let texts = said(&home, &["sessions", "messages", "open", "--json"]).await;
    assert_eq!(texts[0]["text"], "half a word");
}

/// What cannot be imported says why, and leaves nothing behind.
#[tokio::test]
async fn what_is_no_journal_says_so() {
    let home = Home::new().unwrap();
    let work = home.work();
    let folder = work.to_str().unwrap();
    let missing = work.join("none.jsonl");
    let empty = file(&home, "empty.jsonl", "");
    let words = file(&home, "words.jsonl", "hello\nyou\n");
    let evil = file(&home, "evil.jsonl", token(1, "a").replace("run_1", "../run"));
    let good = file(&home, "good.jsonl", [token(1, "a"), done(2)].join("\n"));
    for (words, code, exit) in [
        (vec![missing.to_str().unwrap()], "(io_failed)", 1),
        (vec![folder], "(usage)", 2),
        (vec!["/dev/null"], "(usage)", 2),
        (vec![&empty], "(journal_empty)", 1),
        (vec![&words], "(journal_empty)", 1),
        (vec![&evil], "(journal_empty)", 1),
        (vec![&good, "--session", "../up"], "(usage)", 2),
    ] {
        let words = [&["import", "journal"][..], &words].concat();
        let refused = ended(&home, &words).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(exit), ""), "{words:?}");
        assert!(refused.stderr.contains(code), "{words:?}: {refused:?}");
    }
    assert!(!home.database().exists(), "nothing was made");
    let later = ended(&home, &["import", "hermes", "somewhere"]).await;
    assert_eq!(later.code, Some(2));
    assert!(later.stderr.contains("(not_implemented)"), "{later:?}");
    stdout(&home, &["import", "journal", &good]).await;
    for id in ["theirs:7", "run_none", "s"] {
        let refused = ended(&home, &["turn", "export", id]).await;
        assert!(matches!(refused.code, Some(1 | 2)), "{id}: {refused:?}");
        assert_eq!(refused.stdout, "");
    }
    let nowhere = work.join("no/folder/run.jsonl");
    let words = ["turn", "export", "theirs:1", "--output", nowhere.to_str().unwrap()];
    let refused = ended(&home, &words).await;
    assert!(refused.stderr.contains("(io_failed)"), "{refused:?}");
}

/// P5: a run that nobody works on is exported as what it is, and what is told of it is no record.
#[tokio::test]
async fn a_run_that_nobody_works_on_is_exported_without_an_end() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let words = ["run", "--model", &model, "--session", "s", "count"];
    let mut run = everturn(&home, &words).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    let live = ended(&home, &["turn", "export", "s:1"]).await;
    assert_eq!(live.code, Some(0), "{live:?}");
    assert!(live.stderr.contains("this run goes on"), "{live:?}");
    run.kill();
    let left = ended(&home, &["turn", "export", "s:1"]).await;
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(left.stderr.contains("nobody works on this run"), "{left:?}");
    assert!(left.stderr.contains("last journaled event is text.delta"), "{left:?}");
    let journal = read(left.stdout.as_bytes(), Window::default()).unwrap();
    assert!(!journal.summary.terminal());
    assert_eq!(journal.summary.state(), "running", "as the earlier tools call it");
    let report = stale_report(&journal.summary).expect("whoever reads it is told the same");
    assert_eq!(report.payload.journal_last_seq, journal.summary.last_seq);
    assert!(left.stdout.starts_with(live.stdout.as_str()), "what was told stays");
    assert_eq!(
        ended(&home, &["turn", "export", "s:1"]).await.stdout,
        left.stdout,
        "nothing is stored"
    );
}

/// A run of so many events, about 400 bytes each. Nothing of it becomes a message.
fn long_journal(home: &Home, events: u64) -> PathBuf {
    let mut text = String::new();
    for seq in 1..events {
        let payload = json!({ "text": format!("{seq:0160}") });
        let _ = writeln!(text, "{}", line(seq, "reasoning", &payload));
    }
    text.push_str(&done(events));
    file(home, &format!("long-{events}.jsonl"), text).into()
}

/// The most memory that a process has had, in bytes; `None` once it is gone.
fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Runs to the end; the most memory that was seen.
async fn watched(home: &Home, words: &[&str]) -> (String, u64) {
    let mut process = everturn(home, words).start().unwrap();
    let mut most = 0;
    while process.is_running() {
        most = most.max(peak(process.pid()).unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ended = process.ended().await.unwrap();
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
    (ended.stdout, most)
}

/// P12: 100 000 events go in and out one after the other; they are never in memory together.
#[tokio::test]
async fn a_long_run_goes_in_and_out_in_bounded_memory() {
    const EVENTS: u64 = 100_000;
    const MEMORY: u64 = 48 << 20;
    let home = Home::new().unwrap();
    let long = long_journal(&home, EVENTS);
    let bytes = std::fs::metadata(&long).unwrap().len();
    let path = long.to_str().unwrap();
    let words = ["import", "journal", path, "--session", "s", "--json"];
    let (told, most) = watched(&home, &words).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["events"], EVENTS);
    println!("import: {most} bytes of memory for {bytes} bytes");
    assert!(most < MEMORY, "{most} bytes of memory for {bytes} bytes");
    let to = home.work().join("out.jsonl");
    let run = told["run_id"].as_str().unwrap();
    let (_, most) =
        watched(&home, &["turn", "export", run, "--output", to.to_str().unwrap()]).await;
    println!("export: {most} bytes of memory");
    assert!(most < MEMORY, "{most} bytes of memory");
    let out = std::fs::read(&to).unwrap();
    let out = read(&out[..], Window { limit: 0, ..Window::default() }).unwrap();
    assert_eq!((out.summary.event_count, out.malformed_count), (EVENTS, 0));
    assert_eq!(out.summary.state(), "completed");
}

/// A person at a terminal sees how far a long piece of work is, and a file or a pipe does not.
#[tokio::test]
async fn a_terminal_shows_how_far_it_is() {
    let home = Home::new().unwrap();
    let long = long_journal(&home, 10_000);
    let path = long.to_str().unwrap();
    let mut shown = Terminal::start(&home, &["import", "journal", path, "--session", "t"]);
    shown.wait_for("importing ");
    shown.wait_for(" of 10000 (");
    shown.wait_for("events     10000");
    assert_eq!(shown.ended(), Some(0));
    let quiet = ended(&home, &["import", "journal", path, "--session", "u"]).await;
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

fn wal(home: &Home) -> u64 {
    let mut path = home.database().into_os_string();
    path.push("-wal");
    std::fs::metadata(Path::new(&path)).map_or(0, |about| about.len())
}

/// A kill in the middle of an import leaves nothing of it, or all.
#[tokio::test]
async fn an_import_that_is_killed_is_whole_or_not_there() {
    const EVENTS: u64 = 12_000;
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    stdout(&home, &["run", "--model", &model, "--session", "ours", "hello"]).await;
    let before = stdout(&home, &["sessions", "export", "ours", "--events"]).await;
    let long = long_journal(&home, EVENTS);
    let words = ["import", "journal", long.to_str().unwrap(), "--session", "ours", "--json"];
    let mut in_the_middle = 0;
    for bytes in [1_u64, 256 << 10, 1 << 20] {
        let base = wal(&home);
        let mut process = everturn(&home, &words).start().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // The log grows while the transaction is under way: that is the moment.
        while process.is_running() && wal(&home) < base + bytes && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.kill();
        let grown = wal(&home) > base;
        let now = stdout(&home, &["sessions", "export", "ours", "--events"]).await;
        if now == before {
            in_the_middle += usize::from(grown);
            continue;
        }
        // It was done: all of it is there.
        let events = now.lines().count() - before.lines().count();
        assert!(events as u64 > EVENTS, "{events} events of a part of the run");
        break;
    }
    println!("killed in the middle of the transaction: {in_the_middle}");
    assert!(in_the_middle > 0, "no kill met the transaction");
    let told = said(&home, &words).await;
    assert_eq!(told["events"], EVENTS);
    let after = stdout(&home, &["sessions", "export", "ours", "--events"]).await;
    assert!(after.starts_with(&before), "what was there is untouched");
    let ends = after.lines().filter(|line| line.contains("\"event\":\"run.completed\"")).count();
    assert_eq!(ends, 2, "one run of ours, and the import once");
    let again = said(&home, &words).await;
    assert_eq!(again["replayed"], true);
}
