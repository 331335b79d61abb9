//! Begin of a trial: what is known of it is taken over, and the rest is handed to the evaluator.

use super::decision::Decision;
use super::measurement::{Inherited, Measurement, Taken};
use super::propose::Proposed;
use super::running_trial::{RunningTrial, TrialOutlook};
use super::whole_task::{recipe_of, whole_task};
use super::{TuneError, Tuner};
use crate::space::Study;
use crate::store::InheritedValue;
use crate::worker::{Pairing, Task, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, Trial, TrialNumber, TrialState};

impl Tuner<'_> {
    /// Begins a trial, and records that it does.
    pub(super) async fn start(&mut self, mut trial: Trial, proposed: Option<Proposed>) -> Result<(), TuneError> {
        self.check_inputs()?;
        let (study, store, id) = (self.parts.study, self.parts.store, self.parts.id);
        let number = trial.number;
        let task = whole_task(study, &trial.params);
        let attempt = store
            .trials()
            .start(id, number, &trial.params, recipe_of(&task))
            .await?;
        self.requests.started(store, number).await?;
        if number.0 == 0 && self.queue.baseline() == Some(&trial.params) {
            store.baselines().record(id, number).await?;
        }
        let kernels = self.kernels_of(number);
        self.forms.record(store, id, number, kernels).await?;
        let score = proposed.as_ref().and_then(|proposed| proposed.score.as_ref());
        if let Some(gain) = score.map(|score| score.expected_improvement) {
            store.proposals().record(id, number, gain).await?;
            self.trials.expect_gain(number, gain);
        }
        let bounds = self.known.bounds(study, &self.problem, &trial.params);
        let outlook = TrialOutlook {
            gain: self.trials.expected_gain(number),
            low: match proposed {
                Some(proposed) => proposed.expected_low(&self.problem),
                None => vec![None; bounds.len()],
            },
            bounds,
        };
        let running = RunningTrial::new(attempt, kernels, outlook, self.whole_steps());
        self.running.insert(number, running);
        trial.state = TrialState::Running;
        self.trials.begin(trial.clone());
        let progress = self.progress();
        self.parts.observer.trial_started(&trial, &progress);
        let (there, here) = (self.predict_for_target(&trial), self.predict(&trial).await?);
        if let Some(reason) = there.or(here) {
            return self.end(number, TrialState::Skipped { reason }, 0.0).await;
        }
        match self.known.decide(study, &self.problem, &trial.params, kernels) {
            Ok(decision) => self.follow(number, decision).await,
            Err(error) => {
                let message = error.to_string();
                self.fail(number, FailReason::Invalid { message }).await
            }
        }
    }

    /// Keeps what is predicted of a trial in the stack that the study is for; returns why it is not worth a training,
    /// where it is not.
    fn predict_for_target(&mut self, trial: &Trial) -> Option<String> {
        match self.target.as_ref()?.metrics(&trial.params) {
            Ok(metrics) => {
                if let Some(running) = self.running.get_mut(trial.number) {
                    running.predict(metrics);
                }
                None
            }
            Err(reason) => Some(reason.to_string()),
        }
    }

    /// Stores what is predicted of a trial; returns why it is not worth a try, where it is not.
    async fn predict(&self, trial: &Trial) -> Result<Option<String>, TuneError> {
        match &self.predictions {
            Some(predictions) => Ok(predictions.record(self.parts.store, self.parts.id, trial).await?),
            None => Ok(None),
        }
    }

    /// Runs what is not known yet of a trial, unless what is known is enough to drop it.
    async fn follow(&mut self, number: TrialNumber, decision: Decision) -> Result<(), TuneError> {
        match decision {
            Decision::Run { task, taken } => {
                self.inherit(number, taken).await?;
                // What is predicted of another stack is known at once: the setting is measured here all the same.
                let is_measured = self.target.is_none();
                match self.verdict(number).filter(|order| is_measured || !order.complete) {
                    Some(order) => {
                        self.note_order(number, order).await?;
                        self.end_without_running(number).await
                    }
                    None => self.submit(number, task),
                }
            }
            Decision::Known { taken } => {
                self.inherit(number, taken).await?;
                self.end_without_running(number).await
            }
            Decision::Fails { part, source, reason } => {
                self.record_source(number, &part, source).await?;
                self.fail(number, reason).await
            }
        }
    }

    async fn end_without_running(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let metrics = Metrics::default();
        self.end(number, TrialState::Complete { metrics }, 0.0).await
    }

    async fn fail(&mut self, number: TrialNumber, reason: FailReason) -> Result<(), TuneError> {
        let metrics = Metrics::default();
        self.end(number, TrialState::Failed { reason, metrics }, 0.0).await
    }

    /// Hands out a task that a trial has to run.
    fn submit(&mut self, number: TrialNumber, task: Task) -> Result<(), TuneError> {
        let running = self.running.get_mut(number);
        let attempt = running.map_or(1, |running| running.begin(&task));
        self.claim(number);
        tracing::info!(trial = number.0, attempt, "a trial begins");
        let pairing = self.rivals.pairing(&task);
        self.hand_out(number, attempt, task, pairing)
    }

    /// Claims for a trial under way what it did not take over.
    fn claim(&mut self, number: TrialNumber) {
        let Some(trial) = self.trials.get(number) else { return };
        let claims = self.known.claims(self.parts.study, &self.problem, &trial.params);
        if let Some(running) = self.running.get_mut(number) {
            running.claim(claims);
        }
    }

    /// Hands a task of a trial to the evaluator.
    pub(super) fn hand_out(
        &mut self,
        number: TrialNumber,
        attempt: u64,
        task: Task,
        pairing: Option<Pairing>,
    ) -> Result<(), TuneError> {
        let study = self.parts.study;
        let kernels = self.kernels_of(number);
        // A trial's limit says nothing of a training of another length.
        let is_trial = !has_another_length(study, &task);
        Ok(self.parts.evaluator.submit(TrialRequest {
            number,
            attempt,
            task,
            kernels: Some(kernels),
            memory_limit_bytes: study.memory_limit_bytes,
            time_limit_s: study.trial_timeout_s.filter(|_| is_trial),
            assignments: Vec::new(),
            pairing,
            first_adapter: None,
        })?)
    }

    async fn inherit(&mut self, number: TrialNumber, taken: Vec<Taken>) -> Result<(), TuneError> {
        let mut inherited = Vec::with_capacity(taken.len());
        for Taken { part, source } in taken {
            self.record_source(number, &part, source).await?;
            let metrics = match self.running.get(source) {
                Some(running) => running.measured(&part),
                None => part.of(&self.parts.store.history().metrics(self.parts.id, source).await?),
            };
            inherited.push(Inherited { part, source, metrics });
        }
        if inherited.iter().any(|one| one.part == Measurement::Cost) {
            self.trials.take_cost_over(number);
        }
        if inherited.iter().any(|one| one.part == Measurement::Loss) {
            self.trials.take_loss_over(number);
        }
        if let Some(running) = self.running.get_mut(number) {
            running.inherit(inherited);
        }
        Ok(())
    }

    async fn record_source(
        &self,
        number: TrialNumber,
        part: &Measurement,
        source: TrialNumber,
    ) -> Result<(), TuneError> {
        let (inheritance, id) = (self.parts.store.inheritance(), self.parts.id);
        match part {
            Measurement::Cost => inheritance.record(id, number, InheritedValue::COST, source).await?,
            Measurement::Loss => inheritance.record(id, number, InheritedValue::LOSS, source).await?,
            Measurement::Metric(metric) => inheritance.record_metric(id, number, metric, source).await?,
        }
        Ok(())
    }
}

/// Whether a task trains for another length than trials do.
fn has_another_length(study: &Study, task: &Task) -> bool {
    let Task::Recipe { plan, .. } = task else { return false };
    let lengths = plan.train.as_ref().zip(study.plan.train.as_ref());
    lengths.is_some_and(|(one, own)| one.length != own.length)
}
