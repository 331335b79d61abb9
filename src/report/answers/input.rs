//! What the answers are made from.

use std::collections::BTreeMap;

use crate::store::Variants;
use peft_tune_core::objective::OF_LEARNING;
use peft_tune_core::space::Widening;
use peft_tune_core::study::{Confirmations, Confirmed, Metrics, Trial, TrialNumber, interval_of};
use peft_tune_search::{Insight, NEAR_BEST_LOSS, Problem, Proposal, UntoldCost};

/// How far the loss of a setting that was trained once is taken to stray, as a share of it: what the default recommendation
/// calls nearly the best. Without repeats nothing measured says it: a surrogate of a few dozen trainings fits them as they are.
pub(super) const ASSUMED_LOSS_NOISE: f64 = NEAR_BEST_LOSS;

/// A study as the answers need it.
#[derive(Clone, Copy, Debug)]
pub struct AnswersInput<'a> {
    /// The problem, with its search space.
    pub problem: &'a Problem,
    /// Trials as they count, in order of number.
    pub trials: &'a [Trial],
    /// Trials that took their loss over, each with the training that measured it.
    pub variants: &'a Variants,
    /// What repeats say.
    pub confirmed: &'a Confirmations,
    pub recommended: Option<TrialNumber>,
    /// Wall-clock seconds of finished trials.
    pub wall_s: &'a BTreeMap<TrialNumber, f64>,
    /// Surrogates of the trials.
    pub insight: &'a Insight,
    /// What the model would try next, the best first.
    pub next: &'a [Proposal],
    /// Ranges that searches widened by themselves.
    pub widened: &'a [Widening],
    /// Values whose costs predictions do not tell.
    pub untold: &'a [UntoldCost],
}

impl<'a> AnswersInput<'a> {
    pub(super) fn trial(&self, number: TrialNumber) -> Option<&'a Trial> {
        self.trials.iter().find(|trial| trial.number == number)
    }

    pub(super) fn recommended_trial(&self) -> Option<&'a Trial> {
        self.trial(self.recommended?)
    }

    /// Half of the 95% interval of a trial's metric, in the metric's unit: from its repeats, else what its own measurement
    /// says; a loss that neither says anything of strays by [`ASSUMED_LOSS_NOISE`]. Bytes are counted, so memory does not.
    pub(super) fn half_interval(&self, trial: &Trial, metric: &str, value: f64) -> f64 {
        let of_repeats = self.repeats(trial.number, metric).map(|one| one.interval * value.abs());
        let own = trial.state.metrics().and_then(|metrics| own_interval(metrics, metric));
        let own = own.map(|share| share * value.abs());
        let assumed = || OF_LEARNING.contains(&metric).then(|| ASSUMED_LOSS_NOISE * value.abs());
        of_repeats.or(own).or_else(assumed).unwrap_or(0.0)
    }

    /// What two or more repeats of a trial say of a metric.
    pub(super) fn repeats(&self, number: TrialNumber, metric: &str) -> Option<&'a Confirmed> {
        self.confirmed.get(&number)?.get(metric).filter(|one| one.repeats > 1)
    }
}

/// Half of the 95% interval that a trial's own measurement of a metric has, as a share of it.
pub(super) fn own_interval(metrics: &Metrics, metric: &str) -> Option<f64> {
    metrics.value(&interval_of(metric))
}
