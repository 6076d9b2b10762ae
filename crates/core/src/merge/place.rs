//! The transcript that comes out: ours in its order, and what the copy adds in its place.

use std::collections::HashSet;

use super::scene::{CallAt, Scene};
use super::{Doubt, Match, Merged, Placed, Source};
use crate::message::Role;

/// What is put between two rows of ours.
#[derive(Debug, Clone, Default)]
struct Between {
    /// Results of the calls above, which nothing may part from them.
    results: Vec<usize>,
    rows: Vec<usize>,
    /// What belongs before the row that follows.
    leading: Vec<usize>,
}

/// Builds the transcript; `doubts` is what is known of the copy's rows that are not results.
pub(super) fn build(mut scene: Scene<'_, '_>, mut doubts: Vec<Option<Doubt>>) -> Merged {
    let count = scene.ours.rows.len();
    let copied = scene.copy.rows.len();
    let ends = ends_of_turns(&scene);
    let results = ends_of_results(&scene);
    let summary = scene.ours.prints.iter().rposition(|print| print.summary);
    // What follows the row `gap - 1` of ours.
    let mut gaps = vec![Between::default(); count + 1];
    let mut kept_results: Vec<Vec<usize>> = vec![Vec::new(); copied];
    let mut answered: HashSet<CallAt> = HashSet::new();
    for copy in 0..copied {
        if let (Some(call), Some(_)) = (scene.copy.call_of[copy], scene.to_ours[copy]) {
            answered.insert(call);
        }
    }
    let mut gap = None;
    let mut leading = Vec::new();
    for copy in 0..copied {
        scene.work.steps += 1;
        if let Some((ours, _)) = scene.to_ours[copy] {
            if !leading.is_empty() {
                gaps[first_of(&scene, ours)].leading.append(&mut leading);
            }
            gap = Some(ends[ours] + 1);
            continue;
        }
        if let Some(call) = scene.copy.call_of[copy] {
            // A result goes to its call, wherever the copy has it.
            let second = !answered.insert(call);
            let (caller, _) = call;
            match scene.to_ours[caller] {
                Some((ours, _)) => gaps[results[ours] + 1].results.push(copy),
                None => kept_results[caller].push(copy),
            }
            doubts[copy] = if second { Some(Doubt::Unpaired) } else { doubts[caller] };
            continue;
        }
        if scene.copy.rows[copy].role == Role::Tool {
            doubts[copy] = Some(Doubt::Unpaired);
        }
        match gap {
            Some(gap) => gaps[gap].rows.push(copy),
            None => leading.push(copy),
        }
    }
    // Nothing was matched: it can only follow.
    gaps[count].leading.append(&mut leading);

    let mut rows = Vec::with_capacity(count + copied);
    for (gap, between) in gaps.iter().enumerate() {
        if let Some(ours) = gap.checked_sub(1) {
            rows.push(Placed { source: Source::Ours(ours), doubt: None });
        }
        for &copy in between.results.iter().chain(&between.rows).chain(&between.leading) {
            for copy in std::iter::once(&copy).chain(&kept_results[copy]) {
                let summarised = summary.filter(|&by| by >= gap).map(|by| Doubt::Summarised { by });
                let doubt = doubts[*copy].or(summarised);
                rows.push(Placed { source: Source::Copy(*copy), doubt });
            }
        }
    }
    let matches = scene
        .to_ours
        .iter()
        .enumerate()
        .filter_map(|(copy, found)| {
            let (ours, by) = (*found)?;
            let same = scene.ours.class(ours) == scene.copy.class(copy);
            Some(Match { copy, ours, by, same })
        })
        .collect();
    Merged { rows, matches, work: scene.work }
}

/// For each row of ours, the last row that stays together with it: results follow their call, and what
/// only ours says to the end of the turn comes before what only the copy says.
fn ends_of_turns(scene: &Scene<'_, '_>) -> Vec<usize> {
    // A call is known to the copy if one of its results is.
    let mut known: Vec<bool> = scene.to_copy.iter().map(Option::is_some).collect();
    for (row, call) in scene.ours.call_of.iter().enumerate() {
        if let Some((caller, _)) = *call {
            known[caller] |= scene.to_copy[row].is_some();
        }
    }
    ends(scene, |row| {
        scene.ours.call_of[row].is_some()
            || !(known[row]
                || scene.ours.rows[row].role == Role::User
                || scene.ours.prints[row].summary)
    })
}

/// For each row of ours, the last of the results that follow it directly, or itself.
fn ends_of_results(scene: &Scene<'_, '_>) -> Vec<usize> {
    ends(scene, |row| scene.ours.call_of[row].is_some())
}

fn ends(scene: &Scene<'_, '_>, stays: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..scene.ours.rows.len()).collect();
    for row in (1..ends.len()).rev() {
        if stays(row) {
            ends[row - 1] = ends[row];
        }
    }
    ends
}

/// The first row of what stands together with `ours`: its call if it is a result, and summaries
/// before it that only ours has, for they stand for what is older.
fn first_of(scene: &Scene<'_, '_>, ours: usize) -> usize {
    let mut first = scene.ours.call_of[ours].map_or(ours, |(caller, _)| caller);
    while first > 0 && scene.ours.prints[first - 1].summary && scene.to_copy[first - 1].is_none() {
        first -= 1;
    }
    first
}
