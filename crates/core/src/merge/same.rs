//! Rows that are one for certain: by ids that both records have, by the exact time, and results by
//! their calls.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use super::scene::{CallAt, Scene, Side};
use super::{By, Row};

/// Matches what has an id of both records, then what is the same at the same time.
pub(super) fn correlate(scene: &mut Scene<'_, '_>) {
    let keys = pairs(&scene.ours, &scene.copy, |side, row| side.rows[row].key);
    join(scene, keys, By::Correlation, |row, copied| row.role == copied.role);
    let calls = pairs(&scene.ours, &scene.copy, |side, row| {
        let call = side.rows[row].calls.first().filter(|call| !call.id.is_empty())?;
        Some((call.id, call.name))
    });
    // Some providers number their calls anew in each conversation: the same number is not enough.
    join(scene, calls, By::Correlation, |row, copied| {
        let arguments = |row: &Row<'_>| {
            let text = row.calls.first().map_or("", |call| call.arguments);
            text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect::<Vec<u8>>()
        };
        row.role == copied.role && arguments(row) == arguments(copied)
    });
    // A result whose call is on both sides follows it later.
    let answers = pairs(&scene.ours, &scene.copy, |side, row| {
        side.rows[row].answers.filter(|_| side.is_result(row))
    })
    .into_iter()
    .filter(|&(ours, copy)| {
        scene.ours.call_of[ours].is_none() || scene.copy.call_of[copy].is_none()
    })
    .collect();
    join(scene, answers, By::Correlation, |row, copied| {
        row.tool.is_none() || copied.tool.is_none() || row.tool == copied.tool
    });
    let exact = pairs(&scene.ours, &scene.copy, |side, row| {
        let at = side.rows[row].at?;
        side.call_of[row].is_none().then_some((side.class(row), at))
    });
    // Records that share a clock agree about most rows; elsewhere an equal time is an accident.
    let comparable = (scene.copy.rows.iter().enumerate())
        .filter(|&(row, copied)| {
            copied.at.is_some()
                && scene.copy.call_of[row].is_none()
                && scene.ours.of_class[scene.copy.class(row)] == 1
                && scene.copy.of_class[scene.copy.class(row)] == 1
        })
        .count();
    let agreeing = exact
        .iter()
        .filter(|&&(ours, copy)| {
            scene.ours.of_class[scene.ours.class(ours)] == 1
                && scene.copy.of_class[scene.copy.class(copy)] == 1
        })
        .count();
    if agreeing == 0 || agreeing * 2 < comparable {
        return;
    }
    for (ours, copy) in exact {
        if scene.free(ours, copy) && scene.same(ours, copy) {
            scene.join(ours, copy, By::Exact);
        }
    }
}

fn join(
    scene: &mut Scene<'_, '_>,
    pairs: Vec<(usize, usize)>,
    by: By,
    may: impl Fn(&Row<'_>, &Row<'_>) -> bool,
) {
    for (ours, copy) in pairs {
        scene.work.steps += 1;
        if scene.free(ours, copy) && may(&scene.ours.rows[ours], &scene.copy.rows[copy]) {
            scene.join(ours, copy, by);
        }
    }
}

/// The pairs of rows that have a name in common which occurs once on each side, in the copy's order.
fn pairs<'x, K: Eq + Hash + Copy>(
    ours: &Side<'_, 'x>,
    copy: &Side<'_, 'x>,
    name: impl Fn(&Side<'_, 'x>, usize) -> Option<K>,
) -> Vec<(usize, usize)> {
    let once = |side: &Side<'_, 'x>| {
        let mut rows: HashMap<K, Option<usize>> = HashMap::new();
        for row in 0..side.rows.len() {
            if let Some(name) = name(side, row) {
                rows.entry(name).and_modify(|found| *found = None).or_insert(Some(row));
            }
        }
        rows
    };
    let (known, copied) = (once(ours), once(copy));
    (0..copy.rows.len())
        .filter_map(|row| {
            let name = name(copy, row)?;
            let copied = copied.get(&name).copied().flatten()?;
            Some((known.get(&name).copied().flatten()?, copied))
        })
        .collect()
}

/// Matches the results of calls that are matched, the first one of a call with the first one.
pub(super) fn results(scene: &mut Scene<'_, '_>) {
    let mut answered: HashMap<CallAt, VecDeque<usize>> = HashMap::new();
    for (row, call) in scene.ours.call_of.iter().enumerate() {
        if let Some(call) = call
            && scene.to_copy[row].is_none()
        {
            answered.entry(*call).or_default().push_back(row);
        }
    }
    for copy in 0..scene.copy.rows.len() {
        let Some((caller, index)) = scene.copy.call_of[copy] else { continue };
        scene.work.steps += 1;
        if let Some((caller, _)) = scene.to_ours[caller]
            && scene.to_ours[copy].is_none()
            && let Some(ours) = answered.get_mut(&(caller, index)).and_then(VecDeque::pop_front)
        {
            scene.join(ours, copy, By::Call);
        }
    }
}
