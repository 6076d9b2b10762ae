//! The parts of `cargo xtask test`: what each does and how its outcome is counted.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::counts::{self, Counts};
use crate::setup::{DENY, NEXTEST};
use crate::{command, tidy, web};

/// One part, in the order in which they run: what is quick and often wrong comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Formatting of every Rust file
    Fmt,
    /// The rules of the tree that no compiler checks
    Tidy,
    /// Lints of every target; a warning is an error
    Clippy,
    /// Licences, banned crates, sources; advisories where their database can be reached
    Deny,
    /// The web page, the binary and every test program, built once
    Build,
    /// Every Rust test
    Rust,
    /// Every example in the Rust documentation
    Doc,
    /// The web page in a real browser, and streams with the clients that people use
    Web,
}

/// What the person asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options<'a> {
    /// Full counts.
    pub(crate) long: bool,
    /// Part of the names of the Rust tests that run; `None` means all of them.
    pub(crate) filter: Option<&'a str>,
}

/// How a part ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its tests, or one per check.
    pub(crate) counts: Counts,
    /// What the person must know though nothing failed, such as something that was not checked.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    fn of(counts: Counts) -> Self {
        Self { counts, notes: Vec::new() }
    }
}

impl Part {
    /// Its name on the command line and in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Clippy => "clippy",
            Self::Deny => "deny",
            Self::Build => "build",
            Self::Rust => "rust",
            Self::Doc => "doc",
            Self::Web => "web",
        }
    }

    /// What it does, in a few words.
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Fmt => "formatting",
            Self::Tidy => "rules of the tree",
            Self::Clippy => "lints",
            Self::Deny => "licences, banned crates, sources, advisories",
            Self::Build => "web page, binary, test programs",
            Self::Rust => "Rust tests",
            Self::Doc => "documentation examples",
            Self::Web => "web page in a browser, other clients",
        }
    }

    /// Runs it. An error is a failure of the part, not of the whole run.
    pub(crate) fn run(self, options: Options<'_>) -> Result<Outcome> {
        match self {
            Self::Fmt => one(command::cargo().args(["fmt", "--all", "--check"])),
            Self::Tidy => tidy_checks(),
            Self::Clippy => one(command::cargo().args([
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "--deny",
                "warnings",
            ])),
            Self::Deny => deny(),
            Self::Build => {
                web::build()?;
                one(command::cargo().args(["build", "--workspace", "--all-targets", "--locked"]))
            }
            Self::Rust => rust(options),
            Self::Doc => doc(options),
            Self::Web => Ok(Outcome::of(web::test(options.long)?)),
        }
    }
}

/// A part that is one check.
fn one(check: &mut std::process::Command) -> Result<Outcome> {
    Ok(Outcome::of(Counts::one(command::succeeds(check)?)))
}

fn tidy_checks() -> Result<Outcome> {
    let mut outcome = Outcome::of(Counts::default());
    for checked in tidy::all()? {
        checked.print();
        outcome.counts += Counts::one(checked.problems.is_empty());
        outcome.notes.extend(checked.notes.iter().map(|note| format!("tidy: {note}")));
    }
    Ok(outcome)
}

/// Warnings (two versions of one crate) without the tree of who brings them: `cargo tree -i` has it.
const DENY_RULES: &[&str] =
    &["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];

fn deny() -> Result<Outcome> {
    let mut cargo = DENY.cargo()?;
    let rules = command::succeeds(cargo.args(DENY_RULES))?;
    let mut outcome = Outcome::of(Counts::one(rules));
    // The database of advisories is on a host of its own; a check must not depend on reaching it.
    let mut fetch = DENY.cargo()?;
    fetch.args(["deny", "fetch", "db"]).stdin(Stdio::null());
    eprintln!("   $ {}", command::shown(&fetch));
    if ends_well_within(&mut fetch.spawn()?, ADVISORY_FETCH)? {
        let mut check = DENY.cargo()?;
        check.args(["deny", "check", "--disable-fetch", "advisories"]);
        outcome.counts += Counts::one(command::succeeds(&mut check)?);
    } else {
        outcome.notes.push(
            "deny: advisories were NOT checked: their database could not be fetched".to_owned(),
        );
    }
    Ok(outcome)
}

/// How long the advisory database may take to arrive before the run goes on without it.
const ADVISORY_FETCH: Duration = Duration::from_secs(60);

/// Whether the child succeeds within the limit; past it the child is ended.
fn ends_well_within(child: &mut Child, limit: Duration) -> Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn rust(options: Options<'_>) -> Result<Outcome> {
    let profile = if options.long { "long" } else { "default" };
    let report = command::target_dir().join("nextest").join(profile).join("junit.xml");
    // A report of an earlier run must never be counted as this one's.
    match std::fs::remove_file(&report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{} cannot be removed", report.display()));
        }
        _ => {}
    }
    let mut nextest = NEXTEST.cargo()?;
    nextest.args(["nextest", "run", "--workspace", "--locked", "--profile", profile]);
    nextest.args(options.filter);
    command::for_tests(&mut nextest, options.long);
    let success = command::succeeds(&mut nextest)?;
    let counts = match std::fs::read_to_string(&report) {
        Ok(text) => counts::of_junit(&text)?,
        Err(_) => Counts::default(),
    };
    Ok(Outcome::of(counts.or_failed(success)))
}

fn doc(options: Options<'_>) -> Result<Outcome> {
    let mut cargo = command::cargo();
    cargo.args(["test", "--doc", "--workspace", "--locked", "--no-fail-fast"]);
    if let Some(filter) = options.filter {
        cargo.args(["--", filter]);
    }
    let (success, output) = command::teed(&mut cargo)?;
    let mut counts = counts::of_libtest(&output);
    // A tree without a single example is no failure.
    if !success {
        counts = counts.or_failed(false);
    }
    Ok(Outcome::of(counts))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_past_its_limit_is_ended_and_counts_as_unreachable() {
        let mut slow = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!ends_well_within(&mut slow, Duration::from_millis(20)).unwrap());
        let mut good = Command::new("true").spawn().unwrap();
        assert!(ends_well_within(&mut good, Duration::from_secs(60)).unwrap());
        let mut bad = Command::new("false").spawn().unwrap();
        assert!(!ends_well_within(&mut bad, Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn every_part_is_named_as_on_the_command_line() {
        for part in Part::value_variants() {
            assert_eq!(part.to_possible_value().unwrap().get_name(), part.name());
        }
    }
}
