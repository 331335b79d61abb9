//! What a history teaches each surrogate: exact values, bounds, failures, and what is still under way.

use crate::encode::{Encoding, Point};
use crate::history::{evaluated, objective_values, violation};
use crate::knee::LEARNED_SHARE;
use crate::learning::loss_after_learning;
use crate::reference_point::reference_point;
use crate::{Prior, Problem};
use peft_tune_core::objective::{Bound, Direction, LOSS, PEAK_MEMORY, THROUGHPUT, is_of_target};
use peft_tune_core::study::{
    FailReason, Metrics, Params, THROUGHPUT_INTERVAL, Trial, TrialState, bound_of, disturbed,
    expected_end_deviation_of, expected_end_of,
};

/// Fewest values that a metric is modelled from.
pub(super) const LEAST_VALUES: usize = 2;

/// A metric that is modelled: every objective, then the metrics of constraints that are no objectives, then a cost,
/// even where it is one of those, too.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Modelled {
    pub(super) metric: String,
    /// 1, or -1 for a maximised metric: values are modelled as minimised.
    pub(super) sign: f64,
    /// Indices of the parameters that can change it.
    pub(super) used: Vec<usize>,
    /// Steps after which it is known even if the trial did not finish.
    known_after: Option<u64>,
    /// Whether proposals are weighed by it: a cost is above zero, and modelled by its logarithm alone.
    pub(super) is_cost: bool,
}

impl Modelled {
    /// A measured value as it is modelled; `None` of a cost that is not above zero.
    fn minimised(&self, value: f64) -> Option<f64> {
        (!self.is_cost || value > 0.0).then_some(self.sign * value)
    }

    /// A prior's expectation on the scale of the modelled logarithm.
    pub(super) fn prior_shift(&self, prior: &dyn Prior, params: &Params) -> Option<f64> {
        let expected = prior.expected(params, &self.metric).filter(|value| *value > 0.0)?;
        Some(self.sign * expected.ln())
    }
}

/// Knowledge of one modelled metric, minimised.
#[derive(Clone, Debug, Default)]
pub(super) struct MetricData<'a> {
    pub(super) points: Vec<Point>,
    pub(super) params: Vec<&'a Params>,
    pub(super) values: Vec<f64>,
    /// Standard deviation of each value: 0 for a measured one, above for one that was disturbed or that a stopped trial was on
    /// its way to.
    pub(super) deviations: Vec<f64>,
    /// Settings whose value is only known to lie above a bound.
    pub(super) bounds: Vec<(Point, &'a Params, f64)>,
}

impl<'a> MetricData<'a> {
    /// The values of these indices, and all bounds.
    pub(super) fn part(&self, chosen: &[usize]) -> Self {
        Self {
            points: chosen.iter().map(|index| self.points[*index].clone()).collect(),
            params: chosen.iter().map(|index| self.params[*index]).collect(),
            values: chosen.iter().map(|index| self.values[*index]).collect(),
            deviations: chosen.iter().map(|index| self.deviations[*index]).collect(),
            bounds: self.bounds.clone(),
        }
    }

    /// Takes what the curve of a stopped trial says of its end: a value with its uncertainty, or a bound.
    fn take_stopped(&mut self, modelled: &Modelled, trial: &'a Trial, point: &Point, metrics: &Metrics) {
        let told = |name: fn(&str) -> String| metrics.value(&name(&modelled.metric));
        let end = told(expected_end_of).and_then(|end| modelled.minimised(end));
        if let (Some(end), Some(deviation)) = (end, told(expected_end_deviation_of).filter(|one| *one > 0.0)) {
            self.points.push(point.clone());
            self.params.push(&trial.params);
            self.values.push(end);
            self.deviations.push(deviation);
        } else if let Some(bound) = told(bound_of) {
            self.bounds.push((point.clone(), &trial.params, modelled.sign * bound));
        }
    }
}

/// The point of a complete trial, with all objectives.
#[derive(Clone, Debug)]
pub(super) struct EvaluatedPoint {
    pub(super) point: Point,
    pub(super) values: Vec<f64>,
    pub(super) feasible: bool,
}

/// A history, sorted by what it teaches.
#[derive(Clone, Debug)]
pub(super) struct Observations<'a> {
    pub(super) modelled: Vec<Modelled>,
    /// Data of the modelled metrics, one for each.
    pub(super) data: Vec<MetricData<'a>>,
    pub(super) evaluated: Vec<EvaluatedPoint>,
    /// Finished settings, and whether they failed for a reason other than memory.
    pub(super) outcomes: Vec<(Point, bool)>,
    /// Settings that ran out of memory or were predicted to.
    pub(super) ran_out: Vec<(Point, &'a Params)>,
    /// Settings under way.
    pub(super) pending: Vec<(Point, &'a Params)>,
    /// Index of the modelled metric that is memory by its name.
    pub(super) memory: Option<usize>,
    /// Least memory limit that a failed trial reported, in bytes.
    reported_limit: Option<u64>,
    /// Point that the front's hypervolume is measured from, to be minimised as the objectives are.
    pub(super) reference: Vec<f64>,
    /// The loss of a training that learns nearly as much as the best one, where it is known how much that learns.
    pub(super) nearly_learned: Option<f64>,
}

impl<'a> Observations<'a> {
    pub(super) fn new(problem: &Problem, encoding: &Encoding, history: &'a [Trial], cost: Option<&str>) -> Self {
        let modelled = modelled(problem, cost);
        let complete = evaluated(problem, history);
        let mut observations = Self {
            data: vec![MetricData::default(); modelled.len()],
            evaluated: Vec::new(),
            outcomes: Vec::new(),
            ran_out: Vec::new(),
            pending: Vec::new(),
            memory: memory_metric(&modelled),
            reported_limit: None,
            reference: reference_point(problem, &complete),
            nearly_learned: loss_after_learning(problem, &complete, LEARNED_SHARE),
            modelled,
        };
        for trial in history {
            if let Some(point) = encoding.point(&problem.space, &trial.params) {
                observations.take_values(problem, trial, &point);
                observations.take_outcome(trial, point);
            }
        }
        observations.take_divergences(encoding, problem, history);
        observations
    }

    fn take_values(&mut self, problem: &Problem, trial: &'a Trial, point: &Point) {
        match &trial.state {
            TrialState::Waiting | TrialState::Running => self.pending.push((point.clone(), &trial.params)),
            TrialState::Complete { metrics } => {
                self.take_metrics(trial, point, metrics, u64::MAX);
                if let Some(values) = objective_values(problem, metrics) {
                    self.evaluated.push(EvaluatedPoint {
                        point: point.clone(),
                        values,
                        feasible: violation(&problem.constraints, metrics) == 0.0,
                    });
                }
            }
            TrialState::Pruned { at_step, metrics, .. } => {
                self.take_metrics(trial, point, metrics, *at_step);
                for (modelled, data) in self.modelled.iter().zip(&mut self.data) {
                    data.take_stopped(modelled, trial, point, metrics);
                }
            }
            TrialState::Failed { metrics, .. } => self.take_metrics(trial, point, metrics, 0),
            TrialState::Skipped { .. } => {}
        }
    }

    /// Takes the metrics that are final after `steps`.
    fn take_metrics(&mut self, trial: &'a Trial, point: &Point, metrics: &Metrics, steps: u64) {
        for (modelled, data) in self.modelled.iter().zip(&mut self.data) {
            let is_final = modelled.known_after.is_some_and(|known| known <= steps) || steps == u64::MAX;
            if let Some(value) = metrics.value(&modelled.metric).filter(|_| is_final)
                && let Some(minimised) = modelled.minimised(value)
            {
                data.points.push(point.clone());
                data.params.push(&trial.params);
                data.values.push(minimised);
                data.deviations.push(own_deviation(modelled, metrics, value));
            }
        }
    }

    fn take_outcome(&mut self, trial: &'a Trial, point: Point) {
        match &trial.state {
            TrialState::Waiting | TrialState::Running => {}
            TrialState::Complete { .. } | TrialState::Pruned { .. } => self.outcomes.push((point, false)),
            TrialState::Skipped { .. } => self.ran_out.push((point, &trial.params)),
            TrialState::Failed { reason, .. } => match reason {
                FailReason::OutOfMemory { limit_bytes, .. } => {
                    self.reported_limit = self.reported_limit.into_iter().chain(*limit_bytes).min();
                    self.ran_out.push((point, &trial.params));
                }
                FailReason::Diverged { .. }
                | FailReason::Crashed { .. }
                | FailReason::TimedOut { .. }
                | FailReason::Invalid { .. } => self.outcomes.push((point, true)),
            },
        }
    }

    /// A diverged trial's loss is at least as bad as the worst that was measured.
    fn take_divergences(&mut self, encoding: &Encoding, problem: &Problem, history: &'a [Trial]) {
        let Some(loss) = self.modelled.iter().position(|modelled| modelled.metric == LOSS) else {
            return;
        };
        let Some(worst) = self.data[loss].values.iter().copied().max_by(f64::total_cmp) else {
            return;
        };
        for trial in history {
            let diverged = matches!(
                trial.state,
                TrialState::Failed {
                    reason: FailReason::Diverged { .. },
                    ..
                }
            );
            if let Some(point) = encoding.point(&problem.space, &trial.params).filter(|_| diverged) {
                self.data[loss].bounds.push((point, &trial.params, worst));
            }
        }
    }

    /// Leaves out the metrics behind the first `objectives` that have too few values to be modelled, so that the others
    /// are searched by: a limit on an unknown metric steers nothing yet, and an unknown cost weighs nothing.
    pub(super) fn leave_out_unknown(&mut self, objectives: usize) {
        let modelled = std::mem::take(&mut self.modelled);
        let all = modelled.into_iter().zip(std::mem::take(&mut self.data)).enumerate();
        let known = all.filter(|(index, (_, data))| *index < objectives || data.values.len() >= LEAST_VALUES);
        (self.modelled, self.data) = known.map(|(_, one)| one).unzip();
        self.memory = memory_metric(&self.modelled);
    }

    /// The value of a metric above which trials run out of memory: a constraint on it, else what failed trials report, else
    /// the objective's reference where every trial stayed below it, else the most that any trial got away with.
    pub(super) fn memory_limit(&self, problem: &Problem, index: usize) -> Option<f64> {
        let metric = &self.modelled[index].metric;
        let constraint = problem
            .constraints
            .iter()
            .find_map(|constraint| match constraint.bound {
                Bound::AtMost(limit) if constraint.metric == *metric => Some(limit),
                _ => None,
            });
        let reported = self.reported_limit.filter(|_| metric == PEAK_MEMORY);
        let most = self.data[index].values.iter().copied().max_by(f64::total_cmp);
        let objective = problem.objectives.iter().find(|one| one.metric == *metric);
        let reference = objective
            .and_then(|objective| Some(objective.minimised(objective.reference?)))
            .filter(|reference| most.is_none_or(|most| most <= *reference));
        constraint.or(reported.map(|bytes| bytes as f64)).or(reference).or(most)
    }
}

/// Standard deviation of a measured value: 0, unless something else slowed the measurement down. Half of the width that this
/// gives the value: the width is where it may be at most.
fn own_deviation(modelled: &Modelled, metrics: &Metrics, value: f64) -> f64 {
    let interval = metrics.value(THROUGHPUT_INTERVAL);
    let interval = interval.filter(|_| modelled.metric == THROUGHPUT && disturbed(metrics).is_some());
    interval.map_or(0.0, |interval| 0.5 * interval * value.abs())
}

/// The metric that is memory by its name.
fn memory_metric(modelled: &[Modelled]) -> Option<usize> {
    let is_memory = |one: &Modelled| one.sign > 0.0 && one.metric.to_lowercase().contains("mem");
    modelled.iter().position(is_memory)
}

fn modelled(problem: &Problem, cost: Option<&str>) -> Vec<Modelled> {
    let one = |metric: &str, direction: Direction, known_after: Option<u64>| Modelled {
        metric: metric.to_owned(),
        sign: if direction == Direction::Maximize { -1.0 } else { 1.0 },
        used: used(problem, metric),
        // The profile phase measures these two, and predictions come before; whatever ends the trial later does not change them.
        known_after: known_after
            .or_else(|| ([THROUGHPUT, PEAK_MEMORY].contains(&metric) || is_of_target(metric)).then_some(0)),
        is_cost: false,
    };
    let objectives = problem.objectives.iter();
    let mut all: Vec<Modelled> = objectives
        .map(|objective| one(&objective.metric, objective.direction, objective.known_after))
        .collect();
    let constrained = problem.constraints.iter().map(|constraint| constraint.metric.as_str());
    for metric in constrained {
        if !all.iter().any(|modelled| modelled.metric == metric) {
            all.push(one(metric, Direction::Minimize, None));
        }
    }
    all.extend(cost.map(|cost| {
        let objective = problem.objectives.iter().find(|objective| objective.metric == cost);
        Modelled {
            is_cost: true,
            ..one(
                cost,
                Direction::Minimize,
                objective.and_then(|objective| objective.known_after),
            )
        }
    }));
    all
}

fn used(problem: &Problem, metric: &str) -> Vec<usize> {
    let parameters = problem.space.parameters.iter().enumerate();
    parameters
        .filter(|(_, parameter)| parameter.can_change(metric))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{mixed_space, out_of_memory, trial};
    use peft_tune_core::objective::{Constraint, Objective};
    use peft_tune_core::study::{ParamValue, Phase};

    fn problem() -> Problem {
        Problem {
            space: mixed_space(),
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        }
    }

    fn params(rank: i64) -> Params {
        Params::from([
            ("rank".to_owned(), ParamValue::Int(rank)),
            ("optimizer".to_owned(), "adamw".into()),
            ("learning_rate".to_owned(), 1e-3.into()),
        ])
    }

    fn history() -> Vec<Trial> {
        let metrics = |loss: f64| [(THROUGHPUT, 100.0), (PEAK_MEMORY, 8.0), (LOSS, loss)].into();
        vec![
            trial(0, params(4), TrialState::Complete { metrics: metrics(2.0) }),
            trial(1, params(8), out_of_memory()),
            trial(
                2,
                params(16),
                TrialState::Pruned {
                    at_step: 10,
                    rule: "dominated".to_owned(),
                    metrics: [(PEAK_MEMORY, 9.0), (LOSS, 3.0), ("loss_at_least", 2.5)].into(),
                },
            ),
            trial(3, params(4), TrialState::Running),
            trial(
                4,
                params(8),
                TrialState::Failed {
                    reason: FailReason::Diverged {
                        at_step: 3,
                        loss: None,
                        cause: None,
                    },
                    metrics: [(THROUGHPUT, 50.0)].into(),
                },
            ),
            trial(
                5,
                params(16),
                TrialState::Failed {
                    reason: FailReason::TimedOut {
                        phase: Phase::Load,
                        after_s: 1.0,
                    },
                    metrics: Metrics::default(),
                },
            ),
        ]
    }

    #[test]
    fn every_outcome_teaches_what_it_can() {
        let (problem, history) = (problem(), history());
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(&problem, &encoding, &history, None);
        let [throughput, memory, loss] = &observations.data[..] else {
            panic!()
        };
        assert_eq!(throughput.values, [-100.0, -50.0]);
        assert_eq!(memory.values, [8.0, 9.0]);
        assert_eq!(observations.ran_out.len(), 1);
        // Out of memory with no limit given: above the most that fitted.
        assert_eq!(observations.memory, Some(1));
        assert_eq!(observations.memory_limit(&problem, 1), Some(9.0));
        // The loss of a stopped trial is a bound, and so is that of a diverged one.
        assert_eq!(loss.values, [2.0]);
        assert_eq!(loss.bounds.iter().map(|bound| bound.2).collect::<Vec<_>>(), [2.5, 2.0]);
        assert_eq!(observations.pending.len(), 1);
        assert_eq!(observations.evaluated.len(), 1);
        let failed: Vec<bool> = observations.outcomes.iter().map(|outcome| outcome.1).collect();
        assert_eq!(failed, [false, false, true, true]);
    }

    #[test]
    fn a_stopped_trial_teaches_where_it_was_going_with_that_uncertainty() {
        let (problem, mut history) = (problem(), history());
        let metrics = [
            (LOSS, 3.0),
            ("loss_at_least", 2.5),
            ("loss_expected", 2.7),
            ("loss_expected_deviation", 0.1),
        ];
        history[2].state = TrialState::Pruned {
            at_step: 10,
            rule: "dominance".to_owned(),
            metrics: metrics.into(),
        };
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(&problem, &encoding, &history, None);
        let loss = &observations.data[2];
        assert_eq!(
            (&loss.values[..], &loss.deviations[..]),
            (&[2.0, 2.7][..], &[0.0, 0.1][..])
        );
        // What is left is the diverged trial's.
        assert_eq!(loss.bounds.len(), 1);
        assert_eq!(observations.evaluated.len(), 1, "the front is that of whole trials");
    }

    #[test]
    fn a_disturbed_throughput_is_taken_with_its_width_and_the_memory_beside_it_as_it_is() {
        let (problem, mut history) = (problem(), history());
        let TrialState::Complete { metrics } = &mut history[0].state else {
            panic!()
        };
        peft_tune_core::study::mark_disturbed(metrics, 0.5);
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(&problem, &encoding, &history, None);
        assert_eq!(observations.data[0].deviations, [50.0, 0.0]);
        assert_eq!(observations.data[1].deviations, [0.0, 0.0]);
    }

    #[test]
    fn a_metric_that_hardly_any_trial_reports_is_left_out_and_an_objective_is_not() {
        let (mut problem, history) = (problem(), history());
        problem.objectives.retain(|objective| objective.metric != PEAK_MEMORY);
        for metric in ["accuracy", PEAK_MEMORY] {
            problem.constraints.push(Constraint {
                metric: metric.to_owned(),
                bound: Bound::AtMost(24.0),
            });
        }
        let encoding = Encoding::new(&problem.space);
        let mut observations = Observations::new(&problem, &encoding, &history, Some("wall_s"));
        observations.leave_out_unknown(2);
        let metrics: Vec<&str> = observations.modelled.iter().map(|one| one.metric.as_str()).collect();
        // The loss has one value alone.
        assert_eq!(metrics, [THROUGHPUT, LOSS, PEAK_MEMORY]);
        assert_eq!(observations.data[2].values, [8.0, 9.0]);
        assert_eq!(observations.memory, Some(2));
    }

    #[test]
    fn a_cost_is_above_zero_and_may_be_an_objective_too() {
        let (mut problem, mut history) = (problem(), history());
        problem.objectives.truncate(1);
        if let TrialState::Complete { metrics } = &mut history[0].state {
            metrics.insert(THROUGHPUT, 0.0);
        }
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(&problem, &encoding, &history, Some(THROUGHPUT));
        assert_eq!(observations.data[0].values, [0.0, -50.0]);
        assert_eq!(observations.data[1].values, [50.0]);
        assert!(observations.modelled[1].is_cost && !observations.modelled[0].is_cost);
    }

    #[test]
    fn constraints_give_the_memory_limit_and_affects_the_axes() {
        let (mut problem, history) = (problem(), history());
        problem.constraints.push(Constraint {
            metric: PEAK_MEMORY.to_owned(),
            bound: Bound::AtMost(24.0),
        });
        problem.space.parameters[3].affects = Some(vec![LOSS.to_owned()]);
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(&problem, &encoding, &history, Some("wall_s"));
        assert_eq!(observations.memory_limit(&problem, 1), Some(24.0));
        assert_eq!(observations.modelled[0].used, [0, 1, 2]);
        assert_eq!(observations.modelled[2].used, [0, 1, 2, 3]);
        assert_eq!(observations.modelled[3].metric, "wall_s");
    }
}
