//! What a task needs beyond Rust and Node: installed once, kept for the next run.
//!
//! A service that a test needs (a database server, say) gets a function here that installs its Debian
//! package and starts it on a folder of its own; the part that needs it calls that function first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command;

/// A cargo subcommand at the version that the project is known to work with.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    features: &'static [&'static str],
}

/// Runs the Rust tests: a process for each, time limits, a report that can be counted.
pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    version: "0.9.143",
    features: &["--no-default-features", "--features", "default-no-update"],
};

/// Checks licences, banned crates, sources and advisories.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", features: &[] };

impl Tool {
    /// Installs the tool unless it is there; gives a `cargo` command that finds it.
    ///
    /// It is compiled from its own release on crates.io, lightly optimised: a few minutes, once per
    /// user and not once per clone.
    pub(crate) fn cargo(&self) -> Result<Command> {
        let mut cargo = command::cargo();
        if command::on_path(&[self.name]).is_some() {
            return Ok(cargo);
        }
        let home = tools_dir(self)?;
        let bin = home.join("bin");
        if !bin.join(self.name).is_file() {
            eprintln!("   {} {} is missing: compiling it (minutes, once)", self.name, self.version);
            let mut install = command::cargo();
            install.args(["install", "--locked", "--version", self.version, "--root"]).arg(&home);
            install.args(self.features).arg(self.name);
            // Its own target folder and profile: nothing of the workspace is rebuilt because of it.
            install.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR");
            for (key, value) in LIGHT_PROFILE {
                install.env(key, value);
            }
            command::must_succeed(&mut install)?;
        }
        cargo.env("PATH", with_first(&bin)?);
        Ok(cargo)
    }
}

/// What matters is that the tool is there soon, not how fast it is.
const LIGHT_PROFILE: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_STRIP", "true"),
];

/// One folder per tool and version, so that an update of the version installs the new one.
fn tools_dir(tool: &Tool) -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("everturn-dev").join(format!("{}-{}", tool.name, tool.version)))
}

fn with_first(bin: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(bin.to_path_buf()).chain(std::env::split_paths(&path));
    std::env::join_paths(dirs).context("PATH cannot be extended")
}

/// Finds one of these programs, after installing Debian's package if none is there.
pub(crate) fn program_of_package(programs: &[&str], package: &str) -> Result<PathBuf> {
    if let Some(found) = command::on_path(programs) {
        return Ok(found);
    }
    let wanted = programs.join(" or ");
    if command::on_path(&["apt-get"]).is_none() {
        bail!("{wanted} is missing: install it with this system's package manager");
    }
    eprintln!("   {wanted} is missing: installing the package {package}");
    let installed = command::succeeds(apt().args(["update", "--quiet"]))?
        && command::succeeds(
            apt().args(["install", "--yes", "--quiet"]).args(["--no-install-recommends", package]),
        )?;
    if !installed {
        bail!("{package} could not be installed: as root, run `apt-get install {package}`");
    }
    command::on_path(programs).with_context(|| format!("the package {package} brought no {wanted}"))
}

fn apt() -> Command {
    let mut apt = command::command("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    apt
}
