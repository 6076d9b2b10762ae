//! Random conversations, random distortions.
//!
//! A failure prints its seed; `EVERTURN_SEED=N` runs that one again.

use std::collections::HashSet;

use everturn_core::Role;
use everturn_core::merge::{Effort, Merged, Source};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::line::{Line, long, merged, merged_with, model, rows, tool, transcript, user};
use crate::oracle;

fn check<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), String>) {
    let seed: u64 = match std::env::var("EVERTURN_SEED") {
        Ok(seed) => seed.parse().expect("EVERTURN_SEED is a number"),
        Err(_) => std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    };
    println!("EVERTURN_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng)
        .run(&strategy, |value| test(value).map_err(TestCaseError::fail));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, _)) => panic!("EVERTURN_SEED={seed}\n{why}"),
        Err(other) => panic!("EVERTURN_SEED={seed}: {other}"),
    }
}

/// Lines of few words, so that records have much in common, and ids that often do not fit.
fn word() -> impl Strategy<Value = Line> {
    let note = |rest: &str| format!("[CONTEXT COMPACTION] {} {rest}", "so far ".repeat(6));
    prop_oneof![
        4 => (0..3_u8).prop_map(|n| user(["ok", "go on", "why?"][n as usize])),
        1 => Just(user("[Workspace: /a]\nok")),
        2 => (0..2_u8).prop_map(|n| user(long(&format!("question {n}")))),
        4 => (0..3_u8).prop_map(|n| model(["done", "yes", "ok"][n as usize])),
        3 => (0..2_u8).prop_map(|n| model(long(&format!("answer {n}")))),
        1 => Just(user(note("and more"))),
        1 => Just(user(note(""))),
        1 => Just(model("a summary").summary()),
        2 => (0..2_u8, 1..3_u8).prop_map(|(id, calls)| {
            (0..calls).fold(model(""), |line, n| line.calls(&format!("{id}{n}"), "shell"))
        }),
        3 => (0..2_u8, 0..2_u8, 0..3_u8).prop_map(|(id, n, text)| {
            let line = tool(["0", "1", "a result of some length, which was then cut"][text as usize]);
            if id == 2 { line } else { line.answers(&format!("{id}{n}")) }
        }),
        1 => Just(tool("0")),
        1 => Just(tool("a result of some length, which was then cut short")),
        1 => Just(user("keyed").key("k")),
        1 => Just(model("keyed").key("k")),
    ]
}

/// Records of all of these, of few that are said again and again, or of steps with tools.
fn words(most: usize) -> impl Strategy<Value = Vec<Line>> {
    let few = prop_oneof![
        Just(user("ok")),
        Just(user(long("question"))),
        Just(model("done")),
        Just(model(long("answer"))),
    ];
    let steps = prop_oneof![
        2 => Just(user("ok")),
        2 => Just(model("").calls("a", "shell")),
        1 => Just(model("").calls("b", "shell").calls("c", "shell")),
        1 => Just(model("").calls("b", "shell").calls("d", "shell")),
        6 => (0..5_u8, 0..2_u8).prop_map(|(id, text)| {
            let line = tool(["0", "1"][text as usize]);
            if id == 4 { line } else { line.answers(["a", "b", "c", "d"][id as usize]) }
        }),
    ];
    prop_oneof![
        prop::collection::vec(word(), 0..=most),
        prop::collection::vec(few, 0..=most),
        prop::collection::vec(steps, 0..=most),
    ]
}

/// A record as a server keeps it: results follow their calls, ids are not used twice.
fn record(most: usize, prefix: &'static str) -> impl Strategy<Value = Vec<Line>> {
    let note = |rest: &str| format!("[CONTEXT COMPACTION] {} {rest}", "so far ".repeat(6));
    let item = prop_oneof![
        3 => Just(vec![user("ok")]),
        2 => Just(vec![user(long("question"))]),
        3 => Just(vec![model("done")]),
        2 => Just(vec![model(long("answer"))]),
        1 => (0..9_u8).prop_map(|n| vec![model(format!("{n}"))]),
        1 => Just(vec![user(note("and more"))]),
        1 => Just(vec![user(note(""))]),
        3 => (1..3_usize, 0..3_usize, 0..2_u8).prop_map(|(calls, results, text)| {
            let step = (0..calls).fold(model("step"), |line, n| line.calls(&n.to_string(), "shell"));
            let result = |n: usize| tool(["0", "1"][text as usize]).answers(&n.to_string());
            std::iter::once(step).chain((0..results.min(calls)).map(result)).collect()
        }),
    ];
    prop::collection::vec(item, 0..=most).prop_map(move |items| {
        let mut record = Vec::new();
        for (at, mut item) in items.into_iter().enumerate() {
            for line in &mut item {
                for (id, ..) in &mut line.calls {
                    *id = format!("{prefix}{at}-{id}");
                }
                if let Some(id) = &mut line.answers {
                    *id = format!("{prefix}{at}-{id}");
                }
            }
            record.extend(item);
        }
        record
    })
}

/// Two records of the same kind.
fn two(most: usize) -> impl Strategy<Value = (Vec<Line>, Vec<Line>)> {
    // One list that is cut in two: both halves are of one kind.
    (words(2 * most), any::<prop::sample::Index>()).prop_map(move |(mut lines, at)| {
        let from = lines.len().saturating_sub(most);
        let copy = lines.split_off(from + at.index(lines.len().min(most) - from + 1));
        (lines, copy)
    })
}

/// What holds for any two records.
fn invariants(ours: &[Line], copy: &[Line], merged: &Merged) -> Result<(), String> {
    let kept: Vec<usize> = (merged.rows.iter())
        .filter_map(|row| match row.source {
            Source::Ours(row) => Some(row),
            Source::Copy(_) => None,
        })
        .collect();
    if kept != (0..ours.len()).collect::<Vec<_>>() {
        return Err(format!("ours is not all there, in order: {kept:?}"));
    }
    let mut seen: Vec<usize> = merged.matches.iter().map(|found| found.copy).collect();
    seen.extend(merged.rows.iter().filter_map(|row| match row.source {
        Source::Copy(row) => Some(row),
        Source::Ours(_) => None,
    }));
    seen.sort_unstable();
    if seen != (0..copy.len()).collect::<Vec<_>>() {
        return Err(format!("a row of the copy is neither matched once nor kept once: {seen:?}"));
    }
    let partners: HashSet<usize> = merged.matches.iter().map(|found| found.ours).collect();
    if partners.len() != merged.matches.len() {
        return Err("a row of ours is matched twice".to_owned());
    }
    if merged.rows.iter().any(|row| matches!(row.source, Source::Ours(_)) && row.doubt.is_some()) {
        return Err("a row of ours is in doubt".to_owned());
    }
    Ok(())
}

fn shown(ours: &[Line], copy: &[Line], merged: &Merged) -> String {
    let brief = |lines: &[Line]| -> String {
        let line = |(at, line): (usize, &Line)| {
            format!(
                "  {at} {:?} {:.30?} {:?} {:?} {:?} {:?}\n",
                line.role, line.text, line.calls, line.answers, line.key, line.kind
            )
        };
        lines.iter().enumerate().map(line).collect()
    };
    format!(
        "ours\n{}copy\n{}rows {:#?}\nmatches {:#?}",
        brief(ours),
        brief(copy),
        merged.rows,
        merged.matches
    )
}

#[test]
fn any_merge_is_one_that_the_slow_statement_of_the_rules_allows() {
    let records = prop_oneof![two(6), (record(4, "o"), record(4, "x"))];
    check(4_000, records, |(ours, copy)| {
        let merged = merged(&ours, &copy);
        let allowed = oracle::merges(&ours, &copy);
        if !allowed.contains(&merged.rows) {
            return Err(format!("{}\nallowed {allowed:#?}", shown(&ours, &copy, &merged)));
        }
        invariants(&ours, &copy, &merged)
    });
}

#[test]
fn any_merge_keeps_everything_and_nothing_else() {
    check(1_000, (two(30), 0..3_usize), |((ours, copy), cells_per_row)| {
        let effort = Effort { cells_per_row };
        for merged in [merged(&ours, &copy), merged_with(&ours, &copy, effort)] {
            invariants(&ours, &copy, &merged)
                .map_err(|why| format!("{why}\n{}", shown(&ours, &copy, &merged)))?;
        }
        Ok(())
    });
}

#[test]
fn a_merge_with_nothing_or_itself_changes_nothing() {
    check(1_000, (words(30), 0..3_usize), |(ours, cells_per_row)| {
        for effort in [Effort::default(), Effort { cells_per_row }] {
            for copy in [&[][..], &ours[..]] {
                let merged = merged_with(&ours, copy, effort);
                if merged.added() > 0 || merged.rows.len() != ours.len() {
                    return Err(shown(&ours, copy, &merged));
                }
            }
            let merged = merged_with(&[], &ours, effort);
            if transcript(&[], &ours, &merged).len() != ours.len() {
                return Err(shown(&[], &ours, &merged));
            }
        }
        Ok(())
    });
}

#[test]
fn a_second_merge_with_the_same_copy_adds_nothing() {
    let in_order = std::cell::Cell::new(0);
    check(3_000, (record(10, "o"), record(10, "x")), |(ours, copy)| {
        let first = merged(&ours, &copy);
        let whole = transcript(&ours, &copy, &first);
        let apart = whole.windows(2).find(|two| {
            two[1].role == Role::Tool && two[0].role != Role::Tool && two[0].calls.is_empty()
        });
        if apart.is_some() {
            return Err(format!("a result lost its call\n{}", shown(&ours, &copy, &first)));
        }
        let second = merged(&whole, &copy);
        invariants(&whole, &copy, &second)?;
        // Where the records contradict each other's order, the longest common order of the second
        // merge may be another one.
        let agree = first.matches.is_sorted_by_key(|found| found.ours);
        in_order.set(in_order.get() + u32::from(agree));
        if agree && second.added() > 0 {
            let (first, second) = (shown(&ours, &copy, &first), shown(&whole, &copy, &second));
            return Err(format!("{first}\nthen {second}"));
        }
        Ok(())
    });
    println!("{} of 3000 pairs of records agree about the order", in_order.get());
    assert!(in_order.get() > 2_000);
}

#[test]
fn the_rows_are_borrowed() {
    let lines = [user("a"), model("b")];
    assert_eq!(rows(&lines)[1].text.as_ptr(), lines[1].text.as_ptr());
    assert_eq!(rows(&lines)[1].role, Role::Assistant);
}

/// What another program made of a row.
#[derive(Debug, Clone)]
struct Distortion {
    /// Left out, with the results of its calls.
    dropped: bool,
    prefixed: bool,
    spaced: bool,
    shortened: bool,
    /// Milliseconds.
    shift: i64,
    /// Followed by an answer that nobody else has.
    extended: bool,
}

fn distortions() -> impl Strategy<Value = Vec<Distortion>> {
    let shift = prop_oneof![Just(0), Just(400), -5_000..90_000_000_i64];
    let one = (
        prop::bool::weighted(0.15),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        shift,
        prop::bool::weighted(0.1),
    );
    let one = one.prop_map(|(dropped, prefixed, spaced, shortened, shift, extended)| Distortion {
        dropped,
        prefixed,
        spaced,
        shortened,
        shift,
        extended,
    });
    prop::collection::vec(one, 60)
}

/// A stretch of `ours` as another program keeps it, and which of its rows are new.
fn distorted(ours: &[Line], how: &[Distortion], from: usize, to: usize, cut: bool) -> Vec<Line> {
    let mut copy = Vec::new();
    let mut caller_dropped = false;
    for (at, line) in ours.iter().enumerate().take(to).skip(from) {
        let how = &how[at % how.len()];
        if line.role != Role::Tool {
            caller_dropped = how.dropped;
        }
        if caller_dropped {
            continue;
        }
        let mut line = line.clone();
        line.at = line.at.map(|at| at + how.shift);
        for (id, ..) in &mut line.calls {
            *id = format!("renumbered-{id}");
        }
        line.answers = line.answers.map(|id| format!("renumbered-{id}"));
        if how.shortened && cut && (line.role == Role::Tool || line.text.len() > 60) {
            // A note keeps more than its first words; a result may lose everything.
            let keep = if line.role == Role::Tool { 0 } else { 50 };
            if line.role == Role::Tool || line.text.starts_with("[CONTEXT") {
                line.text.truncate(keep);
                line.text.push_str(" [truncated]");
            }
        }
        if how.spaced {
            line.text = format!(" {}\n", line.text.replace(' ', " \n "));
        }
        if how.prefixed && line.role == Role::User {
            line.text = format!("[Workspace::v1: /srv/a\\]b]\n{}", line.text);
        }
        copy.push(line);
        let inside_a_step = ours.get(at + 1).is_some_and(|next| next.role == Role::Tool);
        if how.extended && !inside_a_step {
            copy.push(model(format!("late {at}")));
        }
    }
    copy
}

/// Prefixes, whole replays and stretches from the middle, whatever was made of them: nothing is added
/// but the answers that only the copy has, and those stand after what they answer.
#[test]
fn a_distorted_replay_adds_only_what_is_new() {
    let bounds = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    check(
        4_000,
        (record(14, "o"), distortions(), bounds, 0..4_usize),
        |(ours, how, bounds, effort)| {
            let ours: Vec<Line> =
                ours.into_iter().enumerate().map(|(at, line)| line.at(at as i64 * 1_000)).collect();
            // Less effort does not look at the results of calls.
            let ours: Vec<Line> =
                ours.into_iter().filter(|line| effort < 3 || line.role != Role::Tool).collect();
            let mut ends = [bounds.0.index(ours.len() + 1), bounds.1.index(ours.len() + 1)];
            ends.sort_unstable();
            let [mut from, to] = if effort == 0 { [0, ends[1]] } else { ends };
            while from < to && ours[from].role == Role::Tool {
                from += 1;
            }
            // What is cut short in long stretches of repetitions is beyond what less effort finds.
            let (effort, cut) = match effort {
                3 => (Effort { cells_per_row: 0 }, false),
                _ => (Effort::default(), true),
            };
            let copy = distorted(&ours, &how, from, to, cut);
            let merged = merged_with(&ours, &copy, effort);
            let result = || -> Result<(), String> {
                invariants(&ours, &copy, &merged)?;
                for (at, line) in copy.iter().enumerate() {
                    let found = merged.matches.iter().find(|found| found.copy == at);
                    if line.text.starts_with("late") != found.is_none() {
                        return Err(format!("row {at} of the copy is taken for something else"));
                    }
                    if found.is_some() {
                        continue;
                    }
                    let place = merged.rows.iter().position(|row| row.source == Source::Copy(at));
                    let before = merged.rows[..place.unwrap()].iter().rev();
                    let turn: Vec<usize> = before
                        .filter_map(|row| match row.source {
                            Source::Ours(row) => Some(row),
                            Source::Copy(_) => None,
                        })
                        .collect();
                    let partner = merged.matches.iter().rfind(|found| found.copy < at);
                    let partner = partner.unwrap().ours;
                    let since: Vec<usize> =
                        turn.into_iter().take_while(|row| *row > partner).collect();
                    if since.iter().any(|row| ours[*row].role == Role::User) {
                        return Err(format!("row {at} of the copy stands in another turn"));
                    }
                }
                Ok(())
            };
            result().map_err(|why| format!("{why}\n{}", shown(&ours, &copy, &merged)))
        },
    );
}
