//! Throughputs that are lower than what the other trials of a study let expect.
//!
//! | symbol | meaning |
//! |---|---|
//! | r | logarithm of a trial's throughput over its prediction, as far as other trials have corrected that |
//! | m | median of the others' r |
//! | d | median absolute deviation of the others' r from m, times 1.4826 |
//!
//! A trial is suspect whose r is below m - max(4 d, ln 1.25), and below every r that a repeat reproduced: a whole class of
//! settings may be slower than predicted, and one of them that is measured again shows that. Others than disturbances are
//! never suspected: nothing makes a program faster than it is.

use peft_tune_core::{median, normal_deviation};

/// Trials below which nothing is said.
const FEWEST: usize = 6;
/// Deviations, and the least factor, below the median.
const DEVIATIONS: f64 = 4.0;
const FACTOR: f64 = 1.25;
/// Two throughputs within this factor of each other are the same.
pub(super) const SAME: f64 = 1.1;

/// The share of its throughput that a trial may have lost, by the logarithms of the ratios of the others; `None` where it is not
/// suspect. `reproduced` are those of trials that were measured again and came to the same.
pub(super) fn suspicion(ratio: f64, others: &[f64], reproduced: &[f64]) -> Option<f64> {
    if others.len() < FEWEST || !ratio.is_finite() {
        return None;
    }
    let center = median(others.iter().copied())?;
    let spread = normal_deviation(others.iter().copied(), center)?;
    let is_low = ratio < center - (DEVIATIONS * spread).max(FACTOR.ln());
    let is_alone = reproduced.iter().all(|known| ratio < known - SAME.ln());
    (is_low && is_alone).then(|| 1.0 - (ratio - center).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [f64; 7] = [0.0, 0.01, -0.02, 0.03, -0.01, 0.02, 0.0];

    #[test]
    fn a_sixth_of_what_others_reach_is_suspect() {
        let lost = suspicion((1.0f64 / 6.0).ln(), &USUAL, &[]).unwrap();
        assert!((lost - 5.0 / 6.0).abs() < 1e-9);
        assert_eq!(suspicion(0.9f64.ln(), &USUAL, &[]), None);
        assert_eq!(suspicion(6f64.ln(), &USUAL, &[]), None);
    }

    #[test]
    fn few_trials_or_a_wide_spread_say_nothing() {
        assert_eq!(suspicion(-1.0, &USUAL[..5], &[]), None);
        let wide = [-1.0, 0.5, -0.5, 1.0, 0.0, -1.5, 1.5];
        assert_eq!(suspicion(-2.0, &wide, &[]), None);
    }

    #[test]
    fn what_a_repeat_reproduced_is_the_truth_for_its_class() {
        let half = 0.5f64.ln();
        assert!(suspicion(half, &USUAL, &[]).is_some());
        assert_eq!(suspicion(half, &USUAL, &[half + 0.05]), None);
        assert!(suspicion(half - 1.0, &USUAL, &[half]).is_some());
    }
}
