//! What all steps of a merge share: both records, what is known of their rows, and who is matched.

use std::collections::HashMap;

use super::fingerprint::{self, Print, Prints};
use super::{By, Effort, Row, Work};
use crate::limits::MERGE_REREADS;
use crate::message::Role;

/// A call: the row that makes it and its place among that row's calls.
pub(super) type CallAt = (usize, usize);

/// One record.
#[derive(Debug)]
pub(super) struct Side<'s, 'a> {
    pub(super) rows: &'s [Row<'a>],
    pub(super) prints: Vec<Print>,
    /// For a result whose call is in the record: that call.
    pub(super) call_of: Vec<Option<CallAt>>,
    /// For a row that makes calls: the class of the first result that there is of them, and how many
    /// there are.
    pub(super) results: Vec<Option<(usize, usize)>>,
    /// The rows that stand for themselves, in order: all but those results.
    pub(super) heads: Vec<usize>,
    /// How many rows of each class there are.
    pub(super) of_class: Vec<u32>,
}

impl<'s, 'a> Side<'s, 'a> {
    fn new(rows: &'s [Row<'a>], prints: Vec<Print>, classes: usize) -> Self {
        let call_of: Vec<Option<CallAt>> = calls(rows);
        let heads = (0..rows.len()).filter(|&row| call_of[row].is_none()).collect();
        let mut of_class = vec![0; classes];
        for print in &prints {
            of_class[print.class] += 1;
        }
        let mut results = vec![None; rows.len()];
        for (row, call) in call_of.iter().enumerate() {
            if let Some((caller, _)) = *call {
                results[caller].get_or_insert((prints[row].class, 0)).1 += 1;
            }
        }
        Self { rows, prints, call_of, results, heads, of_class }
    }

    pub(super) fn class(&self, row: usize) -> usize {
        self.prints[row].class
    }

    pub(super) fn is_result(&self, row: usize) -> bool {
        self.rows[row].role == Role::Tool
    }
}

/// Which call each result answers: the latest one before it with its id; without an id, the first one
/// that is still unanswered of the row that makes calls directly before the results.
fn calls(rows: &[Row<'_>]) -> Vec<Option<CallAt>> {
    let mut by_id: HashMap<&str, CallAt> = HashMap::new();
    let mut open: Option<CallAt> = None;
    rows.iter()
        .enumerate()
        .map(|(at, row)| {
            if row.role != Role::Tool {
                for (index, call) in row.calls.iter().enumerate() {
                    if !call.id.is_empty() {
                        by_id.insert(call.id, (at, index));
                    }
                }
                open = (!row.calls.is_empty()).then_some((at, 0));
                return None;
            }
            let found = match row.answers {
                Some(id) => by_id.get(id).copied(),
                None => open.filter(|&(caller, index)| index < rows[caller].calls.len()),
            };
            if let (Some((caller, next)), Some((answered, index))) = (open.as_mut(), found)
                && *caller == answered
            {
                *next = (*next).max(index + 1);
            }
            found
        })
        .collect()
}

fn runs(ours: &[Row<'_>], copy: &[Row<'_>]) -> [Vec<Option<usize>>; 2] {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let ours: Vec<Option<usize>> = ours
        .iter()
        .map(|row| {
            let next = numbers.len();
            Some(*numbers.entry(row.run?).or_insert(next))
        })
        .collect();
    let of_ours = numbers.len();
    let copy: Vec<Option<usize>> = copy
        .iter()
        .map(|row| {
            let next = numbers.len();
            Some(*numbers.entry(row.run?).or_insert(next))
        })
        .collect();
    if copy.iter().flatten().any(|&run| run < of_ours) {
        [ours, copy]
    } else {
        [vec![None; ours.len()], vec![None; copy.len()]]
    }
}

/// A merge under way.
#[derive(Debug)]
pub(super) struct Scene<'s, 'a> {
    pub(super) ours: Side<'s, 'a>,
    pub(super) copy: Side<'s, 'a>,
    /// For each row of ours: the row of the copy that it is.
    pub(super) to_copy: Vec<Option<usize>>,
    /// For each row of the copy: the row of ours that it is.
    pub(super) to_ours: Vec<Option<(usize, By)>>,
    pub(super) effort: Effort,
    pub(super) work: Work,
    /// For each row of ours and of the copy, the number of its run; nowhere one, where no run is in
    /// both records: then they name runs differently, or not at all.
    pub(super) runs: [Vec<Option<usize>>; 2],
    /// Bytes that may still be read again.
    rereads: u64,
}

impl<'s, 'a> Scene<'s, 'a> {
    pub(super) fn new(ours: &'s [Row<'a>], copy: &'s [Row<'a>], effort: Effort) -> Self {
        let mut work = Work::default();
        let prints = fingerprint::prints(ours, copy, &mut work);
        let Prints { ours: our_prints, copy: copy_prints, classes } = prints;
        Self {
            to_copy: vec![None; ours.len()],
            to_ours: vec![None; copy.len()],
            ours: Side::new(ours, our_prints, classes),
            copy: Side::new(copy, copy_prints, classes),
            effort,
            runs: runs(ours, copy),
            rereads: work.bytes * MERGE_REREADS,
            work,
        }
    }

    pub(super) fn join(&mut self, ours: usize, copy: usize, by: By) {
        self.to_copy[ours] = Some(copy);
        self.to_ours[copy] = Some((ours, by));
    }

    pub(super) fn free(&self, ours: usize, copy: usize) -> bool {
        self.to_copy[ours].is_none() && self.to_ours[copy].is_none()
    }

    fn runs_agree(&self, ours: usize, copy: usize) -> bool {
        match (self.runs[0][ours], self.runs[1][copy]) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }

    /// Whether both say the same and may be one row.
    pub(super) fn same(&mut self, ours: usize, copy: usize) -> bool {
        self.work.steps += 1;
        self.says_same(ours, copy)
    }

    /// [`Self::same`], counted elsewhere.
    pub(super) fn says_same(&self, ours: usize, copy: usize) -> bool {
        self.ours.class(ours) == self.copy.class(copy) && self.runs_agree(ours, copy)
    }

    /// Whether one is the other cut short. Only for rows that do not say the same.
    pub(super) fn shortened(&mut self, ours: usize, copy: usize) -> bool {
        let (one, other) = (&self.ours.prints[ours], &self.copy.prints[copy]);
        let (row, copied) = (&self.ours.rows[ours], &self.copy.rows[copy]);
        let may = one.head.is_some()
            && one.head == other.head
            && row.role == copied.role
            && self.runs_agree(ours, copy);
        let bytes = (row.text.len() + copied.text.len()) as u64;
        if !may || bytes > self.rereads {
            return false;
        }
        self.rereads -= bytes;
        self.work.bytes += bytes;
        fingerprint::shortened(row.text, copied.text)
            || (copied.role == Role::User
                && fingerprint::shortened(row.text, super::without_workspace_line(copied.text)))
    }
}
