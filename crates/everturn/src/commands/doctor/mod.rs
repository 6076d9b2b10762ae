//! `everturn doctor`: what is wrong, and what to do about it. Each check is a function that looks and
//! says; none mends anything.

mod machine;
mod store;
mod work;

use serde::Serialize;

use crate::cli;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::print;
use crate::settings::{Flags, Settings, nearest_variable, process_env, unknown_variables};
use crate::term::{Term, one_line};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// Worth knowing; nothing is wrong.
    Note,
    Problem,
}

/// What one check found.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// Findings as they are made.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &'static str, detail: impl Into<String>) {
        self.add(check, State::Ok, detail.into(), None);
    }

    fn note(&mut self, check: &'static str, detail: impl Into<String>, hint: &str) {
        self.add(check, State::Note, detail.into(), Some(hint.to_owned()));
    }

    fn problem(&mut self, check: &'static str, detail: impl Into<String>, hint: &str) {
        self.add(check, State::Problem, detail.into(), Some(hint.to_owned()));
    }

    fn error(&mut self, check: &'static str, error: &CliError) {
        let hint = (!error.hints.is_empty()).then(|| error.hints.join("; "));
        self.add(check, State::Problem, error.to_string(), hint);
    }

    fn add(&mut self, check: &'static str, state: State, detail: String, hint: Option<String>) {
        let hint = hint.filter(|hint| !hint.is_empty());
        self.0.push(Finding { check, state, detail, hint });
    }
}

pub(crate) async fn run(args: cli::Doctor, flags: &Flags, term: Term) -> Result<Exit> {
    let mut found = Findings::default();
    found.ok("version", format!("everturn {}", env!("CARGO_PKG_VERSION")));
    match Settings::load(flags, &process_env) {
        Ok(settings) => {
            match &settings.file {
                Some(path) => found.ok("settings", format!("{}", path.display())),
                None => found.ok("settings", "no file; defaults, variables and flags"),
            }
            for name in unknown_variables(std::env::vars().map(|(name, _)| name)) {
                let hint = match nearest_variable(&name) {
                    Some(known) => format!("did you mean {known}?"),
                    None => "docs/configuration.md lists all; is it misspelt?".to_owned(),
                };
                found.note("settings", format!("{name} is set and is no setting"), &hint);
            }
            look(&settings, args.offline, &mut found).await;
        }
        // Without settings there is no home and no store to look at.
        Err(error) => found.error("settings", &error),
    }
    let bad = found.0.iter().any(|finding| finding.state == State::Problem);
    if args.json {
        print::json(&serde_json::json!({ "ok": !bad, "checks": found.0 }))?;
    } else {
        print::text(&describe(&found.0, term))?;
    }
    Ok(if bad { Exit::Failed } else { Exit::Completed })
}

async fn look(settings: &Settings, offline: bool, found: &mut Findings) {
    machine::kernel(found);
    let home = machine::home(settings, found);
    if let Some(home) = &home {
        machine::disk(settings, home, found);
        if store::database(settings, home, found).await {
            store::contents(settings, home, found).await;
        }
        work::server(settings, home, found).await;
    }
    work::workspace(settings, home.as_ref(), found).await;
    work::model(settings, offline, found).await;
    machine::limits(settings, found);
}

fn describe(findings: &[Finding], term: Term) -> String {
    let paint = term.out_paint();
    let mut out = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => paint.good("ok     "),
            State::Note => paint.warn("note   "),
            State::Problem => paint.bad("PROBLEM"),
        };
        let detail = one_line(&finding.detail, 1_000);
        out.push_str(&format!("{state}  {:<10} {detail}\n", finding.check));
        if let Some(hint) = &finding.hint {
            out.push_str(&format!("                    -> {}\n", one_line(hint, 1_000)));
        }
    }
    let problems = findings.iter().filter(|finding| finding.state == State::Problem).count();
    out.push_str(&match problems {
        0 => format!("\n{}\n", paint.good("no problem found")),
        1 => format!("\n{}\n", paint.bad("1 problem")),
        many => format!("\n{}\n", paint.bad(&format!("{many} problems"))),
    });
    out
}
