//! A trial under way.

use std::time::{Duration, Instant};

use super::claim::Claim;
use super::judge::{StopOrder, UnderWay};
use super::kernel_fault::KernelFault;
use super::measurement::{Inherited, Measurement, with_inherited};
use super::needed_metrics::final_after;
use super::record::evaluation_metrics;
use crate::store::StepRecord;
use crate::worker::{HeldOutLosses, Task};
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{Curve, Metrics, TrialNumber, TrialState, in_peace};
use peft_tune_engine::Evaluation;
use peft_tune_kernels::Kernels;
use peft_tune_search::Problem;

/// Steps that are recorded together; a crash loses at most these of a trial that is run again anyway.
const STEPS_A_WRITE: usize = 64;
/// Reports that are recorded together.
const REPORTS_A_WRITE: usize = 32;
/// Longest time that steps wait to be recorded, so that who looks at a running trial sees it move.
const WRITE_AFTER: Duration = Duration::from_secs(1);

/// Expectations of a trial before it measures anything.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialOutlook {
    /// Hypervolume that the trial was expected to add when it was proposed.
    pub(super) gain: Option<f64>,
    /// Values that unknown objectives cannot well end below (minimised), in the problem's order.
    pub(super) low: Vec<Option<f64>>,
    /// Values that unknown objectives cannot end below for certain, by stopped trials that share what decides the
    /// objective.
    pub(super) bounds: Vec<Option<f64>>,
}

/// A trial under way, with what it told so far.
pub(super) struct RunningTrial {
    /// Number of the attempt at the trial, from 1.
    attempt: u64,
    /// Form of the ops that the trial computes in.
    kernels: Kernels,
    /// Kernel's fault that the trial's process ends with.
    fault: Option<KernelFault>,
    started: Instant,
    /// Steps and reports that wait to be written.
    steps: Vec<StepRecord>,
    reports: Vec<(u64, Metrics)>,
    /// Time at which steps were last recorded.
    recorded: Instant,
    inherited: Vec<Inherited>,
    /// Predictions for the stack that the study is for.
    predicted: Metrics,
    /// Measurements that others could take over.
    claims: Vec<Claim>,
    /// Metrics that the profile phase measured or a command reported last.
    metrics: Metrics,
    /// Reports and evaluations on the way.
    curve: Curve,
    /// Losses of all held-out rows, once the trial's last evaluation has told them.
    rows: Option<HeldOutLosses>,
    /// Steps of the training, where they are known.
    total_steps: Option<u64>,
    outlook: TrialOutlook,
    /// Whether the trial ends by itself after what it is doing: a profile phase with no training behind it.
    ends_itself: bool,
    /// Order to stop, once given. What comes after it is not looked at, so that a trial's outcome does not depend on
    /// how quickly it stops.
    order: Option<StopOrder>,
}

impl RunningTrial {
    /// An attempt at a trial that begins; `total_steps` are those of its training, where they are known.
    pub(super) fn new(attempt: u64, kernels: Kernels, outlook: TrialOutlook, total_steps: Option<u64>) -> Self {
        Self {
            attempt,
            kernels,
            fault: None,
            started: Instant::now(),
            steps: Vec::new(),
            reports: Vec::new(),
            recorded: Instant::now(),
            inherited: Vec::new(),
            predicted: Metrics::default(),
            claims: Vec::new(),
            metrics: Metrics::default(),
            curve: Curve::default(),
            rows: None,
            total_steps,
            outlook,
            ends_itself: false,
            order: None,
        }
    }

    /// The form of the ops that the trial computes in.
    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// Seconds that the trial has taken so far.
    pub(super) fn elapsed_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Begins to run a task; returns which attempt at the trial that is.
    pub(super) fn begin(&mut self, task: &Task) -> u64 {
        if let Task::Recipe { plan, .. } = task {
            self.ends_itself = plan.train.is_none();
        }
        self.attempt
    }

    /// Takes over what others measured.
    pub(super) fn inherit(&mut self, inherited: Vec<Inherited>) {
        self.inherited = inherited;
    }

    /// The parts that the trial took over.
    pub(super) fn inherited(&self) -> &[Inherited] {
        &self.inherited
    }

    /// Whether the trial took this part over.
    pub(super) fn inherits(&self, part: &Measurement) -> bool {
        self.inherited.iter().any(|one| one.part == *part)
    }

    /// The metrics that the trial has measured of a part.
    pub(super) fn measured(&self, part: &Measurement) -> Metrics {
        part.of(&self.metrics)
    }

    /// Claims to measure these parts for others too, as far as the trial did not take them over.
    pub(super) fn claim(&mut self, mut claims: Vec<Claim>) {
        claims.retain(|claim| !self.inherited.iter().any(|one| claim.is_on(&one.part)));
        self.claims = claims;
    }

    /// Whether the trial measures one of these parts.
    pub(super) fn measures_any(&self, claims: &[Claim]) -> bool {
        self.claims.iter().any(|claim| claims.contains(claim))
    }

    /// Gives up the claim on a part that is measured: others may take it over.
    pub(super) fn release(&mut self, part: &Measurement) {
        self.claims.retain(|claim| !claim.is_on(part));
    }

    /// Keeps the predictions for the stack that the study is for.
    pub(super) fn predict(&mut self, predicted: Metrics) {
        self.predicted = predicted;
    }

    /// Sets the steps of the training.
    pub(super) fn plan_steps(&mut self, steps: u64) {
        self.total_steps = Some(steps);
    }

    /// Notes a kernel's fault, if any.
    pub(super) fn meet(&mut self, fault: Option<KernelFault>) {
        self.fault = fault;
    }

    /// The kernel's fault that the trial's process ended with.
    pub(super) fn take_fault(&mut self) -> Option<KernelFault> {
        self.fault.take()
    }

    /// Stops the trial by an order.
    pub(super) fn stop(&mut self, order: StopOrder) {
        self.order = Some(order);
    }

    /// Whether the trial was told to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.order.is_some()
    }

    /// Keeps a step; returns whether it is time to write those that wait.
    pub(super) fn keep_step(&mut self, step: StepRecord) -> bool {
        self.steps.push(step);
        self.steps.len() >= STEPS_A_WRITE || self.recorded.elapsed() >= WRITE_AFTER
    }

    /// Keeps a report; returns whether it is time to write those that wait.
    pub(super) fn keep_report(&mut self, step: u64, metrics: Metrics) -> bool {
        self.take(step, &metrics);
        self.reports.push((step, metrics));
        self.reports.len() >= REPORTS_A_WRITE || self.recorded.elapsed() >= WRITE_AFTER
    }

    /// Keeps an evaluation, with the losses of all held-out rows where it was the last.
    pub(super) fn keep_evaluation(&mut self, evaluation: &Evaluation, rows: Option<HeldOutLosses>) {
        self.rows = rows;
        self.take(evaluation.step, &evaluation_metrics(evaluation));
    }

    /// The steps and reports to write.
    pub(super) fn take_waiting(&mut self) -> (Vec<StepRecord>, Vec<(u64, Metrics)>) {
        self.recorded = Instant::now();
        (std::mem::take(&mut self.steps), std::mem::take(&mut self.reports))
    }

    /// The curve of reports and evaluations.
    pub(super) fn take_curve(&mut self) -> Curve {
        std::mem::take(&mut self.curve)
    }

    /// The losses of all held-out rows, where the last evaluation has told them.
    pub(super) fn take_rows(&mut self) -> Option<HeldOutLosses> {
        self.rows.take()
    }

    /// Takes over what was reported after so many steps.
    fn take(&mut self, step: u64, metrics: &Metrics) {
        self.curve.push(step, metrics);
        self.keep(metrics);
    }

    /// Takes over measured values.
    pub(super) fn keep(&mut self, metrics: &Metrics) {
        for (name, value) in metrics.iter() {
            self.metrics.insert(name, value);
        }
    }

    /// Whether the trial's profile phase is over, with what others may take over.
    pub(super) fn has_measured(&self) -> bool {
        self.metrics.value(THROUGHPUT).is_some()
    }

    /// Metrics that are final by now, inherited values included.
    fn known(&self, problem: &Problem) -> Metrics {
        let own = final_after(problem, &self.metrics, self.curve.last_step());
        with_predicted(with_inherited(&own, &self.inherited), &self.predicted)
    }

    /// Metrics that are final by now, with the throughput that a disturbed measurement may reach in peace.
    pub(super) fn known_at_best(&self, problem: &Problem) -> Metrics {
        let (mut known, all) = (self.known(problem), with_inherited(&self.metrics, &self.inherited));
        if let (Some(_), Some(best)) = (known.value(THROUGHPUT), in_peace(all).value(THROUGHPUT)) {
            known.insert(THROUGHPUT, best);
        }
        known
    }

    /// The trial as the rules see it; `None` where it is about to end anyway, or was told to.
    pub(super) fn under_way<'a>(&'a self, number: TrialNumber, known: &'a Metrics) -> Option<UnderWay<'a>> {
        let step = self.curve.last_step();
        if self.order.is_some() || self.ends_itself || self.total_steps.is_some_and(|total| step >= total) {
            return None;
        }
        Some(UnderWay {
            number,
            known,
            expected_low: self.low(),
            total_steps: self.total_steps,
            expected_gain: self.outlook.gain,
            step,
            curve: &self.curve,
        })
    }

    /// Values that unknown objectives cannot well end below. The surrogate's expectation counts once something new was
    /// measured: before that it knows no more than when the sampler proposed the trial, and a study would propose and
    /// drop for ever.
    fn low(&self) -> Vec<Option<f64>> {
        if self.metrics.is_empty() {
            return self.outlook.bounds.clone();
        }
        let both = self.outlook.low.iter().zip(&self.outlook.bounds);
        both.map(|(expected, bound)| match (expected, bound) {
            (Some(expected), Some(bound)) => Some(expected.max(*bound)),
            (expected, bound) => expected.or(*bound),
        })
        .collect()
    }

    /// The outcome of the trial, given what the evaluator says: what it inherited, what was predicted of it and why it
    /// was stopped are added.
    pub(super) fn outcome(&self, state: TrialState) -> TrialState {
        let mut state = self.outcome_here(state);
        if let Some(metrics) = state.metrics_mut() {
            *metrics = with_predicted(std::mem::take(metrics), &self.predicted);
        }
        state
    }

    fn outcome_here(&self, state: TrialState) -> TrialState {
        let Some(order) = &self.order else {
            return match state {
                TrialState::Complete { metrics } => TrialState::Complete {
                    metrics: with_inherited(&metrics, &self.inherited),
                },
                other => other,
            };
        };
        // What it measured beside, such as times; values of the moment of its stop go before later ones, and the end that
        // was inherited before what it reported on the way there.
        let mut metrics = state.metrics().cloned().unwrap_or_default();
        let inherited = self.inherited.iter().flat_map(|one| one.metrics.iter());
        for (name, value) in self.metrics.iter().chain(inherited).chain(order.leaves.iter()) {
            metrics.insert(name, value);
        }
        if order.complete {
            return TrialState::Complete { metrics };
        }
        TrialState::Pruned {
            at_step: order.stop.step,
            rule: format!("{}: {}", order.stop.rule, order.stop.reason),
            metrics,
        }
    }
}

/// Measured values beside what is predicted of another stack.
fn with_predicted(mut metrics: Metrics, predicted: &Metrics) -> Metrics {
    for (name, value) in predicted.iter() {
        metrics.insert(name, value);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> RunningTrial {
        RunningTrial::new(1, Kernels::default(), TrialOutlook::default(), None)
    }

    fn claim(metric: &str) -> Claim {
        Claim::Metric(metric.to_owned(), [0; 16])
    }

    #[test]
    fn a_trial_measures_for_others_what_it_did_not_take_over() {
        let mut running = running();
        let part = Measurement::Metric("speed".to_owned());
        running.inherit(vec![Inherited {
            part: part.clone(),
            source: TrialNumber(0),
            metrics: [("speed", 1.0)].into(),
        }]);
        running.claim(vec![claim("speed"), claim("error")]);
        assert!(running.inherits(&part) && !running.measures_any(&[claim("speed")]));
        assert!(running.measures_any(&[claim("speed"), claim("error")]));
        running.release(&Measurement::Metric("error".to_owned()));
        assert!(!running.measures_any(&[claim("error")]));
    }

    #[test]
    fn reports_are_written_together() {
        let mut running = running();
        let report = |step: u64| (step, Metrics::from([("loss", 1.0)]));
        let due: Vec<bool> = (1..=REPORTS_A_WRITE as u64)
            .map(|step| running.keep_report(step, report(step).1))
            .collect();
        assert_eq!(due.iter().position(|due| *due), Some(REPORTS_A_WRITE - 1));
        let (steps, reports) = running.take_waiting();
        assert_eq!((steps.len(), reports.len()), (0, REPORTS_A_WRITE));
        assert_eq!(reports[0], report(1));
        assert!(!running.keep_report(99, report(99).1));
    }
}
