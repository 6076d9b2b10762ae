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
mod print;
mod progress;
mod render;
mod settings;
mod signals;
mod surface;
mod table;
mod term;

use std::process::ExitCode;

use clap::Parser as _;
use everturn_crash::Point;

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
    signals::survive_size_limit();
    arm_crash_point()?;
    let mut flags = cli.common.flags();
    match cli.command {
        Command::Serve(args) => {
            args.agent.over(&mut flags);
            flags.set("listen", args.listen);
            commands::serve::run(&ready(&flags, "info", term)?).await
        }
        Command::Run(args) => {
            args.agent.over(&mut flags);
            args.patience.over(&mut flags);
            flags.set("wait_s", args.wait.map(|seconds| seconds.to_string()));
            let settings = ready(&flags, "warn", term)?;
            commands::run::run(args, &settings, term).await
        }
        Command::Chat(args) => {
            args.agent.over(&mut flags);
            args.patience.over(&mut flags);
            let settings = ready(&flags, "warn", term)?;
            commands::chat::run(args, &settings, term).await
        }
        Command::Attach(args) => {
            args.patience.over(&mut flags);
            let settings = ready(&flags, "warn", term)?;
            commands::attach::run(args, &settings, term).await
        }
        Command::Sessions(args) => {
            commands::sessions::run(args, &ready(&flags, "warn", term)?, term).await
        }
        Command::Turn(cli::Turn::Show { id, all, json }) => {
            commands::turn::show(&ready(&flags, "warn", term)?, &id, all, json, term).await
        }
        Command::Turn(cli::Turn::Export { id, output, force }) => {
            let settings = ready(&flags, "warn", term)?;
            commands::export::export(&settings, &id, output.as_deref(), force, term).await
        }
        Command::Doctor(args) => {
            args.agent.over(&mut flags);
            commands::doctor::run(args, &flags, term).await
        }
        Command::Config(cli::Config::Show { json, set }) => {
            commands::config::show(&ready(&flags, "warn", term)?, json, set)
        }
        Command::Token(args) => {
            let settings = ready(&flags, "warn", term)?;
            match args {
                cli::Token::Create { principal, scope, expires } => {
                    let expires = expires.as_deref();
                    commands::token::create(&settings, &principal, &scope, expires).await
                }
                cli::Token::List { json } => commands::token::list(&settings, json).await,
                cli::Token::Revoke { id } => commands::token::revoke(&settings, &id).await,
            }
        }
        Command::Grant(args) => {
            let settings = ready(&flags, "warn", term)?;
            match args {
                cli::Grant::List { principal, json } => {
                    commands::grant::list(&settings, &principal, json).await
                }
                cli::Grant::Revoke { tool, principal } => {
                    commands::grant::revoke(&settings, &principal, &tool).await
                }
            }
        }
        Command::Import(cli::Import::Journal { file, session, dry_run, json }) => {
            let settings = ready(&flags, "warn", term)?;
            let session = session.as_deref();
            let asked = commands::import::Asked { file: &file, session, dry_run, json };
            commands::import::journal(&settings, asked, term).await
        }
        Command::Import(cli::Import::Hermes(_)) => Err(not_built("import hermes")),
        Command::Torture(args) => commands::torture::run(args, term).await,
    }
}

/// Arms the place at which this process is to die, if it was started for that (docs/torture.md).
fn arm_crash_point() -> Result<()> {
    let Some(text) = process_env(everturn_crash::VARIABLE) else { return Ok(()) };
    match everturn_crash::parse(&text) {
        Ok((point, nth)) => {
            everturn_crash::arm(point, nth);
            Ok(())
        }
        Err(error) => {
            let names: Vec<_> = Point::ALL.iter().map(|point| point.name()).collect();
            Err(CliError::new(Fault::Config, format!("{}: {error}", everturn_crash::VARIABLE))
                .hint(format!("POINT or POINT:NTH; the points are {}", names.join(", "))))
        }
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
