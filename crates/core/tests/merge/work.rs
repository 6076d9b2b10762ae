//! What a merge costs, counted and not timed: twice the rows are twice the work, whatever they say.

use everturn_core::Role;
use everturn_core::limits::MERGE_CELLS_PER_ROW;
use everturn_core::merge::{Doubt, Merged};

use crate::line::{Line, adds_nothing, long, merged, model, tool, user};

/// Numbers that look random and are the same every time.
fn shuffled(lines: &[Line]) -> Vec<Line> {
    let mut lines = lines.to_vec();
    let mut state = 7_u64;
    for at in (1..lines.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        lines.swap(at, (state >> 33) as usize % (at + 1));
    }
    lines
}

fn distinct(count: usize) -> Vec<Line> {
    (0..count)
        .map(|n| if n % 2 == 0 { user(format!("q{n}")) } else { model(long(&format!("a{n}"))) })
        .collect()
}

fn oks(count: usize) -> Vec<Line> {
    vec![user("ok"); count]
}

fn alternating(count: usize) -> Vec<Line> {
    (0..count).map(|n| if n % 2 == 0 { user("ok") } else { model("done") }).collect()
}

fn every_second(lines: &[Line]) -> Vec<Line> {
    lines.iter().step_by(2).cloned().collect()
}

fn reversed(lines: &[Line]) -> Vec<Line> {
    lines.iter().rev().cloned().collect()
}

/// Results that begin alike and are cut short to what many of them begin with.
fn near_duplicates(count: usize) -> (Vec<Line>, Vec<Line>) {
    let head = long("result").repeat(20);
    let ours = (0..count).map(|n| tool(format!("{head} and number {n} of them"))).collect();
    let copy = (0..count).map(|n| tool(format!("{head} and number x{n}"))).collect();
    (ours, copy)
}

/// The same, with rows in between that occur once: each stretch is small enough for a table.
fn near_duplicates_in_tables(count: usize) -> (Vec<Line>, Vec<Line>) {
    let (ours, copy) = near_duplicates(count);
    let cut = |lines: Vec<Line>| -> Vec<Line> {
        let pieces = lines.chunks(60).enumerate();
        pieces.flat_map(|(at, piece)| [&[user(format!("cut {at}"))], piece].concat()).collect()
    };
    (cut(ours), cut(copy))
}

/// One step with many calls, their results in another order, each of them followed by something new.
fn one_large_step(count: usize) -> (Vec<Line>, Vec<Line>) {
    let step = |prefix: &str| {
        (0..count).fold(model("step"), |line, n| line.calls(&format!("{prefix}{n}"), "shell"))
    };
    let result = |prefix: &str, n: usize| tool("0").answers(&format!("{prefix}{n}"));
    let mut ours = vec![user("do"), step("c")];
    ours.extend((0..count / 2).map(|n| result("c", n)));
    let mut copy = vec![user("do"), step("x")];
    for n in (0..count).rev() {
        copy.extend([result("x", n), model(format!("note {n}"))]);
    }
    (ours, copy)
}

type Case = (&'static str, fn(usize) -> (Vec<Line>, Vec<Line>));

const CASES: &[Case] = &[
    ("a full replay", |n| (distinct(n), distinct(n))),
    ("nothing in common", |n| (distinct(n), (0..n).map(|n| user(format!("other {n}"))).collect())),
    ("all the same", |n| (oks(n), oks(n))),
    ("all the same, half of them", |n| (oks(n), oks(n / 2))),
    ("all the same, twice as many", |n| (oks(n / 2), oks(n))),
    ("two rows in turn", |n| (alternating(n), alternating(n))),
    ("two rows in turn, shifted", |n| (alternating(n), alternating(n + 1)[1..].to_vec())),
    ("two rows in turn, one kind", |n| (alternating(n), every_second(&alternating(n)))),
    ("reversed", |n| (distinct(n), reversed(&distinct(n)))),
    ("two rows in turn, reversed", |n| (alternating(n), reversed(&alternating(n)))),
    ("shifted by one", |n| (distinct(n), distinct(n + 1)[1..].to_vec())),
    ("every second row missing", |n| (distinct(n), every_second(&distinct(n)))),
    ("every second row missing of ours", |n| (every_second(&distinct(n)), distinct(n))),
    ("shuffled", |n| (distinct(n), shuffled(&distinct(n)))),
    ("two rows, shuffled", |n| (shuffled(&alternating(n)), shuffled(&alternating(n)[1..]))),
    ("near duplicates", near_duplicates),
    ("near duplicates, in tables", near_duplicates_in_tables),
    ("one large step", one_large_step),
    ("each row new but one", |n| {
        (distinct(n), (0..n).map(|at| if at == n / 2 { user("q0") } else { user("ok") }).collect())
    }),
    ("the same half a hundred times", |n| {
        let lines: Vec<Line> = (0..n).map(|at| user(format!("{}", at % 50))).collect();
        (shuffled(&lines), lines)
    }),
];

fn measured(case: &Case, count: usize) -> (Merged, u64, u64) {
    let (ours, copy) = case.1(count);
    let merged = merged(&ours, &copy);
    let rows = (ours.len() + copy.len()) as u64;
    let bytes: u64 = ours.iter().chain(&copy).map(|line| line.text.len() as u64 + 8).sum();
    assert_eq!(merged.matches.len() + merged.added(), copy.len(), "{}", case.0);
    (merged, rows, bytes)
}

#[test]
fn twice_the_rows_are_twice_the_work() {
    for case in CASES {
        let (small, ..) = measured(case, 1_000);
        let (large, rows, bytes) = measured(case, 4_000);
        let growth = large.work.steps as f64 / small.work.steps as f64;
        let each = large.work.steps as f64 / rows as f64;
        let cells = large.work.cells as f64 / rows as f64;
        let reread = large.work.bytes as f64 / bytes as f64;
        println!(
            "{:34} × {growth:.2} for × 4, {each:5.1} and {cells:4.1} cells a row, read {reread:.1} ×",
            case.0
        );
        // Four times, and a little for the logarithm.
        assert!(growth < 4.8, "{}: × {growth}", case.0);
        assert!(each < 40.0, "{}: {each} steps a row", case.0);
        // What a table costs depends on how far apart single rows are, up to a bound.
        assert!(cells <= MERGE_CELLS_PER_ROW as f64, "{}: {cells} cells a row", case.0);
        assert!(reread < 6.0, "{}: read {reread} times", case.0);
    }
}

#[test]
fn ten_thousand_equal_rows_add_nothing() {
    adds_nothing(&oks(10_000), &oks(10_000));
    adds_nothing(&oks(10_000), &oks(5_000));
    adds_nothing(&alternating(10_000), &alternating(10_000));
    adds_nothing(&alternating(10_000), &alternating(9_999)[1..]);
    adds_nothing(&alternating(10_000), &every_second(&alternating(10_000)));
    adds_nothing(&distinct(10_000), &every_second(&distinct(10_000)));
    adds_nothing(&distinct(10_000), &distinct(10_000)[4_000..4_002]);
    let one_more = merged(&oks(10_000), &oks(10_001));
    assert_eq!((one_more.added(), one_more.doubtful().count()), (1, 0));
}

/// Long texts are known wherever they stand; short ones are not, and never reach the model twice.
#[test]
fn a_reversed_copy_adds_nothing_to_what_the_model_is_told() {
    let ours = distinct(2_000);
    let merged = merged(&ours, &reversed(&ours));
    assert_eq!(merged.for_model().count(), 2_000);
    for (row, doubt) in merged.doubtful() {
        assert!(ours[1_999 - row].role == Role::User && matches!(doubt, Doubt::OutOfPlace { .. }));
    }
}

#[test]
fn near_duplicates_are_kept() {
    let (ours, copy) = near_duplicates(500);
    assert_eq!(merged(&ours, &copy).matches.len(), 0);
}
