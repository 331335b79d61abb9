//! What a proposal is to improve: the whole front, or one of its ends.
//!
//! People take one setting off a front, most often that with the least loss or the cheapest of those that lose next to
//! nothing. A search that follows the hypervolume alone fills the front's middle long before it knows these ends. Where
//! a prior knows what settings cost, so that only the loss has to be found out, proposals therefore take turns.

use super::ehvi::log_sum;
use super::marginal::{LogShare, Marginal, NOTHING};
use super::observations::{EvaluatedPoint, Observations};
use super::surrogates::Surrogates;
use super::trainings::Trainings;
use crate::{NEAR_BEST_LOSS, Problem};
use peft_tune_core::objective::LOSS;

/// Trainings, the first of a study, that all look for the least loss: what is cheap near the best is worth knowing once
/// the best is nearly known.
const ALONE: usize = 12;
/// Trainings before which two in three proposals look for the least loss; one in two does later.
const FIRST: usize = 20;

/// Improvement that a proposal is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aim {
    /// The hypervolume of the front.
    Front,
    /// One objective, below its best value so far.
    Least { objective: usize, best: f64 },
    /// One objective, below the best value so far of settings whose loss keeps a limit, and with that limit kept.
    Cheapest {
        objective: usize,
        best: f64,
        loss: usize,
        limit: f64,
    },
    /// The point of the front where giving up a little of one objective buys most of the others.
    Knee(Knee),
}

/// The loss and the costs that make a training a better knee than the best so far, by the measure that chooses one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knee {
    /// The loss at which a training whose costs have no doublings is as good a knee.
    bound: f64,
    /// Worth of one doubling of a cost, in units of the loss.
    doubling: f64,
    /// The loss of a training that learns nearly as much as the best one: no knee is above it.
    limit: f64,
}

impl Knee {
    /// The best knee so far; `None` where it is not known how much is learned, or nothing that learns nearly as much
    /// fits.
    fn new(
        observations: &Observations<'_>,
        trainings: &Trainings<'_>,
        surrogates: &Surrogates<'_>,
        counted: &[EvaluatedPoint],
    ) -> Option<Self> {
        let limit = observations.nearly_learned?;
        let loss = trainings.loss();
        let learned = || {
            let counted = counted.iter();
            counted.filter(|seen| seen.feasible && seen.values[loss] <= limit)
        };
        let best = learned().map(|seen| seen.values[loss]).min_by(f64::total_cmp)?;
        let doubling = limit - best;
        let worth = |seen: &EvaluatedPoint| seen.values[loss] + doubling * trainings.doublings(surrogates, &seen.point);
        let bound = learned()
            .map(worth)
            .filter(|bound| bound.is_finite())
            .min_by(f64::total_cmp)?;
        Some(Self { bound, doubling, limit })
    }

    /// ln of how much better a knee than the best so far a training is expected to be whose costs have so many `doublings`,
    /// with its derivatives by mean and deviation of the loss.
    pub(super) fn log_gain(&self, doublings: f64, loss: &Marginal) -> LogShare {
        let bound = self.bound - self.doubling * doublings;
        if !bound.is_finite() {
            return NOTHING;
        }
        if bound <= self.limit {
            return loss.log_improvement(bound);
        }
        let below = loss.log_below(self.limit);
        let value = below.value + (bound - self.limit).ln();
        log_sum(&[loss.log_improvement(self.limit), LogShare { value, ..below }])
    }
}

impl Aim {
    /// The aim of the proposal behind `tried` trainings. Half of the proposals look for the least loss, and first all, then
    /// two in three: all other wishes are relative to it. The rest go in turns to the least cost, each objective's own, of
    /// settings whose loss is nearly the least, to the knee, and to the front. What is to be improved on includes what
    /// trainings under way are expected to reach (`counted`), so that no two of them are made for one gain.
    pub(super) fn of_turn(
        problem: &Problem,
        observations: &Observations<'_>,
        trainings: &Trainings<'_>,
        surrogates: &Surrogates<'_>,
        counted: &[EvaluatedPoint],
        tried: usize,
    ) -> Self {
        let Some(loss) = problem.objectives.iter().position(|objective| objective.metric == LOSS) else {
            return Self::Front;
        };
        let feasible = || counted.iter().filter(|seen| seen.feasible);
        let Some(best) = feasible().map(|seen| seen.values[loss]).min_by(f64::total_cmp) else {
            return Self::Front;
        };
        let others: Vec<usize> = (0..problem.objectives.len()).filter(|index| *index != loss).collect();
        let period = if tried < FIRST { 3 } else { 2 };
        if tried < ALONE || tried % period != 1 || others.is_empty() {
            return Self::Least { objective: loss, best };
        }
        let turn = (tried / period) % (others.len() + 2);
        let Some(objective) = others.get(turn).copied() else {
            let knee = Knee::new(observations, trainings, surrogates, counted).filter(|_| turn == others.len());
            return knee.map_or(Self::Front, Self::Knee);
        };
        let limit = best + NEAR_BEST_LOSS * best.abs();
        let near = feasible().filter(|seen| seen.values[loss] <= limit);
        match near.map(|seen| seen.values[objective]).min_by(f64::total_cmp) {
            Some(best) => Self::Cheapest {
                objective,
                best,
                loss,
                limit,
            },
            None => Self::Front,
        }
    }

    /// Whether the least loss is looked for.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, Self::Least { .. })
    }

    /// ln of the expected gain, with its derivatives by mean and deviation of every output; `None` where that is a
    /// question of whole trainings.
    pub(super) fn log_gain(&self, marginals: &[Marginal]) -> Option<(f64, Vec<(f64, f64)>)> {
        let mut by_output = vec![(0.0, 0.0); marginals.len()];
        let mut add = |index: usize, part: LogShare| {
            by_output[index].0 += part.by_mean;
            by_output[index].1 += part.by_deviation;
            part.value
        };
        let value = match *self {
            Self::Front | Self::Knee(_) => return None,
            Self::Least { objective, best } => add(objective, marginals[objective].log_improvement(best)),
            Self::Cheapest {
                objective,
                best,
                loss,
                limit,
            } => {
                add(objective, marginals[objective].log_improvement(best)) + add(loss, marginals[loss].log_below(limit))
            }
        };
        Some((value, by_output))
    }
}

#[cfg(test)]
mod tests {
    use super::super::marginal::Shape;
    use super::*;
    use crate::normal::density;

    #[test]
    fn the_knee_s_gain_is_that_of_the_losses_that_count() {
        let knee = Knee {
            bound: 3.0,
            doubling: 0.5,
            limit: 2.2,
        };
        let loss = Marginal {
            mean: 2.1,
            deviation: 0.3,
            shape: Shape::Plain,
        };
        let gain = |doublings: f64, loss: &Marginal| knee.log_gain(doublings, loss);
        // Costs that leave a bound below the limit, and such that leave one above it.
        for doublings in [2.0, 0.4] {
            let bound = 3.0 - 0.5 * doublings;
            let step = 1e-4;
            let losses = (0..40_000).map(|index| 0.1 + (f64::from(index) + 0.5) * step);
            let counted = losses.filter(|value| *value <= knee.limit);
            let part = |value: f64| (bound - value).max(0.0) * density((value - 2.1) / 0.3) / 0.3 * step;
            let expected: f64 = counted.map(part).sum();
            let found = gain(doublings, &loss);
            assert!(
                (found.value.exp() / expected - 1.0).abs() < 1e-3,
                "{doublings}: {expected}"
            );
            let moved = |mean: f64, deviation: f64| {
                gain(
                    doublings,
                    &Marginal {
                        mean,
                        deviation,
                        ..loss
                    },
                )
                .value
            };
            let by_mean = (moved(2.1 + 1e-5, 0.3) - moved(2.1 - 1e-5, 0.3)) / 2e-5;
            let by_deviation = (moved(2.1, 0.3 + 1e-5) - moved(2.1, 0.3 - 1e-5)) / 2e-5;
            assert!((found.by_mean - by_mean).abs() < 1e-5 * by_mean.abs().max(1.0));
            assert!((found.by_deviation - by_deviation).abs() < 1e-5 * by_deviation.abs().max(1.0));
        }
        assert_eq!(gain(f64::INFINITY, &loss), NOTHING);
    }
}
