//! Making sure of a recommendation: the recommended trial, and those that noise could put in its place, are run again
//! until the values that decide are known well enough.
//!
//! What holds for a short training need not hold for a long one, so the finalists are trained longer. Two things are noisy.
//! The throughput is: it is profiled again, longer. The loss is, by the seed: finalists are trained again with other seeds,
//! all of them once before any of them twice, and those that fall behind take no further part.

mod expected;
mod finalists;
mod found_length;
mod lack_of_time;
mod long_training;
mod seeds;

use std::collections::BTreeMap;

use super::decide::whole_task;
use super::idle_tasks::IdleRun;
use super::reported::needed;
use super::reuse::Measurement;
use super::{Confirming, TuneError, Tuner};
use crate::space::{Backend, Study, recipe_for};
use crate::worker::Task;
pub(super) use expected::RunsMade;
use finalists::{Finalists, next_trial};
pub use lack_of_time::LackOfTime;
use long_training::{Lengths, LongTrainings};
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER, OF_LONGER, REPEAT_WALL_S, THROUGHPUT};
use peft_tune_core::recipe::{RecipeKey, TrainingLength};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{
    AccuracyPlan, Confirmed, MeasurePlan, Metrics, Params, RunSpread, TrainPlan, Trial, TrialNumber, TrialPlan,
    disturbed,
};
use peft_tune_search::{LossRise, Problem};
use seeds::SeedRuns;

/// What repeats say, by trial and metric.
type Confirmations = BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>;

/// Runs of one trial of all kinds, for one repeat that each may take.
const MOST_RUNS: u64 = 4;

/// What the engine's throughputs of one setting differ by from run to run on a quiet machine (standard deviation as a share), and
/// the weight of that beside what a study's own repeats say, in degrees of freedom.
const USUAL_DEVIATION: f64 = 0.01;
const USUAL_FREEDOM: usize = 2;

/// Evaluations of a longer training, at the least, where the search is to find how long one should be.
const LEAST_EVALUATIONS: u64 = 5;

/// What is done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The profile phase, or the whole of a command.
    Cost,
    /// The training phase, with this added to the seed.
    Loss { seed_offset: u64 },
    /// The training phase, for so many tokens.
    Longer { tokens: u64 },
}

/// What was repeated so far.
#[derive(Default)]
struct Repeated {
    runs: BTreeMap<TrialNumber, Vec<Metrics>>,
    confirmations: Confirmations,
    /// Trials that failed when they were repeated: they keep what was measured.
    given_up: Vec<TrialNumber>,
    /// Of longer trainings, as far as there is time for any.
    lengths: Option<Lengths>,
}

impl Tuner<'_> {
    /// Confirms the recommendation, if the study asks for that. What earlier runs repeated counts.
    pub(super) async fn confirm(&mut self) -> Result<(), TuneError> {
        let Some(plan) = self.parts.study.confirm else {
            return Ok(());
        };
        self.trials_are_over = true;
        let store = self.parts.store;
        let mut repeated = Repeated {
            runs: store.repeats(self.parts.id).await?,
            confirmations: store.confirmations(self.parts.id).await?,
            given_up: Vec::new(),
            lengths: None,
        };
        let planned = self.planned_lengths(&plan);
        let left_s = self.left_s() - self.first_costs_s(&plan);
        repeated.lengths = planned.and_then(|planned| self.fitting_lengths(planned, &self.runs_made.longer, left_s));
        while !self.parts.interrupt.is_requested() {
            let Some((number, repeat)) = self.next_repeat(&repeated, &plan) else {
                break;
            };
            let count = repeated.runs.get(&number).map_or(0, Vec::len) as u64 + 1;
            self.tell_of_confirmation(number, repeat, &repeated);
            let ran = self.repeat(number, count, repeat, &plan).await?;
            self.note_run(repeat, &ran);
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
            self.runs_made = RunsMade::of(&repeated.runs);
        }
        if !self.parts.interrupt.is_requested() {
            self.is_confirmed = true;
            self.lack_of_time = self.lacking_time(planned, &repeated);
        }
        Ok(())
    }

    /// Counts what a run took.
    fn note_run(&mut self, repeat: Repeat, ran: &IdleRun) {
        let spent = &mut self.clock.spent;
        spent.confirming_s += ran.wall_s;
        let is_one = u64::from(ran.metrics.is_some());
        match repeat {
            Repeat::Longer { .. } => spent.longer_trainings += is_one,
            Repeat::Loss { .. } => spent.repeats += is_one,
            Repeat::Cost => {
                spent.repeats += is_one;
                self.clock.cost_repeated(ran.wall_s);
            }
        }
    }

    /// Loss before cost: it decides whose cost is worth knowing. What there is no time for is passed over.
    fn next_repeat(&self, repeated: &Repeated, plan: &ConfirmPlan) -> Option<(TrialNumber, Repeat)> {
        let has_time = |one: &(TrialNumber, Repeat)| self.has_time_for_run(*one, repeated, plan);
        let finalists = self.finalists(repeated);
        let longer = self.next_longer(&finalists, repeated);
        let longer = longer.map(|(number, tokens)| (number, Repeat::Longer { tokens }));
        if let Some(one) = longer.filter(has_time) {
            return Some(one);
        }
        let runs = self.seed_runs(repeated);
        let again = runs.as_ref().and_then(|runs| runs.next(&finalists, plan));
        let again = again.map(|(number, seed_offset)| (number, Repeat::Loss { seed_offset }));
        if let Some(one) = again.filter(has_time) {
            return Some(one);
        }
        if runs.is_some() && !self.problem_needs(THROUGHPUT) {
            return None;
        }
        let limit = plan.in_all.limit(self.trials.complete());
        let done = repeated
            .runs
            .values()
            .flatten()
            .filter(|run| runs.is_none() || is_cost(run));
        if done.count() as u64 >= limit {
            return None;
        }
        let finalists = Finalists {
            loss_noise: runs.as_ref().map(SeedRuns::noise),
            ..finalists
        };
        Some((next_trial(&finalists, plan)?, Repeat::Cost)).filter(has_time)
    }

    fn problem_needs(&self, metric: &str) -> bool {
        needed(&self.problem).contains(&metric)
    }

    /// The trainings with other seeds; `None` where the program has no training phase of its own, or no loss matters.
    fn seed_runs(&self, repeated: &Repeated) -> Option<SeedRuns> {
        let study = self.parts.study;
        let trains = study.backend == Backend::Native && study.plan.train.is_some();
        (trains && self.problem_needs(LOSS)).then(|| SeedRuns::new(study, self.trials.all(), &repeated.runs))
    }

    /// The setting to train behind all others before the finalists are trained longer, which has to fit into so many seconds: a
    /// finalist's in a faster precision, or at half its learning rate.
    pub(super) fn for_longer(&self, left_s: f64) -> Option<Params> {
        let plan = self.parts.study.confirm?;
        let planned = self.planned_lengths(&plan)?;
        let left_s = left_s - self.first_costs_s(&plan);
        let none = Repeated {
            lengths: self.fitting_lengths(planned, &self.runs_made.longer, left_s),
            ..Repeated::default()
        };
        let finalists = self.finalists(&none);
        let recommended = finalists.recommended()?;
        let longer = self.longer(&finalists, &none)?;
        let is_tried = |params: &Params| self.trials.is_tried(params);
        let expected = |params: &Params| self.expected_throughput(params);
        let faster = longer.faster_precision(recommended, &is_tried, &expected);
        faster.or_else(|| longer.lower_rate(recommended).filter(|params| !is_tried(params)))
    }

    fn next_longer(&self, finalists: &Finalists<'_>, repeated: &Repeated) -> Option<(TrialNumber, u64)> {
        let longer = self.longer(finalists, repeated)?;
        longer.next(finalists.recommended()?, finalists.given_up)
    }

    fn longer<'a>(&'a self, finalists: &Finalists<'a>, repeated: &Repeated) -> Option<LongTrainings<'a>> {
        let lengths = repeated.lengths?;
        Some(LongTrainings::new(self.parts.study, lengths, finalists, &repeated.runs))
    }

    /// The lengths of longer trainings, were there time enough; `None` where there are none to be made.
    fn planned_lengths(&self, plan: &ConfirmPlan) -> Option<Lengths> {
        let study = self.parts.study;
        let trains = study.backend == Backend::Native && self.problem_needs(LOSS);
        Lengths::of(study, plan, self.trials.all(), self.trained.filter(|_| trains)?)
    }

    fn fitting_lengths(&self, planned: Lengths, made: &[u64], left_s: f64) -> Option<Lengths> {
        planned.fitting(made, &|tokens| self.longer_s(tokens, &planned), left_s)
    }

    fn finalists<'a>(&'a self, repeated: &'a Repeated) -> Finalists<'a> {
        Finalists {
            problem: &self.problem,
            history: self.trials.all(),
            confirmations: &repeated.confirmations,
            given_up: &repeated.given_up,
            loss_noise: None,
        }
    }

    /// Stores the last run of a trial with what all runs say by now.
    async fn keep(&mut self, number: TrialNumber, repeat: Repeat, repeated: &mut Repeated) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        let of_trial = repeated.runs.get(&number).map(Vec::as_slice).unwrap_or_default();
        let (count, last) = (of_trial.len() as u64, of_trial.last().cloned().unwrap_or_default());
        let said = match (repeat, self.seed_runs(repeated)) {
            // The loss is that of all trials which would train the same.
            (Repeat::Loss { .. }, Some(runs)) => runs.confirmed(),
            (Repeat::Longer { .. }, Some(_)) => self.longer_said(repeated),
            (_, Some(_)) => costs_confirmed(&self.problem, &repeated.runs),
            (_, None) => [(number, summarised(&self.problem, &counting(of_trial.iter()), None))].into(),
        };
        store.record_repeat(id, number, count, &last, &said).await?;
        for (number, confirmed) in said {
            repeated.confirmations.entry(number).or_default().extend(confirmed);
        }
        Ok(())
    }

    /// Runs a trial's params once more.
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
        let steps = self.steps_of_cost(plan);
        let Some(task) = trial.and_then(|trial| task_of_repeat(study, trial, count, repeat, steps)) else {
            return Ok(IdleRun::default());
        };
        let ran = self.run_idle(number, 1, task).await?;
        Ok(IdleRun {
            metrics: ran
                .metrics
                .map(|metrics| timed(repeat.told(metrics, &ran.evaluations), ran.wall_s)),
            ..ran
        })
    }

    /// A trial of a form whose kernels have failed since was measured in the one that works. That is its cost from now on, and
    /// what was repeated in the other form no longer counts.
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
        confirmed.retain(|metric, _| metric == LOSS || OF_LONGER.contains(&metric.as_str()));
        Ok(store.replace_repeats(id, number, runs, confirmed).await?)
    }
}

impl Repeat {
    /// What a run of it measured, under the names that tell it apart, with these evaluations: step, tokens and loss of each.
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

/// What a run measured, with the seconds that it took.
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

/// Whether a repeat by the engine was a profile phase.
fn is_cost(run: &Metrics) -> bool {
    run.value(THROUGHPUT).is_some()
}

/// Whether a repeat by the engine was a training with another seed.
fn is_training(run: &Metrics) -> bool {
    run.value(LOSS).is_some() && run.value(THROUGHPUT).is_none()
}

/// A longer profile phase of so many steps, a training with another seed, or a whole command with another seed.
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

/// What repeats of costs say of each trial that has some: runs of all settings say together how much runs differ.
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

/// The repeats that count: those that something else slowed down do only where there is nothing better.
fn counting<'a>(repeats: impl Iterator<Item = &'a Metrics>) -> Vec<&'a Metrics> {
    let all: Vec<&Metrics> = repeats.collect();
    let quiet: Vec<&Metrics> = all.iter().copied().filter(|one| disturbed(one).is_none()).collect();
    if quiet.len() > 1 { quiet } else { all }
}

fn values_of(repeats: &[&Metrics], metric: &str) -> Vec<f64> {
    repeats.iter().filter_map(|one| one.value(metric)).collect()
}

/// What the repeats of one trial say of the metrics that decide; `spread` is that of the throughput, where it is known.
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
