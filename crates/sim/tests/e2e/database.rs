//! Databases that cannot be used: refused, reported, and never overwritten (P13).

use std::path::{Path, PathBuf};

use everturn_sim::disk::{SmallDisk, in_namespace};
use everturn_sim::process::Ended;
use everturn_sim::server::{Home, ServerSpec};

use crate::common::{command, verify};

const SCRIPT: &str = "[[rule]]\nreply = [{ text = \"You said {{input}}.\" }]\n";

/// A home in which a conversation was held, at rest, everything in one file.
async fn held() -> (Home, ServerSpec, PathBuf) {
    let home = Home::new().unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    for number in 0..50 {
        let said = client.say("s", &format!("r{number}"), &format!("word {number}")).await.unwrap();
        client.outcome(&said.input_id).await.unwrap();
    }
    server.terminate().await.unwrap();
    let database = home.database();
    // What is in the log belongs to the file; a clean end leaves it there or folds it in.
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    (home, spec, database)
}

/// Files of a database, with their bytes.
fn bytes(database: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let name = database.file_name().unwrap().to_string_lossy().into_owned();
    let mut files: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(database.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            // The index of the log holds no data and is made anew by whoever opens it.
            file.starts_with(&name) && !file.ends_with("-shm") && path.is_file()
        })
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .filter(|(path, bytes)| path == database || !bytes.is_empty())
        .collect();
    files.sort();
    files
}

/// A start that is refused: how it ended.
async fn refused(spec: &ServerSpec) -> Ended {
    match spec.try_start("127.0.0.1:0").await.unwrap() {
        Ok(_) => panic!("it started"),
        Err(ended) => ended,
    }
}

/// Whoever opens it says what is wrong, and changes nothing.
async fn unusable(home: &Home, spec: &ServerSpec, database: &Path, words: &[&str]) {
    let before = bytes(database);
    let ended = refused(spec).await;
    let said = ended.stderr.to_lowercase();
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    assert!(words.iter().any(|word| said.contains(word)), "{ended:?}");
    assert!(!said.contains("panicked"), "{ended:?}");
    let run = command(home, "run", &["--model", "script/demo", "hello"]).await;
    assert!(!matches!(run.code, Some(0) | None), "{run:?}");
    let doctor = command(home, "doctor", &["--offline"]).await;
    assert!(!matches!(doctor.code, Some(0) | None), "{doctor:?}");
    let said = format!("{}{}", doctor.stdout, doctor.stderr).to_lowercase();
    assert!(words.iter().any(|word| said.contains(word)), "{doctor:?}");
    assert!(!said.contains("panicked"), "{doctor:?}");
    assert!(before == bytes(database), "the database was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_newer_version_is_refused() {
    let (home, spec, database) = held().await;
    let connection = rusqlite::Connection::open(&database).unwrap();
    let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert!(version > 0);
    connection.pragma_update(None, "user_version", version + 1).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    unusable(&home, &spec, &database, &["newer"]).await;
    // With the version put back it is the same database as before.
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.pragma_update(None, "user_version", version).unwrap();
    drop(connection);
    let _server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    assert_eq!(client.texts("s", "user", "message").await.unwrap().len(), 50);
    verify(&client, &["s"], vec![], vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_database_is_reported_and_left_alone() {
    let (home, spec, database) = held().await;
    let whole = std::fs::read(&database).unwrap();
    std::fs::write(&database, &whole[..whole.len() / 2]).unwrap();
    unusable(&home, &spec, &database, &["corrupt", "malformed", "damaged"]).await;
    std::fs::write(&database, &whole).unwrap();
    let _server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    assert_eq!(client.texts("s", "user", "message").await.unwrap().len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupted_database_is_reported_and_left_alone() {
    let (home, spec, database) = held().await;
    let whole = std::fs::read(&database).unwrap();
    let mut corrupted = whole.clone();
    // Pages in the middle; the first one stays good, so that only looking at the others tells.
    for byte in &mut corrupted[8 << 10..whole.len() * 3 / 4] {
        *byte = 0x5a;
    }
    std::fs::write(&database, &corrupted).unwrap();
    unusable(&home, &spec, &database, &["corrupt", "malformed", "damaged"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_database_is_reported_and_left_alone() {
    let home = Home::new().unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    let database = home.database();
    std::fs::write(&database, "these are my notes, not a database\n".repeat(1_000)).unwrap();
    unusable(&home, &spec, &database, &["not a database"]).await;
    // Another program's database is one, but not ours.
    std::fs::remove_file(&database).unwrap();
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute_batch("CREATE TABLE mine (a); INSERT INTO mine VALUES (1);").unwrap();
    drop(connection);
    let before = std::fs::read(&database).unwrap();
    let ended = refused(&spec).await;
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    assert!(before == std::fs::read(&database).unwrap(), "it was changed");
}

/// A database on a file system that takes no writes is refused at the start, with a code; nothing of it
/// is changed, and with writes allowed again it is the same as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_cannot_be_written_is_refused() {
    if !in_namespace("database::a_home_that_cannot_be_written_is_refused").unwrap() {
        return;
    }
    let home = Home::new().unwrap();
    let disk = SmallDisk::mount(&home.path(), 32 << 20).unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    let spec = spec.env("EVERTURN_LIMITS_MIN_FREE_BYTES", "0");
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let accepted = client.say("s", "r1", "hello").await.unwrap();
    client.outcome(&accepted.input_id).await.unwrap();
    server.terminate().await.unwrap();
    disk.read_only().unwrap();
    let before = std::fs::read(home.database()).unwrap();
    let ended = refused(&spec).await;
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    assert!(ended.stderr.contains("storage_unavailable"), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(before == std::fs::read(home.database()).unwrap(), "it was changed");
}

/// Something else in the place of the database is refused at the start, with a code.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_the_place_of_the_database_is_refused() {
    let home = Home::new().unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    std::fs::create_dir(home.database()).unwrap();
    let ended = refused(&spec).await;
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    assert!(ended.stderr.contains("storage_"), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// A database that is taken away under a running server: nothing is acknowledged meanwhile, the server
/// stays up, and goes on with it once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_taken_away_under_a_server_is_noticed() {
    let home = Home::new().unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    let mut server = spec.start().await.unwrap();
    let client = home.client().unwrap();
    let first = client.say("s", "r1", "hello").await.unwrap();
    client.outcome(&first.input_id).await.unwrap();
    let elsewhere = home.path().join("elsewhere");
    std::fs::rename(home.database(), &elsewhere).unwrap();
    let refused = client.submit("s", "r2", "hello").await.unwrap();
    assert_eq!(refused.problem(503).unwrap(), "storage_unavailable");
    assert!(!home.database().exists(), "a new database was made in its place");
    assert!(server.process.is_running());
    std::fs::rename(&elsewhere, home.database()).unwrap();
    let second = client
        .say_until_accepted("s", "r2", "hello", std::time::Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(client.outcome(&second.input_id).await.unwrap()["outcome"], "completed");
    server.restart().await.unwrap();
    verify(&client, &["s"], vec![first, second], vec![]).await;
}
