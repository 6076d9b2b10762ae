//! Development tasks of the Everturn workspace: `cargo xtask run | test | tidy | bench`.
//!
//! Everything that a task needs and the machine lacks is installed here, so that a fresh clone needs
//! Rust (with rustfmt and clippy), Node and a C compiler, and nothing else.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A task talks to the person who started it.

mod bench;
mod command;
mod counts;
mod parts;
mod run;
mod setup;
mod test;
mod tidy;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of Everturn.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Set up, build and start the server, web page included
    ///
    /// Builds what is missing and becomes `everturn serve`: the same process, so that Ctrl-C, SIGTERM
    /// and kill reach the server itself. Without arguments it listens on http://127.0.0.1:8787, keeps
    /// its data in the user's data folder ($EVERTURN_HOME, else $XDG_DATA_HOME/everturn) and uses the
    /// first model that it finds, else the built-in demo script.
    #[command(after_help = "Examples:\n  cargo xtask run\n  cargo xtask run --home /tmp/try \
                            --listen 127.0.0.1:0\n  cargo xtask run --model openai/gpt-5-mini")]
    Run {
        /// Build with optimisations (slower to build, faster to run)
        #[arg(long)]
        release: bool,
        /// Arguments for `everturn serve`, passed as they are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SERVE_ARGS")]
        args: Vec<OsString>,
    },
    /// Set up and run every check and every test
    ///
    /// The parts run in order and all of them run, whatever fails. The last line is
    /// `N passed, N failed`; the exit code is 0 only if nothing failed.
    #[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --long\n  \
                            cargo xtask test recovery\n  cargo xtask test --part tidy --part clippy")]
    Test {
        /// Use the full counts of every load, crash and race test (sets EVERTURN_LONG=1)
        #[arg(long)]
        long: bool,
        /// Run this part only (may be repeated)
        #[arg(long, value_enum, value_name = "PART")]
        part: Vec<parts::Part>,
        /// Run only the Rust tests whose name contains this text (checks and web tests are left out)
        #[arg(value_name = "FILTER", conflicts_with = "part")]
        filter: Option<String>,
    },
    /// Check the rules of the tree that no compiler checks (CONTRIBUTING.md lists them)
    Tidy,
    /// Run the benchmarks, each beside a peer or the raw limit from the same run
    Bench {
        /// Arguments for the benchmark program, passed as they are (`--help` lists them)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCH_ARGS")]
        args: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Run { release, args } => run::run(release, &args),
        Task::Test { long, part, filter } => test::test(long, &part, filter.as_deref()),
        Task::Tidy => tidy::print_all(),
        Task::Bench { args } => bench::bench(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
