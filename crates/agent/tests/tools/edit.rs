//! `edit_file`.

use std::os::unix::fs::PermissionsExt;

use everturn_agent::workspace::WorkspaceError;
use serde_json::json;

use crate::bench::Bench;

pub async fn exactly_once() {
    let bench = Bench::new();
    bench.put("file", "one\ntwo\none more\n");
    std::fs::set_permissions(bench.root.join("file"), PermissionsExt::from_mode(0o640)).unwrap();
    let edit = |old: &str, new: &str| json!({"path": "file", "old": old, "new": new});

    let text = bench.fail("edit_file", edit("one", "1")).await;
    assert!(
        text.contains("2 times (lines 1, 3)") && text.contains("Nothing was changed"),
        "{text}"
    );
    let text = bench.fail("edit_file", edit("three", "3")).await;
    assert!(text.contains("does not stand in `file`"), "{text}");
    assert_eq!(bench.text("file"), "one\ntwo\none more\n");

    let text = bench.succeed("edit_file", edit("one\ntwo", "1\n2")).await;
    assert_eq!(text, "`file`: replaced 1 place");
    assert_eq!(bench.text("file"), "1\n2\none more\n");
    bench.succeed("edit_file", edit(" more", "")).await;
    assert_eq!(bench.text("file"), "1\n2\none\n");
    let mode = std::fs::metadata(bench.root.join("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);

    // Two places that overlap are two places.
    bench.put("file", "aaa");
    let text = bench.fail("edit_file", edit("aa", "b")).await;
    assert!(text.contains("2 times"), "{text}");
}

pub async fn everywhere_if_asked() {
    let bench = Bench::new();
    bench.put("file", "a b a b a");
    let arguments = json!({"path": "file", "old": "a", "new": "aa", "all": true});
    assert_eq!(bench.succeed("edit_file", arguments).await, "`file`: replaced 3 places");
    assert_eq!(bench.text("file"), "aa b aa b aa");
    let arguments = json!({"path": "file", "old": "b", "new": "c", "all": false});
    bench.fail("edit_file", arguments).await;
}

pub async fn a_file_that_changed_meanwhile_is_left_alone() {
    let bench = Bench::new();
    bench.put("file", "old");
    let version = bench.workspace.open_file("file").unwrap().version;
    bench.put("file", "theirs");
    let error = bench.workspace.write("file", b"mine", Some(version), &|| Ok(())).unwrap_err();
    assert!(matches!(error, WorkspaceError::Changed { .. }), "{error}");
    assert_eq!(error.code(), "file_changed");
    assert!(error.hint().contains("read the file again"));

    // Changed between the first look and the last: the second look is after the content was
    // written, directly before it is put in place.
    let version = bench.workspace.open_file("file").unwrap().version;
    std::fs::remove_file(bench.root.join("file")).unwrap();
    let error = bench.workspace.write("file", b"mine", Some(version), &|| Ok(())).unwrap_err();
    assert!(matches!(error, WorkspaceError::Changed { .. }), "{error}");
    assert_eq!(bench.names("."), [""; 0]);
}

pub async fn what_cannot_be_edited_is_refused() {
    let bench = Bench::new();
    bench.put("latin", b"caf\xe9");
    bench.put("large", vec![b'x'; (8 << 20) + 1]);
    bench.put("lines", "a\r\nb\r\n");
    for (path, old, part) in [
        ("latin", "caf", "is not UTF-8 text"),
        ("large", "x", "files up to 8388608 bytes"),
        ("lines", "a\nb", "ends its lines with \\r\\n"),
        (".", "x", "path_not_a_file"),
    ] {
        let arguments = json!({"path": path, "old": old, "new": "y", "all": true});
        let text = bench.fail("edit_file", arguments).await;
        assert!(text.contains(part), "{path}: {text}");
    }
    bench.put("grows", "x".repeat(1 << 20));
    let arguments = json!({"path": "grows", "old": "x", "new": "123456789", "all": true});
    let text = bench.fail("edit_file", arguments).await;
    assert!(text.contains("would have more than"), "{text}");
    assert_eq!(bench.text("grows").len(), 1 << 20);
}

pub async fn bad_arguments_are_refused_with_a_reason() {
    let bench = Bench::new();
    bench
        .refuses(
            "edit_file",
            &[
                (json!({"path": "a", "old": "b"}), "missing field `new`"),
                (json!({"path": "a", "old": "", "new": "b"}), "`old` is empty"),
                (json!({"path": "a", "old": "b", "new": "b"}), "are the same"),
                (json!({"path": "a", "old": "b", "new": "c", "all": "yes"}), "`all`: invalid type"),
                (json!({"path": "a", "old": "b", "new": "c", "n": 1}), "unknown field `n`"),
            ],
        )
        .await;
}
