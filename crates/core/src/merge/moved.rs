//! What the common order left over: rows of the copy that ours has elsewhere. They are found by their
//! neighbours and by counting; where neither tells a repetition from a move, the row is in doubt.

use std::collections::{HashMap, VecDeque};

use super::scene::Scene;
use super::{By, Doubt};
use crate::limits::MERGE_DISTINCT_BYTES;
use crate::message::Role;

/// Matches what was moved, and says of each row of the copy why it is in doubt, if it is.
pub(super) fn decide(scene: &mut Scene<'_, '_>) -> Vec<Option<Doubt>> {
    let heads = Heads {
        ours: scene.ours.heads.clone(),
        copy: scene.copy.heads.clone(),
        place: {
            let mut place = vec![usize::MAX; scene.ours.rows.len()];
            for (at, &row) in scene.ours.heads.iter().enumerate() {
                place[row] = at;
            }
            place
        },
    };
    heads.blocks(scene);
    let mut unmatched = Unmatched::new(scene);
    heads.counted(scene, &mut unmatched);
    heads.beside(scene);
    let mut doubts = vec![None; scene.copy.rows.len()];
    heads.out_of_place(scene, &mut unmatched, &mut doubts);
    heads.replayed(scene, &mut unmatched, &mut doubts);
    doubts
}

struct Heads {
    ours: Vec<usize>,
    copy: Vec<usize>,
    /// For each row of ours: its place among the heads.
    place: Vec<usize>,
}

impl Heads {
    fn joins(&self, scene: &mut Scene<'_, '_>, ours: usize, copy: usize) -> bool {
        let (ours, copy) = (self.ours[ours], self.copy[copy]);
        scene.free(ours, copy) && scene.same(ours, copy)
    }

    /// Line 5: two neighbours that say what two neighbours of ours say, and what follows them.
    fn blocks(&self, scene: &mut Scene<'_, '_>) {
        let mut neighbours: HashMap<(usize, usize), VecDeque<usize>> = HashMap::new();
        for at in 1..self.ours.len() {
            let (one, two) = (self.ours[at - 1], self.ours[at]);
            scene.work.steps += 1;
            if scene.to_copy[one].is_none() && scene.to_copy[two].is_none() {
                let pair = (scene.ours.class(one), scene.ours.class(two));
                neighbours.entry(pair).or_default().push_back(at - 1);
            }
        }
        for copy in 1..self.copy.len() {
            let (one, two) = (self.copy[copy - 1], self.copy[copy]);
            scene.work.steps += 1;
            let pair = (scene.copy.class(one), scene.copy.class(two));
            let Some(places) = neighbours.get_mut(&pair) else { continue };
            let taken = |scene: &Scene<'_, '_>, at: usize| {
                scene.to_copy[self.ours[at]].is_some() || scene.to_copy[self.ours[at + 1]].is_some()
            };
            while places.front().is_some_and(|&at| taken(scene, at)) {
                scene.work.steps += 1;
                places.pop_front();
            }
            let Some(&ours) = places.front() else { continue };
            if !self.joins(scene, ours, copy - 1) || !self.joins(scene, ours + 1, copy) {
                continue;
            }
            let mut length = 0;
            while ours + length < self.ours.len()
                && copy - 1 + length < self.copy.len()
                && self.joins(scene, ours + length, copy - 1 + length)
            {
                scene.join(self.ours[ours + length], self.copy[copy - 1 + length], By::Block);
                length += 1;
            }
        }
    }

    /// Line 6: a text too long to be said twice by chance.
    fn counted(&self, scene: &mut Scene<'_, '_>, unmatched: &mut Unmatched) {
        for at in 0..self.copy.len() {
            let copy = self.copy[at];
            if scene.to_ours[copy].is_none()
                && scene.copy.prints[copy].bytes >= MERGE_DISTINCT_BYTES
                && !self.is_part_of_something_new(scene, unmatched, at)
                && let Some(ours) = unmatched.first(scene, copy)
            {
                scene.join(ours, copy, By::Count);
            }
        }
    }

    /// Line 7: what stands beside a match on both sides, forwards and then backwards.
    fn beside(&self, scene: &mut Scene<'_, '_>) {
        let partner = |scene: &Scene<'_, '_>, at: usize| {
            let (ours, _) = scene.to_ours[self.copy[at]]?;
            Some(self.place[ours]).filter(|&place| place != usize::MAX)
        };
        for at in 1..self.copy.len() {
            if let Some(before) = partner(scene, at - 1)
                && before + 1 < self.ours.len()
                && self.joins(scene, before + 1, at)
            {
                scene.join(self.ours[before + 1], self.copy[at], By::Block);
            }
        }
        for at in (1..self.copy.len()).rev() {
            if let Some(behind) = partner(scene, at)
                && behind > 0
                && self.joins(scene, behind - 1, at - 1)
            {
                scene.join(self.ours[behind - 1], self.copy[at - 1], By::Block);
            }
        }
    }

    fn is_new(&self, scene: &mut Scene<'_, '_>, unmatched: &mut Unmatched, at: usize) -> bool {
        let copy = self.copy[at];
        scene.to_ours[copy].is_none() && unmatched.first(scene, copy).is_none()
    }

    /// Whether what a person says is answered by something new, or anything else follows it.
    fn is_part_of_something_new(
        &self,
        scene: &mut Scene<'_, '_>,
        unmatched: &mut Unmatched,
        at: usize,
    ) -> bool {
        if scene.copy.rows[self.copy[at]].role == Role::User {
            at + 1 < self.copy.len()
                && scene.copy.rows[self.copy[at + 1]].role != Role::User
                && self.is_new(scene, unmatched, at + 1)
        } else {
            at > 0 && self.is_new(scene, unmatched, at - 1)
        }
    }

    fn out_of_place(
        &self,
        scene: &mut Scene<'_, '_>,
        unmatched: &mut Unmatched,
        doubts: &mut [Option<Doubt>],
    ) {
        for at in 0..self.copy.len() {
            let copy = self.copy[at];
            if scene.to_ours[copy].is_none()
                && let Some(like) = unmatched.first(scene, copy)
                && !self.is_part_of_something_new(scene, unmatched, at)
            {
                doubts[copy] = Some(Doubt::OutOfPlace { like });
            }
        }
    }

    /// Stretches of two or more rows, a long text among them, that repeat neighbours of ours.
    fn replayed(
        &self,
        scene: &mut Scene<'_, '_>,
        unmatched: &mut Unmatched,
        doubts: &mut [Option<Doubt>],
    ) {
        let mut neighbours: HashMap<(usize, usize), usize> = HashMap::new();
        for at in 1..self.ours.len() {
            let pair = (scene.ours.class(self.ours[at - 1]), scene.ours.class(self.ours[at]));
            neighbours.entry(pair).or_insert(at - 1);
        }
        scene.work.steps += self.ours.len() as u64;
        let mut from = 0;
        while from < self.copy.len() {
            let mut like = Vec::new();
            let mut to = from + 1;
            if self.is_new(scene, unmatched, from) {
                while to < self.copy.len() && self.is_new(scene, unmatched, to) {
                    let pair = (self.copy[to - 1], self.copy[to]);
                    let pair = (scene.copy.class(pair.0), scene.copy.class(pair.1));
                    let Some(&at) = neighbours.get(&pair) else { break };
                    if like.is_empty() {
                        like.push(self.ours[at]);
                    }
                    like.push(self.ours[at + 1]);
                    to += 1;
                }
            }
            let stretch = &self.copy[from..to];
            let long = |&row: &usize| scene.copy.prints[row].bytes >= MERGE_DISTINCT_BYTES;
            if like.len() > 1 && stretch.iter().any(long) {
                for (&row, &like) in stretch.iter().zip(&like) {
                    doubts[row] = Some(Doubt::Replayed { like });
                }
            }
            from = to;
        }
    }
}

/// The heads of ours that are not matched, by what they say; matched ones are dropped when they are
/// met, so that each is passed over once.
struct Unmatched {
    by_class: HashMap<usize, VecDeque<usize>>,
    by_run: HashMap<(usize, Option<usize>), VecDeque<usize>>,
}

impl Unmatched {
    fn new(scene: &Scene<'_, '_>) -> Self {
        let mut new = Self { by_class: HashMap::new(), by_run: HashMap::new() };
        for &row in &scene.ours.heads {
            if scene.to_copy[row].is_none() {
                let class = scene.ours.class(row);
                new.by_class.entry(class).or_default().push_back(row);
                new.by_run.entry((class, scene.runs[0][row])).or_default().push_back(row);
            }
        }
        new
    }

    /// The first one that a row of the copy may be, of its own run first.
    fn first(&mut self, scene: &mut Scene<'_, '_>, copy: usize) -> Option<usize> {
        fn front(queue: Option<&mut VecDeque<usize>>, scene: &mut Scene<'_, '_>) -> Option<usize> {
            let queue = queue?;
            scene.work.steps += 1;
            while queue.front().is_some_and(|&row| scene.to_copy[row].is_some()) {
                scene.work.steps += 1;
                queue.pop_front();
            }
            queue.front().copied()
        }
        let class = scene.copy.class(copy);
        match scene.runs[1][copy] {
            None => front(self.by_class.get_mut(&class), scene),
            run => front(self.by_run.get_mut(&(class, run)), scene)
                .or_else(|| front(self.by_run.get_mut(&(class, None)), scene)),
        }
    }
}
