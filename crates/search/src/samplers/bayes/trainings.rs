//! The gain of one training: its loss at every cost that settings with this loss can have.
//!
//! Micro-batch and activation checkpointing change no loss. So the gain of a training is that of a *set* of points, one
//! for each such variant, whose costs a prior knows:
//!
//! EI = sum over k of A_k E[max(z_{k+1} - L, 0) - max(z_k - L, 0)]
//!
//! | name | meaning |
//! |---|---|
//! | L | the loss, not known yet |
//! | z_k, A_k | losses of the front, and what the variants' costs add to it up to each ([`LossFront`]); z_0 is minus infinity |
//!
//! A training runs at the fastest variant that fits; of the others those that matter are measured once all is trained.
//!
//! Weights in 16 bits learn what weights in 32 bits learn, in half the time: while the least loss is looked for, trainings have the
//! fastest of the values that are expected to learn alike, unless trainings that differ in nothing else say otherwise.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::candidates::{Candidates, Choice};
use super::ehvi::{difference, log_sum};
use super::loss_front::LossFront;
use super::marginal::{LogShare, Marginal, NOTHING};
use super::observations::{EvaluatedPoint, Observations};
use super::surrogates::{LIKELY, Surrogates};
use crate::encode::{Point, key};
use crate::loss_margins::LOSS_BY_CHANCE;
use crate::{Prior, Problem};
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT, counted_as};

/// Share of a continuous range within which trainings teach the same: 8% of a learning rate that is searched over a factor of
/// 40, where a training with another seed ends further apart. Without it a search repeats what it takes for the best.
const ALIKE: f64 = 0.02;
/// Variants of one training that are looked at.
const MOST_VARIANTS: usize = 64;

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
    /// Parameters that change a cost and are not free.
    costly: Vec<usize>,
    alike: Vec<AlikeValues>,
    front: LossFront,
    /// Variants that were computed, by the coordinates that change a cost.
    known: Mutex<HashMap<Vec<u64>, Option<Arc<Variants>>>>,
}

/// Values of a parameter that learn alike.
struct AlikeValues {
    /// Index of the parameter.
    parameter: usize,
    /// Coordinates of the slower ones, each with that of the fastest.
    faster: Vec<(f64, f64)>,
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
    /// The trainings of a history; `None` where no objective is the loss. `counted` are its complete settings, and
    /// those under way as they are expected to end.
    pub(super) fn new(
        problem: &Problem,
        observations: &Observations<'_>,
        candidates: &'a Candidates<'a>,
        prior: &'a dyn Prior,
        counted: &[EvaluatedPoint],
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
        let speed = counted_as(THROUGHPUT, &problem.objectives);
        Some(Self {
            candidates,
            prior,
            loss,
            speed,
            alike: alike(observations, candidates, prior, speed, loss),
            memory: counted_as(PEAK_MEMORY, &problem.objectives),
            costly: (0..candidates.dimensions())
                .filter(|index| !free.contains(index) && changes_cost(index))
                .collect(),
            free,
            front: LossFront::of(loss, counted, &observations.reference),
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

    /// Key of what a training need not be repeated for: the coordinates that decide its loss, those of continuous
    /// ranges rounded.
    pub(super) fn tried_key(&self, point: &[f64]) -> Vec<u64> {
        let mut point = self.without_free(point);
        for (index, coordinate) in point.iter_mut().enumerate() {
            if self.candidates.levels(index).is_empty() {
                *coordinate = (*coordinate / ALIKE).round();
            }
        }
        key(&point)
    }

    /// A candidate with the fastest of the values that learn as its own do, those of the parameter `except` left as they are.
    pub(super) fn fastest_alike(&self, mut candidate: Point, except: Option<usize>) -> Point {
        for AlikeValues { parameter, faster } in &self.alike {
            let own = faster.iter().find(|(slower, _)| *slower == candidate[*parameter]);
            if let Some((_, fastest)) = own.filter(|_| Some(*parameter) != except) {
                candidate[*parameter] = *fastest;
            }
        }
        candidate
    }

    /// Whether another value of the parameter learns as this one does and is faster.
    pub(super) fn has_faster_alike(&self, choice: Choice) -> bool {
        let alike = self.alike.iter().filter(|alike| alike.parameter == choice.parameter);
        alike
            .flat_map(|alike| &alike.faster)
            .any(|(slower, _)| *slower == choice.coordinate)
    }

    /// A point with the coordinates that change no loss at 0.
    fn without_free(&self, point: &[f64]) -> Point {
        let mut point = point.to_vec();
        self.free.iter().for_each(|index| point[*index] = 0.0);
        point
    }

    /// The fastest variant of a candidate that fits; the candidate itself where none does.
    pub(super) fn fastest_variant(&self, surrogates: &Surrogates<'_>, mut candidate: Point) -> Point {
        if let Some(variants) = self.variants(surrogates, &candidate) {
            for (index, coordinate) in self.free.iter().zip(&variants.fastest) {
                candidate[*index] = *coordinate;
            }
        }
        candidate
    }

    /// ln of what training at a point is expected to add to the hypervolume, with its derivatives by mean and deviation of
    /// the loss.
    pub(super) fn log_gain(&self, surrogates: &Surrogates<'_>, point: &Point, marginals: &[Marginal]) -> LogShare {
        let Some(variants) = self.variants(surrogates, point) else {
            return NOTHING;
        };
        let loss = &marginals[self.loss];
        let mut below = NOTHING;
        let slabs = self.front.bounds().iter().zip(&variants.areas).map(|(bound, area)| {
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

    /// Doublings of the costs of a training over their units, halvings where they are maximised, summed up: of the
    /// variant that has the fewest. Infinite where none fits.
    pub(super) fn doublings(&self, surrogates: &Surrogates<'_>, point: &[f64]) -> f64 {
        self.variants(surrogates, point)
            .map_or(f64::INFINITY, |variants| variants.doublings)
    }

    fn variants(&self, surrogates: &Surrogates<'_>, candidate: &[f64]) -> Option<Arc<Variants>> {
        let point = self.candidates.settled(candidate);
        let key: Vec<u64> = self
            .costly
            .iter()
            .map(|index| (point[*index] + 0.0).to_bits())
            .collect();
        if let Some(known) = self.known.lock().ok().and_then(|known| known.get(&key).cloned()) {
            return known;
        }
        let found = self.variants_that_fit(surrogates, candidate).map(Arc::new);
        if let Ok(mut known) = self.known.lock() {
            known.insert(key, found.clone());
        }
        found
    }

    fn variants_that_fit(&self, surrogates: &Surrogates<'_>, candidate: &[f64]) -> Option<Variants> {
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
            let Some(marginals) = surrogates.marginals(&point) else {
                continue;
            };
            let params = self.candidates.params(&variant);
            let expected = |metric: &str| self.prior.expected(&params, metric).unwrap_or(0.0);
            // A limit on the loss is kept or not by all variants, which are known by their costs alone.
            let fits = surrogates.log_kept_of(&marginals, |output| output != self.loss) >= LIKELY;
            if fits {
                let others = marginals[..surrogates.objectives].iter().enumerate();
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
        let doublings = |costs: &Vec<f64>| costs.iter().map(|cost| cost.abs().log2() * cost.signum()).sum();
        Some(Variants {
            doublings: costs.iter().map(doublings).fold(f64::INFINITY, f64::min),
            fastest: self.free.iter().map(|index| best[*index]).collect(),
            areas: self.front.areas(&costs),
        })
    }
}

/// Choices with values that learn alike, as [`Trainings::alike`] holds them.
fn alike(
    observations: &Observations<'_>,
    candidates: &Candidates<'_>,
    prior: &dyn Prior,
    speed: &str,
    loss: usize,
) -> Vec<AlikeValues> {
    let feasible = observations.evaluated.iter().filter(|seen| seen.feasible);
    let Some(best) = feasible.min_by(|a, b| a.values[loss].total_cmp(&b.values[loss])) else {
        return Vec::new();
    };
    let used = observations.modelled[loss].used.iter().copied();
    let faster_of = |index: usize| {
        let levels = candidates.levels(index);
        let at = |level: f64| {
            let mut point = best.point.clone();
            point[index] = level;
            candidates.params(&point)
        };
        let expected = |level: f64| prior.expected(&at(level), speed).unwrap_or(0.0);
        let fastest = |slower: f64| {
            let learn_alike = |level: &f64| {
                prior.learns_alike(&at(slower), &at(*level)) && !is_better(observations, loss, index, [slower, *level])
            };
            let others = levels.iter().copied().filter(|level| *level != slower);
            let fastest = others
                .filter(learn_alike)
                .max_by(|a, b| expected(*a).total_cmp(&expected(*b)))?;
            (expected(fastest) > expected(slower)).then_some((slower, fastest))
        };
        let faster: Vec<(f64, f64)> = levels.iter().filter_map(|slower| fastest(*slower)).collect();
        (!faster.is_empty()).then_some(AlikeValues {
            parameter: index,
            faster,
        })
    };
    let choices = used.filter(|index| candidates.is_choice(*index));
    choices.filter_map(faster_of).collect()
}

/// Whether one value of a parameter learned more than another, by more than chance does, in the mean over the pairs of
/// trainings that differ in nothing else.
fn is_better(observations: &Observations<'_>, loss: usize, index: usize, [one, other]: [f64; 2]) -> bool {
    let used = &observations.modelled[loss].used;
    let of = |level: f64| {
        let feasible = observations.evaluated.iter().filter(|seen| seen.feasible);
        feasible.filter(move |seen| seen.point[index] == level)
    };
    let is_pair = |a: &EvaluatedPoint, b: &EvaluatedPoint| are_alike_but(used, index, ALIKE, [&a.point, &b.point]);
    let pairs = of(one).flat_map(|a| {
        of(other)
            .filter(|b| is_pair(a, b))
            .map(|b| (a.values[loss], b.values[loss]))
    });
    let (mut gains, mut count) = (0.0, 0.0);
    for (of_one, of_other) in pairs {
        gains += (of_other - of_one) / of_other.abs().max(f64::MIN_POSITIVE);
        count += 1.0;
    }
    gains > LOSS_BY_CHANCE * count
}

/// Whether two points lie within a distance of each other in each of these parameters, but perhaps in one.
pub(super) fn are_alike_but(used: &[usize], but: usize, within: f64, [one, other]: [&[f64]; 2]) -> bool {
    let mut others = used.iter().filter(|index| **index != but);
    others.all(|index| (one[*index] - other[*index]).abs() <= within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, drive, parameter};
    use crate::{Bayes, Sampler};
    use peft_tune_core::objective::{LOSS_BEFORE, Objective};
    use peft_tune_core::space::{Distribution, Scale, SearchSpace};
    use peft_tune_core::study::{ParamValue, Params, Trial, TrialState};

    /// A machine on which 32 bits take twice the time and memory.
    struct Costs;

    fn is_wide(params: &Params) -> bool {
        params.get("precision") == Some(&"fp32".into())
    }

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    impl Prior for Costs {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            let times = if is_wide(params) { 2.0 } else { 1.0 };
            match metric {
                THROUGHPUT => Some(3e4 / times / number(params, "rank").powf(0.1)),
                PEAK_MEMORY => Some(1e7 * times),
                _ => None,
            }
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }

        fn learns_alike(&self, one: &Params, other: &Params) -> bool {
            let rest = |params: &Params| params.with("precision", "bf16".into());
            rest(one) == rest(other)
        }
    }

    /// The trials of a search where 32 bits learn more than 16 by this share.
    fn searched(seed: u64, gain: f64) -> Vec<Trial> {
        let rate = Distribution::Float {
            low: 1e-3,
            high: 3e-2,
            scale: Scale::Log,
            step: None,
        };
        let parameters = vec![
            parameter("rank", categorical([4i64, 8, 16, 32])),
            parameter("learning_rate", rate),
            parameter("precision", categorical(["fp32", "bf16"])),
        ];
        let problem = Problem {
            space: SearchSpace { parameters },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        };
        let mut sampler = Bayes::new(seed).with_prior(Arc::new(Costs));
        drive(
            &mut sampler as &mut dyn Sampler,
            &problem,
            24,
            |number_of_trial, params| {
                let cost = |metric: &str| Costs.expected(params, metric).unwrap();
                let decades = (number(params, "learning_rate") / 6e-3).log10();
                let noise = 0.004 * ((number_of_trial * 7) % 5) as f64;
                let learned = 2.0 + decades * decades + 0.1 * (32.0 / number(params, "rank")).log2() + noise;
                let loss = learned * if is_wide(params) { 1.0 - gain } else { 1.0 };
                TrialState::Complete {
                    metrics: [
                        (THROUGHPUT, cost(THROUGHPUT)),
                        (PEAK_MEMORY, cost(PEAK_MEMORY)),
                        (LOSS, loss),
                        (LOSS_BEFORE, 8.5),
                    ]
                    .into(),
                }
            },
        )
    }

    #[test]
    fn what_learns_alike_is_trained_at_its_fastest() {
        for seed in 0..4 {
            let trials = searched(seed, 0.0);
            let wide = trials[8..].iter().filter(|trial| is_wide(&trial.params)).count();
            assert!(wide <= 3, "seed {seed}: {wide} of {}", trials.len());
        }
    }

    #[test]
    fn what_learns_more_than_chance_gives_is_found() {
        for seed in 0..4 {
            let trials = searched(seed, 0.1);
            let loss = |trial: &&Trial| trial.state.metrics().unwrap().value(LOSS).unwrap();
            let best = trials.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
            assert!(is_wide(&best.params), "seed {seed}: {:?}", best.params);
        }
    }
}
