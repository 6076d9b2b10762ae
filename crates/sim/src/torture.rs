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

/// Does what the plan says; `told` hears of each home when it is over: how many are, how many there
/// will be at least, and what it was about.
///
/// # Errors
/// Something is wrong with the machine and not with the server: no folder, no process. What a home
/// itself comes to, good or bad, is in the report.
pub async fn run(plan: &Plan, told: impl Fn(usize, usize, &str)) -> Result<Report> {
    let started = Instant::now();
    let mut random = StdRng::seed_from_u64(plan.seed);
    let pairs: Vec<(Death, Fsync)> = plan
        .deaths
        .iter()
        .flat_map(|death| plan.modes.iter().map(|fsync| (*death, *fsync)))
        .collect();
    let mut rows: Vec<Row> = pairs.iter().map(|(death, fsync)| Row::new(*death, *fsync)).collect();
    let mut cycle = 0;
    let mut done = 0;
    let goes_on = |cycle: u32| match plan.seconds {
        Some(limit) => cycle == 0 || started.elapsed() < limit,
        None => cycle < plan.cycles,
    };
    while goes_on(cycle) {
        cycle += 1;
        let least = pairs.len() * usize::try_from(plan.cycles.max(cycle)).unwrap_or(usize::MAX);
        let mut jobs: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(index, (death, fsync))| {
                let seed = random.random();
                let work = async move { (index, home::all(plan, *death, *fsync, seed).await) };
                (death.is_by_record(), work)
            })
            .collect();
        // What takes long begins first, so that nothing is waited for alone in the end.
        jobs.sort_by_key(|(is_long, _)| !is_long);
        let jobs = jobs.into_iter().map(|(_, work)| work);
        let mut jobs = futures::stream::iter(jobs).buffer_unordered(plan.at_once);
        while let Some((index, verdicts)) = jobs.next().await {
            let row = &mut rows[index];
            for verdict in verdicts? {
                row.add(verdict);
            }
            done += 1;
            let what = format!("{} {}", row.death.name(), row.fsync.name());
            told(done, least, &what);
        }
    }
    Ok(Report { seed: plan.seed, rows, took: started.elapsed() })
}
