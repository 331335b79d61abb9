//! What a proposal is to improve: the whole front, or one of its ends.
//!
//! People take one setting off a front, most often that with the least loss or the cheapest of those that lose next to
//! nothing. A search that follows the hypervolume alone fills the front's middle long before it knows these ends. Where
//! a prior knows what settings cost, so that only the loss has to be found out, proposals therefore take turns.

use super::marginal::{LogPart, Marginal};
use super::observations::Observations;
use crate::{NEAR_BEST_LOSS, Problem};
use peft_tune_core::objective::LOSS;

/// Trainings of which two in three look for the least loss.
const FIRST: usize = 20;

/// What a proposal is to improve.
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
}

impl Aim {
    /// The aim of the proposal behind `tried` trainings. Half of the proposals look for the least loss, and two in three of
    /// the first ones: all other wishes are relative to it. The rest go in turns to the front and to the least cost, each
    /// objective's own, of settings whose loss is nearly the least.
    pub(super) fn of_turn(problem: &Problem, observations: &Observations<'_>, tried: usize) -> Self {
        let Some(loss) = problem.objectives.iter().position(|objective| objective.metric == LOSS) else {
            return Self::Front;
        };
        let feasible = || observations.seen.iter().filter(|seen| seen.feasible);
        let Some(best) = feasible().map(|seen| seen.values[loss]).min_by(f64::total_cmp) else {
            return Self::Front;
        };
        let others: Vec<usize> = (0..problem.objectives.len()).filter(|index| *index != loss).collect();
        let period = if tried < FIRST { 3 } else { 2 };
        if tried % period != 1 || others.is_empty() {
            return Self::Least { objective: loss, best };
        }
        let turn = (tried / period) % (others.len() + 1);
        let Some(objective) = others.get(turn).copied() else {
            return Self::Front;
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

    /// ln of the expected gain, with its derivatives by mean and deviation of every output; `None` where it is the front's.
    pub(super) fn log_gain(&self, marginals: &[Marginal]) -> Option<(f64, Vec<(f64, f64)>)> {
        let mut by_output = vec![(0.0, 0.0); marginals.len()];
        let mut add = |index: usize, part: LogPart| {
            by_output[index].0 += part.by_mean;
            by_output[index].1 += part.by_deviation;
            part.value
        };
        let value = match *self {
            Self::Front => return None,
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
