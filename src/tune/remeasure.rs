//! Repeats of disturbed trials: soon after, once another measurement was quiet, and else at the search's end, when
//! other programs leave the processors alone for a moment. The profile phase is repeated; the loss is kept.

use std::time::{Duration, Instant};

use super::disturbed::{CALM_LOOKS, LOOK_S, Measured};
use super::idle_tasks::IdleRun;
use super::measurement::Measurement;
use super::whole_task::whole_task;
use super::{TuneError, Tuner};
use crate::worker::Task;
use peft_tune_core::objective::{REPEAT_WALL_S, THROUGHPUT};
use peft_tune_core::study::{Metrics, TrialNumber, TrialPlan, disturbed, mark_disturbed, neighbours};
use peft_tune_engine::profile::disturbance::{HostCounters, OtherLoad};

/// Longest pause behind a repeat that was disturbed too, in seconds.
const LONGEST_PAUSE_S: f64 = 5.0;
/// Processors that others keep busy in a quiet moment, at most.
const CALM_CORES: f64 = 0.25;

impl Tuner<'_> {
    /// Trials that were measured, by which the measurements of others are judged.
    pub(super) fn measured(&self) -> Measured<'_> {
        Measured {
            trials: &self.trials,
            forms: &self.forms,
            predictions: self.predictions.as_ref(),
        }
    }

    /// Measures one disturbed trial again where nothing else runs and the last measurement was quiet.
    pub(super) async fn measure_again_if_calm(&mut self) -> Result<(), TuneError> {
        let may = self.disturbed.is_calm() && self.running.is_empty() && !self.parts.interrupt.is_requested();
        if let Some(number) = self.next_disturbed(false).filter(|_| may) {
            self.measure_again(number).await?;
        }
        Ok(())
    }

    /// Measures again what is still disturbed, as long as repeats are left. Trials of the first hours are looked at
    /// once more: by now there are others to compare them with.
    pub(super) async fn measure_again_at_end(&mut self) -> Result<(), TuneError> {
        self.look_back().await?;
        while let Some(number) = self.next_disturbed(self.wait_left_s() > 0.0) {
            self.wait_while_paused().await?;
            if self.parts.interrupt.is_requested() {
                break;
            }
            self.wait_for_calm().await;
            let begun = Instant::now();
            self.measure_again(number).await?;
            if !self.disturbed.is_calm() {
                let pause = begun.elapsed().as_secs_f64().min(LONGEST_PAUSE_S);
                let pause = pause.min(self.schedule().left_s().max(0.0));
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
                self.disturbed.paused(pause);
                self.clock.waited(pause);
            }
        }
        Ok(())
    }

    /// Marks earlier trials that the study shows to be suspect by now.
    async fn look_back(&mut self) -> Result<(), TuneError> {
        let suspects = self.disturbed.suspects(&self.measured());
        for (number, share) in suspects {
            let old = self.stored_cost(number).await?;
            if neighbours(&old).is_some() {
                continue;
            }
            let mut marked = old.clone();
            mark_disturbed(&mut marked, share);
            self.put_cost(number, &old, &marked).await?;
            self.disturbed.open(number);
        }
        Ok(())
    }

    /// The disturbed trial to measure next, where there is time for a repeat.
    fn next_disturbed(&self, waits: bool) -> Option<TrialNumber> {
        if !self.schedule().has_time_for_repeat() {
            return None;
        }
        self.disturbed.next(&self.measured(), &self.problem, waits)
    }

    /// Seconds for which quiet moments may still be waited for.
    fn wait_left_s(&self) -> f64 {
        self.disturbed.wait_left_s(self.parts.study.budget.time_s)
    }

    /// Waits until other programs leave the host's processors alone, as long as seconds for that are left: they come in bursts,
    /// and repeats in a row would all fall into one.
    async fn wait_for_calm(&mut self) {
        let most_s = self.wait_left_s().min(self.schedule().left_s());
        let mut others = OtherLoad::start(Box::new(HostCounters::default()));
        let (begun, mut calm) = (Instant::now(), 0);
        while calm < CALM_LOOKS && !self.parts.interrupt.is_requested() {
            if begun.elapsed().as_secs_f64() >= most_s {
                break;
            }
            tokio::time::sleep(Duration::from_secs_f64(LOOK_S)).await;
            let is_calm = others.cores().is_none_or(|cores| cores < CALM_CORES);
            calm = if is_calm { calm + 1 } else { 0 };
        }
        let waited_s = begun.elapsed().as_secs_f64();
        self.disturbed.waited(waited_s);
        self.clock.waited(waited_s);
    }

    /// Repeats the profile phase of a trial, and lets the measurement count that counts by then.
    async fn measure_again(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let repeat = self.disturbed.begin_repeat(number);
        let ran = self.profile_again(number, repeat).await?;
        let Some(found) = ran.metrics.filter(|_| self.forms.is_current(number)) else {
            // A trial that fails when it is repeated, or whose kernels do, keeps what was measured.
            self.disturbed.close(number);
            return Ok(());
        };
        let mut found = Measurement::Cost.of(&found);
        let old = self.stored_cost(number).await?;
        let (store, id) = (self.parts.store, self.parts.id);
        found.insert(REPEAT_WALL_S, ran.wall_s + self.disturbed.take_untold_s());
        store.measurements().record(id, number, &old, &found).await?;
        let mut all = store.measurements().of(id).await?.remove(&number).unwrap_or_default();
        // What a repeat took is nothing that the trial measured.
        let of_trial = |one: &mut Metrics| one.retain(|name| name != REPEAT_WALL_S);
        all.iter_mut().for_each(of_trial);
        let counting = self.disturbed.counting(number, &all, &self.measured());
        self.disturbed.settle(number, &found, &counting, &all);
        tracing::info!(
            trial = number.0,
            repeat,
            throughput = counting.value(THROUGHPUT),
            disturbed = disturbed(&counting).unwrap_or(0.0),
            "a disturbed trial was measured again"
        );
        self.put_cost(number, &old, &counting).await
    }

    /// Runs a trial's profile phase once more.
    async fn profile_again(&mut self, number: TrialNumber, repeat: u64) -> Result<IdleRun, TuneError> {
        let study = self.parts.study;
        let task = self.trials.get(number).map(|trial| whole_task(study, &trial.params));
        let Some(Ok(Task::Recipe { recipe, plan })) = task else {
            return Ok(IdleRun::default());
        };
        let plan = TrialPlan {
            measure: plan.measure,
            train: None,
        };
        self.parts.observer.measuring_again(number, repeat);
        let task = Task::Recipe { recipe, plan };
        let ran = self.run_idle(number, 1 + repeat, task).await?;
        self.disturbed.repeated(ran.wall_s);
        self.clock.measured_again(ran.wall_s);
        Ok(ran)
    }

    pub(super) async fn stored_cost(&self, number: TrialNumber) -> Result<Metrics, TuneError> {
        Ok(Measurement::Cost.of(&self.parts.store.history().metrics(self.parts.id, number).await?))
    }

    /// Replaces the values of the profile phase that count, for the trial and for those that took them over.
    pub(super) async fn put_cost(
        &mut self,
        number: TrialNumber,
        old: &Metrics,
        new: &Metrics,
    ) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        for changed in store.measurements().replace_cost(id, number, old, new).await? {
            self.trials.replace_cost(changed, old, new, &self.problem);
        }
        if let (Some(trial), Some(predictions)) = (self.trials.get(number), &mut self.predictions) {
            predictions.learn(trial);
        }
        Ok(())
    }
}
