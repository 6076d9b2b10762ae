//! The budgets of the design, measured: `cargo xtask bench`.
//!
//! Every row stands beside a peer or a raw limit that was measured in the same run, on the same
//! machine and under the same load, because absolute times say little on a shared machine. Ratios are
//! judged; a budget is `met` or `NOT met`. docs/benchmarks.md explains each row.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is the result")]

mod admission;
mod bare;
mod fanout;
mod first_token;
mod fixture;
mod journal;
mod memory;
mod merge;
mod raw;
mod reading;
mod start;
mod stats;
mod table;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use table::Table;

/// Measures the budgets of the design.
#[derive(Debug, Parser)]
struct Arguments {
    /// A short run of everything, to see that it works; its numbers mean little
    #[arg(long)]
    quick: bool,
    /// Only these groups: journal, admission, first-token, reading, start, memory, merge, fanout
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
    /// Become the bare server of the fan-out rows: topics, events per second of each
    #[arg(long, hide = true, value_name = "TOPICS,PACE", value_delimiter = ',')]
    bare_sse: Option<Vec<usize>>,
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Scale {
    quick: bool,
}

impl Scale {
    /// The count for this scale.
    fn of(self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some([topics, pace]) = arguments.bare_sse.as_deref() {
        return match runtime.block_on(bare::serve(*topics, *pace)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("the bare server broke down: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    match runtime.block_on(measure(&arguments)) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the benchmarks broke down: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(arguments: &Arguments) -> Result<Table> {
    let scale = Scale { quick: arguments.quick };
    let wanted =
        |group: &str| arguments.only.is_empty() || arguments.only.iter().any(|one| one == group);
    let mut table = Table::default();
    if cfg!(debug_assertions) {
        table.note("built without optimisations: the numbers mean little");
    }
    if arguments.quick {
        table.note("a quick run: the numbers mean little");
    }
    wire::raise_file_limit();
    let begin = |group: &str| {
        let wanted = wanted(group);
        if wanted {
            eprintln!("== {group}");
        }
        wanted
    };
    if begin("journal") {
        journal::measure(scale, &mut table).await?;
    }
    if begin("admission") {
        admission::measure(scale, &mut table).await?;
    }
    if begin("first-token") {
        first_token::measure(scale, &mut table).await?;
    }
    if begin("reading") {
        reading::measure(scale, &mut table).await?;
    }
    if begin("start") {
        start::measure(scale, &mut table).await?;
        start::measure_large(scale, &mut table).await?;
    }
    if begin("memory") {
        memory::measure(scale, &mut table).await?;
    }
    if begin("merge") {
        merge::measure(scale, &mut table).await?;
    }
    if begin("fanout") {
        fanout::measure(scale, &mut table).await?;
    }
    Ok(table)
}
