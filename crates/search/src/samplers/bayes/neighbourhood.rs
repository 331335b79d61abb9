//! The settings near the best training, among which the least loss is looked for.
//!
//! Far from what was trained a surrogate knows next to nothing, so that the expected improvement is greatest in the corners
//! of the space: the highest learning rate at the least rank. With few trainings these are the worst of all. Kept near
//! the best training, a proposal moves a few parameters by a step, as people do who change one thing at a time and
//! keep what helps (Frey and Wang 2006). It is a trust region (Eriksson and others 2019; with choices, Wan and others 2021) of
//! fixed size: nothing holds back the proposals that look for the front and for cheap settings.

use super::candidates::{Candidates, Choice};
use super::observations::{EvaluatedPoint, Observations};
use super::trainings::Trainings;
use crate::encode::Point;

/// Parameters that may differ from the best training's.
const MOST_MOVED: usize = 3;
/// Distance that an ordered parameter may move, as a share of its range: a learning rate that is searched over a factor
/// of 40, by one of 2.5. Levels that are further apart allow a move to the next one.
const REACH: f64 = 0.25;
/// Distance under which a parameter has not moved.
const SAME: f64 = 0.02;

/// The settings near the best training.
pub(super) struct Neighbourhood {
    centre: Point,
    /// Parameters that can change the loss.
    used: Vec<usize>,
}

impl Neighbourhood {
    /// The settings near the training with the least loss; `None` where there is none.
    pub(super) fn new(observations: &Observations<'_>, trainings: &Trainings<'_>) -> Option<Self> {
        let loss = trainings.loss();
        let feasible = observations.evaluated.iter().filter(|seen| seen.feasible);
        let best: &EvaluatedPoint = feasible.min_by(|a, b| a.values[loss].total_cmp(&b.values[loss]))?;
        Some(Self {
            centre: trainings.fastest_alike(best.point.clone(), None),
            used: observations.modelled[loss].used.clone(),
        })
    }

    /// The best training with another value of one parameter.
    pub(super) fn with(&self, choice: Choice) -> Point {
        choice.in_point(&self.centre)
    }

    pub(super) fn contains(&self, candidates: &Candidates<'_>, point: &[f64]) -> bool {
        let moved = |index: &&usize| (point[**index] - self.centre[**index]).abs() > SAME;
        let moved: Vec<usize> = self.used.iter().filter(moved).copied().collect();
        moved.len() <= MOST_MOVED && moved.iter().all(|index| self.is_step(candidates, point, *index))
    }

    /// Whether a parameter moves by a step at most; a choice may become any other.
    fn is_step(&self, candidates: &Candidates<'_>, point: &[f64], index: usize) -> bool {
        let (from, to) = (self.centre[index], point[index]);
        let levels = candidates.levels(index);
        let is_between = |level: &f64| (level - from) * (level - to) < -1e-12;
        candidates.is_choice(index)
            || (to - from).abs() <= REACH
            || (!levels.is_empty() && !levels.iter().any(is_between))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Encoding;
    use crate::fixtures::mixed_space;

    #[test]
    fn it_holds_a_step_of_ordered_parameters_and_any_other_choice() {
        let space = mixed_space();
        let encoding = Encoding::new(&space);
        let candidates = Candidates::new(&space, &encoding);
        let index = |name: &str| space.parameters.iter().position(|one| one.name == name).unwrap();
        let (rank, rate, optimizer) = (index("rank"), index("learning_rate"), index("optimizer"));
        let ranks = candidates.levels(rank);
        let mut centre: Point = vec![0.0; space.parameters.len()];
        (centre[rank], centre[rate]) = (ranks[0], 0.5);
        let near = Neighbourhood {
            centre,
            used: vec![rank, rate, optimizer],
        };
        let holds = |moves: &[(usize, f64)]| {
            let mut point = near.centre.clone();
            moves.iter().for_each(|(index, coordinate)| point[*index] = *coordinate);
            near.contains(&candidates, &point)
        };
        let other = candidates.levels(optimizer)[1];
        assert!(holds(&[]) && holds(&[(optimizer, other)]) && holds(&[(rate, 0.7)]));
        assert!(!holds(&[(rate, 0.8)]), "a continuous range has no next level");
        // However far apart levels are, the next one is a step.
        assert!(holds(&[(rank, ranks[1])]) && !holds(&[(rank, *ranks.last().unwrap())]));
        assert!(holds(&[(rank, ranks[1]), (rate, 0.7), (optimizer, other)]));
        let slower = Choice {
            parameter: rate,
            coordinate: 0.1,
        };
        assert_eq!(near.with(slower)[rate], 0.1);
    }

    #[test]
    fn only_a_few_parameters_move_at_once() {
        let space = crate::fixtures::continuous_space(4);
        let encoding = Encoding::new(&space);
        let candidates = Candidates::new(&space, &encoding);
        let near = Neighbourhood {
            centre: vec![0.5; 4],
            used: vec![0, 1, 2, 3],
        };
        assert!(near.contains(&candidates, &[0.6, 0.6, 0.6, 0.5]));
        assert!(!near.contains(&candidates, &[0.6, 0.6, 0.6, 0.6]));
    }
}
