//! Scrambled Sobol points: a random search without clumps and holes.

use sobol_burley::NUM_DIMENSIONS;

use super::seeded::{Stream, Tried, first_untried, generator, uniform_point};
use super::{Problem, Sampler};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial};

/// Points in one sequence of `sobol_burley`; a further sequence with another scramble follows.
const SEQUENCE: u32 = 1 << 16;
/// Points skipped because they are already tried before random ones are drawn instead.
const SKIPS: u32 = 64;

/// Proposes the points of an Owen-scrambled Sobol sequence (Burley 2020) in order, passing over those tried before.
#[derive(Clone, Debug)]
pub struct Sobol {
    seed: u64,
}

impl Sobol {
    /// A sampler whose scramble follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for Sobol {
    fn name(&self) -> &'static str {
        "sobol"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        initial_design(&problem.space, self.seed, history)
    }
}

/// The next Sobol setting for a history: the point numbered by the history's length, or the next one untried.
pub(super) fn initial_design(space: &SearchSpace, seed: u64, history: &[Trial]) -> Option<Params> {
    let tried = Tried::new(history);
    let first = history.len() as u32;
    let mut points = (first..first + SKIPS).map(|index| space.params_at(&sobol_point(index, space.dimensions(), seed)));
    if let Some(params) = points.find(|params| !tried.contains(params)) {
        return Some(params);
    }
    let mut random = generator(seed, Stream::Random, history.len());
    first_untried(space, &tried, &mut random, |random| {
        space.params_at(&uniform_point(space.dimensions(), random))
    })
}

/// Point number `index` of the sequence that `seed` scrambles, in [0, 1)^dimensions. Past the crate's 2^16 points or 256
/// dimensions a sequence with another scramble goes on ("padding", as its documentation recommends).
pub(super) fn sobol_point(index: u32, dimensions: usize, seed: u64) -> Vec<f64> {
    let folded = (seed ^ (seed >> 32)) as u32;
    let coordinate = |dimension: u32| {
        let scramble = folded
            .wrapping_add((index / SEQUENCE).wrapping_mul(0x9e37_79b9))
            .wrapping_add((dimension / NUM_DIMENSIONS).wrapping_mul(0x85eb_ca6b));
        f64::from(sobol_burley::sample(
            index % SEQUENCE,
            dimension % NUM_DIMENSIONS,
            scramble,
        ))
    };
    (0..dimensions as u32).map(coordinate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, drive, mixed_states, problem};

    #[test]
    fn every_power_of_two_of_points_is_spread_evenly() {
        for seed in 0..4 {
            for dimension in 0..6 {
                let mut cells = [0; 16];
                for index in 0..16 {
                    cells[(sobol_point(index, 6, seed)[dimension] * 16.0) as usize] += 1;
                }
                assert_eq!(cells, [1; 16], "seed {seed}, dimension {dimension}");
            }
        }
    }

    #[test]
    fn more_points_and_dimensions_than_the_sequence_has_still_differ() {
        let wide = sobol_point(3, 300, 1);
        assert_eq!(wide.len(), 300);
        assert_ne!(wide[0], wide[256]);
        assert_ne!(sobol_point(5, 1, 1), sobol_point(5 + SEQUENCE, 1, 1));
    }

    #[test]
    fn seeds_scramble_differently() {
        assert_ne!(sobol_point(0, 3, 1), sobol_point(0, 3, 2));
    }

    #[test]
    fn it_tries_a_discrete_space_once_and_stops() {
        let problem = problem(conditional_space(), 2);
        assert_eq!(drive(&mut Sobol::new(1), &problem, 100, mixed_states).len(), 9);
    }
}
