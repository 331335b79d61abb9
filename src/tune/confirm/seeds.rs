//! Noise of the loss, by trainings with other seeds.

use std::collections::BTreeMap;

use super::finalists::Finalists;
use super::trainings::by_training;
use crate::space::Study;
use crate::tune::confirmation::is_training;
use peft_tune_core::objective::LOSS;
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{Confirmations, Confirmed, Metrics, RunSpread, Trial, TrialNumber};

/// Relative standard deviation of the loss by the seed before anything is known of it, and the degrees of freedom that it counts as.
const USUAL_DEVIATION: f64 = 0.005;
const USUAL_FREEDOM: usize = 3;

/// Trainings with other seeds that make a mean.
const FEWEST: usize = 2;

/// Trials that train the same, and the losses of that training with other seeds.
#[derive(Debug)]
struct Training {
    trials: Vec<TrialNumber>,
    losses: Vec<f64>,
}

/// All trainings of a study with their repeats.
#[derive(Debug)]
pub(super) struct SeedRuns(Vec<Training>);

impl SeedRuns {
    pub(super) fn new(study: &Study, history: &[Trial], runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Self {
        let trainings = by_training(study, history).into_values().map(|alike| {
            let trials: Vec<TrialNumber> = alike.iter().map(|trial| trial.number).collect();
            let of_trials = trials.iter().filter_map(|number| runs.get(number)).flatten();
            let losses = of_trials
                .filter(|run| is_training(run))
                .filter_map(|run| run.value(LOSS));
            Training {
                losses: losses.collect(),
                trials,
            }
        });
        Self(trainings.collect())
    }

    /// The trial to train next, and what to add to its seed. Finalists are trained once before any is trained twice; each has
    /// two such trainings, and more while others could take the recommended one's place.
    pub(super) fn next(&self, finalists: &Finalists<'_>, plan: &ConfirmPlan) -> Option<(TrialNumber, u64)> {
        let done: usize = self.0.iter().map(|training| training.losses.len()).sum();
        if done as u64 >= plan.trainings(self.0.len() as u64) {
            return None;
        }
        let with_noise = Finalists {
            loss_noise: Some(self.noise()),
            ..*finalists
        };
        let numbers = with_noise.numbers();
        let mut open: Vec<(usize, TrialNumber)> = Vec::new();
        let mut seen: Vec<usize> = Vec::new();
        for number in numbers {
            let Some(at) = self.0.iter().position(|training| training.trials.contains(&number)) else {
                continue;
            };
            if !seen.contains(&at) && !finalists.given_up.contains(&number) {
                seen.push(at);
                open.push((self.0[at].losses.len(), number));
            }
        }
        // One alone is known well enough once there is a mean.
        let enough = if open.len() > 1 { plan.repeats as usize } else { FEWEST };
        let (count, number) = open.into_iter().min_by_key(|(count, _)| *count)?;
        (count < enough).then_some((number, count as u64 + 1))
    }

    /// The loss that repeats confirm of each trial that was trained again, or would train the same.
    pub(super) fn confirmed(&self) -> Confirmations {
        let spread = self.spread();
        let repeated = self.0.iter().filter(|training| !training.losses.is_empty());
        let said = repeated.filter_map(|training| {
            let one = Confirmed::with_spread(LOSS, &training.losses, &spread)?;
            Some((training, one))
        });
        let said = said.flat_map(|(training, one)| {
            let trials = training.trials.iter();
            trials.map(move |number| (*number, [(LOSS.to_owned(), one)].into()))
        });
        said.collect()
    }

    /// Half width of the 95% interval of a loss that was trained once, as a share of it, by the repeats of all
    /// trainings together, beginning from what is usual.
    pub(super) fn noise(&self) -> f64 {
        1.96 * self.spread().known_before(USUAL_DEVIATION, USUAL_FREEDOM).deviation()
    }

    fn spread(&self) -> RunSpread {
        RunSpread::of(self.0.iter().map(|training| training.losses.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(losses: &[&[f64]]) -> SeedRuns {
        let trainings = losses.iter().enumerate().map(|(number, losses)| Training {
            trials: vec![TrialNumber(number as u64), TrialNumber(100 + number as u64)],
            losses: losses.to_vec(),
        });
        SeedRuns(trainings.collect())
    }

    #[test]
    fn the_noise_is_that_of_all_trainings_together() {
        // Nothing is known: what is usual.
        assert!((runs(&[&[2.0], &[]]).noise() - 0.0098).abs() < 1e-12);
        // Residuals of 1% each, of four degrees of freedom in two trainings.
        let known = runs(&[&[1.98, 2.0, 2.02], &[3.96, 4.0, 4.04], &[5.0]]);
        let variance = (3.0 * 0.005_f64.powi(2) + 4.0 * 1e-4) / 7.0;
        assert!((known.noise() - 1.96 * variance.sqrt()).abs() < 1e-12);
        let confirmed = known.confirmed();
        // t of 4 degrees of freedom: 2.7764.
        let (of_three, of_one) = (confirmed[&TrialNumber(0)][LOSS], confirmed[&TrialNumber(102)][LOSS]);
        assert!(
            (of_three.interval - 2.7764 * 0.01 / 3.0_f64.sqrt()).abs() < 1e-6,
            "{of_three:?}"
        );
        assert!(
            (of_one.interval - 2.7764 * 0.01).abs() < 1e-6 && of_one.repeats == 1,
            "{of_one:?}"
        );
        assert_eq!(confirmed.len(), 6);
    }

    #[test]
    fn a_single_repeat_has_no_interval() {
        let confirmed = runs(&[&[2.0]]).confirmed();
        assert_eq!(confirmed[&TrialNumber(0)][LOSS].interval, 1.0);
    }
}
