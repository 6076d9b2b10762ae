//! Appending to journals, and folders of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::{self, Write};

use everturn_core::{RunId, SessionId, Timestamp};
use everturn_hermes::Error;
use everturn_hermes::journal::{
    EventId, Folder, Identity, Journal, LINE_BYTES_MAX, Reason, Window, Writer, read,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};

const AT: Timestamp = Timestamp(1_796_018_324_123);

fn identity(session: &str, run: &str) -> Identity {
    Identity { session_id: SessionId::new(session).unwrap(), run_id: RunId::new(run).unwrap() }
}

fn raw(payload: &Value) -> Box<RawValue> {
    RawValue::from_string(payload.to_string()).unwrap()
}

fn all(journal: &[u8]) -> Journal {
    read(journal, Window::default()).unwrap()
}

fn texts(journal: &Journal) -> Vec<String> {
    journal.events.iter().map(|record| record.payload_text("text").unwrap()).collect()
}

#[test]
fn a_record_is_one_compact_line_with_the_earlier_fields() {
    let mut writer = Writer::new(Vec::new(), identity("s", "r"));
    writer.append("token", &raw(&json!({ "text": "é\u{2028}\n" })), AT).unwrap();
    writer.append("apperror", &raw(&json!({ "type": "Interrupted " })), Timestamp(-1)).unwrap();
    let wanted = concat!(
        r#"{"version":1,"event_id":"r:1","seq":1,"run_id":"r","session_id":"s","event":"token","#,
        r#""type":"token","created_at":1796018324.123,"terminal":false,"terminal_state":null,"#,
        "\"payload\":{\"text\":\"é\u{2028}\\n\"}}\n",
        r#"{"version":1,"event_id":"r:2","seq":2,"run_id":"r","session_id":"s","event":"apperror","#,
        r#""type":"apperror","created_at":-0.001,"terminal":true,"#,
        r#""terminal_state":"interrupted-by-crash","payload":{"type":"Interrupted "}}"#,
        "\n",
    );
    assert_eq!(String::from_utf8(writer.into_inner()).unwrap(), wanted);
}

#[test]
fn what_a_reader_would_not_take_is_not_written() {
    let mut writer = Writer::new(Vec::new(), identity("s", "r"));
    let long = raw(&json!({ "text": "x".repeat(LINE_BYTES_MAX) }));
    let (object, list) = (raw(&json!({})), raw(&json!([])));
    for (event, payload) in
        [("", &object), (" ", &object), ("x ", &object), ("x", &list), ("x", &long)]
    {
        let error = writer.append(event, payload, AT).unwrap_err();
        assert_eq!(error.code(), "journal_record_invalid");
    }
    assert!(writer.get_ref().is_empty());
    assert_eq!(writer.append("x", &object, AT).unwrap().seq, 1);
    // White space in JSON is no reason to cut a line in two.
    let spaced = RawValue::from_string("{\n\"text\":\r\n\"a\\nb\" }".to_owned()).unwrap();
    writer.append("x", &spaced, AT).unwrap();
    let journal = all(writer.get_ref());
    assert_eq!((journal.events.len(), journal.malformed.len()), (2, 0));
    assert_eq!(journal.events[1].payload_text("text").unwrap(), "a\nb");
}

/// A disk that is full after so many bytes, once.
struct Full {
    journal: Vec<u8>,
    room: usize,
    failed: bool,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            self.journal.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let fits = bytes.len().min(self.room);
        if fits == 0 {
            self.failed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= fits;
        self.journal.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failed_write_takes_no_number_and_swallows_nothing() {
    let line = {
        let mut writer = Writer::new(Vec::new(), identity("s", "r"));
        writer.append("token", &raw(&json!({ "text": "b" })), AT).unwrap();
        writer.into_inner().len()
    };
    for room in line..2 * line {
        let sink = Full { journal: Vec::new(), room, failed: false };
        let mut writer = Writer::new(sink, identity("s", "r"));
        let mut append = |text: &str| writer.append("token", &raw(&json!({ "text": text })), AT);
        append("a").unwrap();
        let error = append("b").unwrap_err();
        assert!(matches!(error, Error::Io { doing: "write", .. }), "{error}");
        append("c").unwrap();
        append("d").unwrap();
        let next = writer.next_seq();
        let journal = all(&writer.into_inner().journal);
        // All of it but the line feed had arrived: then it is there, and has its number.
        let arrived = room == 2 * line - 1;
        let wanted: &[&str] = if arrived { &["a", "b", "c", "d"] } else { &["a", "c", "d"] };
        assert_eq!(texts(&journal), wanted, "{room}");
        let seqs: Vec<_> = journal.events.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, (1..next).collect::<Vec<_>>());
        assert_eq!(journal.malformed.len(), usize::from(!arrived && room > line), "{room}");
    }
}

#[test]
fn a_journal_is_gone_on_with_behind_whatever_is_there() {
    let mut writer = Writer::new(Vec::new(), identity("s", "r"));
    for text in ["a", "b"] {
        writer.append("token", &raw(&json!({ "text": text })), AT).unwrap();
    }
    let whole = writer.into_inner();
    for cut in 0..=whole.len() {
        let there = &whole[..cut];
        let before = all(there);
        let mut writer = Writer::resume(there, there.to_vec(), identity("s", "r")).unwrap();
        assert_eq!(writer.next_seq(), before.summary.last_seq + 1);
        for text in ["c", "d"] {
            writer.append("token", &raw(&json!({ "text": text })), AT).unwrap();
        }
        let after = all(&writer.into_inner());
        let kept = texts(&before);
        assert_eq!(texts(&after), [&kept[..], &["c".to_owned(), "d".to_owned()]].concat());
        assert_eq!(after.malformed, before.malformed, "{cut}");
        assert_eq!(after.summary.last_seq, after.summary.event_count, "no gaps");
    }
}

#[test]
fn a_run_is_found_by_its_id_alone() {
    let home = tempfile::tempdir().unwrap();
    let folder = Folder::new(home.path().join("sessions"));
    let run = RunId::new("r1").unwrap();
    assert_eq!(folder.find(&run).unwrap(), None, "there is no folder yet");
    for (session, run) in [("b", "r1"), ("a", "r1"), ("c", "r2")] {
        let mut writer = folder.writer(identity(session, run)).unwrap();
        writer.append("token", &raw(&json!({ "text": session })), AT).unwrap();
    }
    // Things that are nobody's session.
    let journals = home.path().join("sessions/_run_journal");
    fs::create_dir(journals.join(".hidden")).unwrap();
    fs::write(journals.join(".hidden/r1.jsonl"), "x").unwrap();
    fs::write(journals.join("file"), "x").unwrap();
    fs::create_dir_all(journals.join("0/r1.jsonl")).unwrap();
    let found = folder.find(&run).unwrap().unwrap();
    assert_eq!(found.identity, identity("a", "r1"));
    assert_eq!((found.summary.last_seq, found.summary.state()), (1, "running"));
    assert_eq!(
        folder.find(&RunId::new("r2").unwrap()).unwrap().unwrap().identity,
        identity("c", "r2")
    );
    assert_eq!(folder.find(&RunId::new("r3").unwrap()).unwrap(), None);
}

#[test]
fn ids_are_no_paths() {
    for bad in ["", ".", "..", "../x", "a/../b", "/etc", "a\\b", "a\0", ".x", "a b", "a:1", "é"] {
        assert!(RunId::new(bad).is_err() && SessionId::new(bad).is_err(), "{bad:?}");
        assert!(format!("{bad}:1").parse::<EventId>().is_err(), "{bad:?}");
    }
    let folder = Folder::new("/home");
    let path = folder.path(&identity("a..b", "..c".trim_start_matches('.')));
    assert_eq!(path, std::path::Path::new("/home/_run_journal/a..b/c.jsonl"));
    for bad in
        ["", "r", "r:", ":1", "r:0", "r:-1", "r:+1", "r:1.0", "r:99999999999999999999", "r:1 2"]
    {
        assert!(bad.parse::<EventId>().is_err(), "{bad:?}");
    }
    assert_eq!("r:7".parse::<EventId>().unwrap().to_string(), "r:7");
}

#[test]
fn a_journal_has_one_writer_and_is_private() {
    let home = tempfile::tempdir().unwrap();
    let folder = Folder::new(home.path());
    let first = folder.writer(identity("s", "r")).unwrap();
    let error = folder.writer(identity("s", "r")).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert_eq!(error.code(), "journal_in_use");
    // Another run is free, and reading needs no turn.
    folder.writer(identity("s", "r2")).unwrap();
    assert_eq!(folder.read(&identity("s", "r"), Window::default()).unwrap().events, []);
    drop(first);
    folder.writer(identity("s", "r")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path(&identity("s", "r"));
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error_and_a_missing_journal_is_empty() {
    let home = tempfile::tempdir().unwrap();
    let folder = Folder::new(home.path());
    let nothing = folder.read(&identity("s", "r"), Window::default()).unwrap();
    assert_eq!((nothing.events.len(), nothing.summary.state()), (0, "unknown"));
    assert!(!home.path().join("_run_journal").exists(), "reading made something");
    fs::create_dir_all(folder.path(&identity("s", "r"))).unwrap();
    let error = folder.read(&identity("s", "r"), Window::default()).unwrap_err();
    assert_eq!(error.code(), "journal_io");
    fs::write(folder.path(&identity("s", "x")), "{").unwrap();
    let torn = folder.read(&identity("s", "x"), Window::default()).unwrap();
    assert_eq!(torn.malformed[0].reason, Reason::Torn);
    assert_eq!(torn.summary.identity, Some(identity("s", "x")));
}
