//! `read_file`.

use everturn_agent::tool::{READ_LINE_BYTES_MAX, RESULT_BYTES_MAX};
use serde_json::json;

use crate::bench::Bench;

pub async fn lines_and_pages() {
    let bench = Bench::new();
    bench.put("file", "one\ntwo\nthree\nfour");
    bench.put("empty", "");
    for (offset, limit, want) in [
        (None, None, "one\ntwo\nthree\nfour\n"),
        (Some(2), Some(2), "two\nthree\n[lines 2 to 3 of a file of 18 bytes; go on with offset 4]"),
        (Some(4), Some(2), "four\n[lines 4 to 4, the last one]"),
        (Some(5), None, "[the file has only 4 lines]"),
        (Some(1), Some(4), "one\ntwo\nthree\nfour\n"),
    ] {
        let arguments = json!({"path": "file", "offset": offset, "limit": limit});
        assert_eq!(bench.succeed("read_file", arguments).await, want);
    }
    assert_eq!(bench.succeed("read_file", json!({"path": "empty"})).await, "[the file is empty]");
}

/// Following the offsets through a large file gives every line once.
pub async fn a_long_line_is_cut_and_pages_lose_nothing_else() {
    let bench = Bench::new();
    let lines: Vec<String> = (0..30_000)
        .map(|n| format!("{n} {}", "é".repeat(if n == 777 { 3_000_000 } else { n % 50 })))
        .collect();
    bench.put("file", lines.join("\n"));
    let (mut offset, mut number) = (1, 0);
    loop {
        let text = bench.succeed("read_file", json!({"path": "file", "offset": offset})).await;
        assert!(text.len() <= RESULT_BYTES_MAX);
        let (page, note) = match text.rsplit_once("\n[lines ") {
            Some((page, note)) => (page, note),
            None => (text.as_str(), ""),
        };
        for line in page.lines() {
            let want = &lines[number];
            if want.len() > READ_LINE_BYTES_MAX {
                let (kept, rest) = line.split_once("[… ").unwrap();
                assert!(want.starts_with(kept) && kept.len() > READ_LINE_BYTES_MAX - 4);
                assert!(rest.ends_with(" bytes more …]") && !line.contains('\u{fffd}'));
            } else {
                assert_eq!(line, want);
            }
            number += 1;
        }
        match note.split_once("go on with offset ") {
            Some((_, next)) => offset = next.trim_end_matches(']').parse().unwrap(),
            None => break,
        }
        assert_eq!(offset, number + 1);
    }
    assert_eq!(number, lines.len());
}

pub async fn binary_files_are_refused() {
    let bench = Bench::new();
    bench.put("file", b"ELF\0\x01\x02");
    let text = bench.fail("read_file", json!({"path": "file"})).await;
    assert!(text.contains("binary file of 6 bytes"), "{text}");
}

pub async fn strange_bytes_are_shown_as_such() {
    let bench = Bench::new();
    bench.put("file", b"caf\xe9\r\nnext");
    let text = bench.succeed("read_file", json!({"path": "file"})).await;
    assert_eq!(text, "caf\u{fffd}\r\nnext\n\n[some bytes are not UTF-8 and are shown as \u{fffd}]");
}

pub async fn what_is_no_file_is_refused_without_waiting() {
    let bench = Bench::new();
    bench.put("folder/file", "x");
    bench.pipe("folder/pipe");
    let _socket = std::os::unix::net::UnixListener::bind(bench.root.join("socket")).unwrap();
    for path in ["folder", "folder/pipe", "socket"] {
        let text = bench.fail("read_file", json!({"path": path})).await;
        assert!(text.contains("(path_not_a_file)"), "{path}: {text}");
    }
    // Nor do the tools that walk wait for it.
    let text = bench.succeed("search_files", json!({"regex": "x"})).await;
    assert_eq!(text, "folder/file:1:x\n");
    let text = bench.succeed("list_files", json!({})).await;
    assert_eq!(text, "folder/\nfolder/file\nfolder/pipe\nsocket\n");
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "read_file",
            &[
                (json!({}), "missing field `path`"),
                (json!({"path": 1}), "`path`: invalid type"),
                (json!({"path": "a", "offset": 0}), "`offset` counts from 1"),
                (json!({"path": "a", "limit": 0}), "`limit` must be from 1 to 20000"),
                (json!({"path": "a", "limit": 20_001}), "`limit` must be from 1 to 20000"),
                (json!({"path": "a", "offset": 1.5}), "`offset`: invalid type"),
                (json!({"path": "a", "lines": 1}), "unknown field `lines`"),
            ],
        )
        .await;
}
