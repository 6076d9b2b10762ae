//! `list_files`.

use everturn_agent::tool::{LIST_ENTRIES_MAX, RESULT_BYTES_MAX};
use serde_json::json;

use crate::bench::Bench;

fn tree() -> Bench {
    let bench = Bench::new();
    bench.put(".gitignore", "/target/\n*.log\n!keep.log\n[broken\n");
    bench.put(".git/config", "");
    bench.put(".git/info/exclude", "excluded\n");
    bench.put(".github/work.yml", "");
    bench.put("excluded", "");
    bench.put("target/out", "x");
    bench.put("a.log", "");
    bench.put("keep.log", "");
    bench.put("src/main.rs", "");
    bench.put("src/deep/er/still/more/file.rs", "");
    bench.put("src/target/kept", "");
    bench.put("src/.gitignore", "*.tmp\n!a.log\n");
    bench.put("src/x.tmp", "");
    bench.put("src/a.log", "");
    bench
}

pub async fn in_order_without_what_is_ignored() {
    let bench = tree();
    let text = bench.succeed("list_files", json!({})).await;
    let want = ".github/\n.github/work.yml\n.gitignore\nkeep.log\nsrc/\nsrc/.gitignore\nsrc/a.log\n\
                src/deep/\nsrc/deep/er/\nsrc/main.rs\nsrc/target/\nsrc/target/kept\n\
                \n[1 folder go deeper than was looked]\n[5 left out by .gitignore]";
    assert_eq!(text, want);
    // The rules above a folder hold in it, and what is asked for by name is shown.
    let text = bench.succeed("list_files", json!({"path": "src", "depth": 1})).await;
    assert!(text.starts_with("src/.gitignore\nsrc/a.log\nsrc/deep/\nsrc/main.rs\nsrc/target/\n"));
    let text = bench.succeed("list_files", json!({"path": "target"})).await;
    assert_eq!(text, "target/out\n");
    assert_eq!(
        bench.succeed("list_files", json!({"path": "./src/target/"})).await,
        "src/target/kept\n"
    );
}

pub async fn depth_and_glob() {
    let bench = tree();
    let text = bench.succeed("list_files", json!({"depth": 1})).await;
    assert!(text.starts_with(".github/\n.gitignore\nkeep.log\nsrc/\n\n["), "{text}");
    for (glob, want) in [
        ("*.rs", "src/deep/er/still/more/file.rs\nsrc/main.rs\n"),
        ("src/*.rs", "src/main.rs\n"),
        ("**/er/**", "src/deep/er/still/more/file.rs\n"),
        ("{main,none}.rs", "src/main.rs\n"),
        ("*.py", "[nothing there that matches]"),
    ] {
        let text = bench.succeed("list_files", json!({"glob": glob})).await;
        let text = text.split("\n[").next().unwrap();
        assert_eq!(text, want, "{glob}");
    }
    let empty = Bench::new();
    assert_eq!(empty.succeed("list_files", json!({})).await, "[nothing there]");
}

pub async fn limits_are_said() {
    let bench = Bench::new();
    for n in 0..LIST_ENTRIES_MAX + 5 {
        bench.put(&format!("f{n:05}"), "");
    }
    let text = bench.succeed("list_files", json!({})).await;
    assert!(text.contains(&format!("only the first {LIST_ENTRIES_MAX} are listed")), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with('f')).count(), LIST_ENTRIES_MAX);

    let bench = Bench::new();
    for n in 0..500 {
        bench.put(&format!("{n:0200}"), "");
    }
    bench.put("two\nlines", "");
    let text = bench.succeed("list_files", json!({})).await;
    assert!(text.len() <= RESULT_BYTES_MAX && text.contains("only the first "), "{}", text.len());
    let text = bench.succeed("list_files", json!({"glob": "two*"})).await;
    assert_eq!(text, "two\u{fffd}lines\n");
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "list_files",
            &[
                (json!({"depth": 0}), "`depth` must be from 1 to 20"),
                (json!({"depth": 21}), "`depth` must be from 1 to 20"),
                (json!({"glob": ""}), "`glob` must have from 1"),
                (json!({"glob": "["}), "`glob`: "),
                (json!({"path": 1}), "`path`: invalid type"),
                (json!({"dir": "."}), "unknown field `dir`"),
                (json!([]), "must be a JSON object"),
            ],
        )
        .await;
    bench.put("file", "");
    let text = bench.fail("list_files", json!({"path": "file"})).await;
    assert!(text.contains("(path_not_a_folder)"), "{text}");
}
