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
    pub(super) async fn take(&mut self, event: TrialEvent) -> Result<(), TuneError> {
        self.parts.observer.trial_event(&event);
        if let TrialEvent::Ended { number, state, wall_s } = event {
            self.failures.ended_by_itself();
            return self.end(number, state, wall_s).await;
        }
        if let TrialEvent::Lost { number, reason, wall_s } = event {
            return self.lost(number, reason, wall_s).await;
        }
        let number = event.number();
        let fault = KernelFault::of(&event);
        let Some(running) = self.running.get_mut(number) else {
            return Ok(());
        };
        let stopped = running.is_stopped();
        let was_measured = matches!(event, TrialEvent::Measured { .. });
        match event {
            TrialEvent::Step { phase, step, .. } => {
                if let Some(decision) = precision_record(&step) {
                    let store = self.parts.store;
                    store
                        .precision_decisions()
                        .record(self.parts.id, number, &decision)
                        .await?;
                }
                if running.keep_step(step_record(phase, &step)) {
                    self.record_waiting(number).await?;
                }
                return Ok(());
            }
            TrialEvent::Phase { phase, .. } => {
                self.parts
                    .store
                    .trials()
                    .record_phase(self.parts.id, number, phase)
                    .await?;
                return Ok(());
            }
            TrialEvent::Kernels {
                attention, longer_sums, ..
            } => {
                running.meet(fault);
                let ran = KernelsUsed { attention, longer_sums };
                return self.note_ran(number, ran).await;
            }
            TrialEvent::Training { steps, .. } => {
                running.plan_steps(steps);
                return Ok(());
            }
            TrialEvent::Measured { mut metrics, .. } if !stopped => {
                self.disturbed.judge(number, &mut metrics, &self.measured());
                if let Some(running) = self.running.get_mut(number) {
                    running.keep(&metrics);
                }
            }
            TrialEvent::Evaluation { evaluation, rows, .. } if !stopped => {
                running.keep_evaluation(&evaluation, rows);
                let record = evaluation_record(&evaluation);
                self.parts
                    .store
                    .evaluations()
                    .record(self.parts.id, number, &record)
                    .await?;
            }
            TrialEvent::Report { step, metrics, .. } if !stopped => {
                if running.keep_report(step, metrics) {
                    self.record_waiting(number).await?;
                }
            }
            _ => return Ok(()),
        }
        if was_measured {
            self.note_measured(number);
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
