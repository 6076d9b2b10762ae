//! `cargo xtask test`: every part in turn, a table, and the closing line.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum as _;

use crate::counts::Counts;
use crate::parts::{Options, Part};

/// Runs the parts that were asked for (all of them, if none was named). Whether nothing failed.
pub(crate) fn test(long: bool, wanted: &[Part], filter: Option<&str>) -> Result<bool> {
    let parts: Vec<Part> = if filter.is_some() {
        vec![Part::Build, Part::Rust]
    } else {
        let all = Part::value_variants().iter().copied();
        all.filter(|part| wanted.is_empty() || wanted.contains(part)).collect()
    };
    let options = Options { long, filter };
    let start = Instant::now();
    let done: Vec<Done> = parts.iter().map(|part| run(*part, options)).collect();
    println!("\n{}", table(&done, start.elapsed()));
    let mut total = Counts::default();
    for part in &done {
        total += part.counts;
    }
    println!("{}", total.line());
    Ok(total.failed == 0)
}

/// A part that has run.
struct Done {
    part: Part,
    counts: Counts,
    notes: Vec<String>,
    took: Duration,
}

fn run(part: Part, options: Options<'_>) -> Done {
    println!("\n== {}: {}", part.name(), part.purpose());
    let start = Instant::now();
    let (counts, notes) = match part.run(options) {
        Ok(outcome) => (outcome.counts, outcome.notes),
        Err(error) => {
            println!("   error: {error:#}");
            (Counts::one(false), vec![format!("{}: {error:#}", part.name())])
        }
    };
    let took = start.elapsed();
    let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
    println!("== {}: {verdict} in {}", part.name(), seconds(took));
    Done { part, counts, notes, took }
}

fn table(done: &[Done], took: Duration) -> String {
    let mut table = format!("{:<8} {:<7} {:>9}  tests\n", "part", "result", "time");
    for part in done {
        let verdict = if part.counts.failed == 0 { "ok" } else { "FAILED" };
        let (name, took) = (part.part.name(), seconds(part.took));
        table.push_str(&format!("{name:<8} {verdict:<7} {took:>9}  {}\n", part.counts.line()));
    }
    table.push_str(&format!("{:<8} {:<7} {:>9}\n", "all", "", seconds(took)));
    for note in done.iter().flat_map(|part| &part.notes) {
        table.push_str(&format!("note: {note}\n"));
    }
    table
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_part_its_time_and_what_was_not_checked() {
        let done = [
            Done {
                part: Part::Fmt,
                counts: Counts::one(true),
                notes: Vec::new(),
                took: Duration::from_millis(1_234),
            },
            Done {
                part: Part::Deny,
                counts: Counts::one(false),
                notes: vec!["deny: advisories were NOT checked".to_owned()],
                took: Duration::from_secs(75),
            },
        ];
        let wanted = "part     result       time  tests\n\
                      fmt      ok          1.2 s  1 passed, 0 failed\n\
                      deny     FAILED     75.0 s  0 passed, 1 failed\n\
                      all                 76.2 s\n\
                      note: deny: advisories were NOT checked\n";
        assert_eq!(table(&done, Duration::from_millis(76_200)), wanted);
    }
}
