//! Runs that confirm a recommendation, one after another.

use super::repeat::{Repeat, task_of_repeat};
use super::repeated::Repeated;
use super::repeated_costs::{costs_confirmed, counting, summarised};
use crate::store::LONGER_DIVERGED_STEP;
use crate::tune::confirmation::{RunsMade, is_cost};
use crate::tune::idle_tasks::IdleRun;
use crate::tune::measurement::Measurement;
use crate::tune::{Confirming, TuneError, Tuner};
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER, OF_LONGER, REPEAT_WALL_S};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{FailReason, Metrics, TrialNumber};
use peft_tune_search::diverged_loss;

/// Runs of one trial of all kinds, for one repeat that each may take.
const MOST_RUNS: u64 = 4;

impl Tuner<'_> {
    /// Confirms the recommendation, if the study asks for that. Repeats of earlier runs count.
    pub(in crate::tune) async fn confirm(&mut self) -> Result<(), TuneError> {
        let Some(plan) = self.parts.study.confirm else {
            return Ok(());
        };
        self.confirmation.end_trials();
        let store = self.parts.store;
        let mut repeated = Repeated {
            runs: store.repeats().of(self.parts.id).await?,
            confirmations: store.repeats().confirmations(self.parts.id).await?,
            given_up: Vec::new(),
            lengths: None,
        };
        let schedule = self.schedule();
        let planned = schedule.planned_lengths(&plan);
        repeated.lengths =
            planned.and_then(|planned| schedule.fitting_lengths(planned, &plan, schedule.left_behind_s()));
        loop {
            self.wait_while_paused().await?;
            if self.parts.interrupt.is_requested() {
                break;
            }
            let Some((number, repeat)) = self.schedule().next_repeat(&repeated, &plan) else {
                break;
            };
            let count = repeated.runs.get(&number).map_or(0, Vec::len) as u64 + 1;
            self.tell_of_confirmation(number, repeat, &repeated);
            let ran = self.repeat(number, count, repeat, &plan).await?;
            self.clock.confirmed(repeat, ran.wall_s, ran.metrics.is_some());
            if let Some(reason) = &ran.failed {
                self.parts.observer.repeat_failed(number, repeat, reason);
            }
            match ran.metrics {
                None => repeated.given_up.push(number),
                Some(metrics) if repeat == Repeat::Cost && !self.forms.is_current(number) => {
                    self.measured_anew(number, &metrics, &mut repeated).await?;
                    self.note_ran(number, ran.ran).await?;
                }
                Some(metrics) => {
                    repeated.runs.entry(number).or_default().push(metrics);
                    // Quiet repeats count; where every other one is disturbed, there is an end to it too.
                    if count >= MOST_RUNS * plan.repeats {
                        repeated.given_up.push(number);
                    }
                    self.keep(number, repeat, &mut repeated).await?;
                }
            }
            self.confirmation.count(RunsMade::of(self.parts.study, &repeated.runs));
        }
        if !self.parts.interrupt.is_requested() {
            let lack = self.schedule().lack(planned, &plan, &repeated);
            self.confirmation.finish(lack);
        }
        Ok(())
    }

    /// Says which run comes next.
    fn tell_of_confirmation(&mut self, number: TrialNumber, repeat: Repeat, repeated: &Repeated) {
        let plan = self.parts.study.confirm.unwrap_or_default();
        let schedule = self.schedule();
        let expected = schedule.expected_from(&plan, repeat, repeated.lengths);
        let done: usize = repeated.runs.values().map(Vec::len).sum();
        let one = Confirming {
            number,
            repeat,
            run: done as u64 + 1,
            of: done as u64 + expected.runs.max(1),
        };
        let mut progress = schedule.progress();
        progress.end_s = expected.seconds;
        self.parts.observer.confirming(&one, &progress);
    }

    /// Stores the last run of a trial with what all runs say by now.
    async fn keep(&mut self, number: TrialNumber, repeat: Repeat, repeated: &mut Repeated) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let of_trial = repeated.runs.get(&number).map(Vec::as_slice).unwrap_or_default();
        let (count, last) = (of_trial.len() as u64, of_trial.last().cloned().unwrap_or_default());
        let schedule = self.schedule();
        let said = match (repeat, schedule.seed_runs(repeated)) {
            // The loss is that of all trials which would train the same.
            (Repeat::Loss { .. }, Some(runs)) => runs.confirmed(),
            (Repeat::Longer { .. }, Some(_)) => schedule.longer_said(repeated),
            (_, Some(_)) => costs_confirmed(&self.problem, &repeated.runs),
            (_, None) => [(number, summarised(&self.problem, &counting(of_trial.iter()), None))].into(),
        };
        store.repeats().record(id, number, count, &last, &said).await?;
        for (number, confirmed) in said {
            repeated.confirmations.entry(number).or_default().extend(confirmed);
        }
        Ok(())
    }

    /// Runs a trial's params once more. A longer training that diverged has metrics too: they count against the
    /// setting.
    async fn repeat(
        &mut self,
        number: TrialNumber,
        count: u64,
        repeat: Repeat,
        plan: &ConfirmPlan,
    ) -> Result<IdleRun, TuneError> {
        let study = self.parts.study;
        // A loss is the same in each form of the ops. A cost is not: a trial of a form whose kernels failed is measured anew, and
        // repeats of one that was measured in a form by choice would be no repeats.
        let compares = repeat != Repeat::Cost || self.forms.is_current(number) || self.forms.is_instead_of_another();
        let trial = self.trials.get(number).filter(|_| compares);
        let if_diverged = trial.and_then(|trial| trial.state.metrics()).and_then(diverged_loss);
        let steps = self.schedule().steps_of_cost(plan);
        let Some(task) = trial.and_then(|trial| task_of_repeat(study, trial, count, repeat, steps)) else {
            return Ok(IdleRun::default());
        };
        let ran = self.run_idle(number, 1, task).await?;
        let metrics = match (repeat, &ran.failed) {
            (Repeat::Longer { tokens }, Some(FailReason::Diverged { at_step, .. })) => if_diverged.map(|loss| {
                let step = (LONGER_DIVERGED_STEP, *at_step as f64);
                Metrics::from([(LOSS_LONGER, loss), (LONGER_TOKENS, tokens as f64), step])
            }),
            _ => ran.metrics.map(|metrics| repeat.told(metrics, &ran.evaluations)),
        };
        Ok(IdleRun {
            metrics: metrics.map(|metrics| timed(metrics, ran.wall_s)),
            ..ran
        })
    }

    /// Takes what a trial measured in the form of the ops that works, where the kernels of its own form have failed
    /// since. That is its cost from now on, and repeats in the other form no longer count.
    async fn measured_anew(
        &mut self,
        number: TrialNumber,
        metrics: &Metrics,
        repeated: &mut Repeated,
    ) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let old = self.stored_cost(number).await?;
        self.forms.record(store, id, number, self.forms.current()).await?;
        self.put_cost(number, &old, &Measurement::Cost.of(metrics)).await?;
        let runs = repeated.runs.entry(number).or_default();
        runs.retain(|run| !is_cost(run));
        let confirmed = repeated.confirmations.entry(number).or_default();
        confirmed.retain(|metric, _| {
            metric == LOSS || metric == LONGER_DIVERGED_STEP || OF_LONGER.contains(&metric.as_str())
        });
        Ok(store.repeats().replace(id, number, runs, confirmed).await?)
    }
}

/// Metrics that a run measured, with the seconds that it took.
fn timed(mut metrics: Metrics, wall_s: f64) -> Metrics {
    metrics.insert(REPEAT_WALL_S, wall_s);
    metrics
}
