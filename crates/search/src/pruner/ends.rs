//! Ends of a trial's unknown objectives: its learning curves continued, corrected by how far off such a continuation
//! was for trials that finished.
//!
//! A power law does not know about the schedule of the learning rate, which bends curves near their end. So each curve of a
//! finished trial is cut at the same share of its steps, continued, and compared with what came. The mean error is taken
//! off, their spread is added to the uncertainty. Before trials have finished, the spread is taken to be a share of the fall
//! that the curve still has before it.

use super::{Field, Progress};
use crate::learning_curve::{Report, extrapolate};

/// Finished trials that a continuation is compared with: the latest ones.
const MOST_COMPARED: usize = 8;
/// Weight of what is believed of the error before any trial has finished, in trials.
const BELIEVED: f64 = 2.0;
/// Deviation of the error that is believed before any trial has finished, as a share of the fall still to come.
const SHARE_OF_FALL: f64 = 0.25;
/// Standard deviations between the median and the 5% quantile.
const QUANTILE: f64 = 1.645;

/// The end of one curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) median: f64,
    pub(super) deviation: f64,
    /// The end lies above this with probability 0.95.
    pub(super) low: f64,
}

/// The end of an objective of `trial` by its own curve; `None` where too little of it is known.
pub(super) fn end(trial: &Progress, objective: usize, field: Field<'_>) -> Option<End> {
    let total = trial.total_steps?;
    let curve = &trial.curves[objective];
    let own = extrapolate(curve, total)?;
    let (_, last) = curve.last()?;
    let believed = SHARE_OF_FALL * (last - own.median).abs();
    let errors = errors(trial.share()?, objective, field);
    let count = errors.len() as f64;
    let shift = errors.iter().sum::<f64>() / (count + BELIEVED);
    let squares: f64 = errors.iter().map(|error| (error - shift).powi(2)).sum();
    let spread = ((squares + BELIEVED * believed * believed) / (count + BELIEVED)).sqrt();
    let deviation = (own.high - own.low) / (2.0 * QUANTILE);
    Some(End {
        median: own.median + shift,
        deviation: deviation.hypot(spread),
        low: own.low + shift - if errors.is_empty() { 0.0 } else { QUANTILE * spread },
    })
}

/// Differences between the ends of finished trials and the continuations of the first `share` of their curves.
fn errors(share: f64, objective: usize, field: Field<'_>) -> Vec<f64> {
    let error = |other: &Progress| {
        let (end, total) = (other.known[objective]?, other.total_steps?);
        let until = share * total as f64 + 0.5;
        let seen = other.curves[objective].iter();
        let seen: Vec<Report> = seen.take_while(|(step, _)| *step as f64 <= until).copied().collect();
        Some(end - extrapolate(&seen, total)?.median)
    };
    let finished = field.others.iter().rev().filter(|other| other.feasible);
    finished.filter_map(error).take(MOST_COMPARED).collect()
}

#[cfg(test)]
mod tests {
    use super::super::progress::tests::{field, progress};
    use super::*;

    #[test]
    fn it_is_where_the_curve_goes() {
        let end = end(&progress(1, 1.0, 3.0, 40), 1, field(&[])).unwrap();
        let truth = 3.0 + 1.0 / 21.0;
        assert!((end.median - truth).abs() < 0.05 && end.low < truth, "{end:?}");
        assert!(end.low < end.median && end.deviation > 0.0);
    }

    /// A schedule that takes 0.2 off every loss near the end, which no continuation can know.
    #[test]
    fn what_finished_trials_did_in_the_end_is_learned() {
        let bent = |number: u64| {
            let mut trial = progress(number, 1.0, 2.0 + 0.1 * number as f64, 100);
            trial.known[1] = trial.known[1].map(|loss| loss - 0.2);
            trial
        };
        let finished: Vec<Progress> = (0..8).map(bent).collect();
        let trial = progress(9, 1.0, 3.0, 40);
        let truth = 3.0 + 1.0 / 21.0 - 0.2;
        let (before, after) = (
            end(&trial, 1, field(&[])).unwrap(),
            end(&trial, 1, field(&finished)).unwrap(),
        );
        assert!((before.median - truth).abs() > 0.15, "{before:?}");
        assert!((after.median - truth).abs() < 0.08, "{after:?}");
        assert!(after.low < truth, "{after:?}");
    }

    #[test]
    fn a_trial_without_a_curve_has_no_end() {
        assert_eq!(end(&progress(1, 1.0, 3.0, 0), 1, field(&[])), None);
    }
}
