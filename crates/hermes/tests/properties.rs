//! What holds for every journal and every damage.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::BufReader;

use everturn_core::{Principal, RunId, SessionId, Timestamp};
use everturn_hermes::journal::{
    Identity, Item, Journal, Reader, Record, Window, Writer, read, stale_report,
};
use everturn_hermes::{Exporter, Importer, RunEvent, RunItem};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

fn identity() -> Identity {
    Identity { session_id: SessionId::new("s").unwrap(), run_id: RunId::new("r").unwrap() }
}

/// Any JSON, with the characters that have made trouble.
fn any_json() -> impl Strategy<Value = Value> {
    let text = "([a-z{}\\[\\]\",:\\\\ \n\r]|\u{2028}|\u{2029}|\u{85}|é|\u{1f9ff}|\0){0,12}";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
        Just(Value::from("{\"version\":1,\"seq\":1}")),
    ];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            object(inner),
        ]
    })
}

fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let name =
        prop_oneof!["[a-z]{0,3}", "version", "seq", "event", "type", "payload", "text", "everturn"];
    prop::collection::vec((name, inner), 0..4)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn any_event() -> impl Strategy<Value = String> {
    prop_oneof!["token", "done", "cancel", "apperror", "stream_end", "tool", "[a-zA-Z.é_-]{1,8}"]
}

/// A written journal and its records.
fn journal() -> impl Strategy<Value = (Vec<Record>, Vec<u8>)> {
    prop::collection::vec((any_event(), object(any_json()), 0..4_000_000_000_000_i64), 0..8)
        .prop_map(|events| {
            let mut writer = Writer::new(Vec::new(), identity());
            let records = events
                .into_iter()
                .map(|(event, payload, at)| {
                    let payload = RawValue::from_string(payload.to_string()).unwrap();
                    writer.append(&event, &payload, Timestamp(at)).unwrap()
                })
                .collect();
            (records, writer.into_inner())
        })
}

fn all(bytes: &[u8]) -> Journal {
    read(bytes, Window::default()).unwrap()
}

/// The lines of a journal, each with its line feed.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_arrives((records, bytes) in journal(), buffer in 1_usize..64) {
        let input = BufReader::with_capacity(buffer, &bytes[..]);
        let read = read(input, Window::default()).unwrap();
        prop_assert_eq!(&read.events, &records);
        prop_assert!(read.malformed.is_empty());
        prop_assert_eq!(read.summary.event_count, records.len() as u64);
        let ended = read.summary.terminal();
        prop_assert_eq!(stale_report(&read.summary).is_some(), !ended && !records.is_empty());
    }

    #[test]
    fn a_journal_that_is_cut_off_reads_to_a_prefix((records, bytes) in journal(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(bytes.len() + 1);
        let read = all(&bytes[..cut]);
        let mut whole = lines(&bytes[..cut]).iter().filter(|line| line.ends_with(b"\n")).count();
        let tail = lines(&bytes[..cut]).last().map_or(0, |line| line.len());
        // A record that lacks its line feed is all there.
        let lacks = cut < bytes.len() && bytes[cut] == b'\n';
        whole += usize::from(lacks);
        prop_assert_eq!(&read.events[..], &records[..whole]);
        let torn = tail > 0 && !lacks && !bytes[..cut].ends_with(b"\n");
        prop_assert_eq!(read.malformed.len(), usize::from(torn));
    }

    #[test]
    fn garbage_between_lines_hides_no_record(
        (records, bytes) in journal(),
        garbage in prop::collection::vec(prop_oneof![any::<Vec<u8>>(), "[{}\\[\\]\",:a-z0-9 ]{0,20}".prop_map(String::into_bytes)], 8),
    ) {
        let mut input = Vec::new();
        for (line, garbage) in lines(&bytes).into_iter().zip(&garbage) {
            input.extend_from_slice(garbage);
            input.push(b'\n');
            input.extend_from_slice(line);
        }
        let read = all(&input);
        prop_assert_eq!(&read.events, &records);
    }

    #[test]
    fn a_torn_record_hides_none_behind_it(
        (records, bytes) in journal(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 8),
        torn in prop::collection::vec(any::<bool>(), 8),
    ) {
        // Torn records lose their end and their line feed: the next one is glued to them.
        let mut input = Vec::new();
        let mut kept = Vec::new();
        for (at, line) in lines(&bytes).into_iter().enumerate() {
            if torn[at] {
                input.extend_from_slice(&line[..cuts[at].index(line.len() - 1)]);
            } else {
                input.extend_from_slice(line);
                kept.push(records[at].clone());
            }
        }
        let read = all(&input);
        prop_assert_eq!(&read.events, &kept);
    }

    #[test]
    fn a_changed_byte_costs_two_records_at_most((records, bytes) in journal(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        let mut input = bytes.clone();
        input[at] = to;
        let items: Vec<Item> = Reader::new(&input[..]).map(|item| item.unwrap()).collect();
        let found: Vec<&Record> = items
            .iter()
            .filter_map(|item| match item {
                Item::Record { record, .. } => Some(record),
                Item::Malformed(_) => None,
            })
            .collect();
        let hit = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        for (place, record) in records.iter().enumerate() {
            let near = place == hit || (bytes[at] == b'\n' && place == hit + 1);
            prop_assert!(near || found.contains(&record), "record {} is gone", place + 1);
        }
    }

    #[test]
    fn any_order_and_any_repetition_reads_the_same((records, bytes) in journal(), order in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        prop_assume!(!records.is_empty());
        let all_lines = lines(&bytes);
        let mut input: Vec<u8> = Vec::new();
        for place in order.iter().map(|index| index.index(all_lines.len())).chain(0..all_lines.len()) {
            input.extend_from_slice(all_lines[place]);
        }
        let (read, plain) = (all(&input), all(&bytes));
        prop_assert_eq!(&read.events, &records);
        prop_assert_eq!(read.summary, plain.summary);
        prop_assert_eq!(read.malformed_count, order.len() as u64);
    }

    #[test]
    fn pages_of_any_size_are_the_whole((records, bytes) in journal(), limit in 1_usize..5, max in 0_u64..10) {
        let mut got = Vec::new();
        loop {
            let after = got.last().map_or(0, |record: &Record| record.seq);
            let page = read(&bytes[..], Window { after, max: Some(max), limit }).unwrap();
            prop_assert!(page.events.len() <= limit);
            got.extend(page.events);
            if !page.more {
                break;
            }
        }
        let wanted: Vec<_> = records.into_iter().filter(|record| record.seq <= max).collect();
        prop_assert_eq!(got, wanted);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in any::<Vec<u8>>(), buffer in 1_usize..16) {
        anything(&bytes, buffer);
    }

    #[test]
    fn anything_like_a_journal_is_read_without_panic(
        pieces in prop::collection::vec(prop_oneof![
            Just("{\"version\":1,\"event_id\":\"r:1\",\"seq\":1,\"run_id\":\"r\",\"session_id\":\"s\",\"event\":\"done\"}"),
            Just("{\"version\":1,"), Just("{\"seq\":"), Just("\"payload\":{"), Just("\"text\":\""), Just("1"),
            Just("}"), Just("]"), Just("["), Just("\""), Just("\\"), Just("\\u"), Just("\\ud800"), Just(","), Just(":"),
            Just("NaN"), Just("-Infinity"), Just("\n"), Just("\r\n"), Just("\0"), Just("é"), Just("\u{feff}"),
            Just("\"event\":\"token\""), Just("\"run_id\":\"r\""), Just("\"session_id\":\"../s\""),
        ], 0..40),
        buffer in 1_usize..16,
    ) {
        anything(pieces.concat().as_bytes(), buffer);
    }
}

/// Reads, and holds what is found to what every reading promises.
fn anything(bytes: &[u8], buffer: usize) {
    let whole = all(bytes);
    let chunked = read(BufReader::with_capacity(buffer, bytes), Window::default()).unwrap();
    assert_eq!(whole, chunked);
    assert!(whole.events.is_sorted_by(|a, b| a.seq < b.seq));
    assert_eq!(whole.events.len() as u64, whole.summary.event_count);
    // What was found can be written and read again.
    let lines: Vec<_> =
        whole.events.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    assert_eq!(all(lines.join("\n").as_bytes()).events, whole.events);
    // And whatever it is, it can be imported, and exported from then on without a change.
    let items = import(&whole);
    let once = export(&items);
    assert_eq!(export(&import(&all(&once))), once);
}

/// One of our events: name and body.
fn our_event() -> impl Strategy<Value = (String, Value)> {
    let call = (any::<bool>(), any_json(), "[a-z0-9]{1,4}", "\\PC{0,20}").prop_map(
        |(good, arguments, id, result)| {
            json!({ "call": {
            "id": id, "name": "shell", "arguments": arguments, "effect": "write",
            "state": if good { "succeeded" } else { "unknown" }, "result": result,
            "started_at": "2026-11-30T05:58:44.123Z", "ended_at": "2026-11-30T05:58:45.000Z",
        } })
        },
    );
    prop_oneof![
        ".{0,8}".prop_map(|text| ("text.delta".to_owned(), json!({ "text": text }))),
        ".{0,8}".prop_map(|text| ("reasoning.delta".to_owned(), json!({ "text": text }))),
        (call, any::<bool>()).prop_map(|(body, ended)| {
            (if ended { "tool.finished" } else { "tool.intended" }.to_owned(), body)
        }),
        Just(("run.handed_over".to_owned(), json!({}))),
        (1_u64..9).prop_map(|tokens| (
            "usage".to_owned(),
            json!({ "input_tokens": tokens, "output_tokens": 2 })
        )),
        ("[a-z._ A-Z]{1,9}", object(any_json())),
        (
            prop_oneof![
                "run.started",
                "tool.output",
                "prompt.opened",
                "prompt.settled",
                "steer.taken",
                "text.snapshot",
                "hermes.title",
                "hermes.done",
                "hermes.tool",
                "hermes.other",
                "hermes.",
                "done",
                "token",
                "everturn.missing"
            ],
            object(any_json())
        ),
    ]
}

fn ending() -> impl Strategy<Value = (String, Value)> {
    let failure = "[a-z_]{0,12}"
        .prop_map(|code| json!({ "error": { "code": code, "message": "m", "permanent": true } }));
    let cause = prop_oneof![
        "process_restart",
        "split_brain",
        "lost_worker",
        "lease_lost",
        "unknown",
        "new"
    ];
    prop_oneof![
        Just(("run.completed".to_owned(), json!({ "message_id": 4 }))),
        failure.prop_map(|body| ("run.failed".to_owned(), body)),
        Just(("run.cancelled".to_owned(), json!({ "by": "local" }))),
        cause.prop_map(|cause| (
            "run.interrupted".to_owned(),
            json!({ "cause": cause, "evidence": { "text": "t" } })
        )),
    ]
}

/// A run as a store may have it: with holes, with records that cannot be read, ended or not.
fn our_run() -> impl Strategy<Value = Vec<RunItem>> {
    let event = (our_event(), 1_u64..4, any::<bool>(), 0..4_000_000_000_000_i64);
    let events = prop::collection::vec(event, 0..8);
    (events, prop::option::of(ending())).prop_map(|(events, ending)| {
        let mut seq = 0;
        let mut items = Vec::new();
        let mut push = |(name, body): (String, Value), step: u64, bad: bool, at: i64| {
            seq += step;
            items.push(if bad {
                RunItem::Malformed { seq, error: name }
            } else {
                RunItem::Event(RunEvent::new(seq, name, Timestamp(at), &body.to_string()).unwrap())
            });
        };
        for (event, step, bad, at) in events {
            push(event, step, bad && step == 3, at);
        }
        if let Some(ending) = ending {
            push(ending, 1, false, 5);
        }
        items
    })
}

fn export(items: &[RunItem]) -> Vec<u8> {
    let mut exporter = Exporter::new(Vec::new(), identity());
    for item in items {
        exporter.item(item).unwrap();
    }
    exporter.into_inner()
}

fn import(journal: &Journal) -> Vec<RunItem> {
    let mut importer = Importer::new(&journal.summary, Principal::local());
    journal.events.iter().filter_map(|record| importer.record(record)).collect()
}

proptest! {
    #[test]
    fn an_export_comes_back_and_goes_out_the_same(items in our_run()) {
        let once = export(&items);
        let journal = all(&once);
        prop_assert!(journal.malformed.is_empty());
        // Every number up to the last has its record, for readers that demand that.
        let seqs: Vec<u64> = journal.events.iter().map(|record| record.seq).collect();
        prop_assert_eq!(seqs, (1..=items.last().map_or(0, RunItem::seq)).collect::<Vec<_>>());
        let back = import(&journal);
        prop_assert_eq!(&back, &items);
        prop_assert_eq!(String::from_utf8(export(&back)).unwrap(), String::from_utf8(once).unwrap());
    }

    #[test]
    fn what_others_wrote_is_exported_the_same_from_the_first_time_on((records, bytes) in journal()) {
        let journal = all(&bytes);
        let items = import(&journal);
        prop_assert!(items.len() <= records.len());
        let ends = items.iter().filter(|item| matches!(item, RunItem::Event(event) if everturn_core::event::is_terminal(&event.name))).count();
        prop_assert_eq!(ends, usize::from(journal.summary.terminal()), "a run ends once");
        let once = export(&items);
        let again = all(&once);
        prop_assert_eq!(again.summary.terminal(), journal.summary.terminal());
        prop_assert_eq!(&import(&again), &items);
        prop_assert_eq!(export(&import(&again)), once);
    }
}
