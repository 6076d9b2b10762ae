//! What the tests share.

use std::ffi::OsString;
use std::path::PathBuf;

use everturn_sim::process::{Ended, Spec};
use everturn_sim::server::Home;
use serde_json::Value;

/// A script that says twenty numbers, slowly enough to be in the middle of it.
pub(crate) const SLOW: &str = r#"
words_per_second = 20
[[rule]]
reply = [{ text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty" }]
"#;

/// All that [`SLOW`] says.
pub(crate) const SLOW_TEXT: &str = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty\n";

/// A script that answers at once, calls a tool when asked for one, fails and hangs when asked to.
pub(crate) const QUICK: &str = r#"
[[rule]]
contains = "use the tool"
round = 0
reply = [{ text = "I will look." }, { call = "shell", arguments = { command = "echo from the shell >> ran.txt; cat ran.txt" } }]
[[rule]]
contains = "use the tool"
round = 1
reply = [{ text = "The tool said: {{last_tool_result}}" }]
[[rule]]
contains = "ask me"
round = 0
reply = [{ call = "ask_user", arguments = { question = "Which colour?", choices = ["red", "dark blue"] } }]
[[rule]]
contains = "ask me"
round = 1
reply = [{ text = "You want {{last_tool_result}}." }]
[[rule]]
contains = "fail"
reply = [{ fail = 401, message = "the key is refused" }]
[[rule]]
contains = "hang"
continuation = false
reply = [{ text = "So far, " }, { stall = true }]
[[rule]]
reply = [{ text = "You said {{input}}." }]
"#;

/// The binary with this home and these words, in an environment of its own.
pub(crate) fn everturn(home: &Home, words: &[&str]) -> Spec {
    let (command, rest) = words.split_first().unwrap();
    home.everturn(command).unwrap().args(rest.iter().copied())
}

/// The binary without any home of its own.
pub(crate) fn bare(words: &[&str]) -> Spec {
    Spec::everturn().unwrap().args(words.iter().copied())
}

/// Run to its end.
pub(crate) async fn ended(home: &Home, words: &[&str]) -> Ended {
    everturn(home, words).run().await.unwrap()
}

/// Run to its end, which must be a good one; its stdout.
pub(crate) async fn stdout(home: &Home, words: &[&str]) -> String {
    let ended = ended(home, words).await;
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended.stdout
}

/// As [`stdout`], as JSON.
pub(crate) async fn json(home: &Home, words: &[&str]) -> Value {
    let text = stdout(home, words).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// A shell command line in the workspace of a home; `$EVERTURN` is the binary.
pub(crate) fn shell(home: &Home, line: &str) -> Spec {
    let binary: OsString = everturn_sim::process::binary().unwrap().into();
    Spec::new("/bin/sh")
        .args(["-c", line])
        .env("EVERTURN", binary)
        .env("EVERTURN_HOME", home.path())
        .env("HOME", home.path())
        .folder(&home.work())
}

/// Lines of `ran.txt`, which each run of the shell tool of [`QUICK`] leaves one in.
pub(crate) fn times_run(home: &Home) -> usize {
    let path: PathBuf = home.work().join("ran.txt");
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}
