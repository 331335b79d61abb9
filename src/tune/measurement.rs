//! Parts of a trial that one trial measures and others take over.

use crate::worker::{is_of_stop, is_of_training};
use peft_tune_core::objective::is_of_target;
use peft_tune_core::study::{Metrics, TrialNumber};

/// A part of a trial that can be taken over from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Measurement {
    /// The metrics of the profile phase.
    Cost,
    /// The metrics of the training phase.
    Loss,
    /// One metric of a command.
    Metric(String),
}

impl Measurement {
    /// The metrics of this part, of all that a trial measured.
    pub(super) fn of(&self, metrics: &Metrics) -> Metrics {
        let is_of_it = |name: &str| match self {
            // Each setting has a prediction of its own, which is not inherited.
            Self::Cost if is_of_target(name) => false,
            Self::Cost => !is_of_training(name) && !is_of_stop(name),
            Self::Loss => is_of_training(name),
            Self::Metric(metric) => name == metric,
        };
        let mut part = metrics.clone();
        part.retain(is_of_it);
        part
    }
}

/// A part of a trial that another trial measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) part: Measurement,
    pub(super) source: TrialNumber,
}

/// A part of a trial that another trial measured, with its metrics.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inherited {
    pub(super) part: Measurement,
    pub(super) source: TrialNumber,
    pub(super) metrics: Metrics,
}

/// The metrics of a trial with what it inherited; its own measurements go before.
pub(super) fn with_inherited(measured: &Metrics, inherited: &[Inherited]) -> Metrics {
    let mut metrics = Metrics::default();
    let parts = inherited.iter().map(|part| &part.metrics).chain([measured]);
    for (name, value) in parts.flat_map(Metrics::iter) {
        metrics.insert(name, value);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::LOSS;
    use peft_tune_core::study::{PLANNED_STEPS, bound_of, expected_end_deviation_of, expected_end_of};

    #[test]
    fn what_is_taken_over_is_a_part_s_and_what_was_measured_goes_before() {
        let metrics: Metrics = [
            ("loss", 2.0),
            ("loss_at_least", 1.0),
            ("throughput", 60.0),
            ("train_s", 3.0),
        ]
        .into();
        assert_eq!(Measurement::Cost.of(&metrics), [("throughput", 60.0)].into());
        assert_eq!(Measurement::Loss.of(&metrics), [("loss", 2.0), ("train_s", 3.0)].into());
        assert_eq!(
            Measurement::Metric("train_s".to_owned()).of(&metrics),
            [("train_s", 3.0)].into()
        );
        let inherited = Inherited {
            part: Measurement::Loss,
            source: TrialNumber(4),
            metrics: Measurement::Loss.of(&metrics),
        };
        assert_eq!(
            with_inherited(&[("throughput", 7.0), ("train_s", 1.0)].into(), &[inherited]),
            [("throughput", 7.0), ("loss", 2.0), ("train_s", 1.0)].into()
        );
    }

    #[test]
    fn what_a_stopped_trial_says_of_its_end_is_no_cost() {
        let of_the_stop = [
            PLANNED_STEPS.to_owned(),
            bound_of(LOSS),
            expected_end_of(LOSS),
            expected_end_deviation_of(LOSS),
        ];
        let mut metrics = Metrics::from([("throughput", 60.0)]);
        for name in &of_the_stop {
            metrics.insert(name, 5.0);
        }
        assert_eq!(Measurement::Cost.of(&metrics), [("throughput", 60.0)].into());
    }
}
