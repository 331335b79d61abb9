//! What one training gives: its loss at every cost that settings with this loss can have.
//!
//! Micro-batch and activation checkpointing change no loss. So the gain of a training is that of a *set* of points, one
//! for each such variant, whose costs a prior knows:
//!
//! EI = sum over k of A_k E[max(z_{k+1} - L, 0) - max(z_k - L, 0)]
//!
//! | name | meaning |
//! |---|---|
//! | L | the loss, not known yet |
//! | z_1 <= ... <= z_n | losses of the front below the reference; z_0 is minus infinity and z_{n+1} the reference |
//! | A_k | what the variants' costs add to the volume, in the other objectives, of the front's points with a loss of at most z_k |
//!
//! A training runs at the fastest variant that fits; of the others those that matter are measured once all is trained.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::candidates::Candidates;
use super::ehvi::{difference, log_sum};
use super::landscape::Landscape;
use super::marginal::{LogShare, Marginal, NOTHING};
use super::maximise::key;
use super::observations::Observations;
use crate::encode::Point;
use crate::hypervolume::hypervolume;
use crate::{Prior, Problem};
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT, counted_as};

/// Share of a continuous range within which trainings teach the same: 8% of a learning rate that is searched over a factor of
/// 40, where a training with another seed ends further apart. Without it a search repeats what it takes for the best.
const ALIKE: f64 = 0.02;
/// Variants of one training that are looked at.
const MOST_VARIANTS: usize = 64;
/// ln of the least probability of keeping every limit with which a variant counts.
const LIKELY: f64 = -0.693;

/// The trainings of a search space.
pub(super) struct Trainings<'a> {
    candidates: &'a Candidates<'a>,
    prior: &'a dyn Prior,
    /// Objective that is the loss.
    loss: usize,
    /// Metrics that count as throughput and as peak memory.
    speed: &'static str,
    memory: &'static str,
    /// Parameters that change no loss and are no continuous range.
    free: Vec<usize>,
    /// Further parameters that change a cost.
    costly: Vec<usize>,
    /// Losses z_1 ... z_{n+1}.
    bounds: Vec<f64>,
    /// The other objectives of the front's points with a loss of at most z_k, for k from 0, and their volume.
    below: Vec<(Vec<Vec<f64>>, f64)>,
    /// Of the objectives but the loss.
    reference: Vec<f64>,
    known: Mutex<HashMap<Vec<u64>, Option<Arc<Variants>>>>,
}

/// The variants of a training.
struct Variants {
    /// Coordinates of the fastest that fits, one for each free parameter.
    fastest: Vec<f64>,
    /// A_0 ... A_n.
    areas: Vec<f64>,
    /// The least sum over costs of how often each is twice its unit, or half of it where it is maximised.
    doublings: f64,
}

impl<'a> Trainings<'a> {
    /// `None` where no objective is the loss.
    pub(super) fn new(
        problem: &Problem,
        observations: &Observations<'_>,
        candidates: &'a Candidates<'a>,
        prior: &'a dyn Prior,
    ) -> Option<Self> {
        let loss = problem
            .objectives
            .iter()
            .position(|objective| objective.metric == LOSS)?;
        let is_free =
            |index: &usize| !observations.modelled[loss].used.contains(index) && !candidates.levels(*index).is_empty();
        let free: Vec<usize> = (0..candidates.dimensions()).filter(is_free).collect();
        let changes_cost = |index: &usize| {
            let mut modelled = observations.modelled.iter().enumerate();
            modelled.any(|(output, one)| output != loss && one.used.contains(index))
        };
        let without = |values: &[f64]| -> Vec<f64> {
            let values = values.iter().enumerate().filter(|(index, _)| *index != loss);
            values.map(|(_, value)| *value).collect()
        };
        let reference = without(&observations.reference);
        let most = observations.reference[loss];
        let feasible = observations
            .seen
            .iter()
            .filter(|seen| seen.feasible && seen.values[loss] < most);
        let mut points: Vec<(f64, Vec<f64>)> = feasible
            .map(|seen| (seen.values[loss], without(&seen.values)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut bounds, mut below) = (Vec::new(), vec![(Vec::new(), 0.0)]);
        let mut so_far: Vec<Vec<f64>> = Vec::new();
        for (value, costs) in points {
            so_far.push(costs);
            let volume = hypervolume(&so_far, &reference);
            // What adds no volume changes no A.
            if below.last().is_some_and(|(_, last)| volume > *last) {
                bounds.push(value);
                below.push((so_far.clone(), volume));
            }
        }
        bounds.push(most);
        Some(Self {
            candidates,
            prior,
            loss,
            speed: counted_as(THROUGHPUT, &problem.objectives),
            memory: counted_as(PEAK_MEMORY, &problem.objectives),
            costly: (0..candidates.dimensions())
                .filter(|index| !free.contains(index) && changes_cost(index))
                .collect(),
            free,
            bounds,
            below,
            reference,
            known: Mutex::default(),
        })
    }

    /// Index of the objective that is the loss.
    pub(super) fn loss(&self) -> usize {
        self.loss
    }

    /// The coordinates that decide the loss.
    pub(super) fn loss_key(&self, point: &[f64]) -> Vec<u64> {
        key(&self.without_free(point))
    }

    /// What a training need not be repeated for: the coordinates that decide its loss, those of continuous ranges rounded.
    pub(super) fn tried_key(&self, point: &[f64]) -> Vec<u64> {
        let mut point = self.without_free(point);
        for (index, coordinate) in point.iter_mut().enumerate() {
            if self.candidates.levels(index).is_empty() {
                *coordinate = (*coordinate / ALIKE).round();
            }
        }
        key(&point)
    }

    /// A point with the coordinates that change no loss at 0.
    fn without_free(&self, point: &[f64]) -> Point {
        let mut point = point.to_vec();
        self.free.iter().for_each(|index| point[*index] = 0.0);
        point
    }

    /// The fastest variant of a candidate that fits; the candidate itself where none does.
    pub(super) fn fastest(&self, landscape: &Landscape<'_>, mut candidate: Point) -> Point {
        if let Some(variants) = self.variants(landscape, &candidate) {
            for (index, coordinate) in self.free.iter().zip(&variants.fastest) {
                candidate[*index] = *coordinate;
            }
        }
        candidate
    }

    /// ln of what training at a point is expected to add to the hypervolume, with its derivatives by mean and deviation of
    /// the loss.
    pub(super) fn log_gain(&self, landscape: &Landscape<'_>, point: &Point, marginals: &[Marginal]) -> LogShare {
        let Some(variants) = self.variants(landscape, point) else {
            return NOTHING;
        };
        let loss = &marginals[self.loss];
        let mut below = NOTHING;
        let slabs = self.bounds.iter().zip(&variants.areas).map(|(bound, area)| {
            let above = loss.log_improvement(*bound);
            let slab = difference(above, below);
            below = above;
            LogShare {
                value: slab.value + area.ln(),
                ..slab
            }
        });
        log_sum(&slabs.collect::<Vec<_>>())
    }

    /// How often the costs of a training are twice their units, each counted, or half of them where they are maximised: of the
    /// variant that has them least. Infinite where none fits.
    pub(super) fn doublings(&self, landscape: &Landscape<'_>, point: &[f64]) -> f64 {
        self.variants(landscape, point)
            .map_or(f64::INFINITY, |variants| variants.doublings)
    }

    fn variants(&self, landscape: &Landscape<'_>, candidate: &[f64]) -> Option<Arc<Variants>> {
        let point = self.candidates.settled(candidate);
        let key: Vec<u64> = self
            .costly
            .iter()
            .map(|index| (point[*index] + 0.0).to_bits())
            .collect();
        if let Some(known) = self.known.lock().ok().and_then(|known| known.get(&key).cloned()) {
            return known;
        }
        let found = self.looked_at(landscape, candidate).map(Arc::new);
        if let Ok(mut known) = self.known.lock() {
            known.insert(key, found.clone());
        }
        found
    }

    fn looked_at(&self, landscape: &Landscape<'_>, candidate: &[f64]) -> Option<Variants> {
        let mut variants = vec![candidate.to_vec()];
        for index in &self.free {
            let levels = self.candidates.levels(*index);
            let at_levels = variants.iter().flat_map(|variant| {
                levels.iter().map(|level| {
                    let mut variant = variant.clone();
                    variant[*index] = *level;
                    variant
                })
            });
            variants = at_levels.take(MOST_VARIANTS).collect();
        }
        let mut costs: Vec<Vec<f64>> = Vec::new();
        // Whether it fits, then its speed or how little memory it takes.
        let mut best: Option<((bool, f64), Point)> = None;
        for variant in variants {
            let point = self.candidates.settled(&variant);
            let Some(marginals) = landscape.marginals(&point) else {
                continue;
            };
            let params = self.candidates.params(&variant);
            let expected = |metric: &str| self.prior.expected(&params, metric).unwrap_or(0.0);
            let fits = landscape.log_kept(&marginals) >= LIKELY;
            if fits {
                let others = marginals[..landscape.objectives].iter().enumerate();
                let others = others.filter(|(index, _)| *index != self.loss);
                costs.push(others.map(|(_, marginal)| marginal.median()).collect());
            }
            let rank = (
                fits,
                if fits {
                    expected(self.speed)
                } else {
                    -expected(self.memory)
                },
            );
            if best
                .as_ref()
                .is_none_or(|(other, _)| rank.partial_cmp(other).is_some_and(|order| order.is_gt()))
            {
                best = Some((rank, variant));
            }
        }
        let (_, best) = best?;
        let area = |(points, volume): &(Vec<Vec<f64>>, f64)| {
            let all: Vec<&[f64]> = points.iter().chain(&costs).map(Vec::as_slice).collect();
            (hypervolume(&all, &self.reference) - volume).max(0.0)
        };
        let doublings = |costs: &Vec<f64>| costs.iter().map(|cost| cost.abs().log2() * cost.signum()).sum();
        Some(Variants {
            doublings: costs.iter().map(doublings).fold(f64::INFINITY, f64::min),
            fastest: self.free.iter().map(|index| best[*index]).collect(),
            areas: self.below.iter().map(area).collect(),
        })
    }
}
