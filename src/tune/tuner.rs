//! Runs a study until its budget is spent: asks the sampler, hands trials to the evaluator, records what comes back.
//!
//! Every trial is committed to the store as it starts and as it ends, so that the study survives the end of this
//! process at any moment: what finished is there, what was under way is run again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::known::{Decision, Inherited, Known, Part, with_inherited};
use super::{Forecast, Interrupt, Progress, TuneError, TuneObserver};
use crate::objective::{PEAK_MEMORY, THROUGHPUT};
use crate::predict::Correction;
use crate::search::{Problem, Sampler};
use crate::space::{Backend, RecipeError, Study, recipe_for};
use crate::store::{EvaluationRecord, PredictionRecord, StepRecord, Store, StudyId};
use crate::study::{FailReason, Metrics, Params, Phase, Trial, TrialNumber, TrialState};
use crate::train::{Evaluation, StepEvent};
use crate::worker::{Evaluator, Task, TrialEvent, TrialRequest};

/// How long to wait for an event before looking at the clock and the keyboard again.
const POLL: Duration = Duration::from_millis(100);
/// Steps that are recorded together; a crash loses at most these of a trial that is run again anyway.
const STEPS_A_WRITE: usize = 64;

/// Why a study's run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The budget's trials are done.
    TrialsDone,
    /// The budget's time is spent.
    TimeSpent,
    /// The sampler has nothing left to propose.
    Exhausted,
    /// Somebody asked to stop.
    Interrupted,
}

/// What a [`Tuner`] works with.
pub struct TunerParts<'a> {
    pub study: &'a Study,
    pub store: &'a Store,
    pub id: StudyId,
    pub sampler: Box<dyn Sampler>,
    pub evaluator: Box<dyn Evaluator>,
    pub observer: &'a mut dyn TuneObserver,
    pub interrupt: Interrupt,
}

/// Runs one study.
pub struct Tuner<'a> {
    parts: TunerParts<'a>,
    problem: Problem,
    /// All trials by number, running ones included.
    history: Vec<Trial>,
    /// Trials that an earlier process began and did not finish.
    unfinished: VecDeque<TrialNumber>,
    running: BTreeMap<TrialNumber, Running>,
    known: Known,
    /// What trials are expected to cost, and what trials have taught about that.
    forecast: Option<(Arc<Forecast>, Correction)>,
    /// Wall time of finished trials, in seconds.
    spent_s: f64,
    ending: Option<Ending>,
}

/// A trial under way.
struct Running {
    started: Instant,
    steps: Vec<StepRecord>,
    inherited: Vec<Inherited>,
}

impl<'a> Tuner<'a> {
    /// A tuner that goes on where the stored study stands.
    pub async fn new(parts: TunerParts<'a>) -> Result<Self, TuneError> {
        let history = parts.store.trials(parts.id).await?;
        let spent_s = parts.store.spent_s(parts.id).await?;
        let unfinished = history
            .iter()
            .filter(|trial| !trial.state.is_finished())
            .map(|trial| trial.number)
            .collect();
        let problem = Problem {
            space: parts.study.space.clone(),
            objectives: parts.study.objectives.clone(),
            constraints: parts.study.constraints.clone(),
        };
        let mut known = Known::default();
        for trial in &history {
            learn(&mut known, parts.study, trial);
        }
        let running = BTreeMap::new();
        Ok(Self {
            parts,
            problem,
            history,
            unfinished,
            running,
            known,
            forecast: None,
            spent_s,
            ending: None,
        })
    }

    /// Predicts every trial, stores what is expected of it, and passes over those that are certain not to fit.
    #[must_use]
    pub fn with_forecast(mut self, forecast: Arc<Forecast>) -> Self {
        let mut correction = forecast.correction();
        for trial in &self.history {
            learn_cost(&forecast, &mut correction, trial);
        }
        self.forecast = Some((forecast, correction));
        self
    }

    /// Runs trials until the budget is spent, nothing is left to try, or somebody asks to stop.
    pub async fn run(&mut self) -> Result<Ending, TuneError> {
        loop {
            while self.running.len() < self.parts.evaluator.capacity() {
                let Some(trial) = self.next_trial() else { break };
                self.start(trial).await?;
            }
            if self.running.is_empty() {
                return Ok(self.ending.unwrap_or(Ending::Exhausted));
            }
            if let Some(event) = self.parts.evaluator.next_event(POLL)? {
                self.take(event).await?;
            }
        }
    }

    /// All trials of the study, by number.
    pub fn history(&self) -> &[Trial] {
        &self.history
    }

    /// Where the study stands.
    pub fn progress(&self) -> Progress {
        let budget = &self.parts.study.budget;
        let under_way: f64 = self
            .running
            .values()
            .map(|running| running.started.elapsed().as_secs_f64())
            .sum();
        Progress {
            finished: self.history.iter().filter(|trial| trial.state.is_finished()).count() as u64,
            budget_trials: budget.trials,
            spent_s: self.spent_s + under_way,
            budget_s: budget.time_s,
            best: self.best(),
        }
    }

    /// Best value of each objective among complete trials that keep every constraint.
    fn best(&self) -> BTreeMap<String, f64> {
        let mut best = BTreeMap::new();
        let complete = self.history.iter().filter_map(|trial| match &trial.state {
            TrialState::Complete { metrics } => Some(metrics),
            _ => None,
        });
        let feasible = complete.filter(|metrics| {
            let holds = |constraint: &crate::objective::Constraint| {
                metrics
                    .value(&constraint.metric)
                    .is_some_and(|value| constraint.holds(value))
            };
            self.problem.constraints.iter().all(holds)
        });
        for metrics in feasible {
            for objective in &self.problem.objectives {
                let Some(value) = metrics.value(&objective.metric) else {
                    continue;
                };
                let entry = best.entry(objective.metric.clone()).or_insert(value);
                if objective.minimised(value) < objective.minimised(*entry) {
                    *entry = value;
                }
            }
        }
        best
    }

    /// The trial to start next; sets the ending where there is none.
    fn next_trial(&mut self) -> Option<Trial> {
        if self.parts.interrupt.is_requested() {
            self.ending = Some(Ending::Interrupted);
            return None;
        }
        if let Some(number) = self.unfinished.pop_front() {
            return self.history.iter().find(|trial| trial.number == number).cloned();
        }
        self.ending = self.budget_ending();
        if self.ending.is_some() {
            return None;
        }
        let Some(params) = self.parts.sampler.ask(&self.problem, &self.history) else {
            self.ending = Some(Ending::Exhausted);
            return None;
        };
        let number = TrialNumber(self.history.last().map_or(0, |trial| trial.number.0 + 1));
        Some(Trial {
            number,
            params,
            state: TrialState::Waiting,
        })
    }

    fn budget_ending(&self) -> Option<Ending> {
        let progress = self.progress();
        let begun = progress.finished + self.running.len() as u64;
        if progress.budget_trials.is_some_and(|budget| begun >= budget) {
            return Some(Ending::TrialsDone);
        }
        progress
            .budget_s
            .is_some_and(|budget| progress.spent_s >= budget)
            .then_some(Ending::TimeSpent)
    }

    async fn start(&mut self, mut trial: Trial) -> Result<(), TuneError> {
        let study = self.parts.study;
        let number = trial.number;
        trial.state = TrialState::Running;
        match self.history.iter_mut().find(|known| known.number == number) {
            Some(known) => *known = trial.clone(),
            None => self.history.push(trial.clone()),
        }
        let task = task_of(study, &trial.params);
        let recipe = match &task {
            Ok(Task::Recipe { recipe, .. }) => Some(recipe.as_ref()),
            Ok(Task::Params { .. }) | Err(_) => None,
        };
        self.parts
            .store
            .start_trial(self.parts.id, number, &trial.params, recipe)
            .await?;
        let running = Running {
            started: Instant::now(),
            steps: Vec::new(),
            inherited: Vec::new(),
        };
        self.running.insert(number, running);
        let progress = self.progress();
        self.parts.observer.trial_started(&trial, &progress);
        if let Some(reason) = self.expect(&trial).await? {
            return self.end(number, TrialState::Skipped { reason }, 0.0).await;
        }
        match task {
            Ok(task) => self.decide(number, task).await,
            Err(error) => {
                let reason = FailReason::Invalid {
                    message: error.to_string(),
                };
                self.end(
                    number,
                    TrialState::Failed {
                        reason,
                        metrics: Metrics::default(),
                    },
                    0.0,
                )
                .await
            }
        }
    }

    /// Stores what is expected of a trial; returns why it is not worth a try, where it is not.
    async fn expect(&self, trial: &Trial) -> Result<Option<String>, TuneError> {
        let Some((forecast, correction)) = &self.forecast else {
            return Ok(None);
        };
        // Params without a prediction make no recipe: the trial says so itself.
        let Ok(prediction) = forecast.predict(&trial.params) else {
            return Ok(None);
        };
        let metrics = forecast.expected_metrics(&prediction, correction).into_iter();
        let records: Vec<PredictionRecord> = metrics
            .map(|(metric, expected)| PredictionRecord {
                metric: metric.to_owned(),
                value: expected.value,
                deviation: expected.deviation,
            })
            .collect();
        let (store, id) = (self.parts.store, self.parts.id);
        store.record_predictions(id, trial.number, &records).await?;
        Ok(forecast.does_not_fit(&prediction))
    }

    /// Runs what is not known yet of a trial.
    async fn decide(&mut self, number: TrialNumber, task: Task) -> Result<(), TuneError> {
        let Task::Recipe { recipe, plan } = task else {
            return self.submit(number, task);
        };
        match self.known.decide(&recipe, &plan) {
            Decision::Run { plan, inherited } => {
                self.inherit(number, inherited).await?;
                self.submit(number, Task::Recipe { recipe, plan })
            }
            Decision::Known { inherited } => {
                self.inherit(number, inherited).await?;
                self.end(
                    number,
                    TrialState::Complete {
                        metrics: Metrics::default(),
                    },
                    0.0,
                )
                .await
            }
            Decision::CannotFit { source, reason } => {
                self.parts
                    .store
                    .record_inherited(self.parts.id, number, Part::Cost.name(), source)
                    .await?;
                self.end(
                    number,
                    TrialState::Failed {
                        reason,
                        metrics: Metrics::default(),
                    },
                    0.0,
                )
                .await
            }
        }
    }

    fn submit(&mut self, number: TrialNumber, task: Task) -> Result<(), TuneError> {
        let study = self.parts.study;
        let (memory_limit_bytes, time_limit_s) = (study.memory_limit_bytes, study.trial_timeout_s);
        Ok(self.parts.evaluator.submit(TrialRequest {
            number,
            task,
            memory_limit_bytes,
            time_limit_s,
        })?)
    }

    async fn inherit(&mut self, number: TrialNumber, inherited: Vec<Inherited>) -> Result<(), TuneError> {
        for part in &inherited {
            self.parts
                .store
                .record_inherited(self.parts.id, number, part.part.name(), part.source)
                .await?;
        }
        if let Some(running) = self.running.get_mut(&number) {
            running.inherited = inherited;
        }
        Ok(())
    }

    async fn take(&mut self, event: TrialEvent) -> Result<(), TuneError> {
        self.parts.observer.trial_event(&event);
        match event {
            TrialEvent::Phase { .. } => Ok(()),
            TrialEvent::Step { number, phase, step } => {
                let Some(running) = self.running.get_mut(&number) else {
                    return Ok(());
                };
                running.steps.push(step_record(phase, &step));
                if running.steps.len() >= STEPS_A_WRITE {
                    self.record_steps(number).await
                } else {
                    Ok(())
                }
            }
            TrialEvent::Evaluation { number, evaluation } => {
                let record = evaluation_record(&evaluation);
                Ok(self
                    .parts
                    .store
                    .record_evaluation(self.parts.id, number, &record)
                    .await?)
            }
            // The last values are the trial's metrics; the way there is for pruners.
            TrialEvent::Report { .. } => Ok(()),
            TrialEvent::Ended { number, state, wall_s } => self.end(number, state, wall_s).await,
        }
    }

    async fn record_steps(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let Some(running) = self.running.get_mut(&number) else {
            return Ok(());
        };
        let steps = std::mem::take(&mut running.steps);
        Ok(self.parts.store.record_steps(self.parts.id, number, &steps).await?)
    }

    async fn end(&mut self, number: TrialNumber, mut state: TrialState, wall_s: f64) -> Result<(), TuneError> {
        self.record_steps(number).await?;
        if let (TrialState::Complete { metrics }, Some(running)) = (&mut state, self.running.get(&number)) {
            *metrics = with_inherited(metrics, &running.inherited);
        }
        self.parts
            .store
            .finish_trial(self.parts.id, number, &state, wall_s)
            .await?;
        let running = self.running.remove(&number);
        let inherits_cost = running.is_some_and(|running| running.inherited.iter().any(|one| one.part == Part::Cost));
        self.spent_s += wall_s;
        if let Some(trial) = self.history.iter_mut().find(|trial| trial.number == number) {
            trial.state = state;
            let trial = trial.clone();
            learn(&mut self.known, self.parts.study, &trial);
            if let Some((forecast, correction)) = self.forecast.as_mut().filter(|_| !inherits_cost) {
                learn_cost(forecast, correction, &trial);
            }
            let progress = self.progress();
            self.parts.observer.trial_ended(&trial, &progress);
        }
        Ok(())
    }
}

/// What a trial of these params runs.
fn task_of(study: &Study, params: &Params) -> Result<Task, RecipeError> {
    match study.backend {
        Backend::Native => {
            let recipe = Box::new(recipe_for(study, params)?);
            Ok(Task::Recipe {
                recipe,
                plan: study.plan.clone(),
            })
        }
        Backend::Command(_) => Ok(Task::Params {
            params: study.all_params(params),
            seed: study.seed,
        }),
    }
}

fn learn(known: &mut Known, study: &Study, trial: &Trial) {
    if let Ok(Task::Recipe { recipe, .. }) = task_of(study, &trial.params) {
        known.learn(trial, &recipe);
    }
}

/// Takes what a trial measured into the predictions of the next.
fn learn_cost(forecast: &Forecast, correction: &mut Correction, trial: &Trial) {
    let Some(metrics) = trial.state.metrics() else { return };
    if let Ok(prediction) = forecast.predict(&trial.params) {
        correction.learn(&prediction, metrics.value(THROUGHPUT), metrics.value(PEAK_MEMORY));
    }
}

fn step_record(phase: Phase, event: &StepEvent) -> StepRecord {
    StepRecord {
        phase,
        step: event.step,
        loss: event.loss,
        learning_rate: event.learning_rate,
        grad_norm: event.grad_norm,
        tokens: event.tokens,
        target_tokens: event.target_tokens,
        data_s: event.seconds.data,
        forward_s: event.seconds.forward,
        backward_s: event.seconds.backward,
        optimizer_s: event.seconds.optimizer,
        total_s: event.seconds.total,
    }
}

fn evaluation_record(evaluation: &Evaluation) -> EvaluationRecord {
    EvaluationRecord {
        step: evaluation.step,
        tokens: evaluation.tokens,
        loss: evaluation.loss,
        accuracy: evaluation.accuracy,
        target_tokens: evaluation.target_tokens,
        seconds: evaluation.seconds,
    }
}
