//! Journals as they were found or might be, each with what is read from it. A new one is a file in
//! `corpus` and a `.txt` of the same name beside it, which says what this test must find.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use everturn_core::Principal;
use everturn_hermes::journal::{Item, Reader, Window, read, stale_report};
use everturn_hermes::{Exporter, Importer, RunItem};

fn inputs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut inputs: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|e| e == "jsonl")).collect();
    inputs.sort();
    assert!(inputs.len() >= 20, "the corpus is gone");
    inputs
}

/// What is in a journal, as text.
fn told(bytes: &[u8]) -> String {
    let mut told = String::new();
    for item in Reader::of_first(bytes) {
        match item.unwrap() {
            Item::Record { line, record } => {
                let state = record.terminal_state.map_or("-", |state| state.as_str());
                writeln!(told, "{line}: {} {} {state}", record.event_id(), record.event).unwrap();
            }
            Item::Malformed(found) => {
                writeln!(told, "{}: {}, {} bytes", found.line, found.reason, found.bytes).unwrap();
            }
        }
    }
    let journal = read(bytes, Window::default()).unwrap();
    let summary = &journal.summary;
    let seqs: Vec<_> = journal.events.iter().map(|record| record.seq).collect();
    writeln!(told, "seqs {seqs:?}, {} malformed", journal.malformed_count).unwrap();
    writeln!(told, "{}, last {}", summary.state(), summary.last_event.as_deref().unwrap_or("-"))
        .unwrap();
    if stale_report(summary).is_some() {
        told.push_str("would be reported as interrupted\n");
    }
    for item in import(bytes) {
        match item {
            RunItem::Event(event) => writeln!(told, "= {} {}", event.seq, event.name).unwrap(),
            RunItem::Malformed { seq, .. } => writeln!(told, "= {seq} unreadable").unwrap(),
        }
    }
    told
}

fn import(bytes: &[u8]) -> Vec<RunItem> {
    let journal = read(bytes, Window::default()).unwrap();
    let mut importer = Importer::new(&journal.summary, Principal::local());
    journal.events.iter().filter_map(|record| importer.record(record)).collect()
}

#[test]
fn every_journal_of_the_corpus_reads_as_is_written_beside_it() {
    let mut wrong = Vec::new();
    for input in inputs() {
        let told = told(&fs::read(&input).unwrap());
        let beside = input.with_extension("txt");
        if fs::read_to_string(&beside).unwrap_or_default() != told {
            wrong.push(format!("{} should be\n{told}", beside.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every journal of a few kilobytes, cut off at every byte: it is read, and nothing is found that is
/// not in the whole.
#[test]
fn every_beginning_of_the_corpus_is_read() {
    for input in inputs() {
        let bytes = fs::read(&input).unwrap();
        // Every cut reads everything before it.
        if bytes.len() > 4 << 10 {
            continue;
        }
        let records = |bytes: &[u8]| {
            let items = Reader::new(bytes).map(|item| item.unwrap());
            items.filter(|item| matches!(item, Item::Record { .. })).count()
        };
        let whole = records(&bytes);
        for cut in 0..bytes.len() {
            assert!(records(&bytes[..cut]) <= whole, "{} at {cut}", input.display());
        }
    }
}

#[test]
fn every_journal_of_the_corpus_is_imported_and_exported_without_a_change_from_then_on() {
    for input in inputs() {
        let journal = read(&fs::read(&input).unwrap()[..], Window::default()).unwrap();
        let Some(identity) = journal.summary.identity.clone() else { continue };
        let export = |items: &[RunItem]| {
            let mut exporter = Exporter::new(Vec::new(), identity.clone());
            items.iter().for_each(|item| exporter.item(item).unwrap());
            exporter.into_inner()
        };
        let items = import(&fs::read(&input).unwrap());
        let once = export(&items);
        assert_eq!(import(&once), items, "{}", input.display());
        assert_eq!(export(&import(&once)), once, "{}", input.display());
    }
}
