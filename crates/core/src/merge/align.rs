//! Follows both records in order: the longest order that they have in common, what stands together
//! preferred.
//!
//! Rows that are matched already cut the records into gaps. A small gap is aligned exactly, with a
//! table; a large one loses its equal ends, is cut at rows that occur once on each side, and what is
//! large even then consists of repetitions and is followed greedily, which is exact where the copy
//! only leaves rows out.

use std::collections::{HashMap, VecDeque};

use super::By;
use super::scene::Scene;
use crate::limits::{MERGE_CELLS_MAX, MERGE_DISTINCT_BYTES};
use crate::message::Role;

/// How often a gap is cut at single rows, and its parts again.
const CUTS: usize = 4;
// What an order is worth, so that each line outweighs any number of those below it: a table has no more
// than 256 matches.
/// Rows that say the same.
const SAME: u64 = 1 << 50;
/// Rows of which one is the other cut short.
const SHORTENED: u64 = 1 << 40;
/// Texts that are not said twice by chance.
const LONG: u64 = 1 << 30;
/// Calls of which ours has as many results (twice), and of which the first result says the same.
const RESULT: u64 = 1 << 20;
/// Two matches that follow each other directly on both sides.
const TOGETHER: u64 = 1 << 10;
/// Answers: questions are said again more often.
const ANSWER: u64 = 1;

/// Aligns everything but the results that follow their calls.
pub(super) fn heads(scene: &mut Scene<'_, '_>) {
    // And results that are matched already: they tell what is before and what is after.
    let ours: Vec<usize> = (0..scene.ours.rows.len())
        .filter(|&row| scene.ours.call_of[row].is_none() || scene.to_copy[row].is_some())
        .collect();
    let copy: Vec<usize> = (0..scene.copy.rows.len())
        .filter(|&row| scene.copy.call_of[row].is_none() || scene.to_ours[row].is_some())
        .collect();
    align(scene, &ours, &copy);
}

/// Aligns results that lost their calls with those that have not.
pub(super) fn results(scene: &mut Scene<'_, '_>) {
    let ours: Vec<usize> = (0..scene.ours.rows.len())
        .filter(|&row| scene.to_copy[row].is_some() || scene.ours.is_result(row))
        .collect();
    let copy: Vec<usize> = (0..scene.copy.rows.len())
        .filter(|&row| {
            let alone = scene.copy.is_result(row) && scene.copy.call_of[row].is_none();
            scene.to_ours[row].is_some() || alone
        })
        .collect();
    if copy.iter().any(|&row| scene.to_ours[row].is_none()) {
        align(scene, &ours, &copy);
    }
}

/// A stretch of rows between matches; `before` and `behind` say whether there are any.
#[derive(Clone, Copy)]
struct Gap<'g> {
    ours: &'g [usize],
    copy: &'g [usize],
    before: bool,
    behind: bool,
}

fn align(scene: &mut Scene<'_, '_>, ours: &[usize], copy: &[usize]) {
    let mut place = vec![usize::MAX; scene.ours.rows.len()];
    for (at, &row) in ours.iter().enumerate() {
        place[row] = at;
    }
    let fixed: Vec<(usize, usize)> = copy
        .iter()
        .enumerate()
        .filter_map(|(at, &row)| {
            let ours = place[scene.to_ours[row]?.0];
            (ours != usize::MAX).then_some((ours, at))
        })
        .collect();
    let chain = longest_chain(&fixed, &mut scene.work.steps);
    let whole = Gap { ours, copy, before: false, behind: false };
    cut(whole, &chain, &mut |part| {
        let open_ours: Vec<usize> =
            part.ours.iter().copied().filter(|&row| scene.to_copy[row].is_none()).collect();
        let open_copy: Vec<usize> =
            part.copy.iter().copied().filter(|&row| scene.to_ours[row].is_none()).collect();
        fill(scene, Gap { ours: &open_ours, copy: &open_copy, ..part }, 0);
    });
}

/// Calls `each` with the stretches between the pairs of `chain`.
fn cut<'g>(gap: Gap<'g>, chain: &[(usize, usize)], each: &mut dyn FnMut(Gap<'g>)) {
    let (mut from_ours, mut from_copy, mut before) = (0, 0, gap.before);
    for &(ours, copy) in chain {
        each(Gap {
            ours: &gap.ours[from_ours..ours],
            copy: &gap.copy[from_copy..copy],
            before,
            behind: true,
        });
        (from_ours, from_copy, before) = (ours + 1, copy + 1, true);
    }
    each(Gap { ours: &gap.ours[from_ours..], copy: &gap.copy[from_copy..], before, ..gap });
}

fn fill(scene: &mut Scene<'_, '_>, mut gap: Gap<'_>, depth: usize) {
    if gap.ours.is_empty() || gap.copy.is_empty() {
        return;
    }
    if is_small(scene, gap) {
        exactly(scene, gap);
        return;
    }
    while let ([ours, rest @ ..], [copy, others @ ..]) = (gap.ours, gap.copy)
        && scene.same(*ours, *copy)
    {
        scene.join(*ours, *copy, By::Sequence);
        gap = Gap { ours: rest, copy: others, before: true, ..gap };
    }
    while let ([rest @ .., ours], [others @ .., copy]) = (gap.ours, gap.copy)
        && scene.same(*ours, *copy)
    {
        scene.join(*ours, *copy, By::Sequence);
        gap = Gap { ours: rest, copy: others, behind: true, ..gap };
    }
    let chain = if depth < CUTS { single(scene, gap) } else { Vec::new() };
    if chain.is_empty() {
        if is_small(scene, gap) {
            exactly(scene, gap);
        } else {
            greedily(scene, gap);
        }
        return;
    }
    for &(ours, copy) in &chain {
        scene.join(gap.ours[ours], gap.copy[copy], By::Sequence);
    }
    cut(gap, &chain, &mut |part| fill(scene, part, depth + 1));
}

fn is_small(scene: &Scene<'_, '_>, gap: Gap<'_>) -> bool {
    let (ours, copy) = (gap.ours.len(), gap.copy.len());
    let cells = ours.saturating_mul(copy);
    cells <= MERGE_CELLS_MAX && cells <= scene.effort.cells_per_row * (ours + copy)
}

/// The longest order of rows that occur once on each side of the gap, as places in it.
fn single(scene: &mut Scene<'_, '_>, gap: Gap<'_>) -> Vec<(usize, usize)> {
    // How often, and where at last.
    let mut found: HashMap<usize, [(u32, usize); 2]> = HashMap::new();
    for (at, &row) in gap.ours.iter().enumerate() {
        let (count, place) = &mut found.entry(scene.ours.class(row)).or_default()[0];
        (*count, *place) = (*count + 1, at);
    }
    for (at, &row) in gap.copy.iter().enumerate() {
        if let Some([_, (count, place)]) = found.get_mut(&scene.copy.class(row)) {
            (*count, *place) = (*count + 1, at);
        }
    }
    scene.work.steps += (gap.ours.len() + gap.copy.len()) as u64;
    let mut pairs = Vec::new();
    for (at, &row) in gap.copy.iter().enumerate() {
        if let Some([(1, ours), (1, _)]) = found.get(&scene.copy.class(row))
            && scene.same(gap.ours[*ours], row)
        {
            pairs.push((*ours, at));
        }
    }
    longest_chain(&pairs, &mut scene.work.steps)
}

/// The longest sequence of pairs that grows on both sides; `pairs` is sorted by the second.
fn longest_chain(pairs: &[(usize, usize)], steps: &mut u64) -> Vec<(usize, usize)> {
    // For each length, the pair that ends such a sequence lowest; and for each pair, the one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, &(ours, _)) in pairs.iter().enumerate() {
        // In order, which is the rule, a pair goes to the end without a search.
        let length = match ends.last() {
            Some(&last) if pairs[last].0 < ours => ends.len(),
            _ => ends.partition_point(|&end| {
                *steps += 1;
                pairs[end].0 < ours
            }),
        };
        *steps += 1;
        previous.push(length.checked_sub(1).map(|before| ends[before]));
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut chain = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(at) = next {
        chain.push(pairs[at]);
        next = previous[at];
    }
    chain.reverse();
    chain
}

/// Matches the best of all orders. Best: most rows that say the same; of those orders, most shortened
/// ones; then most long texts; then most calls with the same result; then most that follow each other
/// directly on both sides; then fewest questions.
fn exactly(scene: &mut Scene<'_, '_>, gap: Gap<'_>) {
    let (height, width) = (gap.ours.len(), gap.copy.len());
    scene.work.cells += (height * width) as u64;
    // `ending[i][j]`: the best that ends with i matched to j, or 0, and whether it goes on from the
    // match before on both sides. `best[i][j]`: the best of the first i and j.
    let mut ending = vec![(0_u64, false); height * width];
    let mut best = vec![0_u64; (height + 1) * (width + 1)];
    let at = |i: usize, j: usize| i * width + j;
    let of = |i: usize, j: usize| i * (width + 1) + j;
    for (i, &ours) in gap.ours.iter().enumerate() {
        for (j, &copy) in gap.copy.iter().enumerate() {
            let mut score = best[of(i, j + 1)].max(best[of(i + 1, j)]);
            let mut worth = worth(scene, ours, copy);
            if worth > 0 {
                let first = gap.before && i == 0 && j == 0;
                let last = gap.behind && i + 1 == height && j + 1 == width;
                worth += (u64::from(first) + u64::from(last)) * TOGETHER;
                let apart = best[of(i, j)];
                let near = if i > 0 && j > 0 { ending[at(i - 1, j - 1)].0 } else { 0 };
                let together = near > 0 && near + TOGETHER >= apart;
                let before = if together { near + TOGETHER } else { apart };
                ending[at(i, j)] = (before + worth, together);
                score = score.max(before + worth);
            }
            best[of(i + 1, j + 1)] = score;
        }
    }
    let (mut i, mut j) = (height, width);
    while best[of(i, j)] > 0 {
        if ending[at(i - 1, j - 1)].0 < best[of(i, j)] {
            if best[of(i - 1, j)] == best[of(i, j)] {
                i -= 1
            } else {
                j -= 1
            }
            continue;
        }
        loop {
            (i, j) = (i - 1, j - 1);
            scene.join(gap.ours[i], gap.copy[j], By::Sequence);
            if !ending[at(i, j)].1 {
                break;
            }
        }
    }
}

/// What it is worth to match two rows; 0 if they are not the same.
fn worth(scene: &mut Scene<'_, '_>, ours: usize, copy: usize) -> u64 {
    let worth = if scene.says_same(ours, copy) {
        SAME
    } else if scene.shortened(ours, copy) {
        SHORTENED
    } else {
        return 0;
    };
    // One that is cut short tells no more than what is left of it.
    let bytes = scene.ours.prints[ours].bytes.min(scene.copy.prints[copy].bytes);
    let long = bytes >= MERGE_DISTINCT_BYTES;
    let answer = scene.ours.rows[ours].role != Role::User;
    let (mine, theirs) = (scene.ours.results[ours], scene.copy.results[copy]);
    let result = match (mine, theirs) {
        (Some((mine, count)), Some((theirs, copied))) => {
            2 * u64::from(count >= copied) + u64::from(mine == theirs)
        }
        _ => 0,
    };
    worth + u64::from(long) * LONG + result * RESULT + u64::from(answer) * ANSWER
}

/// Gives each row of the copy the next free row of ours that says the same; what is between, if it is
/// small, is aligned exactly.
fn greedily(scene: &mut Scene<'_, '_>, gap: Gap<'_>) {
    let mut places: HashMap<usize, VecDeque<usize>> = HashMap::new();
    for (at, &row) in gap.ours.iter().enumerate() {
        places.entry(scene.ours.class(row)).or_default().push_back(at);
    }
    let mut chain = Vec::new();
    let mut from = 0;
    for (place, &copy) in gap.copy.iter().enumerate() {
        let Some(places) = places.get_mut(&scene.copy.class(copy)) else { continue };
        while places.front().is_some_and(|&at| at < from) {
            scene.work.steps += 1;
            places.pop_front();
        }
        if let Some(&at) = places.front()
            && scene.same(gap.ours[at], copy)
        {
            scene.join(gap.ours[at], copy, By::Sequence);
            chain.push((at, place));
            from = at + 1;
        }
    }
    cut(gap, &chain, &mut |part| {
        if is_small(scene, part) {
            exactly(scene, part);
        }
    });
}
