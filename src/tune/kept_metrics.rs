//! Metrics that a search keeps in memory of trials that ended: what samplers, rules and the front look at. The database
//! has all of them; a study of ten thousand trials would otherwise be held twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::needed_metrics::needed;
use peft_tune_core::objective::{LOSS_BEFORE, MEASURED_STEPS, TRAIN_TOKENS};
use peft_tune_core::study::{
    Curve, DISTURBED, FailReason, PLANNED_STEPS, SharedText, Trial, TrialState, bound_of, expected_end_deviation_of,
    expected_end_of, interval_of,
};
use peft_tune_search::{Problem, Sampler};

/// Names of the metrics that are kept.
#[derive(Clone, Debug)]
pub(super) struct KeptMetrics {
    /// Metrics of trials.
    metrics: BTreeSet<String>,
    /// Metrics of trials' curves.
    courses: BTreeSet<Arc<str>>,
    /// Whether anything looks at curves.
    prunes: bool,
    /// Names and texts of params and metrics, each held once.
    shared: SharedText,
}

impl KeptMetrics {
    /// The metrics that a study needs; `prunes` says whether its trials may be stopped.
    pub(super) fn new(problem: &Problem, sampler: &dyn Sampler, prunes: bool) -> Self {
        let mut metrics: BTreeSet<String> = sampler.reads().into_iter().map(str::to_owned).collect();
        metrics.extend([PLANNED_STEPS, LOSS_BEFORE, TRAIN_TOKENS, MEASURED_STEPS, DISTURBED].map(str::to_owned));
        for metric in needed(problem) {
            metrics.insert(metric.to_owned());
            metrics.extend([
                bound_of(metric),
                expected_end_of(metric),
                expected_end_deviation_of(metric),
                interval_of(metric),
            ]);
        }
        let objectives = problem.objectives.iter().filter(|_| prunes);
        Self {
            metrics,
            courses: objectives.map(|objective| objective.metric.as_str().into()).collect(),
            prunes,
            shared: SharedText::default(),
        }
    }

    /// Forgets what a finished trial is not asked for any more, and holds once what it has in common with others.
    pub(super) fn reduce(&mut self, trial: &mut Trial) {
        trial.params.share(&mut self.shared);
        trial
            .params
            .values_mut()
            .for_each(|value| self.shared.share_value(value));
        if let Some(metrics) = trial.state.metrics_mut() {
            metrics.retain(|name| self.metrics.contains(name));
            metrics.share(&mut self.shared);
        }
        // What is said of an outcome is for people.
        match &mut trial.state {
            TrialState::Pruned { rule: said, .. }
            | TrialState::Skipped { reason: said }
            | TrialState::Failed {
                reason: FailReason::Crashed { message: said, .. } | FailReason::Invalid { message: said },
                ..
            } => *said = String::new(),
            _ => {}
        }
    }

    /// Whether curves of finished trials are kept at all.
    pub(super) fn keeps_curves(&self) -> bool {
        self.prunes
    }

    /// Forgets of a finished trial's curve what no pruner asks for.
    pub(super) fn reduce_curve(&self, curve: &mut Curve) {
        curve.retain(&self.courses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::Objective;
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::{TrialNumber, TrialState};
    use peft_tune_search::Random;

    #[test]
    fn what_decides_is_kept_and_what_people_read_is_in_the_database() {
        let problem = Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: vec![Objective::new("loss")],
            constraints: Vec::new(),
        };
        let mut kept = KeptMetrics::new(&problem, &Random::new(0), false);
        let mut trial = Trial {
            number: TrialNumber(0),
            params: Default::default(),
            state: TrialState::Complete {
                metrics: [("loss", 2.0), ("loss_at_least", 1.0), ("load_s", 3.0)].into(),
            },
        };
        kept.reduce(&mut trial);
        let metrics = trial.state.metrics().unwrap();
        assert_eq!(*metrics, [("loss", 2.0), ("loss_at_least", 1.0)].into());
        let mut curve = Curve::default();
        curve.push(4, &[("loss", 2.0)].into());
        let mut pruned = curve.clone();
        kept.reduce_curve(&mut curve);
        assert_eq!((curve.of("loss").len(), curve.last_step()), (0, 4));
        KeptMetrics::new(&problem, &Random::new(0), true).reduce_curve(&mut pruned);
        assert_eq!(pruned.of("loss"), [(4, 2.0)]);
    }
}
