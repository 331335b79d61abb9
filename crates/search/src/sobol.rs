//! Scrambled Sobol points, with which samplers begin: random ones without clumps and holes.

use sobol_burley::NUM_DIMENSIONS;

use crate::seeded::{Stream, Tried, first_untried, generator, uniform_point};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial};

/// Points in one sequence of `sobol_burley`; a further sequence with another scramble follows.
const SEQUENCE: u32 = 1 << 16;
/// Points skipped because they are already tried before random ones are drawn instead.
const SKIPS: u32 = 64;

/// The next Sobol setting for a history: the point numbered by the history's length, or the next one untried.
pub(crate) fn initial_design(space: &SearchSpace, seed: u64, history: &[Trial]) -> Option<Params> {
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
/// dimensions a sequence with another scramble continues ("padding", as its documentation recommends).
pub(crate) fn sobol_point(index: u32, dimensions: usize, seed: u64) -> Vec<f64> {
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
}
