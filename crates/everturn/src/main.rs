//! The everturn binary: the only crate that prints.
//!
//! [`cli`] says what can be typed, [`settings`] what is set and by whom, [`commands`] has one file per
//! command. Commands that work with sessions do so through [`client`], which is a running server or
//! the engine in this process; [`follow`] takes one input to its end through either.

mod cli;
mod client;
mod commands;
mod connect;
mod error;
mod exit;
mod follow;
mod home;
mod link;
mod log;
mod models;
mod open;
mod render;
mod settings;
mod signals;
mod surface;
mod term;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};
use error::{CliError, Fault, Result};
use exit::Exit;
use settings::{Flags, Settings, process_env};
use term::Term;

fn main() -> ExitCode {
    // Before any thread: this process may be the supervisor of one command.
    if let Some(code) = everturn_agent::supervisor::dispatch() {
        return code;
    }
    let cli = Cli::parse();
    let term = Term::of_process();
    // Fails only if it was done already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = CliError::new(Fault::Io, format!("cannot start any thread: {error}"));
            return report(&error, term).into();
        }
    };
    let exit = match runtime.block_on(run(cli, term)) {
        Ok(exit) => exit,
        Err(error) => report(&error, term),
    };
    // A thread may still wait for a line of the terminal; nothing of ours is lost with it.
    runtime.shutdown_background();
    exit.into()
}

async fn run(cli: Cli, term: Term) -> Result<Exit> {
    let mut flags = cli.common.flags();
    match cli.command {
        Command::Run(args) => {
            args.agent.over(&mut flags);
            args.patience.over(&mut flags);
            flags.set("wait_s", args.wait.map(|seconds| seconds.to_string()));
            let settings = ready(&flags, "warn", term)?;
            commands::run::run(args, &settings, term).await
        }
        _ => Err(not_built("this command")),
    }
}

fn not_built(what: &str) -> CliError {
    CliError::new(Fault::NotBuilt, format!("{what} is not built yet"))
        .hint("a later version does it; the changelog will say so")
}

/// Settings, and the log that they ask for.
fn ready(flags: &Flags, usual_log: &str, term: Term) -> Result<Settings> {
    let settings = Settings::load(flags, &process_env)?;
    log::start(&settings, usual_log, term.err_paint().on())?;
    Ok(settings)
}

/// Says what went wrong.
#[allow(clippy::print_stderr, reason = "the one place where errors are told")]
fn report(error: &CliError, term: Term) -> Exit {
    let paint = term.err_paint();
    eprintln!("{} {error}", paint.bad("error:"));
    for hint in &error.hints {
        eprintln!("{} {hint}", paint.strong("hint:"));
    }
    error.exit
}
