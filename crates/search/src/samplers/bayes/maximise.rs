//! Finding the setting with the highest acquisition.
//!
//! A small discrete space is looked at whole. Otherwise a pool of drawn settings and of mutants of the front is scored, and
//! from the best of them a local search starts that tries every neighbouring level and climbs along continuous axes, by
//! turns.

use std::collections::HashSet;

use rand_pcg::Pcg64;
use rayon::prelude::*;

use super::candidates::{Candidates, Choice};
use super::climb::climb;
use super::landscape::Landscape;
use super::neighbourhood::Neighbourhood;
use super::observations::EvaluatedPoint;
use crate::encode::{Point, key};
use crate::pareto;
use crate::seeded::{Tried, uniform_point};
use peft_tune_core::study::Params;

/// Largest number of settings times conditioning points for which a discrete space is looked at whole: about a second.
const WHOLE: u64 = 60_000_000;
/// Largest discrete space that is looked at whole.
const WHOLE_SETTINGS: u64 = 1_000_000;
/// Settings drawn from the whole space, and mutants of good ones.
const DRAWN: usize = 100;
const MUTANTS: usize = 300;
/// Starts of the local search.
const STARTS: usize = 16;
/// Rounds of neighbours and climbing from one start.
const ROUNDS: usize = 6;
/// Squared distance under which a further start is skipped.
const APART: f64 = 0.02;

/// A setting and its acquisition.
#[derive(Clone, Debug)]
pub(super) struct ScoredCandidate {
    pub(super) candidate: Point,
    pub(super) log_value: f64,
    /// Whether a fair comparison is owed this setting, so that it was not found for its acquisition.
    pub(super) is_owed: bool,
}

/// The landscape that is searched, and what must not be proposed again.
pub(super) struct Search<'a> {
    pub(super) candidates: &'a Candidates<'a>,
    pub(super) landscape: &'a Landscape<'a>,
    /// Settled points that were tried; where trainings are searched, what they need not be repeated for.
    pub(super) tried: HashSet<Vec<u64>>,
    /// The only value that a parameter may have.
    pub(super) only: Option<Choice>,
    /// Neighbourhood to stay in while anything is untried there.
    pub(super) near: Option<Neighbourhood>,
    /// Settled points worth mutating, best first.
    pub(super) good: Vec<Point>,
    /// Number of points the surrogates are conditioned on.
    pub(super) conditioned: usize,
}

impl Search<'_> {
    /// The setting to propose: the first of `owed` that may be tried, or the best, where `history` has neither.
    pub(super) fn untried(
        &mut self,
        owed: Vec<Point>,
        history: &Tried,
        random: &mut Pcg64,
    ) -> Option<(ScoredCandidate, Params)> {
        let untried = |candidates: &Candidates<'_>, found: ScoredCandidate| {
            let params = candidates.params(&found.candidate);
            (!history.contains(&params)).then_some((found, params))
        };
        let first_owed = owed
            .iter()
            .find_map(|point| untried(self.candidates, self.at(point, random)?));
        if let Some((found, params)) = first_owed {
            return Some((ScoredCandidate { is_owed: true, ..found }, params));
        }
        let mut first = |search: &Self| {
            let found = search.maximise(random).into_iter();
            found.filter_map(|found| untried(search.candidates, found)).next()
        };
        let mut found = first(self);
        if found.is_none() && self.near.take().is_some() {
            found = first(self);
        }
        if found.is_none() && self.only.take().is_some() {
            found = first(self);
        }
        found
    }

    /// The best untried settings found, best first; empty where all is tried.
    fn maximise(&self, random: &mut Pcg64) -> Vec<ScoredCandidate> {
        let most = (WHOLE / self.conditioned.max(1) as u64).min(WHOLE_SETTINGS);
        let mut found = match self.candidates.all(most) {
            Some(all) => self.scored(all, self.near.as_ref()),
            None => self.searched(random),
        };
        found.sort_by(|a, b| b.log_value.total_cmp(&a.log_value));
        found.retain(|one| one.log_value > f64::NEG_INFINITY);
        found
    }

    /// A settled point as a candidate, however far from the best training; `None` where it is tried, not allowed or impossible.
    fn at(&self, point: &Point, random: &mut Pcg64) -> Option<ScoredCandidate> {
        let candidate = self.candidates.of(point, random);
        self.scored(vec![candidate], None)
            .pop()
            .filter(|found| found.log_value > f64::NEG_INFINITY)
    }

    fn searched(&self, random: &mut Pcg64) -> Vec<ScoredCandidate> {
        let mut pool = self.scored(self.pool(random), self.near.as_ref());
        pool.sort_by(|a, b| b.log_value.total_cmp(&a.log_value));
        let mut starts: Vec<ScoredCandidate> = Vec::new();
        for one in &pool {
            let apart = |other: &ScoredCandidate| square(&one.candidate, &other.candidate) > APART;
            if starts.len() < STARTS && starts.iter().all(apart) {
                starts.push(one.clone());
            }
        }
        let mut found: Vec<ScoredCandidate> = starts.into_par_iter().map(|start| self.improved(start)).collect();
        found.retain(|one| !self.is_tried(&self.candidates.settled(&one.candidate)));
        found.extend(pool);
        found
    }

    fn pool(&self, random: &mut Pcg64) -> Vec<Point> {
        let dimensions = self.candidates.dimensions();
        let mut pool: Vec<Point> = (0..DRAWN)
            .map(|_| self.candidates.at(&uniform_point(dimensions, random)))
            .collect();
        if !self.good.is_empty() {
            for index in 0..MUTANTS {
                let parent = self.candidates.of(&self.good[index % self.good.len()], random);
                pool.push(self.candidates.mutated(&parent, random));
            }
        }
        if let Some(only) = self.only {
            pool.iter_mut()
                .for_each(|candidate| candidate[only.parameter] = only.coordinate);
        }
        pool
    }

    /// Scores the untried ones among candidates, each setting once; those in `near` alone, where there is one.
    fn scored(&self, candidates: Vec<Point>, near: Option<&Neighbourhood>) -> Vec<ScoredCandidate> {
        let mut met = HashSet::new();
        let (mut kept, mut settled) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let candidate = match &self.landscape.trainings {
                Some(trainings) => {
                    let candidate = match self.landscape.aim.is_loss() {
                        true => trainings.fastest_alike(candidate, self.only.map(|only| only.parameter)),
                        false => candidate,
                    };
                    trainings.fastest_variant(&self.landscape.surrogates, candidate)
                }
                None => candidate,
            };
            let point = self.candidates.settled(&candidate);
            let allowed = self.only.is_none_or(|only| point[only.parameter] == only.coordinate);
            let allowed = allowed && near.is_none_or(|near| near.contains(self.candidates, &point));
            let key = self.key(&point);
            if allowed && !self.is_tried(&point) && met.insert(key) {
                kept.push(candidate);
                settled.push(point);
            }
        }
        let values = self.landscape.log_values(&settled);
        let found = kept.into_iter().zip(values);
        found
            .map(|(candidate, log_value)| ScoredCandidate {
                candidate,
                log_value,
                is_owed: false,
            })
            .collect()
    }

    pub(super) fn is_tried(&self, point: &[f64]) -> bool {
        self.tried.contains(&self.landscape.tried_key(point))
    }

    fn key(&self, point: &[f64]) -> Vec<u64> {
        match &self.landscape.trainings {
            Some(trainings) => trainings.loss_key(point),
            None => key(point),
        }
    }

    /// Local search from one start.
    fn improved(&self, start: ScoredCandidate) -> ScoredCandidate {
        let mut best = start;
        for _ in 0..ROUNDS {
            let before = best.log_value;
            let free = self.candidates.continuous(&best.candidate);
            if !free.is_empty() {
                let settled = self.candidates.settled(&best.candidate);
                let (at, log_value) = climb(&settled, &free, |point| self.landscape.log_slope(point));
                if log_value > best.log_value {
                    for index in free {
                        best.candidate[index] = at[index];
                    }
                    best.log_value = log_value;
                }
            }
            let neighbours = self.scored(self.candidates.neighbours(&best.candidate), self.near.as_ref());
            let Some(next) = neighbours
                .into_iter()
                .max_by(|a, b| a.log_value.total_cmp(&b.log_value))
            else {
                break;
            };
            if next.log_value > best.log_value {
                best = next;
            }
            if best.log_value - before < 1e-6 {
                break;
            }
        }
        best
    }
}

/// Points to mutate: the front, then the next layers.
pub(super) fn good_points(evaluated: &[EvaluatedPoint]) -> Vec<Point> {
    let feasible: Vec<&EvaluatedPoint> = evaluated.iter().filter(|one| one.feasible).collect();
    let values: Vec<&[f64]> = feasible.iter().map(|one| one.values.as_slice()).collect();
    let ranks = pareto::ranks(&values);
    let mut order: Vec<usize> = (0..feasible.len()).filter(|index| ranks[*index] <= 1).collect();
    order.sort_by_key(|index| ranks[*index]);
    order.into_iter().map(|index| feasible[index].point.clone()).collect()
}

fn square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
