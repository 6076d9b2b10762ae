//! Journals from outside, for the fuzz target and for its corpus as a test.

use std::io::BufReader;

use everturn_core::Principal;
use everturn_core::event::is_terminal;

use crate::journal::{Identity, Journal, Window, read, read_of};
use crate::{Exporter, Importer, RunItem, Sealed};

/// Reads the bytes as a journal, imports and exports it, and holds each step to what every one
/// promises: the same records however the bytes arrive, in order and once; an export that comes back
/// and goes out the same; an import with one end and no hole.
///
/// # Panics
/// Where that does not hold: a fault that was found.
#[allow(clippy::expect_used, clippy::panic, reason = "a fault that is found ends the target")]
pub fn journal(data: &[u8]) {
    let whole = read(data, Window::default()).expect("bytes in memory");
    let pieces = BufReader::with_capacity(7, data);
    assert_eq!(read(pieces, Window::default()).expect("bytes in memory"), whole);
    assert!(whole.events.is_sorted_by(|a, b| a.seq < b.seq), "in order, once");
    assert_eq!(whole.events.len() as u64, whole.summary.event_count);
    let Some(identity) = whole.summary.identity.clone() else { return };

    let lines: Vec<String> = whole
        .events
        .iter()
        .map(|record| serde_json::to_string(record).expect("a record"))
        .collect();
    let again = read_all(lines.join("\n").as_bytes(), &identity);
    assert_eq!(again.events, whole.events, "what was found can be written and read again");

    let items = import(&whole);
    let once = export(&items, &identity);
    let twice = export(&import(&read_all(&once, &identity)), &identity);
    assert_eq!(twice, once, "an export goes out the same");

    let bytes = data.to_vec();
    let open = move || Ok(std::io::Cursor::new(bytes.clone()));
    let Some(sealed) = Sealed::new(&whole, Principal::local(), |_, _| true, open) else { return };
    let (mut count, mut ended) = (0, false);
    for event in sealed {
        let event = event.expect("bytes in memory");
        count += 1;
        assert_eq!(event.seq, count, "no hole");
        assert!(!ended, "nothing behind the end");
        ended = is_terminal(&event.name);
    }
    assert!(ended, "one end");
}

#[allow(clippy::expect_used, reason = "a fault that is found ends the target")]
fn read_all(bytes: &[u8], identity: &Identity) -> Journal {
    read_of(bytes, identity.clone(), Window::default()).expect("bytes in memory")
}

fn import(journal: &Journal) -> Vec<RunItem> {
    let mut importer = Importer::new(&journal.summary, Principal::local());
    journal.events.iter().filter_map(|record| importer.record(record)).collect()
}

#[allow(clippy::expect_used, reason = "a fault that is found ends the target")]
fn export(items: &[RunItem], identity: &Identity) -> Vec<u8> {
    let mut exporter = Exporter::new(Vec::new(), identity.clone());
    for item in items {
        exporter.item(item).expect("what was read can be exported");
    }
    exporter.into_inner()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn corpus() -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let mut journals: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|kind| kind == "jsonl")).collect();
        journals.sort();
        journals.iter().map(|file| std::fs::read(file).unwrap()).collect()
    }

    #[test]
    fn every_journal_of_the_corpus_keeps_every_promise() {
        let corpus = corpus();
        assert_eq!(corpus.len(), 38, "files of the corpus; a new one changes this number");
        for bytes in corpus {
            journal(&bytes);
        }
    }

    /// What happens to a journal's bytes.
    #[derive(Debug, Clone)]
    enum Change {
        Byte(prop::sample::Index, u8),
        Cut(prop::sample::Index),
        Double(prop::sample::Index, prop::sample::Index),
        Token(prop::sample::Index, &'static str),
    }

    fn change() -> impl Strategy<Value = Change> {
        use prop::sample::Index;
        let tokens = [
            "\n",
            "\r\n",
            "{",
            "}",
            "\"",
            "\\",
            "\u{2028}",
            "\u{85}",
            "null",
            "1e999",
            "NaN",
            "[",
            "\"seq\":1,",
            "\"event\":\"done\",",
            "\"everturn\":{\"event\":\"run.completed\"},",
            "\0",
        ];
        prop_oneof![
            (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
            any::<Index>().prop_map(Change::Cut),
            (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Double(a, b)),
            (any::<Index>(), prop::sample::select(tokens.to_vec()))
                .prop_map(|(at, token)| Change::Token(at, token)),
        ]
    }

    fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
        for change in changes {
            let place = |at: prop::sample::Index, bytes: &Vec<u8>| at.index(bytes.len() + 1);
            match change {
                Change::Byte(at, byte) if !bytes.is_empty() => {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                Change::Byte(..) => {}
                Change::Cut(at) => bytes.truncate(place(at, &bytes)),
                Change::Double(a, b) => {
                    let (a, b) = (place(a, &bytes), place(b, &bytes));
                    let part = bytes[a.min(b)..a.max(b)].to_vec();
                    bytes.splice(b..b, part);
                }
                Change::Token(at, token) => {
                    let at = place(at, &bytes);
                    bytes.splice(at..at, token.bytes());
                }
            }
            bytes.truncate(16 << 10);
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_journal_with_bytes_changed_keeps_every_promise(
            which in any::<prop::sample::Index>(),
            changes in prop::collection::vec(change(), 1..6),
        ) {
            let small: Vec<_> = corpus().into_iter().filter(|bytes| bytes.len() < 8 << 10).collect();
            let bytes = small[which.index(small.len())].clone();
            journal(&changed(bytes, changes));
        }
    }
}
