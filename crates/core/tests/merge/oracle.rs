//! The rules of a merge, stated slowly: every order of both records is tried, every question is
//! answered by looking at everything. It has no hashes, no tables and no limits, and where several
//! orders are equally good it allows all of them. Rows have no runs and no times here.

use everturn_core::merge::{Doubt, Placed, Source};
use everturn_core::{MessageKind, Role};

use crate::line::Line;

/// Who is matched: for each row of the copy, a row of ours.
type Matched = Vec<Option<usize>>;

/// Every transcript that the rules allow.
pub(crate) fn merges(ours: &[Line], copy: &[Line]) -> Vec<Vec<Placed>> {
    let both = Both { ours, copy };
    let (mine, theirs) = (heads(ours), heads(copy));
    let mut results = Vec::new();
    let known = both.correlated();
    let with_known = |heads: &[usize], known: &[usize]| -> Vec<usize> {
        let mut rows = [heads, known].concat();
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    let known_ours: Vec<usize> = known.iter().flatten().copied().collect();
    let known_copy: Vec<usize> = (0..copy.len()).filter(|&c| known[c].is_some()).collect();
    let (around, inside) = (with_known(&mine, &known_ours), with_known(&theirs, &known_copy));
    for aligned in both.alignments(&around, &inside, &known) {
        let mut matched = aligned;
        let doubts = both.moved(&mine, &theirs, &mut matched);
        both.follow_calls(&mut matched);
        let all_ours: Vec<usize> = (0..ours.len())
            .filter(|&o| matched.contains(&Some(o)) || ours[o].role == Role::Tool)
            .collect();
        let all_copy: Vec<usize> = (0..copy.len())
            .filter(|&c| {
                let alone = copy[c].role == Role::Tool && call_of(copy, c).is_none();
                matched[c].is_some() || alone
            })
            .collect();
        for matched in both.alignments(&all_ours, &all_copy, &matched) {
            results.push(both.placed(&matched, doubts.clone()));
        }
    }
    results
}

/// What a row is called, if anything.
type Name<'n> = dyn Fn(&Line) -> Option<String> + 'n;

type Says = (Role, Vec<(String, String)>, String);

fn says(line: &Line, text: &str) -> Says {
    let calls = line.calls.iter().map(|(_, name, arguments)| (name.clone(), arguments.clone()));
    (line.role, calls.collect(), text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn is_long(line: &Line) -> bool {
    let text: usize = says(line, &line.text).2.len();
    text + line.calls.iter().map(|(_, _, arguments)| arguments.len()).sum::<usize>() >= 64
}

fn is_summary(line: &Line) -> bool {
    line.kind == MessageKind::Summary || line.text.starts_with("[CONTEXT COMPACTION")
}

/// The call that a result answers: row and place.
fn call_of(lines: &[Line], row: usize) -> Option<(usize, usize)> {
    if lines[row].role != Role::Tool {
        return None;
    }
    if let Some(id) = &lines[row].answers {
        return (0..row).rev().find_map(|caller| {
            let place = lines[caller].calls.iter().rposition(|(of, ..)| of == id && !of.is_empty());
            Some((caller, place?))
        });
    }
    let caller = (0..row).rev().find(|&caller| lines[caller].role != Role::Tool)?;
    let next = (caller + 1..row)
        .filter_map(|result| call_of(lines, result).filter(|(of, _)| *of == caller))
        .map(|(_, place)| place + 1)
        .max()
        .unwrap_or(0);
    (next < lines[caller].calls.len()).then_some((caller, next))
}

fn heads(lines: &[Line]) -> Vec<usize> {
    (0..lines.len()).filter(|&row| call_of(lines, row).is_none()).collect()
}

/// What an order is worth, most important first.
type Worth = (usize, usize, usize, usize, usize, usize);

struct Both<'l> {
    ours: &'l [Line],
    copy: &'l [Line],
}

impl Both<'_> {
    fn ours_says(&self, what: &Says) -> bool {
        self.ours.iter().any(|line| says(line, &line.text) == *what)
    }

    /// What a row of the copy says: as it is, or without its workspace line.
    fn copy_says(&self, copy: usize) -> Says {
        let line = &self.copy[copy];
        let whole = says(line, &line.text);
        let stripped = line.text.strip_prefix("[Workspace: /a]\n");
        match stripped {
            Some(text) if line.role == Role::User && !self.ours_says(&whole) => says(line, text),
            _ => whole,
        }
    }

    fn same(&self, ours: usize, copy: usize) -> bool {
        says(&self.ours[ours], &self.ours[ours].text) == self.copy_says(copy)
    }

    /// One note or result cut short; here simply at its end.
    fn shortened(&self, ours: usize, copy: usize) -> bool {
        let mine = says(&self.ours[ours], &self.ours[ours].text);
        let theirs = self.copy_says(copy);
        let may = |line: &Line| is_summary(line) || line.role == Role::Tool;
        let (short, long) =
            if mine.2.len() < theirs.2.len() { (&mine.2, &theirs.2) } else { (&theirs.2, &mine.2) };
        mine.0 == theirs.0
            && mine.2 != theirs.2
            && may(&self.ours[ours])
            && may(&self.copy[copy])
            && short.len() >= 32
            && long.starts_with(short.trim_end_matches('.'))
    }

    /// For rows that make calls and have results: 2 if ours has as many, and 1 if the first ones say the
    /// same.
    fn results_agree(&self, ours: usize, copy: usize) -> usize {
        let of = |lines: &[Line], row: usize| -> Vec<usize> {
            let is = |&at: &usize| call_of(lines, at).is_some_and(|(caller, _)| caller == row);
            (0..lines.len()).filter(is).collect()
        };
        match (&of(self.ours, ours)[..], &of(self.copy, copy)[..]) {
            (mine @ [o, ..], theirs @ [c, ..]) => {
                2 * usize::from(mine.len() >= theirs.len()) + usize::from(self.same(*o, *c))
            }
            _ => 0,
        }
    }

    fn correlated(&self) -> Matched {
        let mut matched = vec![None; self.copy.len()];
        let names: [&Name<'_>; 2] = [&|line| line.key.clone(), &|line| {
            line.calls.first().map(|(id, name, _)| format!("{id} {name}"))
        }];
        for name in names {
            self.join_unique(&mut matched, name, &|o, c| self.ours[o].role == self.copy[c].role);
        }
        self.join_unique(&mut matched, &|line| line.answers.clone(), &|o, c| {
            call_of(self.ours, o).is_none() || call_of(self.copy, c).is_none()
        });
        matched
    }

    fn join_unique(
        &self,
        matched: &mut Matched,
        name: &Name<'_>,
        may: &dyn Fn(usize, usize) -> bool,
    ) {
        for c in 0..self.copy.len() {
            let Some(wanted) = name(&self.copy[c]) else { continue };
            let has = |lines: &[Line]| -> Vec<usize> {
                (0..lines.len())
                    .filter(|&row| name(&lines[row]).as_ref() == Some(&wanted))
                    .collect()
            };
            if let ([o], [_]) = (&has(self.ours)[..], &has(self.copy)[..])
                && matched[c].is_none()
                && !matched.contains(&Some(*o))
                && may(*o, c)
            {
                matched[c] = Some(*o);
            }
        }
    }

    /// Every best order of the rows that are given, around what is matched already.
    fn alignments(&self, ours: &[usize], copy: &[usize], matched: &Matched) -> Vec<Matched> {
        let fixed: Vec<(usize, usize)> = (copy.iter().enumerate())
            .filter_map(|(c, &row)| Some((ours.iter().position(|&o| Some(o) == matched[row])?, c)))
            .collect();
        let mut found: Vec<Matched> = Vec::new();
        for chain in longest(&fixed) {
            let mut partial = vec![matched.clone()];
            let mut ends = chain.clone();
            ends.push((ours.len(), copy.len()));
            let (mut from_ours, mut from_copy) = (0, 0);
            for (at, &(to_ours, to_copy)) in ends.iter().enumerate() {
                let open_ours: Vec<usize> = ours[from_ours..to_ours]
                    .iter()
                    .copied()
                    .filter(|&o| !matched.contains(&Some(o)))
                    .collect();
                let open_copy: Vec<usize> = copy[from_copy..to_copy]
                    .iter()
                    .copied()
                    .filter(|&c| matched[c].is_none())
                    .collect();
                let mut orders = Vec::new();
                self.orders(&open_ours, &open_copy, 0, 0, &mut Vec::new(), &mut orders);
                let edges = (at > 0, at < chain.len());
                let worth =
                    |order: &Vec<(usize, usize)>| self.worth(&open_ours, &open_copy, order, edges);
                let best = orders.iter().map(worth).max().unwrap();
                orders.retain(|order| worth(order) == best);
                partial = partial
                    .iter()
                    .flat_map(|matched| {
                        orders.iter().map(|order| {
                            let mut matched = matched.clone();
                            for &(o, c) in order {
                                matched[open_copy[c]] = Some(open_ours[o]);
                            }
                            matched
                        })
                    })
                    .collect();
                (from_ours, from_copy) = (to_ours + 1, to_copy + 1);
            }
            found.extend(partial);
        }
        found.sort();
        found.dedup();
        found
    }

    /// All orders, good or not.
    fn orders(
        &self,
        ours: &[usize],
        copy: &[usize],
        o: usize,
        c: usize,
        chosen: &mut Vec<(usize, usize)>,
        all: &mut Vec<Vec<(usize, usize)>>,
    ) {
        if c == copy.len() {
            all.push(chosen.clone());
            return;
        }
        self.orders(ours, copy, o, c + 1, chosen, all);
        for next in o..ours.len() {
            if self.same(ours[next], copy[c]) || self.shortened(ours[next], copy[c]) {
                chosen.push((next, c));
                self.orders(ours, copy, next + 1, c + 1, chosen, all);
                chosen.pop();
            }
        }
    }

    fn worth(
        &self,
        ours: &[usize],
        copy: &[usize],
        order: &[(usize, usize)],
        (before, behind): (bool, bool),
    ) -> Worth {
        let count = |what: &dyn Fn(usize, usize) -> bool| {
            order.iter().filter(|&&(o, c)| what(ours[o], copy[c])).count()
        };
        let pairs =
            order.windows(2).filter(|two| two[0].0 + 1 == two[1].0 && two[0].1 + 1 == two[1].1);
        let mut together = pairs.count();
        together += usize::from(before && order.first() == Some(&(0, 0)));
        let end = (ours.len().wrapping_sub(1), copy.len().wrapping_sub(1));
        together += usize::from(behind && order.last() == Some(&end));
        (
            count(&|o, c| self.same(o, c)),
            count(&|o, c| !self.same(o, c)),
            count(&|o, c| is_long(&self.ours[o]) && is_long(&self.copy[c])),
            order.iter().map(|&(o, c)| self.results_agree(ours[o], copy[c])).sum(),
            together,
            count(&|o, _| self.ours[o].role != Role::User),
        )
    }

    fn moved(&self, ours: &[usize], copy: &[usize], matched: &mut Matched) -> Vec<Option<Doubt>> {
        let fits = |matched: &Matched, o: usize, c: usize| {
            o < ours.len()
                && c < copy.len()
                && matched[copy[c]].is_none()
                && !matched.contains(&Some(ours[o]))
                && self.same(ours[o], copy[c])
        };
        // Two neighbours and more.
        for c in 0..copy.len() {
            let start =
                (0..ours.len()).find(|&o| fits(matched, o, c) && fits(matched, o + 1, c + 1));
            let mut length = 0;
            while let Some(o) = start
                && fits(matched, o + length, c + length)
            {
                matched[copy[c + length]] = Some(ours[o + length]);
                length += 1;
            }
        }
        let left = |matched: &Matched, c: usize| (0..ours.len()).find(|&o| fits(matched, o, c));
        let is_new =
            |matched: &Matched, c: usize| matched[copy[c]].is_none() && left(matched, c).is_none();
        let is_user = |c: usize| self.copy[copy[c]].role == Role::User;
        let part_of_new = |matched: &Matched, c: usize| {
            if is_user(c) {
                c + 1 < copy.len() && !is_user(c + 1) && is_new(matched, c + 1)
            } else {
                c > 0 && is_new(matched, c - 1)
            }
        };
        // Long texts.
        for c in 0..copy.len() {
            if let Some(o) = left(matched, c)
                && is_long(&self.ours[ours[o]])
                && !part_of_new(matched, c)
            {
                matched[copy[c]] = Some(ours[o]);
            }
        }
        // Neighbours of what is matched.
        let partner = |matched: &Matched, c: usize| {
            matched[copy[c]].and_then(|row| ours.iter().position(|&o| o == row))
        };
        for c in 1..copy.len() {
            if let Some(o) = partner(matched, c - 1)
                && fits(matched, o + 1, c)
            {
                matched[copy[c]] = Some(ours[o + 1]);
            }
        }
        for c in (1..copy.len()).rev() {
            if let Some(o) = partner(matched, c)
                && o > 0
                && fits(matched, o - 1, c - 1)
            {
                matched[copy[c - 1]] = Some(ours[o - 1]);
            }
        }
        let mut doubts = vec![None; self.copy.len()];
        for c in 0..copy.len() {
            if let Some(o) = left(matched, c)
                && !part_of_new(matched, c)
            {
                doubts[copy[c]] = Some(Doubt::OutOfPlace { like: ours[o] });
            }
        }
        // Stretches that ours has already.
        let follows = |c: usize| {
            (1..ours.len())
                .find(|&o| self.same(ours[o - 1], copy[c - 1]) && self.same(ours[o], copy[c]))
        };
        let mut from = 0;
        while from < copy.len() {
            let mut to = from + 1;
            while is_new(matched, from)
                && to < copy.len()
                && is_new(matched, to)
                && follows(to).is_some()
            {
                to += 1;
            }
            if to - from > 1 && (from..to).any(|c| is_long(&self.copy[copy[c]])) {
                for c in from..to {
                    let like =
                        if c > from { follows(c).unwrap() } else { follows(c + 1).unwrap() - 1 };
                    doubts[copy[c]] = Some(Doubt::Replayed { like: ours[like] });
                }
            }
            from = to;
        }
        doubts
    }

    fn follow_calls(&self, matched: &mut Matched) {
        for c in 0..self.copy.len() {
            let Some((caller, place)) = call_of(self.copy, c) else { continue };
            let Some(caller) = matched[caller] else { continue };
            let result = (0..self.ours.len()).find(|&o| {
                call_of(self.ours, o) == Some((caller, place)) && !matched.contains(&Some(o))
            });
            if matched[c].is_none() && result.is_some() {
                matched[c] = result;
            }
        }
    }

    fn placed(&self, matched: &Matched, mut doubts: Vec<Option<Doubt>>) -> Vec<Placed> {
        let is_result = |o: usize| call_of(self.ours, o).is_some();
        let is_known = |o: usize| {
            matched.contains(&Some(o))
                || matched.iter().flatten().any(|&result| {
                    call_of(self.ours, result).is_some_and(|(caller, _)| caller == o)
                })
        };
        let is_ours_alone = |o: usize| {
            !is_known(o) && self.ours[o].role != Role::User && !is_summary(&self.ours[o])
        };
        // Place: how many rows of ours stand before it; then what kind of guest it is; then its order.
        let mut guests: Vec<(usize, u8, usize)> = Vec::new();
        let mut followers: Vec<(usize, usize)> = Vec::new();
        for c in 0..self.copy.len() {
            if matched[c].is_some() {
                continue;
            }
            if let Some(call) = call_of(self.copy, c) {
                let answered = (0..self.copy.len()).any(|other| {
                    call_of(self.copy, other) == Some(call)
                        && (matched[other].is_some() || other < c)
                        && other != c
                });
                doubts[c] = if answered { Some(Doubt::Unpaired) } else { doubts[call.0] };
                match matched[call.0] {
                    Some(o) => {
                        let results =
                            (o + 1..self.ours.len()).take_while(|&o| is_result(o)).count();
                        guests.push((o + 1 + results, 0, c));
                    }
                    None => followers.push((call.0, c)),
                }
                continue;
            }
            if self.copy[c].role == Role::Tool {
                doubts[c] = Some(Doubt::Unpaired);
            }
            if let Some(before) = (0..c).rev().find_map(|earlier| matched[earlier]) {
                let rest = (before + 1..self.ours.len())
                    .take_while(|&o| is_result(o) || is_ours_alone(o))
                    .count();
                guests.push((before + 1 + rest, 1, c));
            } else if let Some(mut first) = (c..self.copy.len()).find_map(|later| matched[later]) {
                if let Some((caller, _)) = call_of(self.ours, first) {
                    first = caller;
                }
                while first > 0
                    && is_summary(&self.ours[first - 1])
                    && !matched.contains(&Some(first - 1))
                {
                    first -= 1;
                }
                guests.push((first, 2, c));
            } else {
                guests.push((self.ours.len(), 2, c));
            }
        }
        guests.sort_unstable();
        let mut rows = Vec::new();
        for o in 0..=self.ours.len() {
            for &(_, _, guest) in guests.iter().filter(|(place, ..)| *place == o) {
                let with = followers.iter().filter(|(caller, _)| *caller == guest).map(|(_, c)| *c);
                for c in std::iter::once(guest).chain(with) {
                    let by =
                        (o..self.ours.len()).rev().find(|&later| is_summary(&self.ours[later]));
                    let summarised = by.map(|by| Doubt::Summarised { by });
                    let doubt = doubts[c].or(summarised);
                    rows.push(Placed { source: Source::Copy(c), doubt });
                }
            }
            if o < self.ours.len() {
                rows.push(Placed { source: Source::Ours(o), doubt: None });
            }
        }
        rows
    }
}

/// The longest sequences that grow on both sides.
fn longest(pairs: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    let all = (0..1_usize << pairs.len()).map(|bits| -> Vec<(usize, usize)> {
        (0..pairs.len()).filter(|at| bits >> at & 1 == 1).map(|at| pairs[at]).collect()
    });
    let mut grow: Vec<Vec<(usize, usize)>> = all
        .filter(|some| some.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1))
        .collect();
    let most = grow.iter().map(Vec::len).max().unwrap_or(0);
    grow.retain(|some| some.len() == most);
    grow
}
