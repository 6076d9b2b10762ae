//! `cargo xtask bench`: the budgets of the design, measured.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::Result;

use crate::{command, run, web};

/// Builds the binary and the benchmark program with optimisations and becomes the latter. Comes back
/// only with an error.
pub(crate) fn bench(args: &[OsString]) -> Result<bool> {
    web::build()?;
    let binary = run::build(true)?;
    let mut bench = command::cargo();
    bench.args(["run", "--release", "--package", "everturn-sim", "--bin", "bench", "--"]);
    bench.args(args).env("EVERTURN_BIN", binary);
    eprintln!("== {}", command::shown(&bench));
    Err(bench.exec().into())
}
