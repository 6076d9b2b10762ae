//! What a task needs beyond Rust and Node: installed once, kept for the next run.
//!
//! A service that a test needs (a database server, say) gets a function here that installs its Debian
//! package and starts it on a folder of its own; the part that needs it calls that function first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    Ok(cache_dir()?.join(format!("{}-{}", tool.name, tool.version)))
}

/// Where what was installed is kept, for all clones of this user.
fn cache_dir() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("everturn-dev"))
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
    if !install_package(package)? {
        bail!("{package} could not be installed: as root, run `apt-get install {package}`");
    }
    command::on_path(programs).with_context(|| format!("the package {package} brought no {wanted}"))
}

fn install_package(package: &str) -> Result<bool> {
    let install = ["install", "--yes", "--quiet", "--no-install-recommends", package];
    Ok(command::succeeds(apt().args(["update", "--quiet"]))?
        && command::succeeds(apt().args(install))?)
}

/// Finds nginx, after unpacking Debian's package into a folder of this user's if it is not there.
///
/// It is not installed, because installing it starts it: as a service, on the port for web pages.
pub(crate) fn nginx() -> Result<PathBuf> {
    let home = cache_dir()?.join("nginx");
    let unpacked = home.join("usr/sbin/nginx");
    if let Some(found) = command::on_path(&["nginx"]) {
        return Ok(found);
    }
    if runs(&unpacked, "-v") {
        return Ok(unpacked);
    }
    if command::on_path(&["apt-get"]).is_none() {
        bail!("nginx is missing: install it with this system's package manager");
    }
    eprintln!("   nginx is missing: unpacking its package into {}", home.display());
    std::fs::create_dir_all(&home).context("the folder for nginx cannot be made")?;
    let download = || command::succeeds(apt().current_dir(&home).args(["download", "nginx"]));
    // The lists of packages may be missing, or too old.
    if !download()? {
        command::succeeds(apt().args(["update", "--quiet"]))?;
        if !download()? {
            bail!("the package nginx could not be fetched: as root, run `apt-get update`");
        }
    }
    for file in std::fs::read_dir(&home).context("the folder for nginx cannot be read")? {
        let file = file?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            command::must_succeed(
                command::command("dpkg-deb").arg("--extract").args([&file, &home]),
            )?;
            std::fs::remove_file(&file)?;
        }
    }
    if !runs(&unpacked, "-v") {
        bail!("nginx does not run from its unpacked package: install it with the package manager");
    }
    Ok(unpacked)
}

/// Whether a program is there and can be started.
fn runs(program: &Path, version: &str) -> bool {
    let mut asked = command::command(program);
    asked.arg(version).stdout(Stdio::null()).stderr(Stdio::null());
    program.is_file() && asked.status().is_ok_and(|status| status.success())
}

/// A Python that has what this file lists (pinned versions, one a line), in an environment of its own
/// that is made anew when the file has changed.
pub(crate) fn python_with(requirements: &Path) -> Result<PathBuf> {
    let home = cache_dir()?.join("python");
    let python = home.join("bin/python");
    let wanted = std::fs::read(requirements)
        .with_context(|| format!("{} cannot be read", requirements.display()))?;
    // Written last, so that an installation that broke off is done again.
    let done = home.join("requirements.txt");
    if runs(&python, "--version") && std::fs::read(&done).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    eprintln!("   making a Python environment in {}", home.display());
    let make = |python: &Path| {
        let mut venv = command::command(python);
        command::succeeds(venv.args(["-m", "venv", "--clear"]).arg(&home))
    };
    let found = program_of_package(&["python3"], "python3")?;
    // Debian keeps this module in a package of its own, for its own Python.
    let is_made =
        make(&found)? || (install_package("python3-venv")? && make(Path::new("/usr/bin/python3"))?);
    if !is_made {
        bail!("no Python environment could be made: as root, run `apt-get install python3-venv`");
    }
    let mut pip = command::command(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    command::must_succeed(pip.arg("--requirement").arg(requirements))?;
    std::fs::write(&done, wanted).context("the Python environment cannot be marked as made")?;
    Ok(python)
}

fn apt() -> Command {
    let mut apt = command::command("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    apt
}
