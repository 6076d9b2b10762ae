//! The crash harness: a real server dies at every named place, and at others, and what it leaves is
//! judged. `everturn torture` is this; so are the tests of it.
//!
//! - [`plan`]: what is to happen: which places, in which modes, how often.
//! - [`scene`]: what clients do meanwhile, so that each place is passed.
//! - [`home`]: one home, from the first start of its server to the verdict.
//! - [`plant`]: damage on purpose, to see that the verdict can be a bad one.
//! - this file: many homes at once, and what they came to.

pub mod home;
pub mod plan;
pub mod plant;
pub mod scene;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use home::Verdict;
use plan::{Death, Fsync, Plan};

/// What one row of the table came to: one kind of death in one mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The death.
    pub death: Death,
    /// The mode.
    pub fsync: Fsync,
    /// Homes.
    pub homes: u32,
    /// Processes that died.
    pub deaths: u32,
    /// Inputs that clients had accepted.
    pub inputs: u32,
    /// Their outcomes, each with how many had it.
    pub outcomes: BTreeMap<String, u32>,
    /// Runs that were recorded as interrupted.
    pub interrupted: u32,
    /// Promises that were not kept, and whatever else went wrong.
    pub violations: Vec<String>,
    /// Homes that were left behind.
    pub kept: Vec<PathBuf>,
}

impl Row {
    fn new(death: Death, fsync: Fsync) -> Self {
        Self {
            death,
            fsync,
            homes: 0,
            deaths: 0,
            inputs: 0,
            outcomes: BTreeMap::new(),
            interrupted: 0,
            violations: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn add(&mut self, verdict: Verdict) {
        self.homes += 1;
        self.deaths += verdict.deaths;
        self.inputs += verdict.inputs;
        self.interrupted += verdict.interrupted;
        for (outcome, count) in verdict.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.violations.extend(verdict.violations);
        self.kept.extend(verdict.kept);
    }
}

/// What all of it came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed that repeats it, as far as the machine's own moments can be repeated.
    pub seed: u64,
    /// One row for each death and mode, in the plan's order.
    pub rows: Vec<Row>,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// Violations of all rows.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.rows.iter().map(|row| row.violations.len()).sum()
    }
}

/// Does what the plan says; `told` hears each time that a death in a mode is over, `deaths × modes` of
/// them in a cycle. Dropped, it ends every process that it started and removes its homes.
///
/// # Errors
/// Something is wrong with the machine and not with the server: no folder, no process. What a home
/// itself comes to, good or bad, is in the report.
pub async fn run(plan: &Plan, told: impl Fn()) -> Result<Report> {
    let started = Instant::now();
    let mut random = StdRng::seed_from_u64(plan.seed);
    let pairs: Vec<(Death, Fsync)> = plan
        .deaths
        .iter()
        .flat_map(|death| plan.modes.iter().map(|fsync| (*death, *fsync)))
        .collect();
    let mut rows: Vec<Row> = pairs.iter().map(|(death, fsync)| Row::new(*death, *fsync)).collect();
    let goes_on = |cycle: u32| match plan.seconds {
        Some(limit) => cycle == 0 || started.elapsed() < limit,
        None => cycle < plan.cycles,
    };
    // Cycle after cycle as there is room for a home, so that no cycle waits for the one before it; and
    // in each what takes long first, so that nothing is waited for alone in the end.
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by_key(|index| !pairs[*index].0.is_by_record());
    let cycles = (0..u32::MAX).take_while(|cycle| goes_on(*cycle));
    let jobs = cycles.flat_map(|_| {
        let seeds: Vec<u64> = order.iter().map(|_| random.random()).collect();
        order.clone().into_iter().zip(seeds)
    });
    let jobs = jobs.map(|(index, seed)| {
        let (death, fsync) = pairs[index];
        async move { (index, home::all(plan, death, fsync, seed).await) }
    });
    let mut jobs = futures::stream::iter(jobs).buffer_unordered(plan.at_once);
    while let Some((index, verdicts)) = jobs.next().await {
        for verdict in verdicts? {
            rows[index].add(verdict);
        }
        told();
    }
    drop(jobs);
    Ok(Report { seed: plan.seed, rows, took: started.elapsed() })
}
