//! `search_files`.

use everturn_agent::tool::{RESULT_BYTES_MAX, SEARCH_LINE_BYTES_MAX, SEARCH_MATCHES_MAX};
use serde_json::json;

use crate::bench::Bench;

pub async fn finds_lines() {
    let bench = Bench::new();
    bench.put("a.rs", "fn main() {}\nfn other() {}\n");
    bench.put("sub/b.rs", "// fn nothing\r\nlet fnord;\n");
    bench.put("c.txt", "fn in text\n");
    for (arguments, want) in [
        (
            json!({"regex": r"\bfn\b"}),
            "a.rs:1:fn main() {}\na.rs:2:fn other() {}\nc.txt:1:fn in text\nsub/b.rs:1:// fn nothing\n",
        ),
        (json!({"regex": "^FN", "glob": "*.rs"}), "[no line matches]"),
        (json!({"regex": "(?i)^FN m", "glob": "*.rs"}), "a.rs:1:fn main() {}\n"),
        (
            json!({"regex": "fn", "path": "sub"}),
            "sub/b.rs:1:// fn nothing\nsub/b.rs:2:let fnord;\n",
        ),
        (json!({"regex": "fn", "path": "c.txt"}), "c.txt:1:fn in text\n"),
        (json!({"regex": "text$"}), "c.txt:1:fn in text\n"),
    ] {
        assert_eq!(bench.succeed("search_files", arguments.clone()).await, want, "{arguments}");
    }
    let text = bench.fail("search_files", json!({"regex": "x", "path": "none"})).await;
    assert!(text.contains("(path_not_found)"), "{text}");
}

pub async fn leaves_out_what_it_should() {
    let bench = Bench::new();
    bench.put(".gitignore", "ignored\n");
    bench.put("ignored", "needle\n");
    bench.put(".git/needle", "needle\n");
    bench.put("binary", b"\0\0needle\n");
    bench.put("latin", b"caf\xe9 needle\n");
    bench.put("large", "needle\n".repeat(5_000_000));
    bench.put("long", format!("{}needle", "x".repeat(9 << 20)));
    let text = bench.succeed("search_files", json!({"regex": "needle"})).await;
    let want = "latin:1:caf\u{fffd} needle\n\n[2 left out by .gitignore]\n\
                [2 files were not searched because of their size or of a line in them, such as large]";
    assert_eq!(text, want);
}

pub async fn limits_are_said() {
    let bench = Bench::new();
    bench.put("many", "needle\n".repeat(SEARCH_MATCHES_MAX + 1));
    let text = bench.succeed("search_files", json!({"regex": "needle"})).await;
    assert_eq!(text.lines().filter(|line| line.starts_with("many:")).count(), SEARCH_MATCHES_MAX);
    assert!(text.contains(&format!("only the first {SEARCH_MATCHES_MAX} are returned")), "{text}");

    bench.put("many", format!("{}\n", "é".repeat(1_000)).repeat(200));
    let text = bench.succeed("search_files", json!({"regex": "é"})).await;
    assert!(text.len() <= RESULT_BYTES_MAX);
    let line = text.lines().next().unwrap();
    assert_eq!(line, format!("many:1:{}…", "é".repeat(SEARCH_LINE_BYTES_MAX / 2)));
    let lines = text.lines().filter(|line| line.starts_with("many:")).count();
    assert!(lines > 100 && text.contains(&format!("only the first {lines} are returned")));
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "search_files",
            &[
                (json!({}), "missing field `regex`"),
                (json!({"regex": ""}), "`regex` must have from 1"),
                (json!({"regex": "("}), "`regex`: "),
                (json!({"regex": r"a\nb"}), "`regex`: "),
                (json!({"regex": r"(\w{1000}){1000}"}), "`regex`: "),
                (json!({"regex": "a", "glob": "{"}), "`glob`: "),
                (json!({"regex": "a", "pattern": "b"}), "unknown field `pattern`"),
            ],
        )
        .await;
}
