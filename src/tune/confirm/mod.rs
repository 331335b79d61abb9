//! Confirmation of a recommendation: the recommended trial, and those that noise could put in its place, are run again
//! until the values that decide are known well enough.
//!
//! What holds for a short training need not hold for a long one, so the finalists are trained longer. Two things are noisy.
//! The throughput is: it is profiled again, longer. The loss is, by the seed: finalists are trained again with other seeds,
//! all of them once before any of them twice, and those that fall behind take no further part.

mod expected;
mod finalists;
mod found_length;
mod lack_of_time;
mod lengths;
mod long_training;
mod next_repeat;
mod seeds;

use std::collections::BTreeMap;

use super::confirmation::{RunsMade, is_cost};
use super::idle_tasks::IdleRun;
use super::measurement::Measurement;
use super::needed_metrics::needed;
use super::whole_task::whole_task;
use super::{Confirming, TuneError, Tuner};
use crate::space::{Study, recipe_for};
use crate::store::LONGER_DIVERGED_STEP;
use crate::worker::Task;
use lengths::Lengths;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER, OF_LONGER, REPEAT_WALL_S, THROUGHPUT};
use peft_tune_core::recipe::{RecipeKey, TrainingLength};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{
    AccuracyPlan, Confirmed, FailReason, MeasurePlan, Metrics, RunSpread, TrainPlan, Trial, TrialNumber, TrialPlan,
    disturbed,
};
use peft_tune_search::{LossRise, Problem, diverged_loss};

/// Values that repeats confirmed, by trial and metric.
type Confirmations = BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>;

/// Runs of one trial of all kinds, for one repeat that each may take.
const MOST_RUNS: u64 = 4;

/// Deviation of the engine's throughputs of one setting from run to run on a quiet machine (standard deviation as a
/// share), and the weight of that beside a study's own repeats, in degrees of freedom.
const USUAL_DEVIATION: f64 = 0.01;
const USUAL_FREEDOM: usize = 2;

/// Evaluations of a longer training, at the least, where the search is to find how long one should be.
const LEAST_EVALUATIONS: u64 = 5;

/// A kind of run that confirms a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The profile phase, or the whole of a command.
    Cost,
    /// The training phase, with this added to the seed.
    Loss { seed_offset: u64 },
    /// The training phase, for so many tokens.
    Longer { tokens: u64 },
}

/// Repeats that were made so far.
#[derive(Default)]
struct Repeated {
    runs: BTreeMap<TrialNumber, Vec<Metrics>>,
    confirmations: Confirmations,
    /// Trials whose repeat failed in this search, which is told: they are not repeated again, and keep what was measured.
    given_up: Vec<TrialNumber>,
    /// Lengths of longer trainings, as far as there is time for any.
    lengths: Option<Lengths>,
}

impl Tuner<'_> {
    /// Confirms the recommendation, if the study asks for that. Repeats of earlier runs count.
    pub(super) async fn confirm(&mut self) -> Result<(), TuneError> {
        let Some(plan) = self.parts.study.confirm else {
            return Ok(());
        };
        self.confirmation.end_trials(true);
        let store = self.parts.store;
        let mut repeated = Repeated {
            runs: store.repeats().of(self.parts.id).await?,
            confirmations: store.repeats().confirmations(self.parts.id).await?,
            given_up: Vec::new(),
            lengths: None,
        };
        let schedule = self.schedule();
        let planned = schedule.planned_lengths(&plan);
        repeated.lengths = planned.and_then(|planned| schedule.fitting_lengths(planned, &plan, schedule.left_s()));
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
            let lack_of_time = self.schedule().lack_of_time(planned, &repeated);
            self.confirmation.finish(lack_of_time);
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

impl Repeat {
    /// Metrics that a run measured, under the names that tell its kind apart, with its evaluations: step, tokens and
    /// loss of each.
    fn told(self, mut metrics: Metrics, evaluations: &[(u64, u64, f64)]) -> Metrics {
        if let (Self::Longer { tokens }, Some(loss)) = (self, metrics.value(LOSS)) {
            metrics.retain(|name| name != LOSS);
            metrics.insert(LOSS_LONGER, loss);
            metrics.insert(LONGER_TOKENS, tokens as f64);
            if let Some(rise) = LossRise::of(evaluations) {
                for (name, value) in LossRise::metrics(Some(rise)) {
                    metrics.insert(name, value);
                }
            }
        }
        metrics
    }
}

/// Metrics that a run measured, with the seconds that it took.
fn timed(mut metrics: Metrics, wall_s: f64) -> Metrics {
    metrics.insert(REPEAT_WALL_S, wall_s);
    metrics
}

/// The complete trials of a study by what decides their loss: those of one group train the same.
fn by_training<'a>(study: &Study, history: &'a [Trial]) -> BTreeMap<RecipeKey, Vec<&'a Trial>> {
    let mut trainings: BTreeMap<RecipeKey, Vec<&Trial>> = BTreeMap::new();
    let complete = history.iter().filter(|trial| trial.state.name() == "complete");
    for trial in complete {
        if let Ok(recipe) = recipe_for(study, &trial.params) {
            trainings.entry(recipe.loss_key()).or_default().push(trial);
        }
    }
    trainings
}

/// The task of a repeat: a longer profile phase of so many steps, a training with another seed, or a whole command with
/// another seed.
fn task_of_repeat(study: &Study, trial: &Trial, count: u64, repeat: Repeat, steps: u64) -> Option<Task> {
    Some(match whole_task(study, &trial.params).ok()? {
        Task::Recipe { recipe, plan: whole } => {
            let warmup = whole.measure.as_ref().map(|measure| measure.max_warmup_steps);
            let evaluations = match study.finds_length {
                true => LEAST_EVALUATIONS,
                false => 0,
            };
            let plan = match repeat {
                Repeat::Cost => TrialPlan {
                    measure: Some(MeasurePlan {
                        steps,
                        max_warmup_steps: warmup.unwrap_or(0),
                    }),
                    train: None,
                },
                Repeat::Loss { seed_offset } => trained(TrainPlan {
                    seed_offset,
                    ..whole.train?
                }),
                Repeat::Longer { tokens } => trained(TrainPlan {
                    length: TrainingLength::Tokens(tokens),
                    evaluations: evaluations.max(whole.train.as_ref()?.evaluations),
                    ..whole.train?
                }),
            };
            Task::Recipe { recipe, plan }
        }
        Task::Params { params, seed, steps } => Task::Params {
            params,
            seed: seed.wrapping_add(count),
            steps,
        },
    })
}

fn trained(plan: TrainPlan) -> TrialPlan {
    TrialPlan {
        measure: None,
        train: Some(TrainPlan {
            accuracy: AccuracyPlan::default(),
            ..plan
        }),
    }
}

/// Values that repeats of costs confirm of each trial that has some: runs of all settings say together how much runs
/// differ.
fn costs_confirmed(problem: &Problem, runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Confirmations {
    let costs: BTreeMap<TrialNumber, Vec<&Metrics>> = runs
        .iter()
        .map(|(number, runs)| (*number, counting(runs.iter().filter(|run| is_cost(run)))))
        .collect();
    let throughputs: Vec<Vec<f64>> = costs.values().map(|runs| values_of(runs, THROUGHPUT)).collect();
    let spread = RunSpread::of(throughputs.iter().map(Vec::as_slice)).known_before(USUAL_DEVIATION, USUAL_FREEDOM);
    let costs = costs.into_iter().filter(|(_, runs)| !runs.is_empty());
    costs
        .map(|(number, runs)| (number, summarised(problem, &runs, Some(&spread))))
        .collect()
}

/// The repeats that count: disturbed ones only where there is nothing better.
fn counting<'a>(repeats: impl Iterator<Item = &'a Metrics>) -> Vec<&'a Metrics> {
    let all: Vec<&Metrics> = repeats.collect();
    let quiet: Vec<&Metrics> = all.iter().copied().filter(|one| disturbed(one).is_none()).collect();
    if quiet.len() > 1 { quiet } else { all }
}

fn values_of(repeats: &[&Metrics], metric: &str) -> Vec<f64> {
    repeats.iter().filter_map(|one| one.value(metric)).collect()
}

/// Values that the repeats of one trial confirm of the metrics that decide; `spread` is that of the throughput, where
/// it is known.
fn summarised(problem: &Problem, repeats: &[&Metrics], spread: Option<&RunSpread>) -> BTreeMap<String, Confirmed> {
    let confirmed = |metric: &str| {
        let values = values_of(repeats, metric);
        match spread.filter(|_| metric == THROUGHPUT) {
            Some(spread) => Confirmed::with_spread(metric, &values, spread),
            None => Confirmed::of(metric, &values),
        }
    };
    let metrics = needed(problem).into_iter();
    metrics
        .filter_map(|metric| Some((metric.to_owned(), confirmed(metric)?)))
        .collect()
}
