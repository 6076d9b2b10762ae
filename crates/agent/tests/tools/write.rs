//! `write_file`, and the atomic write under it.

use std::os::unix::fs::{PermissionsExt, symlink};

use everturn_agent::supervisor::boot_ms;
use everturn_agent::tool::ToolOutcome;
use everturn_agent::workspace::WorkspaceError;
use serde_json::json;

use crate::bench::Bench;
use crate::server::{Server, write_with_little_space};

pub async fn makes_folders_and_replaces() {
    let bench = Bench::new();
    let arguments = json!({"path": "a/b/file", "content": "first"});
    let text = bench.succeed("write_file", arguments.clone()).await;
    assert_eq!(text, "created `a/b/file`: 5 bytes");
    // It is declared idempotent: twice is the same as once.
    let text = bench.succeed("write_file", arguments).await;
    assert_eq!(text, "replaced `a/b/file`: 5 bytes");
    assert_eq!(bench.text("a/b/file"), "first");
    bench.succeed("write_file", json!({"path": "a/b/file", "content": ""})).await;
    assert_eq!(bench.text("a/b/file"), "");
    assert_eq!(bench.names("a/b"), ["file"]);
}

pub async fn keeps_the_mode_and_the_link() {
    let bench = Bench::new();
    bench.put("bin/tool", "old");
    let path = bench.root.join("bin/tool");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o751)).unwrap();
    symlink("bin/tool", bench.root.join("link")).unwrap();
    symlink("../link", bench.root.join("bin/link")).unwrap();
    symlink("new", bench.root.join("bin/dangling")).unwrap();
    bench.succeed("write_file", json!({"path": "bin/link", "content": "new"})).await;
    assert_eq!(bench.text("bin/tool"), "new");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o751);
    assert!(bench.root.join("link").is_symlink() && bench.root.join("bin/link").is_symlink());
    // A link to nothing is written through as well.
    bench.succeed("write_file", json!({"path": "bin/dangling", "content": "made"})).await;
    assert_eq!(bench.text("bin/new"), "made");
    assert!(bench.root.join("bin/dangling").is_symlink());
}

pub async fn what_is_no_file_is_refused() {
    let bench = Bench::new();
    bench.put("folder/file", "x");
    symlink("folder", bench.root.join("link")).unwrap();
    for path in ["folder", "folder/", ".", "folder/..", "folder/.", "link", "new/"] {
        let text = bench.fail("write_file", json!({"path": path, "content": "x"})).await;
        assert!(text.contains("(path_not_a_file)"), "{path}: {text}");
    }
    let text = bench.fail("write_file", json!({"path": "folder/file/x", "content": "x"})).await;
    assert!(text.contains("(path_not_a_folder)"), "{text}");
    assert_eq!(bench.names("."), ["folder", "link"]);
}

fn assert_whole(content: &[u8]) {
    assert_eq!(content.len(), 300_000);
    assert!(content.iter().all(|byte| *byte == content[0]));
}

/// Reads a file all the time while another process writes it.
pub async fn a_reader_sees_old_or_new_content() {
    let bench = Bench::new();
    let mut server = Server::start_writing(&bench.root);
    server.line("a");
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 26 {
        for _ in 0..50 {
            let content = std::fs::read(bench.root.join("file")).unwrap();
            assert_whole(&content);
            seen.insert(content[0]);
        }
        // It writes on only as long as somebody reads what it says.
        server.line_after();
    }
    server.kill();
}

/// A process that writes one whole file after the other is killed at any point.
pub async fn a_kill_leaves_old_or_new_content() {
    let bench = Bench::new();
    for round in 0..20 {
        let mut server = Server::start_writing(&bench.root);
        for letter in ["a", "b", "c", "d"].iter().take(1 + round % 4) {
            server.line(letter);
        }
        server.kill();
        let content = std::fs::read(bench.root.join("file")).unwrap();
        assert_whole(&content);
        // The content is written to a file without a name, so at most the last step of a write
        // that was just being finished can leave one.
        assert!(bench.names(".").len() <= 2 + round, "{:?}", bench.names("."));
    }
}

/// Promise P13.
pub async fn a_full_disk_is_typed_and_changes_nothing() {
    let bench = Bench::new();
    assert_eq!(write_with_little_space(&bench.root), "workspace_full\n");
    assert_eq!(bench.names("."), [""; 0]);
    bench.put("file", "old");
    assert_eq!(write_with_little_space(&bench.root), "workspace_full\n");
    assert_eq!(bench.text("file"), "old");
    assert_eq!(bench.names("."), ["file"]);
}

/// Promise P11.
pub async fn a_stopped_turn_writes_nothing() {
    let bench = Bench::new();
    bench.put("file", "old");
    for (tool, arguments) in [
        ("write_file", json!({"path": "file", "content": "new"})),
        ("edit_file", json!({"path": "file", "old": "old", "new": "new"})),
        ("read_file", json!({"path": "file"})),
        ("list_files", json!({})),
        ("search_files", json!({"regex": "x"})),
    ] {
        let mut call = bench.start_with(tool, arguments.clone(), boot_ms(), 1);
        call.shown.close();
        assert!(matches!(call.task.await.unwrap(), ToolOutcome::NotRun(_)), "{tool}");
    }
    assert_eq!(bench.text("file"), "old");
}

pub async fn withheld_at_the_last_moment_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.put("file", "old");
    for path in ["file", "other"] {
        let error = bench.workspace.write(path, b"new", None, &|| Err("not now")).unwrap_err();
        assert!(matches!(error, WorkspaceError::Withheld { why: "not now", .. }), "{error}");
    }
    assert_eq!(bench.text("file"), "old");
    assert_eq!(bench.names("."), ["file"]);
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "write_file",
            &[
                (json!({"path": "a"}), "missing field `content`"),
                (json!({"content": "a"}), "missing field `path`"),
                (json!({"path": "a", "content": {}}), "`content`: invalid type"),
                (json!({"path": "a", "content": "", "mode": 1}), "unknown field `mode`"),
                (json!({"path": "a", "content": "x".repeat((8 << 20) + 1)}), "may have 8388608"),
            ],
        )
        .await;
    assert_eq!(bench.names("."), [""; 0]);
}
