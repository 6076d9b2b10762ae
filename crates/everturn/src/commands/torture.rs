//! `everturn torture`: kills real servers in homes of their own, and says whether anything was lost.
//!
//! The harness is `everturn-sim`, which the tests use as well; here are the words of the command line,
//! and the table.

use std::time::Duration;

use everturn_sim::torture::plan::{Death, Fsync, Plan};
use everturn_sim::torture::plant::Plant;
use everturn_sim::torture::{self, Report, Row};

use crate::cli;
use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::term::Term;
use crate::{print, table};

/// Homes at the same time: each waits most of the time, for its model or its disk.
const AT_ONCE: usize = 12;
/// Violations of one row that are shown.
const SHOWN: usize = 5;

pub(crate) async fn run(args: cli::Torture, term: Term) -> Result<Exit> {
    let plan = plan(&args)?;
    let total = plan.deaths.len() * plan.modes.len();
    let cycles = if plan.seconds.is_some() { 1 } else { u64::from(plan.cycles) };
    let progress = Progress::new(term, "torturing", total as u64 * cycles);
    let progress = std::sync::Mutex::new(progress);
    let running = torture::run(&plan, || {
        if let Ok(mut progress) = progress.lock() {
            progress.add(1);
        }
    });
    let mut signals = Signals::new()?;
    let report = tokio::select! {
        report = running => report,
        // Dropped with its servers and its homes.
        _ = signals.next() => {
            drop(progress);
            print::talk("stopped; its servers and homes are gone");
            return Ok(Exit::Cancelled);
        }
    };
    let report =
        report.map_err(|error| CliError::new(Fault::Io, format!("cannot torture: {error:#}")))?;
    drop(progress);
    print::text(&shown(&report, &args))?;
    Ok(if report.violations() == 0 { Exit::Completed } else { Exit::Failed })
}

fn plan(args: &cli::Torture) -> Result<Plan> {
    let deaths = match &args.points {
        None => Death::all(),
        Some(list) => Death::named(list).map_err(|word| {
            let names: Vec<_> = Death::all().into_iter().map(Death::name).collect();
            CliError::usage(format!("--points: there is no {word:?}"))
                .hint(format!("a list, separated by commas, of {}", names.join(", ")))
                .hint("the beginning of names stands for all of them: `claim` is all of claim.*")
        })?,
    };
    let modes = match &args.fsync {
        None => Fsync::ALL.to_vec(),
        Some(name) => vec![Fsync::named(name).ok_or_else(|| {
            CliError::usage(format!("--fsync: there is no mode {name:?}"))
                .hint("terminal-only or eager; both, if it is not given")
        })?],
    };
    let plant = match &args.plant {
        None => None,
        Some(name) => Some(Plant::named(name).ok_or_else(|| {
            let names = Plant::ALL.map(Plant::name).join(", ");
            CliError::usage(format!("--plant: {name:?} is no promise that can be broken"))
                .hint(format!("one of {names}"))
        })?),
    };
    let program = std::env::current_exe()
        .map_err(|error| CliError::new(Fault::Io, format!("where is this program? {error}")))?;
    Ok(Plan {
        program,
        seed: args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        cycles: args.cycles.unwrap_or(1),
        seconds: args.seconds.map(Duration::from_secs),
        deaths,
        modes,
        keep: args.keep,
        at_once: AT_ONCE,
        plant,
    })
}

/// The table, what was wrong, and how to see it again.
fn shown(report: &Report, args: &cli::Torture) -> String {
    let cells = |row: &Row| {
        let outcomes = row.outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}"));
        let verdict = match row.violations.len() {
            0 => "none".to_owned(),
            count => count.to_string(),
        };
        vec![
            row.death.name().to_owned(),
            row.fsync.name().to_owned(),
            row.deaths.to_string(),
            row.inputs.to_string(),
            row.interrupted.to_string(),
            verdict,
            outcomes.collect::<Vec<_>>().join(", "),
        ]
    };
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    let head =
        ["WHERE", "FSYNC", "DEATHS", "INPUTS", "INTERRUPTED TURNS", "VIOLATIONS", "OUTCOMES"];
    let mut out = table::columns(&head, &rows);
    for row in report.rows.iter().filter(|row| !row.violations.is_empty()) {
        out.push_str(&format!("\n{}, {}:\n", row.death.name(), row.fsync.name()));
        for violation in row.violations.iter().take(SHOWN) {
            out.push_str(&format!("  {}\n", crate::term::harmless(violation)));
        }
        if row.violations.len() > SHOWN {
            out.push_str(&format!("  and {} more\n", row.violations.len() - SHOWN));
        }
        for home in &row.kept {
            out.push_str(&format!("  the home is kept: {}\n", home.display()));
        }
    }
    let deaths: u32 = report.rows.iter().map(|row| row.deaths).sum();
    let homes: u32 = report.rows.iter().map(|row| row.homes).sum();
    let inputs: u32 = report.rows.iter().map(|row| row.inputs).sum();
    let seconds = report.took.as_secs_f64();
    out.push_str(&format!(
        "\n{} in {}, {}, {seconds:.1} s, seed {}\n",
        table::count(deaths.into(), "death"),
        table::count(homes.into(), "home"),
        table::count(inputs.into(), "input"),
        report.seed
    ));
    match report.violations() {
        0 => out.push_str("no promise was broken\n"),
        count => {
            out.push_str(&format!(
                "{}. Again: everturn torture --seed {}",
                table::count(count as u64, "violation"),
                report.seed
            ));
            if let Some(list) = &args.points {
                out.push_str(&format!(" --points {list}"));
            }
            if let Some(mode) = &args.fsync {
                out.push_str(&format!(" --fsync {mode}"));
            }
            if let Some(cycles) = args.cycles {
                out.push_str(&format!(" --cycles {cycles}"));
            }
            if let Some(seconds) = args.seconds {
                out.push_str(&format!(" --seconds {seconds}"));
            }
            if let Some(plant) = &args.plant {
                out.push_str(&format!(" --plant {plant}"));
            }
            out.push_str(" --keep\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use everturn_crash::Point;

    use super::*;

    fn row(death: Death, fsync: Fsync, violations: usize) -> Row {
        let outcomes = [("completed".to_owned(), 22), ("cancelled".to_owned(), 2)];
        Row {
            death,
            fsync,
            homes: 12,
            deaths: 12,
            inputs: 24,
            outcomes: BTreeMap::from(outcomes),
            interrupted: 3,
            violations: (0..violations)
                .map(|number| format!("P4 s: run q{number} has these ends: []"))
                .collect(),
            kept: (0..violations.min(1)).map(|_| "/tmp/everturn-sim-x".into()).collect(),
        }
    }

    #[test]
    fn the_table_says_what_died_and_what_became_of_it() {
        let args = cli::Torture {
            seed: Some(7),
            cycles: Some(2),
            seconds: None,
            points: Some("claim.record,kill".to_owned()),
            fsync: None,
            keep: true,
            plant: Some("P8".to_owned()),
        };
        let claim = Death::Point(Point::ClaimRecord);
        let good = Report {
            seed: 7,
            rows: vec![row(claim, Fsync::TerminalOnly, 0), row(claim, Fsync::Eager, 0)],
            took: Duration::from_millis(4_210),
        };
        let bad = Report {
            rows: vec![row(claim, Fsync::Eager, 0), row(Death::Kill, Fsync::TerminalOnly, 7)],
            ..good.clone()
        };
        insta::assert_snapshot!(
            "table",
            format!("{}\n{}", shown(&good, &args), shown(&bad, &args))
        );
    }
}
