//! A trial under way.

use std::time::Instant;

use super::in_progress::Claim;
use super::judge::{Order, UnderWay};
use super::kernel_fault::KernelFault;
use super::reported::final_after;
use super::reuse::{Inherited, with_inherited};
use crate::store::StepRecord;
use crate::worker::HeldOutLosses;
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{Curve, Metrics, TrialNumber, TrialState, in_peace};
use peft_tune_kernels::Kernels;
use peft_tune_search::Problem;

/// A trial under way, with what it told so far.
pub(super) struct Running {
    /// Which attempt at the trial it is, from 1.
    pub(super) attempt: u64,
    /// The form of the ops that it computes in.
    pub(super) kernels: Kernels,
    /// The kernel's fault that its process ends with.
    pub(super) fault: Option<KernelFault>,
    pub(super) started: Instant,
    /// Steps and reports that wait to be written.
    pub(super) steps: Vec<StepRecord>,
    pub(super) reports: Vec<(u64, Metrics)>,
    /// When steps were last recorded.
    pub(super) recorded: Instant,
    pub(super) inherited: Vec<Inherited>,
    /// What is predicted of it in the stack that the study is for.
    pub(super) predicted: Metrics,
    /// What it measures that others could take over.
    pub(super) claims: Vec<Claim>,
    /// What the profile phase measured or a command reported last.
    pub(super) metrics: Metrics,
    /// What was reported and evaluated on the way.
    pub(super) curve: Curve,
    /// Losses of all held-out rows, once its last evaluation has told them.
    pub(super) rows: Option<HeldOutLosses>,
    /// Steps of its training, where they are known.
    pub(super) total_steps: Option<u64>,
    /// Hypervolume that it was expected to add when it was proposed.
    pub(super) expected_gain: Option<f64>,
    /// What unknown objectives cannot well end below (minimised), in the problem's order.
    pub(super) expected_low: Vec<Option<f64>>,
    /// The same from stopped trials that share what decides the objective, which is certain.
    pub(super) bounds: Vec<Option<f64>>,
    /// Whether it ends by itself after what it is doing: a profile phase with no training behind it.
    pub(super) ends_itself: bool,
    /// That it was told to stop. What comes after that is not looked at, so that a trial's outcome does not depend on how
    /// quickly it stops.
    pub(super) order: Option<Order>,
}

impl Running {
    pub(super) fn new(
        attempt: u64,
        expected_low: Vec<Option<f64>>,
        bounds: Vec<Option<f64>>,
        total_steps: Option<u64>,
    ) -> Self {
        Self {
            attempt,
            kernels: Kernels::default(),
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
            expected_gain: None,
            expected_low,
            bounds,
            ends_itself: false,
            order: None,
        }
    }

    /// Takes over what was reported after so many steps.
    pub(super) fn take(&mut self, step: u64, metrics: &Metrics) {
        self.curve.push(step, metrics);
        self.keep(metrics);
    }

    /// Takes over measured values.
    pub(super) fn keep(&mut self, metrics: &Metrics) {
        for (name, value) in metrics.iter() {
            self.metrics.insert(name, value);
        }
    }

    /// Whether its profile phase is over, with what others may take over.
    pub(super) fn has_measured(&self) -> bool {
        self.metrics.value(THROUGHPUT).is_some()
    }

    /// What is final by now, inherited values included.
    pub(super) fn known(&self, problem: &Problem) -> Metrics {
        let own = final_after(problem, &self.metrics, self.curve.last_step());
        with_predicted(with_inherited(&own, &self.inherited), &self.predicted)
    }

    /// The same with the throughput that a disturbed measurement may reach in peace.
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
            expected_gain: self.expected_gain,
            step,
            curve: &self.curve,
        })
    }

    /// What unknown objectives cannot well end below. The surrogate's expectation counts once something new was measured:
    /// before that it knows no more than when the sampler proposed the trial, and a study would propose and drop for ever.
    fn low(&self) -> Vec<Option<f64>> {
        if self.metrics.is_empty() {
            return self.bounds.clone();
        }
        let both = self.expected_low.iter().zip(&self.bounds);
        both.map(|(expected, bound)| match (expected, bound) {
            (Some(expected), Some(bound)) => Some(expected.max(*bound)),
            (expected, bound) => expected.or(*bound),
        })
        .collect()
    }

    /// How the trial ended, given what the evaluator says: what it inherited, what was predicted of it and why it was stopped
    /// are added.
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
