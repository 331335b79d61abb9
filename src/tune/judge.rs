//! Judgement of a trial under way, whether it continues: what is known of it by now, and the rules that may stop it.

use std::collections::BTreeMap;

use super::needed_metrics::{final_after, needed};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{
    Curve, Metrics, PLANNED_STEPS, Stop, Trial, TrialNumber, TrialState, bound_of, expected_end_deviation_of,
    expected_end_of,
};
use peft_tune_search::{Field, Problem, Progress, Pruner, Verdict, evaluated, hypervolume, reference_point};

/// Share of what steps were worth on average that a step elsewhere is taken to be worth while nothing is expected of
/// settings: the first trials add most.
const SHARE_OF_MEAN: f64 = 0.25;

/// A trial under way as the rules see it.
#[derive(Clone, Debug)]
pub(super) struct UnderWay<'a> {
    pub(super) number: TrialNumber,
    /// Metrics of the trial that are final, inherited ones included.
    pub(super) known: &'a Metrics,
    /// Values that unknown objectives cannot well end below (minimised), in the problem's order.
    pub(super) expected_low: Vec<Option<f64>>,
    /// Hypervolume that it was expected to add when it was proposed.
    pub(super) expected_gain: Option<f64>,
    /// Steps of its training, where they are known.
    pub(super) total_steps: Option<u64>,
    /// Steps it has done.
    pub(super) step: u64,
    /// Reports and evaluations on the way.
    pub(super) curve: &'a Curve,
}

/// The order that a trial is stopped, and the metrics that it leaves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StopOrder {
    pub(super) stop: Stop,
    /// Whether everything is known, so that the trial is complete.
    pub(super) complete: bool,
    /// Bounds on objectives that are not known, and the steps that it would have had.
    pub(super) leaves: Metrics,
}

/// The history, the problem and the pruner that trials are judged by.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) problem: &'a Problem,
    pub(super) pruner: Option<&'a dyn Pruner>,
    pub(super) history: &'a [Trial],
    pub(super) curves: &'a BTreeMap<TrialNumber, Curve>,
    /// Whether the sampler proposes settings for what they are expected to add.
    pub(super) weighs_gains: bool,
}

impl Judge<'_> {
    /// Judges a trial; `None` where it continues.
    pub(super) fn judge(&self, trial: &UnderWay<'_>) -> Option<StopOrder> {
        self.all_known(trial)
            .or_else(|| self.broken_constraint(trial))
            .or_else(|| self.pruned(trial))
    }

    fn all_known(&self, trial: &UnderWay<'_>) -> Option<StopOrder> {
        let mut metrics = needed(self.problem).into_iter();
        metrics
            .all(|metric| trial.known.value(metric).is_some())
            .then(|| StopOrder {
                stop: stop(trial, "known", "every metric is known".to_owned()),
                complete: true,
                leaves: Metrics::default(),
            })
    }

    fn broken_constraint(&self, trial: &UnderWay<'_>) -> Option<StopOrder> {
        let broken = self.problem.constraints.iter().find_map(|constraint| {
            let value = trial.known.value(&constraint.metric)?;
            (!constraint.holds(value)).then(|| format!("{} of {value} breaks its constraint", constraint.metric))
        })?;
        Some(StopOrder {
            stop: stop(trial, "constraint", broken),
            complete: false,
            leaves: self.leaves(trial, &[], &[]),
        })
    }

    fn pruned(&self, trial: &UnderWay<'_>) -> Option<StopOrder> {
        let pruner = self.pruner?;
        let mut progress = self.progress(trial);
        if !pruner.looks_at(&progress) {
            return None;
        }
        let others: Vec<Progress> = self
            .history
            .iter()
            .filter(|other| other.number != trial.number)
            .map(|other| self.progress_of(other))
            .collect();
        let complete = evaluated(self.problem, self.history);
        let reference = reference_point(self.problem, &complete);
        let values: Vec<Vec<f64>> = complete
            .into_iter()
            .filter(|one| one.is_feasible())
            .map(|one| one.values)
            .collect();
        let field = Field {
            others: &others,
            reference: &reference,
        };
        progress.rate = self.rate(trial, &others, hypervolume(&values, &reference));
        match pruner.judge(&progress, field) {
            Verdict::Continue => None,
            Verdict::Stop {
                reason,
                at_least,
                expected,
            } => Some(StopOrder {
                stop: stop(trial, pruner.name(), reason),
                complete: false,
                leaves: self.leaves(trial, &at_least, &expected),
            }),
        }
    }

    /// Hypervolume that a step of the next trial is expected to add: what this one was expected to when it was the best
    /// there was.
    fn rate(&self, trial: &UnderWay<'_>, others: &[Progress], volume: f64) -> Option<f64> {
        if let Some(gain) = trial.expected_gain {
            return Some(gain / trial.total_steps?.max(1) as f64);
        }
        let steps: u64 = others.iter().map(Progress::step).sum();
        (self.weighs_gains && steps > 0).then(|| SHARE_OF_MEAN * volume / steps as f64)
    }

    fn progress(&self, trial: &UnderWay<'_>) -> Progress {
        Progress {
            number: trial.number,
            known: self.minimised(trial.known),
            curves: self.curves_of(Some(trial.curve), trial.known),
            expected_low: trial.expected_low.to_vec(),
            reported: self.reported(trial.curve),
            total_steps: trial.total_steps,
            rate: None,
            feasible: false,
        }
    }

    /// Another trial as a rule sees it.
    fn progress_of(&self, trial: &Trial) -> Progress {
        let nothing = Metrics::default();
        let (known, feasible) = match &trial.state {
            TrialState::Complete { metrics } => {
                let kept = self.problem.constraints.iter().all(|constraint| {
                    let value = metrics.value(&constraint.metric);
                    value.is_some_and(|value| constraint.holds(value))
                });
                (metrics.clone(), kept)
            }
            TrialState::Pruned { at_step, metrics, .. } => (final_after(self.problem, metrics, *at_step), false),
            _ => (Metrics::default(), false),
        };
        let planned = trial.state.metrics().and_then(|metrics| metrics.value(PLANNED_STEPS));
        let last = self.curves.get(&trial.number).map(Curve::last_step);
        Progress {
            number: trial.number,
            known: self.minimised(&known),
            curves: self.curves_of(self.curves.get(&trial.number), &nothing),
            expected_low: vec![None; self.problem.objectives.len()],
            reported: vec![None; self.problem.objectives.len()],
            total_steps: planned.map(|steps| steps as u64).or(last),
            rate: None,
            feasible,
        }
    }

    /// The best that a trial told of each objective, also of those that are final only after some steps.
    fn reported(&self, curve: &Curve) -> Vec<Option<f64>> {
        let best = |objective: &Objective| {
            let values = curve.of(&objective.metric).into_iter();
            values
                .map(|(_, value)| objective.minimised(value))
                .min_by(f64::total_cmp)
        };
        self.problem.objectives.iter().map(best).collect()
    }

    fn minimised(&self, metrics: &Metrics) -> Vec<Option<f64>> {
        let objectives = self.problem.objectives.iter();
        objectives
            .map(|objective| Some(objective.minimised(metrics.value(&objective.metric)?)))
            .collect()
    }

    /// Curves of all objectives that are not known early.
    fn curves_of(&self, curve: Option<&Curve>, known: &Metrics) -> Vec<Vec<(u64, f64)>> {
        let objectives = self.problem.objectives.iter();
        objectives
            .map(|objective| {
                let learned = objective.known_after.is_none() && known.value(&objective.metric).is_none();
                let points = curve.filter(|_| learned).map(|curve| curve.of(&objective.metric));
                let points = points.unwrap_or_default().into_iter();
                points.map(|(step, value)| (step, objective.minimised(value))).collect()
            })
            .collect()
    }

    fn leaves(&self, trial: &UnderWay<'_>, bounds: &[Option<f64>], ends: &[Option<(f64, f64)>]) -> Metrics {
        let mut leaves = Metrics::default();
        for (objective, bound) in self.problem.objectives.iter().zip(bounds) {
            if let Some(bound) = bound {
                leaves.insert(bound_of(&objective.metric), objective.minimised(*bound));
            }
        }
        for (objective, end) in self.problem.objectives.iter().zip(ends) {
            if let Some((median, deviation)) = end {
                leaves.insert(expected_end_of(&objective.metric), objective.minimised(*median));
                leaves.insert(expected_end_deviation_of(&objective.metric), *deviation);
            }
        }
        if let Some(steps) = trial.total_steps {
            leaves.insert(PLANNED_STEPS, steps as f64);
        }
        leaves
    }
}

fn stop(trial: &UnderWay<'_>, rule: &str, reason: String) -> Stop {
    Stop {
        step: trial.step,
        rule: rule.to_owned(),
        reason,
    }
}
