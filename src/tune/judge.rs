//! Whether a trial under way goes on: what is known of it by now, and the rules that may stop it.

use std::collections::BTreeMap;

use super::known::at_least;
use super::reported::{final_after, needed};
use crate::search::{Field, Problem, Progress, Pruner, Verdict, evaluated, reference_point};
use crate::study::{Curve, Metrics, Stop, Trial, TrialNumber, TrialState};

/// Metric of a stopped trial: the steps of training that it would have had.
const PLANNED_STEPS: &str = "planned_steps";

/// A trial under way as the rules see it.
#[derive(Clone, Debug)]
pub(super) struct UnderWay<'a> {
    pub(super) number: TrialNumber,
    /// What is final of its metrics, inherited ones included.
    pub(super) known: &'a Metrics,
    /// What unknown objectives cannot well end below (minimised), in the problem's order.
    pub(super) expected_low: Vec<Option<f64>>,
    /// Steps of its training, where they are known.
    pub(super) total_steps: Option<u64>,
    /// Steps it has done.
    pub(super) step: u64,
    /// What it told on its way.
    pub(super) curve: &'a Curve,
}

/// That a trial is stopped, and what it leaves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Order {
    pub(super) stop: Stop,
    /// Whether everything is known, so that the trial is complete.
    pub(super) complete: bool,
    /// Bounds on objectives that are not known, and the steps that it would have had.
    pub(super) leaves: Metrics,
}

/// What the rules judge by.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) problem: &'a Problem,
    pub(super) pruner: Option<&'a dyn Pruner>,
    pub(super) history: &'a [Trial],
    pub(super) curves: &'a BTreeMap<TrialNumber, Curve>,
}

impl Judge<'_> {
    /// Judges a trial; `None` where it goes on.
    pub(super) fn judge(&self, trial: &UnderWay<'_>) -> Option<Order> {
        self.all_known(trial)
            .or_else(|| self.broken_constraint(trial))
            .or_else(|| self.pruned(trial))
    }

    fn all_known(&self, trial: &UnderWay<'_>) -> Option<Order> {
        let mut metrics = needed(self.problem).into_iter();
        metrics
            .all(|metric| trial.known.value(metric).is_some())
            .then(|| Order {
                stop: stop(trial, "known", "every metric is known".to_owned()),
                complete: true,
                leaves: Metrics::default(),
            })
    }

    fn broken_constraint(&self, trial: &UnderWay<'_>) -> Option<Order> {
        let broken = self.problem.constraints.iter().find_map(|constraint| {
            let value = trial.known.value(&constraint.metric)?;
            (!constraint.holds(value)).then(|| format!("{} of {value} breaks its constraint", constraint.metric))
        })?;
        Some(Order {
            stop: stop(trial, "constraint", broken),
            complete: false,
            leaves: self.leaves(trial, &[]),
        })
    }

    fn pruned(&self, trial: &UnderWay<'_>) -> Option<Order> {
        let pruner = self.pruner?;
        let others: Vec<Progress> = self
            .history
            .iter()
            .filter(|other| other.number != trial.number)
            .map(|other| self.progress_of(other))
            .collect();
        let values: Vec<Vec<f64>> = evaluated(self.problem, self.history)
            .into_iter()
            .filter(|one| one.is_feasible())
            .map(|one| one.values)
            .collect();
        let field = Field {
            others: &others,
            reference: &reference_point(self.problem, &values),
        };
        match pruner.judge(&self.progress(trial), field) {
            Verdict::Continue => None,
            Verdict::Stop { reason, at_least } => Some(Order {
                stop: stop(trial, pruner.name(), reason),
                complete: false,
                leaves: self.leaves(trial, &at_least),
            }),
        }
    }

    fn progress(&self, trial: &UnderWay<'_>) -> Progress {
        Progress {
            number: trial.number,
            known: self.minimised(trial.known),
            curves: self.curves_of(Some(trial.curve), trial.known),
            expected_low: trial.expected_low.to_vec(),
            total_steps: trial.total_steps,
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
            total_steps: planned.map(|steps| steps as u64).or(last),
            feasible,
        }
    }

    fn minimised(&self, metrics: &Metrics) -> Vec<Option<f64>> {
        let objectives = self.problem.objectives.iter();
        objectives
            .map(|objective| Some(objective.minimised(metrics.value(&objective.metric)?)))
            .collect()
    }

    /// The course of every objective that is not known early.
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

    fn leaves(&self, trial: &UnderWay<'_>, bounds: &[Option<f64>]) -> Metrics {
        let mut leaves = Metrics::default();
        for (objective, bound) in self.problem.objectives.iter().zip(bounds) {
            if let Some(bound) = bound {
                leaves.insert(at_least(&objective.metric), objective.minimised(*bound));
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
