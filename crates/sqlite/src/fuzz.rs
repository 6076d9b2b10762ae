//! What a damaged row of `events` can hold, for the fuzz target and for its corpus as a test.

use everturn_core::SessionId;
use everturn_store::read::StoredEvent;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::rows::{Cols, EVENT_COLUMNS, EventReader};

/// A table of events without the guards that a sound database has.
const TABLES: &str = "CREATE TABLE events (\"offset\", kind, run_no, seq, at, name, body);
CREATE TABLE runs (run_no, id);
INSERT INTO runs VALUES (1, 'run_1'), (2, '../run'), (3, NULL), (4, x'ff');";

/// Stores the bytes as a row of `events`, value by value, and reads it: it is an event or it is
/// malformed, and the read never fails but for a place that is none.
///
/// Each value is a byte that says what it is (nothing, a number, a float, a text, bytes), a length
/// where it has one, and its bytes. Texts need not be UTF-8.
///
/// # Panics
/// Where that does not hold: a fault that was found.
#[allow(clippy::expect_used, clippy::panic, reason = "a fault that is found ends the target")]
pub fn stored_event(data: &[u8]) {
    let mut rest = data;
    let values: Vec<(Value, bool)> = (0..7).map(|_| value(&mut rest)).collect();
    let conn = Connection::open_in_memory().expect("a database in memory");
    conn.execute_batch(TABLES).expect("its tables");
    let casts: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(at, (_, text))| {
            let place = at + 1;
            if *text { format!("CAST(?{place} AS TEXT)") } else { format!("?{place}") }
        })
        .collect();
    let sql = format!("INSERT INTO events VALUES ({})", casts.join(", "));
    let plain = rusqlite::params_from_iter(values.iter().map(|(value, _)| value));
    conn.execute(&sql, plain).expect("any value can be stored");
    let session = SessionId::new("s").expect("an id");
    let mut reader = EventReader::new(&conn, session);
    let mut statement = conn.prepare(&format!("SELECT {EVENT_COLUMNS}")).expect("a statement");
    let mut rows = statement.query([]).expect("a row");
    let row = rows.next().expect("a row").expect("a row");
    let has_place = matches!(values[0].0, Value::Integer(0..));
    match reader.read(&Cols::new("events", row)) {
        Ok(StoredEvent::Good(event)) => {
            let bytes = everturn_api::event::render(&event.head, &event.body);
            let told: Result<serde_json::Map<String, serde_json::Value>, _> =
                serde_json::from_str(&bytes);
            // A number may be too great for a tree, and a body too deep; it is JSON all the same.
            if let Err(error) = &told {
                let raw = serde_json::from_str::<&serde_json::value::RawValue>(&bytes);
                assert!(raw.is_ok(), "{error} in {bytes:?}");
            }
            assert!(!bytes.contains('\n') || event.body.contains('\n'));
        }
        Ok(StoredEvent::Malformed { error, .. }) => assert!(!error.is_empty()),
        Err(error) => assert!(!has_place, "a row with a place failed the read: {error}"),
    }
}

/// The next value, and whether it is stored as text.
fn value(rest: &mut &[u8]) -> (Value, bool) {
    let mut take = |count: usize| {
        let count = count.min(rest.len());
        let (taken, behind) = rest.split_at(count);
        *rest = behind;
        taken
    };
    let number = |bytes: &[u8]| {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(whole)
    };
    let kind = take(1).first().copied().unwrap_or(0);
    match kind % 6 {
        0 => (Value::Null, false),
        1 => (Value::Integer(number(take(8))), false),
        2 => (Value::Integer(i64::from(take(1).first().copied().unwrap_or(0))), false),
        3 => (Value::Real(f64::from_bits(number(take(8)).cast_unsigned())), false),
        _ => {
            let length = take(1).first().copied().unwrap_or(0);
            (Value::Blob(take(usize::from(length)).to_vec()), kind % 6 == 4)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&[4, u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat()
    }

    /// A row whose name and body are these.
    fn row(kind: u8, name: Option<&str>, body: &[u8]) -> Vec<u8> {
        let name = name.map_or(vec![0], text);
        [&[2, 7, 2, kind, 2, 1, 2, 3, 2, 9][..], &name, body].concat()
    }

    /// Everything in the corpus, and what is damaged on purpose here.
    #[test]
    fn a_damaged_row_is_malformed_and_never_fails_the_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/stored_event");
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            stored_event(&std::fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert_eq!(count, 17, "files of the corpus; a new one changes this number");
        for kind in 0..=40 {
            for name in [None, Some("x.y"), Some("X"), Some("")] {
                for body in ["{}", "{\"text\":\"a\"}", "[]", "{", "", "{}{}", "{\"a\":1e999}"] {
                    stored_event(&row(kind, name, &text(body)));
                }
                for body in [&[0][..], &[2, 7], &[4, 2, 0xff, 0xfe], &[5, 2, b'{', b'}']] {
                    stored_event(&row(kind, name, body));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn any_row_is_read(data in prop::collection::vec(any::<u8>(), 0..200)) {
            stored_event(&data);
        }

        /// A sound row with some bytes changed.
        #[test]
        fn a_row_with_bytes_changed_is_read(
            kind in 0_u8..30,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut data = row(kind, Some("x.y"), &text("{\"text\":\"hello\",\"n\":[1,2]}"));
            for (at, byte) in changes {
                let at = at.index(data.len());
                data[at] = byte;
            }
            stored_event(&data);
        }
    }
}
