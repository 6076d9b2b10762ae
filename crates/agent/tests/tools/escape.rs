//! Nothing leaves the workspace: not by `..`, not by an absolute path, not by a link, and not by a
//! link that was not there a moment ago.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use everturn_agent::tool::ToolOutcome;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::bench::{Bench, names};

/// Arguments of every tool that takes a path, for this one.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read_file", json!({"path": path})),
        ("write_file", json!({"path": path, "content": "new"})),
        ("edit_file", json!({"path": path, "old": "SECRET", "new": "new"})),
        ("list_files", json!({"path": path})),
        ("search_files", json!({"path": path, "regex": "SECRET"})),
        ("shell", json!({"cwd": path, "command": "echo hello"})),
    ]
}

async fn refused(bench: &Bench, path: &str) {
    for (tool, arguments) in calls(path) {
        let text = bench.fail(tool, arguments).await;
        assert!(text.contains("(path_outside_workspace)"), "{tool} {path}: {text}");
        assert!(!text.contains("SECRET"), "{tool} {path}: {text}");
    }
    assert_eq!(names(&bench.outside), ["secret"]);
    assert_eq!(std::fs::read_to_string(bench.outside.join("secret")).unwrap(), "SECRET\n");
}

pub async fn dots_and_absolute_paths() {
    let bench = Bench::new();
    bench.put("sub/file", "inside\n");
    let outside = bench.outside.to_str().unwrap().to_owned();
    for path in [
        "../outside/secret".to_owned(),
        "../outside".to_owned(),
        "..".to_owned(),
        "sub/../../outside/secret".to_owned(),
        "./sub/./../../outside/secret".to_owned(),
        format!("{outside}/secret"),
        outside,
        "/etc/passwd".to_owned(),
        "/".to_owned(),
        format!("{}/../outside/secret", bench.root.display()),
        format!("{}-not/secret", bench.root.display()),
    ] {
        refused(&bench, &path).await;
    }
    // What only looks like an escape is none.
    for path in ["sub/../sub/file", "./sub/file", "sub//file"] {
        assert_eq!(bench.succeed("read_file", json!({"path": path})).await, "inside\n");
    }
    let inside = bench.root.join("sub/file");
    assert_eq!(bench.succeed("read_file", json!({"path": inside})).await, "inside\n");
    bench.succeed("write_file", json!({"path": "..file", "content": "x"})).await;
    bench.succeed("write_file", json!({"path": bench.root.join("abs"), "content": "x"})).await;
    assert_eq!(bench.names("."), ["..file", "abs", "sub"]);
}

pub async fn links_that_lead_out() {
    let bench = Bench::new();
    let outside = &bench.outside;
    bench.put("sub/file", "");
    symlink(outside.join("secret"), bench.root.join("file-abs")).unwrap();
    symlink("../outside/secret", bench.root.join("file-rel")).unwrap();
    symlink(outside, bench.root.join("folder-abs")).unwrap();
    symlink("../outside", bench.root.join("folder-rel")).unwrap();
    symlink("../..", bench.root.join("sub/up")).unwrap();
    symlink("folder-rel", bench.root.join("chain")).unwrap();
    // Absolute links are not followed even if they come back in: the root may be somewhere else
    // by another name.
    symlink(bench.root.join("sub"), bench.root.join("back")).unwrap();
    symlink("../outside/new", bench.root.join("dangling")).unwrap();
    for path in [
        "file-abs",
        "file-rel",
        "folder-abs/secret",
        "folder-rel/secret",
        "folder-rel",
        "sub/up/outside/secret",
        "chain/secret",
        "back/file",
    ] {
        refused(&bench, path).await;
    }
    for path in ["folder-rel/new", "folder-abs/deep/new", "dangling", "sub/up/outside/new"] {
        let text = bench.fail("write_file", json!({"path": path, "content": "new"})).await;
        assert!(text.contains("(path_outside_workspace)"), "{path}: {text}");
    }
    assert_eq!(names(outside), ["secret"]);

    // The kernel's own links to open folders are no way out either.
    for (name, target) in [("root", "/proc/self/root/etc/passwd"), ("cwd", "/proc/self/cwd")] {
        symlink(target, bench.root.join(name)).unwrap();
        refused(&bench, name).await;
    }
    // Walking sees links but does not enter them.
    let text = bench.succeed("list_files", json!({})).await;
    assert!(text.contains("folder-rel@\n") && !text.contains("secret"), "{text}");
    let text = bench.succeed("search_files", json!({"regex": "SECRET"})).await;
    assert!(text.starts_with("[no line matches]"), "{text}");
}

pub async fn links_that_stay_inside_work() {
    let bench = Bench::new();
    bench.put("real/file", "inside\n");
    symlink("real", bench.root.join("folder")).unwrap();
    symlink("../folder/file", bench.root.join("real/link")).unwrap();
    for path in ["folder/file", "real/link", "folder/link"] {
        assert_eq!(bench.succeed("read_file", json!({"path": path})).await, "inside\n");
    }
    let text = bench.succeed("list_files", json!({"path": "folder"})).await;
    assert!(text.starts_with("folder/file\nfolder/link@\n"), "{text}");
    // A circle ends.
    symlink("two", bench.root.join("one")).unwrap();
    symlink("one", bench.root.join("two")).unwrap();
    for (tool, arguments) in calls("one") {
        let text = bench.fail(tool, arguments).await;
        assert!(text.contains("(path_invalid)"), "{tool}: {text}");
    }
}

/// Swaps a folder and a link that leads out, as fast as it can, while `work` runs.
async fn while_swapping<F: Future<Output = ()>>(bench: &Bench, work: F) {
    let stop = AtomicBool::new(false);
    let (one, two) = (bench.root.join("door"), bench.root.join("other"));
    bench.put("door/secret", "inside\n");
    bench.put("door/deep/secret", "inside\n");
    std::fs::create_dir(bench.outside.join("deep")).unwrap();
    std::fs::write(bench.outside.join("deep/secret"), "SECRET\n").unwrap();
    symlink("../outside", &two).unwrap();
    /// Ends the swapping also if the work panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
                // Not always the same time, or the two threads may run in step.
                for _ in 0..swaps % 7 {
                    std::thread::yield_now();
                }
            }
            swaps
        });
        let guard = Stop(&stop);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work));
        drop(guard);
        assert!(swapper.join().unwrap() > 1_000, "nothing was swapped");
    });
    assert_eq!(names(&bench.outside), ["deep", "secret"]);
    assert_eq!(names(&bench.outside.join("deep")), ["secret"]);
    assert_eq!(std::fs::read_to_string(bench.outside.join("secret")).unwrap(), "SECRET\n");
    let deep = bench.outside.join("deep/secret");
    assert_eq!(std::fs::read_to_string(deep).unwrap(), "SECRET\n");
}

/// How often a path led inside and how often it was refused.
#[derive(Debug, Default)]
struct Counts {
    inside: u32,
    refused: u32,
}

impl Counts {
    /// Both sides of the door were met often enough for the test to show something.
    fn enough(&self) -> bool {
        self.inside > 200 && self.refused > 200
    }

    fn take(&mut self, outcome: &ToolOutcome) {
        match outcome {
            ToolOutcome::Succeeded(text) => {
                assert!(!text.contains("SECRET"), "{text}");
                self.inside += 1;
            }
            ToolOutcome::Failed(text) => {
                assert!(!text.contains("SECRET"), "{text}");
                self.refused += 1;
            }
            ToolOutcome::NotRun(text) | ToolOutcome::Unknown(text) => unreachable!("{text}"),
        }
    }
}

const ROUNDS_MAX: u32 = 20_000;

pub async fn a_folder_swapped_for_a_link_while_in_use() {
    let bench = Bench::new();
    while_swapping(&bench, async {
        let (mut reads, mut writes) = (Counts::default(), Counts::default());
        for round in 0..ROUNDS_MAX {
            reads.take(&bench.run("read_file", json!({"path": "door/secret"})).await);
            let deep = format!("door/deep/new-{}/file", round % 50);
            writes.take(&bench.run("write_file", json!({"path": deep, "content": "x"})).await);
            let arguments = json!({"path": "door/secret", "old": "SECRET", "new": "x"});
            bench.fail("edit_file", arguments).await;
            if reads.enough() && writes.enough() {
                return;
            }
        }
        unreachable!("reads {reads:?}, writes {writes:?}");
    })
    .await;
}

pub async fn a_folder_swapped_for_a_link_while_walked() {
    let bench = Bench::new();
    while_swapping(&bench, async {
        let (mut lists, mut searches) = (Counts::default(), Counts::default());
        for round in 0..ROUNDS_MAX {
            let list = json!({"path": "door", "depth": 5});
            lists.take(&bench.run("list_files", list).await);
            let search = json!({"regex": "SECRET|inside", "path": "door"});
            searches.take(&bench.run("search_files", search).await);
            // From above, the walk itself meets the door.
            let above = bench.succeed("search_files", json!({"regex": "SECRET"})).await;
            assert!(above.starts_with("[no line matches]"), "{above}");
            if round < 100 {
                let shell = json!({"cwd": "door", "command": "cat secret"});
                Counts::default().take(&bench.run("shell", shell).await);
            } else if lists.enough() && searches.enough() {
                return;
            }
        }
        unreachable!("lists {lists:?}, searches {searches:?}");
    })
    .await;
}

pub async fn paths_that_are_none() {
    let bench = Bench::new();
    bench.put("file", "");
    let long = "x/".repeat(3_000);
    let name = "x".repeat(300);
    for (path, code) in [
        ("", "path_invalid"),
        ("a\0b", "path_invalid"),
        (long.as_str(), "path_invalid"),
        (name.as_str(), "path_invalid"),
        ("file/below", "path_not_a_folder"),
    ] {
        for (tool, arguments) in calls(path) {
            let text = bench.fail(tool, arguments).await;
            assert!(text.contains(&format!("({code})")), "{tool} {path:?}: {text}");
            assert!(text.len() < 1_000, "{text}");
        }
    }
    for (tool, arguments) in calls("none/such") {
        if tool == "write_file" {
            continue;
        }
        let text = bench.fail(tool, arguments).await;
        assert!(text.contains("(path_not_found)"), "{tool}: {text}");
    }
    assert!(Path::new(&bench.root).join("file").exists());
}
