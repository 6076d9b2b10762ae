//! What crashes, power losses, other writers and other systems leave in a journal.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{self, BufReader, Read};

use everturn_core::{RunId, SessionId};
use everturn_hermes::journal::{
    Identity, Item, Journal, LINE_BYTES_MAX, MALFORMED_MAX, Reader, Reason, Window, read, read_of,
    summary,
};

/// A record as the earlier web UI writes it.
fn line(seq: u64, event: &str, payload: &str) -> String {
    format!(
        r#"{{"version":1,"event_id":"r:{seq}","seq":{seq},"run_id":"r","session_id":"s","event":"{event}","type":"{event}","created_at":1796018324.123456,"terminal":false,"terminal_state":null,"payload":{payload}}}"#
    )
}

fn token(seq: u64) -> String {
    line(seq, "token", &format!(r#"{{"text":"t{seq}"}}"#))
}

fn all(input: impl AsRef<[u8]>) -> Journal {
    read(input.as_ref(), Window::default()).unwrap()
}

fn seqs(journal: &Journal) -> Vec<u64> {
    journal.events.iter().map(|record| record.seq).collect()
}

fn reasons(journal: &Journal) -> Vec<(u64, Reason)> {
    assert_eq!(journal.malformed_count, journal.malformed.len() as u64);
    journal.malformed.iter().map(|found| (found.line, found.reason)).collect()
}

#[test]
fn a_torn_tail_never_swallows_the_record_after_it() {
    let (first, third) = (token(1), line(3, "done", "{}"));
    for payload in [
        r#"{"text":"a \" quote, {\"braces\"} [and] é"}"#,
        r#"{"list":[1,{"a":[{"b":2}]}],"text":"x"}"#,
        r#"{"args":{"type":"x","event":"y","seq":7,"payload":{}}}"#,
        r#"{"a":-1.5e3,"b":true,"c":null,"d":"\u00e9\ud83e\uddff"}"#,
    ] {
        let second = line(2, "tool", payload);
        for cut in 1..second.len() {
            let mut input = format!("{first}\n").into_bytes();
            input.extend_from_slice(&second.as_bytes()[..cut]);
            input.extend_from_slice(format!("{third}\n{}\n", token(4)).as_bytes());
            let journal = all(&input);
            let torn = String::from_utf8_lossy(&input).into_owned();
            assert_eq!(seqs(&journal), [1, 3, 4], "{torn}");
            assert_eq!(reasons(&journal), [(2, Reason::Torn)], "{torn}");
            assert_eq!(journal.malformed[0].bytes, cut as u64);
            assert_eq!(journal.summary.state(), "completed");
        }
        // Without anything behind it, it is all that is lost.
        for cut in 1..second.len() {
            let input = [format!("{first}\n").as_bytes(), &second.as_bytes()[..cut]].concat();
            let journal = all(&input);
            assert_eq!((seqs(&journal), reasons(&journal)), (vec![1], vec![(2, Reason::Torn)]));
        }
        // Only its line feed is missing: nothing is lost.
        let input = format!("{first}\n{second}{third}");
        let journal = all(&input);
        assert_eq!((seqs(&journal), reasons(&journal)), (vec![1, 2, 3], vec![]));
    }
}

#[test]
fn several_torn_records_in_one_line_are_one_report_before_what_follows() {
    let input = [&token(1)[..30], &token(2)[..90], &token(3), &token(4)[..100], &token(5)].concat();
    let journal = all(&input);
    assert_eq!(seqs(&journal), [3, 5]);
    assert_eq!(reasons(&journal), [(1, Reason::Torn), (1, Reason::Torn)]);
}

#[test]
fn a_record_inside_another_records_payload_is_not_one() {
    let inner = line(2, "done", "{}");
    let whole = [
        line(1, "tool", &format!(r#"{{"args":{inner}}}"#)),
        line(1, "tool", &format!(r#"{{"args":[{inner},{inner}]}}"#)),
        line(1, "tool", inner.as_str()),
    ];
    for outer in &whole {
        let journal = all(outer);
        assert_eq!((seqs(&journal), journal.summary.state()), (vec![1], "running"));
        // Nor when the outer one is damaged before it.
        let damaged = outer.replacen("\"version\":1,", "\"version\" 1,", 1);
        let journal = all(&damaged);
        assert!(seqs(&journal).is_empty(), "{damaged}");
        assert_eq!(reasons(&journal), [(1, Reason::NotJson)]);
    }
}

#[test]
fn lines_end_at_line_feeds_only() {
    let texts = ["a\u{2028}b", "a\u{2029}b", "a\u{85}b", "\u{b}\u{c}\u{1c}\u{1d}\u{1e}"];
    let lines: Vec<String> = (1..)
        .zip(texts)
        .map(|(seq, text)| {
            let text = serde_json::to_string(text).unwrap();
            line(seq, "token", &format!("{{\"text\":{text}}}"))
        })
        .collect();
    for end in ["\n", "\r\n", "\n\n", "\n \t\r\n"] {
        let journal = all(lines.join(end));
        assert_eq!(seqs(&journal), [1, 2, 3, 4], "{end:?}");
        assert_eq!(reasons(&journal), []);
        let found: Vec<_> =
            journal.events.iter().map(|record| record.payload_text("text").unwrap()).collect();
        assert_eq!(found, texts);
    }
    // A byte order mark is no part of the first record.
    assert_eq!(seqs(&all(format!("\u{feff}{}", token(1)))), [1]);
}

#[test]
fn what_is_no_record_says_why() {
    let bad: [(&[u8], Reason); 22] = [
        (b"nothing", Reason::NotJson),
        (b"{not json}", Reason::NotJson),
        (b"{\"a\":1", Reason::Torn),
        (b"[1,2", Reason::Torn),
        (b"null", Reason::NotAnObject),
        (b"[{}]", Reason::NotAnObject),
        (b"\"{\\\"seq\\\":1}\"", Reason::NotAnObject),
        (b"12 13", Reason::NotJson),
        (b"\xff\xfe", Reason::NotUtf8),
        (b"\0\0\0\0", Reason::NotJson),
        (b"{}", Reason::Field("seq")),
        (br#"{"seq":0,"event":"x","run_id":"r","session_id":"s"}"#, Reason::Field("seq")),
        (br#"{"seq":-1,"event":"x","run_id":"r","session_id":"s"}"#, Reason::Field("seq")),
        (br#"{"seq":1.5,"event":"x","run_id":"r","session_id":"s"}"#, Reason::Field("seq")),
        (br#"{"seq":9223372036854775808,"event":"x","run_id":"r"}"#, Reason::Field("seq")),
        (br#"{"seq":"1","event":"x","run_id":"r","session_id":"s"}"#, Reason::Field("seq")),
        (br#"{"seq":1,"event":" ","run_id":"r","session_id":"s"}"#, Reason::Field("event")),
        (br#"{"seq":1,"event":"x","session_id":"s"}"#, Reason::Field("run_id")),
        (br#"{"seq":1,"event":"x","run_id":"../r","session_id":"s"}"#, Reason::Id("run_id")),
        (br#"{"seq":1,"event":"x","run_id":"r","session_id":".."}"#, Reason::Id("session_id")),
        (
            br#"{"seq":1,"event_id":"r:2","event":"x","run_id":"r","session_id":"s"}"#,
            Reason::Id("event_id"),
        ),
        (br#"{"version":2,"seq":1,"event":"x","run_id":"r","session_id":"s"}"#, Reason::Version),
    ];
    for (bytes, reason) in bad {
        let input = [token(1).as_bytes(), b"\n", bytes, b"\n", token(2).as_bytes()].concat();
        let journal = all(&input);
        assert_eq!(seqs(&journal), [1, 2], "{}", String::from_utf8_lossy(bytes));
        assert_eq!(reasons(&journal), [(2, reason)], "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn what_other_writers_may_do_is_taken() {
    let good = [
        // Spaces, another order, unknown fields, a field twice.
        r#" { "payload" : {"text":"x"}, "seq": 9, "seq": 1, "new": [1], "event":"token","run_id":"r","session_id":"s" } "#,
        // Only `type`; ids that were stored untrimmed; no payload; a time that is none.
        r#"{"type":"token","seq":1,"run_id":" r ","session_id":"s ","event_id":" r :1","payload":null,"created_at":"soon"}"#,
        // Numbers that are no JSON, and half of a pair.
        r#"{"event":"token","seq":1,"run_id":"r","session_id":"s","payload":{"tps":NaN,"a":[-Infinity],"text":"x\ud800"}}"#,
        // A payload that is no object.
        r#"{"event":"token","seq":1,"run_id":"r","session_id":"s","payload":["x"]}"#,
    ];
    for line in good {
        let journal = all(line);
        assert_eq!((seqs(&journal), reasons(&journal)), (vec![1], vec![]), "{line}");
        let record = &journal.events[0];
        assert_eq!((record.event.as_str(), record.event_id().to_string()), ("token", "r:1".into()));
        let again = serde_json::to_string(record).unwrap();
        assert_eq!(all(&again).events[0], *record);
    }
    let record = &all(good[2]).events[0];
    assert_eq!(record.payload.get(), r#"{"tps":null,"a":[null],"text":"x\ufffd"}"#);
    assert_eq!(record.payload_text("text").unwrap(), "x\u{fffd}");
}

#[test]
fn lines_out_of_order_and_twice_are_put_in_order_once() {
    let other = line(2, "token", r#"{"text":"another"}"#);
    let input = [token(3), token(1), token(2), other, token(3), token(5)].join("\n");
    let journal = all(&input);
    assert_eq!(seqs(&journal), [1, 2, 3, 5]);
    assert_eq!(journal.events[1].payload_text("text").unwrap(), "t2");
    assert_eq!(reasons(&journal), [(4, Reason::Duplicate), (5, Reason::Duplicate)]);
    let summary = journal.summary;
    assert_eq!((summary.event_count, summary.last_seq), (4, 5));
    // In every window.
    for after in 0..6 {
        for limit in 0..5 {
            let window = Window { after, max: Some(4), limit };
            let got = read(input.as_bytes(), window).unwrap();
            let inside: Vec<u64> = [1, 2, 3].into_iter().filter(|seq| *seq > after).collect();
            let fits = inside.len().min(limit);
            assert_eq!((seqs(&got), got.more), (inside[..fits].to_vec(), fits < inside.len()));
        }
    }
}

#[test]
fn the_outcome_is_that_of_the_last_event_that_tells_one() {
    let done = |seq| line(seq, "done", "{}");
    let end = |seq| line(seq, "stream_end", "{}");
    let cancel = |seq| line(seq, "cancel", "{}");
    let limit = r#"{"terminal_state":"tool_limit_reached"}"#;
    let rows = [
        (vec![end(1)], "completed", 1),
        (vec![line(1, "stream_end", limit)], "tool_limit_reached", 1),
        (vec![end(1), end(2)], "completed", 2),
        (vec![cancel(1), end(2)], "interrupted-by-user", 1),
        (vec![end(1), cancel(2)], "interrupted-by-user", 2),
        (vec![end(2), cancel(1)], "interrupted-by-user", 1),
        (vec![cancel(1), line(2, "apperror", "{}"), end(3)], "errored", 2),
        (vec![line(2, "apperror", "{}"), cancel(1), end(3)], "errored", 2),
        (vec![done(1), line(2, "title", "{}"), line(3, "metering", "{}"), end(4)], "completed", 1),
        (vec![line(1, "done", limit), done(1), end(2)], "tool_limit_reached", 1),
    ];
    for (lines, state, seq) in rows {
        let found = summary(lines.join("\n").as_bytes()).unwrap();
        assert_eq!((found.state(), found.terminal_seq), (state, Some(seq)), "{lines:?}");
    }
}

#[test]
fn a_records_own_word_is_not_believed_but_for_lost_workers() {
    let stored = |payload, word| {
        let record = line(1, "apperror", payload);
        record.replace("\"terminal_state\":null", &format!("\"terminal_state\":\"{word}\""))
    };
    let interrupted = r#"{"type":"interrupted"}"#;
    for (input, state) in [
        (stored(interrupted, "lost-worker-bookkeeping"), "lost-worker-bookkeeping"),
        (stored(interrupted, "completed"), "interrupted-by-crash"),
        (stored("{}", "lost-worker-bookkeeping"), "errored"),
        (
            token(1).replace("\"terminal_state\":null", "\"terminal_state\":\"completed\""),
            "running",
        ),
    ] {
        assert_eq!(summary(input.as_bytes()).unwrap().state(), state, "{input}");
    }
}

#[test]
fn one_run_is_read_and_others_are_told_of() {
    let foreign = token(1).replace("\"r\"", "\"other\"").replace("\"r:1\"", "\"other:1\"");
    let elsewhere = token(2).replace("\"s\"", "\"elsewhere\"");
    let input = [token(1), foreign, elsewhere, token(2)].join("\n");
    let journal = all(&input);
    assert_eq!(seqs(&journal), [1, 2]);
    assert_eq!(reasons(&journal), [(2, Reason::Foreign), (3, Reason::Foreign)]);
    let other =
        Identity { session_id: SessionId::new("s").unwrap(), run_id: RunId::new("other").unwrap() };
    let journal = read_of(input.as_bytes(), other, Window::default()).unwrap();
    assert_eq!((seqs(&journal), journal.malformed.len()), (vec![1], 3));
    // Without a run to look for, everything is given as it stands.
    let items: Vec<_> = Reader::new(input.as_bytes()).map(|item| item.unwrap()).collect();
    assert!(items.iter().all(|item| matches!(item, Item::Record { .. })));
    assert_eq!(items.len(), 4);
}

#[test]
fn lines_over_ten_mebibytes_are_told_of_and_read_past() {
    let room = LINE_BYTES_MAX - line(2, "token", r#"{"text":""}"#).len();
    let of = |length| line(2, "token", &format!(r#"{{"text":"{}"}}"#, "x".repeat(length)));
    let fits = [token(1), of(room), token(3)].join("\n");
    assert_eq!(seqs(&all(&fits)), [1, 2, 3]);
    let long = [token(1), of(room + 1), token(3)].join("\n");
    let journal = all(&long);
    assert_eq!((seqs(&journal), reasons(&journal)), (vec![1, 3], vec![(2, Reason::TooLong)]));
    assert_eq!(journal.malformed[0].bytes, LINE_BYTES_MAX as u64 + 1);
    assert!(journal.malformed[0].text.starts_with(r#"{"version":1,"event_id":"r:2""#));
    // A torn one does not swallow the record that is glued to it either.
    let glued = format!("{}\n{}{}\n", token(1), &of(2 * room)[..2 * room], token(3));
    let journal = all(&glued);
    assert_eq!((seqs(&journal), reasons(&journal)), (vec![1, 3], vec![(2, Reason::TooLong)]));
    assert_eq!(journal.malformed[0].bytes, 2 * room as u64);
}

#[test]
fn reports_are_bounded_and_all_are_counted() {
    let journal = read(BufReader::new(BadLines(3_000)), Window::default()).unwrap();
    assert_eq!(journal.malformed_count, 3_000);
    assert_eq!(journal.malformed.len(), MALFORMED_MAX);
}

/// So many bad lines.
struct BadLines(usize);

impl Read for BadLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Ok(0);
        }
        self.0 -= 1;
        buffer[..2].copy_from_slice(b"x\n");
        Ok(2)
    }
}

#[test]
fn a_hostile_line_takes_no_more_time_than_a_long_one() {
    // Many places that look like the beginning of a record, none of which is one: the number of
    // looks must not grow with their square. The largest takes seconds if it does.
    for piece in [r#"{"seq":"#, r#"{"seq":1,"a":["#, r#"{"event":"x"},"#, r#"{"seq":["x{"#] {
        let input = piece.repeat((1 << 20) / piece.len());
        let begun = std::time::Instant::now();
        let journal = all(&input);
        assert_eq!(journal.events.len(), 0, "{piece}");
        assert!(begun.elapsed().as_secs() < 30, "{piece} took {:?}", begun.elapsed());
    }
}

#[test]
fn an_input_that_fails_is_an_error_after_what_was_read() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }
    }
    let input = || BufReader::new(io::Cursor::new(format!("{}\n", token(1))).chain(Fails));
    let mut reader = Reader::new(input());
    assert!(matches!(reader.next(), Some(Ok(Item::Record { line: 1, .. }))));
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.code(), "journal_io");
    assert!(error.to_string().contains("gone") && !error.hint().is_empty());
    assert!(reader.next().is_none());
    assert!(read(input(), Window::default()).is_err());
}
