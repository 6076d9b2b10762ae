//! Starting other programs: from the root of the workspace, with a clean environment, seen by the user.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable for `cargo run` and `cargo test`; the value from the build is for a
    // binary that is started by hand.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A command that starts in the root, without the variables that `cargo run` set for this process.
///
/// They describe the package `xtask`; build scripts that watch them (that of `ring`, for one) would run
/// again each time a task is started and rebuild everything above them.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_this_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        if of_this_package || text == "CARGO_PRIMARY_PACKAGE" {
            command.env_remove(&name);
        }
    }
    command
}

/// `cargo`, the same one that started this task.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// For a test runner: takes away what this person's settings would change in a test, and says where the
/// binary is and which tier is wanted.
///
/// Tests read `EVERTURN_BIN` (the binary, built before), `EVERTURN_LONG` (`1`: full counts) and, in the
/// browser part, where its programs are.
pub(crate) fn for_tests(runner: &mut Command, long: bool) {
    const SETTINGS: [&str; 4] = ["EVERTURN_", "OPENAI_", "ANTHROPIC_", "OLLAMA_"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if SETTINGS.iter().any(|prefix| text.starts_with(prefix)) {
            runner.env_remove(&name);
        }
    }
    runner.env("EVERTURN_BIN", target_dir().join("debug/everturn"));
    if long {
        runner.env("EVERTURN_LONG", "1");
    }
}

/// The command line as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Prints the command and runs it with this process's output; whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let line = shown(command);
    eprintln!("   $ {line}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("`{line}` could not be started"))?;
    Ok(status.success())
}

/// Prints the command and runs it with this process's output; an error if it fails.
pub(crate) fn must_succeed(command: &mut Command) -> Result<()> {
    if succeeds(command)? {
        return Ok(());
    }
    bail!("`{}` failed", shown(command))
}

/// Prints the command and runs it, showing its standard output as it comes; whether it succeeded, and
/// that output.
pub(crate) fn teed(command: &mut Command) -> Result<(bool, String)> {
    let line = shown(command);
    eprintln!("   $ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{line}` could not be started"))?;
    let mut all = String::new();
    if let Some(pipe) = child.stdout.take() {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            std::io::stdout().write_all(&bytes)?;
            all.push_str(&String::from_utf8_lossy(&bytes));
            bytes.clear();
        }
    }
    Ok((child.wait()?.success(), all))
}

/// The first of these programs that is on the path.
pub(crate) fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|file| file.is_file())
}
