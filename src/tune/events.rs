//! Events of trials under way, and their ends.

use super::judge::{Judge, StopOrder};
use super::kernel_fault::{KernelFault, KernelsUsed};
use super::measurement::{Inherited, Measurement};
use super::record::{evaluation_record, precision_record, step_record};
use super::rivals::NewBest;
use super::{TuneError, Tuner};
use crate::worker::{HeldOutLosses, TrialEvent};
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{FailReason, Trial, TrialNumber, TrialState};

impl Tuner<'_> {
    /// Takes in an event of a trial.
    pub(super) async fn take(&mut self, event: TrialEvent) -> Result<(), TuneError> {
        self.parts.observer.trial_event(&event);
        match event {
            TrialEvent::Ended { number, state, wall_s } => {
                self.failures.ended_by_itself();
                self.end(number, state, wall_s).await
            }
            TrialEvent::Lost { number, reason, wall_s } => self.lost(number, reason, wall_s).await,
            TrialEvent::Phase { .. }
            | TrialEvent::Step { .. }
            | TrialEvent::Training { .. }
            | TrialEvent::Kernels { .. } => self.take_progress(event).await,
            TrialEvent::Measured { .. } | TrialEvent::Evaluation { .. } | TrialEvent::Report { .. } => {
                self.take_result(event).await
            }
        }
    }

    /// Takes in how far a trial under way is, and how it computes.
    async fn take_progress(&mut self, event: TrialEvent) -> Result<(), TuneError> {
        let (store, id, number) = (self.parts.store, self.parts.id, event.number());
        let fault = KernelFault::of(&event);
        let Some(running) = self.running.get_mut(number) else {
            return Ok(());
        };
        match event {
            TrialEvent::Phase { phase, .. } => store.trials().record_phase(id, number, phase).await?,
            TrialEvent::Step { phase, step, .. } => {
                if let Some(decision) = precision_record(&step) {
                    store.precision_decisions().record(id, number, &decision).await?;
                }
                if running.keep_step(step_record(phase, &step)) {
                    self.record_waiting(number).await?;
                }
            }
            TrialEvent::Training { steps, .. } => running.plan_steps(steps),
            TrialEvent::Kernels {
                attention, longer_sums, ..
            } => {
                running.meet(fault);
                let ran = KernelsUsed { attention, longer_sums };
                self.note_ran(number, ran).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes in what a trial under way has found out, and stops the trial where that is a reason to. What comes behind
    /// the order to stop is not looked at.
    async fn take_result(&mut self, event: TrialEvent) -> Result<(), TuneError> {
        let number = event.number();
        let running = self.running.get_mut(number).filter(|running| !running.is_stopped());
        let Some(running) = running else {
            return Ok(());
        };
        match event {
            TrialEvent::Measured { mut metrics, .. } => {
                self.disturbed.judge(number, &mut metrics, &self.measured());
                if let Some(running) = self.running.get_mut(number) {
                    running.keep(&metrics);
                }
                self.note_measured(number);
            }
            TrialEvent::Evaluation { evaluation, rows, .. } => {
                running.keep_evaluation(&evaluation, rows);
                let record = evaluation_record(&evaluation);
                let (store, id) = (self.parts.store, self.parts.id);
                store.evaluations().record(id, number, &record).await?;
            }
            TrialEvent::Report { step, metrics, .. } => {
                let is_due = running.keep_report(step, metrics);
                if is_due {
                    self.record_waiting(number).await?;
                }
            }
            _ => {}
        }
        if let Some(order) = self.verdict(number) {
            self.note_order(number, order).await?;
            self.parts.evaluator.cancel(number)?;
        }
        Ok(())
    }

    /// Lets others take over the cost of a trial under way whose profile phase is over.
    fn note_measured(&mut self, number: TrialNumber) {
        let (Some(trial), Some(running)) = (self.trials.get(number), self.running.get_mut(number)) else {
            return;
        };
        if running.has_measured() {
            running.release(&Measurement::Cost);
            self.known
                .learn_cost(self.parts.study, number, running.kernels(), &trial.params);
        }
    }

    /// Whether a trial took its cost over from one that has not finished. If that one is repeated, it measures again
    /// rather than take over what was taken from it.
    fn took_from_open(&self, inherited: &[Inherited]) -> bool {
        let mut costs = inherited.iter().filter(|one| one.part == Measurement::Cost);
        costs.any(|one| self.trials.is_open(one.source))
    }

    /// Whether a trial under way is to stop by now.
    pub(super) fn verdict(&self, number: TrialNumber) -> Option<StopOrder> {
        let running = self.running.get(number)?;
        // What was disturbed is not held against the setting.
        let known = running.known_at_best(&self.problem);
        let judge = Judge {
            problem: &self.problem,
            pruner: self.pruner.as_deref(),
            history: self.trials.all(),
            curves: self.trials.curves(),
            weighs_gains: self.parts.sampler.weighs_gains(),
        };
        judge.judge(&running.under_way(number, &known)?)
    }

    pub(super) async fn note_order(&mut self, number: TrialNumber, order: StopOrder) -> Result<(), TuneError> {
        self.parts
            .store
            .stops()
            .record(self.parts.id, number, &order.stop)
            .await?;
        if let Some(running) = self.running.get_mut(number) {
            running.stop(order);
        }
        Ok(())
    }

    /// Counts what a trial took; `is_whole` says whether it ran all of its phases to their end.
    fn note_trial_time(&mut self, number: TrialNumber, wall_s: f64, is_whole: bool) {
        let whole = self.trials.get(number).filter(|_| is_whole && wall_s > 0.0);
        let predictions = self.predictions.as_ref();
        let predicted_s = whole
            .zip(predictions)
            .and_then(|(trial, known)| known.trial_s(&trial.params));
        if let Some(predicted_s) = predicted_s {
            self.clock.compare(predicted_s, wall_s);
        }
        self.clock.trial_ended(wall_s, self.trials.is_variant(number));
    }

    /// Lets the trials to come be compared with one that ended, where it is the best so far.
    async fn note_rows(&mut self, trial: &Trial, rows: Option<HeldOutLosses>) -> Result<(), TuneError> {
        let (study, store, id) = (self.parts.study, self.parts.store, self.parts.id);
        let best = rows.and_then(|rows| self.rivals.offer(study, &self.problem, trial, rows));
        if let Some(NewBest { instead_of, rows }) = best {
            store
                .held_out_losses()
                .record(id, trial.number, instead_of, &rows)
                .await?;
        }
        Ok(())
    }

    /// Writes the steps and reports of a trial that wait.
    async fn record_waiting(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let Some(running) = self.running.get_mut(number) else {
            return Ok(());
        };
        let (steps, reports) = running.take_waiting();
        let (store, id) = (self.parts.store, self.parts.id);
        store.steps().record(id, number, &steps).await?;
        Ok(store.reports().record(id, number, &reports).await?)
    }

    pub(super) async fn end(&mut self, number: TrialNumber, state: TrialState, wall_s: f64) -> Result<(), TuneError> {
        if matches!(state, TrialState::Failed { .. }) {
            // A trial that fails for lack of its files says nothing about its settings.
            self.check_inputs()?;
        }
        self.record_waiting(number).await?;
        let Some(mut running) = self.running.remove(number) else {
            return Ok(());
        };
        let inherits_cost = running.inherits(&Measurement::Cost);
        let mut state = running.outcome(state);
        self.note_safer_kernels(number, &state);
        if let Some(metrics) = state.metrics_mut().filter(|_| !inherits_cost) {
            self.disturbed.judge(number, metrics, &self.measured());
            self.disturbed.note(number, metrics);
        }
        let measured = state.metrics().and_then(|metrics| metrics.value(THROUGHPUT));
        let lost_cost = running.has_measured() && measured.is_none();
        tracing::info!(
            trial = number.0,
            state = state.name(),
            wall_s,
            reason = reason_of(&state).map(FailReason::name),
            "a trial ended"
        );
        let (store, id) = (self.parts.store, self.parts.id);
        store.trials().finish(id, number, &state, wall_s).await?;
        let is_whole = running.inherited().is_empty() && matches!(state, TrialState::Complete { .. });
        self.note_trial_time(number, wall_s, is_whole);
        let is_complete = matches!(state, TrialState::Complete { .. });
        self.trials.end_curve(number, running.take_curve(), is_complete);
        if let Some(trial) = self.trials.end(number, state, &self.problem) {
            self.known
                .learn(self.parts.study, &self.problem, &trial, running.kernels());
            if let Some(predictions) = self.predictions.as_mut().filter(|_| !inherits_cost) {
                predictions.learn(&trial);
            }
            let progress = self.progress();
            if running.inherited().is_empty() {
                self.failures.ended(&trial);
            }
            self.parts.observer.trial_ended(&trial, &progress);
            self.note_rows(&trial, running.take_rows()).await?;
            self.trials.keep(trial);
            if lost_cost || self.took_from_open(running.inherited()) {
                self.known.forget(number);
            }
        }
        Ok(())
    }
}

/// Why a trial failed, for the log.
fn reason_of(state: &TrialState) -> Option<&FailReason> {
    match state {
        TrialState::Failed { reason, .. } => Some(reason),
        _ => None,
    }
}
