//! `cargo xtask run`: everything that a fresh machine needs, then the server in this very process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{command, web};

/// Builds the web page and the binary and becomes `everturn serve ARGS`. Comes back only with an error.
pub(crate) fn run(release: bool, args: &[OsString]) -> Result<bool> {
    eprintln!("== 1/3 web page");
    web::build()?;
    eprintln!("== 2/3 the everturn binary (the first time takes a few minutes)");
    let binary = build(release)?;
    let mut serve = command::command(&binary);
    // The server runs where the person is: a relative `--home` or `--workspace` means their folder.
    serve.current_dir(std::env::current_dir().context("the current folder cannot be read")?);
    serve.arg("serve").args(args);
    eprintln!("== 3/3 {}", command::shown(&serve));
    // Not a child: a signal to this process id, kill -9 included, is a signal to the server.
    Err(serve.exec()).with_context(|| format!("{} could not be started", binary.display()))
}

/// Builds the binary alone and says where it is.
pub(crate) fn build(release: bool) -> Result<PathBuf> {
    let mut cargo = command::cargo();
    cargo.args(["build", "--package", "everturn", "--bin", "everturn"]);
    if release {
        cargo.arg("--release");
    }
    command::must_succeed(&mut cargo)?;
    Ok(command::target_dir().join(if release { "release" } else { "debug" }).join("everturn"))
}
