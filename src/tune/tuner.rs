//! Runs a study until its budget is spent: asks the sampler, hands trials to the evaluator, records what comes back.
//!
//! Every trial is committed to the store as it starts and as it ends, so that the study survives the end of this
//! process at any moment: what finished is there, what was under way is run again.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::confirm::{Confirmation, RunsMade};
use super::decide::{Memory, recipe_of, whole_task};
use super::disturbed::DisturbedTrials;
use super::fail_alike::FailAlike;
use super::kept_metrics::KeptMetrics;
use super::kernel_form::KernelForms;
use super::predictions::Predictions;
use super::propose::{Proposed, propose, relatives};
use super::queue::Queue;
use super::requests::Requests;
use super::retry_policy::RetryPolicy;
use super::reuse::{Decision, Inherited, Measurement, Taken};
use super::rivals::Rivals;
use super::running::{Outlook, Running};
use super::running_trials::RunningTrials;
use super::schedule::Schedule;
use super::trials::Trials;
use super::widen::widened;
use super::{Ending, Inputs, Interrupt, LackOfTime, Progress, TargetForecast, TuneError, TuneObserver};
use crate::space::{Backend, Study};
use crate::store::{SearchStage, SpentTime, Store, StudyId};
use crate::worker::{Evaluator, Pairing, Task, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, Params, Trial, TrialNumber, TrialState};
use peft_tune_search::{Problem, Pruner, Sampler, build_pruner};

/// How long to wait for an event before looking at the clock and the keyboard again.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How often trials may begin in one search: behind a confirmation that left them time they go on.
const MOST_ROUNDS: usize = 3;

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
    pub(super) parts: TunerParts<'a>,
    /// With the ranges as wide as they are by now, where the study has those of its file.
    pub(super) problem: Problem,
    /// Finished trials when it was asked last whether a range is to be widened.
    pub(super) looked_at_edges: Option<u64>,
    pub(super) trials: Trials,
    pub(super) queue: Queue,
    pub(super) running: RunningTrials,
    pub(super) memory: Memory,
    pub(super) pruner: Option<Box<dyn Pruner>>,
    /// What the evaluations of trials are compared with.
    pub(super) rivals: Rivals,
    /// What people ask of the study meanwhile.
    requests: Requests,
    /// What trials are predicted to cost, where that is known.
    pub(super) predictions: Option<Predictions>,
    /// What they are predicted to cost in the stack that the study is for.
    pub(super) target: Option<Arc<TargetForecast>>,
    /// What something else disturbed.
    pub(super) disturbed: DisturbedTrials,
    /// What its runs took.
    pub(super) clock: Clock,
    pub(super) confirmation: Confirmation,
    ending: Option<Ending>,
    pub(super) retry_policy: RetryPolicy,
    /// The last trials, as far as they failed alike.
    pub(super) fail_alike: FailAlike,
    /// Whether a step of a setting is tried before the first trial.
    pub(super) rehearses: bool,
    /// Files that must stay as they are.
    inputs: Inputs,
    pub(super) forms: KernelForms,
}

impl<'a> Tuner<'a> {
    /// A tuner that continues where the stored study stands.
    pub async fn new(parts: TunerParts<'a>) -> Result<Self, TuneError> {
        let history = parts.store.trials(parts.id).await?;
        let problem = widened(parts.study.problem(), parts.store, parts.id).await?;
        let overview = parts.store.study(Some(&parts.study.name)).await?;
        let mut memory = Memory::new(parts.study);
        let forms = KernelForms::stored(parts.study, parts.store, parts.id).await?;
        for trial in &history {
            memory.learn(parts.study, &problem, trial, forms.of_measured(trial.number));
        }
        for number in parts.store.costs_from_unfinished(parts.id).await? {
            memory.forget(number);
        }
        let waiting = history.iter().filter(|trial| !trial.state.is_finished());
        let queue = Queue::new(waiting.map(|trial| trial.number).collect());
        let rivals = Rivals::stored(parts.study, &problem, parts.store, parts.id, &history).await?;
        let pruner = build_pruner(&parts.study.pruner);
        let kept = KeptMetrics::new(&problem, parts.sampler.as_ref(), pruner.is_some());
        let trials = Trials::stored(history, kept, &problem, parts.store, parts.id).await?;
        let disturbed = DisturbedTrials::of(&trials, &parts.store.measurements(parts.id).await?);
        let seconds = parts.store.trial_seconds(parts.id).await?;
        let trainings = seconds.iter().filter(|(number, _)| !trials.is_variant(*number));
        let clock = Clock::new(
            parts.store.spent(parts.id).await?,
            trainings.map(|(_, seconds)| *seconds),
        );
        let runs_made = RunsMade::of(&parts.store.repeats(parts.id).await?);
        Ok(Self {
            trials,
            disturbed,
            queue,
            clock,
            confirmation: Confirmation::new(overview.trained_rows.zip(overview.trained_tokens), runs_made),
            pruner,
            rivals,
            requests: Requests::begin(parts.store, parts.id).await?,
            running: RunningTrials::default(),
            predictions: None,
            target: None,
            ending: None,
            retry_policy: RetryPolicy::default(),
            fail_alike: FailAlike::default(),
            rehearses: false,
            inputs: Inputs::default(),
            forms,
            memory,
            looked_at_edges: None,
            problem,
            parts,
        })
    }

    /// Waits at the end for so many seconds at most for moments in which other programs leave the processors alone; some, where nothing is
    /// said.
    #[must_use]
    pub fn waiting_for_quiet(mut self, seconds: Option<f64>) -> Self {
        self.disturbed.wait_at_most(seconds);
        self
    }

    /// Ends the search where one of these files changes under way.
    #[must_use]
    pub fn with_inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }

    /// Begins a study that has no trial yet with this setting.
    #[must_use]
    pub fn with_baseline(mut self, baseline: Option<Params>) -> Self {
        self.queue.begin_with(baseline);
        self
    }

    /// Runs trials until the budget is spent, nothing is left to try, further trials would bring next to nothing, or
    /// a stop is requested; then confirms the recommendation, if the study asks for that. Where that took less time than
    /// trials left for it, they go on.
    ///
    /// # Errors
    /// The database cannot be written, no worker can be kept alive, or a file that trials read was changed. The trials
    /// under way are then handed back.
    pub async fn run(&mut self) -> Result<Ending, TuneError> {
        let budget = self.progress().budget();
        self.parts.store.record_search_begin(self.parts.id, budget).await?;
        let mut ending = self.run_round().await?;
        for _ in 1..MOST_ROUNDS {
            let finished = self.trials.standing().finished();
            if !self.goes_on_after(&ending) {
                break;
            }
            ending = self.run_round().await?;
            if self.trials.standing().finished() == finished {
                break;
            }
        }
        self.now_at(SearchStage::Ended).await?;
        let record = ending.record(self.trials.standing().finished());
        tracing::info!(kind = record.kind, trials = record.trials, "the search ended");
        Ok(ending)
    }

    /// Runs trials and confirms the recommendation.
    async fn run_round(&mut self) -> Result<Ending, TuneError> {
        self.now_at(SearchStage::Trials).await?;
        let ending = match self.run_trials().await {
            Ok(ending) => ending,
            Err(error) => {
                // Where the database is what fails, the next search does it.
                if !matches!(error, TuneError::Store(_)) {
                    let _ = self.hand_all_back().await;
                }
                return Err(error);
            }
        };
        let record = ending.record(self.trials.standing().finished());
        self.parts.store.record_ending(self.parts.id, &record).await?;
        if ending != Ending::Interrupted {
            self.now_at(SearchStage::MeasuringAgain).await?;
            self.measure_again_at_end().await?;
            self.now_at(SearchStage::Confirming).await?;
            self.confirm().await?;
        }
        Ok(ending)
    }

    /// Whether trials go on behind a confirmation that took less time than was left for it.
    fn goes_on_after(&mut self, ending: &Ending) -> bool {
        if *ending != Ending::TimeSpent || !self.confirmation.is_done() || self.parts.interrupt.is_requested() {
            return false;
        }
        self.clock.go_on();
        self.confirmation.end_trials(false);
        let schedule = self.schedule();
        let goes_on = schedule.has_time_for_training() && schedule.budget_ending().is_none();
        self.confirmation.end_trials(!goes_on);
        goes_on
    }

    /// Tells whoever looks at the database what the search does from now on.
    async fn now_at(&self, stage: SearchStage) -> Result<(), TuneError> {
        Ok(self.parts.store.record_search_stage(self.parts.id, stage).await?)
    }

    async fn run_trials(&mut self) -> Result<Ending, TuneError> {
        let mut is_rehearsed = !self.rehearses || self.confirmation.is_done();
        loop {
            self.look_at_requests().await?;
            if self.parts.interrupt.is_immediate() {
                self.hand_all_back().await?;
                return Ok(Ending::Interrupted);
            }
            if !self.is_paused() {
                self.measure_again_if_calm().await?;
            }
            while self.running.len() < self.parts.evaluator.capacity()
                && !self.is_paused()
                && !self.fail_alike.is_suspicious()
            {
                self.widen_ranges().await?;
                let Some((trial, proposed)) = self.next_trial() else {
                    break;
                };
                if !std::mem::replace(&mut is_rehearsed, true) {
                    self.rehearse()?;
                }
                self.start(trial, proposed).await?;
            }
            if self.running.is_empty() && self.fail_alike.is_suspicious() {
                self.look_into_failures().await?;
                continue;
            }
            if self.running.is_empty() {
                if !self.is_paused() {
                    break;
                }
                tokio::time::sleep(POLL).await;
                continue;
            }
            if let Some(event) = self.parts.evaluator.next_event(POLL)? {
                self.take(event).await?;
            }
        }
        Ok(self.ending.clone().unwrap_or(Ending::Exhausted))
    }

    async fn look_at_requests(&mut self) -> Result<(), TuneError> {
        let (store, space) = (self.parts.store, &self.problem.space);
        self.requests
            .look(store, self.parts.id, space, &self.parts.interrupt)
            .await?;
        if let Some(is_paused) = self.requests.newly_paused() {
            let progress = self.progress();
            self.parts.observer.paused(is_paused, &progress);
        }
        Ok(())
    }

    /// Whether people asked to wait. Who interrupts waits no longer.
    fn is_paused(&self) -> bool {
        self.requests.is_paused() && !self.parts.interrupt.is_requested()
    }

    /// All trials of the study, by number: their params and outcomes, and the metrics that decide. The database has the rest.
    pub fn history(&self) -> &[Trial] {
        self.trials.all()
    }

    /// Where the study stands.
    pub fn progress(&self) -> Progress {
        self.schedule().progress()
    }

    /// What the runs of the study took so far, earlier searches included.
    pub fn spent(&self) -> SpentTime {
        self.clock.spent()
    }

    /// The longer trainings of the finalists that there was no time for; `None` where nothing is missing.
    pub fn lack_of_time(&self) -> Option<LackOfTime> {
        self.confirmation.lack_of_time()
    }

    /// What there is time for, as things stand.
    pub(super) fn schedule(&self) -> Schedule<'_> {
        Schedule {
            study: self.parts.study,
            problem: &self.problem,
            trials: &self.trials,
            running: &self.running,
            queue: &self.queue,
            memory: &self.memory,
            predictions: self.predictions.as_ref(),
            clock: &self.clock,
            disturbed: &self.disturbed,
            confirmation: &self.confirmation,
            workers: self.parts.evaluator.workers(),
        }
    }

    /// The trial to start next, with what is expected of it; sets the ending where there is none.
    fn next_trial(&mut self) -> Option<(Trial, Option<Proposed>)> {
        if self.parts.interrupt.is_requested() {
            self.ending = Some(Ending::Interrupted);
            return None;
        }
        if !self.schedule().is_out_of_time()
            && let Some(trial) = self.next_unfinished()
        {
            return Some((trial, None));
        }
        self.ending = self.schedule().budget_ending();
        let proposed = match self.next_proposed() {
            Some(proposed) => proposed,
            None => self.next_variant().or_else(|| self.next_for_longer())?,
        };
        Some((self.trials.next(&proposed), Some(proposed)))
    }

    /// The first trial to be repeated that has to wait for no other.
    fn next_unfinished(&mut self) -> Option<Trial> {
        let may_begin = |number: &TrialNumber| {
            let trial = self.trials.get(*number);
            trial.is_none_or(|trial| !self.has_to_wait(&trial.params))
        };
        let number = self.queue.unfinished().find(may_begin)?;
        self.queue.take_unfinished(number);
        self.trials.get(number).cloned()
    }

    /// The variant of a trained setting to measure next, once nothing is left to train.
    fn next_variant(&self) -> Option<Proposed> {
        let predictions = self.predictions.as_ref();
        let predictions = predictions.filter(|_| self.schedule().has_time_for_variant())?;
        let params = predictions.next_variant(&self.problem, &self.trials)?;
        (!self.has_to_wait(&params)).then_some(Proposed { params, score: None })
    }

    /// The setting that a finalist has in a faster precision or at half its learning rate, once nothing else is left to do; a few at
    /// most, and as far as there is time for them and for the longer trainings that they are for.
    fn next_for_longer(&mut self) -> Option<Proposed> {
        if !self.confirmation.may_try_another() {
            return None;
        }
        let schedule = self.schedule();
        let left_s = schedule.left_s() - self.clock.expected_s(None);
        if left_s <= 0.0 {
            return None;
        }
        let params = schedule.for_longer(left_s)?;
        self.confirmation.try_another();
        Some(Proposed { params, score: None })
    }

    /// The setting of the next new trial: one that was deferred, one that people asked for, or what the sampler proposes.
    fn next_proposed(&mut self) -> Option<Proposed> {
        if self.ending != Some(Ending::TimeSpent)
            && let Some(proposed) = self.queue.next_deferred(&self.running)
        {
            self.ending = None;
            return Some(proposed);
        }
        if self.trials.all().is_empty()
            && self.ending.is_none()
            && let Some(params) = self.queue.baseline().cloned()
        {
            return Some(Proposed { params, score: None });
        }
        let asked_for = self.requests.first_setting().filter(|_| self.ending.is_none());
        if asked_for.is_some_and(|params| !self.has_to_wait(params))
            && let Some(params) = self.requests.next_setting()
        {
            return Some(Proposed { params, score: None });
        }
        // With one more deferred for every place, what is handed out next would be known too late to be of use.
        while self.ending.is_none() && self.queue.deferred().len() < self.parts.evaluator.capacity() {
            self.ending = self.rule_ending();
            if self.ending.is_none() {
                let Some(proposed) = self.ask() else {
                    self.ending = Some(Ending::Exhausted);
                    break;
                };
                if let Some(proposed) = self.defer(proposed) {
                    if self.schedule().has_time_for(&proposed.params) {
                        return Some(proposed);
                    }
                    self.clock.run_out();
                    self.ending = Some(Ending::TimeSpent);
                    break;
                }
                self.ending = self.schedule().budget_ending();
            }
        }
        None
    }

    /// What the sampler proposes, which sees deferred proposals as trials, so that it does not propose them again.
    fn ask(&mut self) -> Option<Proposed> {
        let (study, memory, problem) = (self.parts.study, &self.memory, &self.problem);
        let whole_steps = self.whole_steps();
        let share = |params: &_| memory.share(study, problem, params, whole_steps);
        let is_predicted = self.predictions.is_some();
        let sampler = self.parts.sampler.as_mut();
        let deferred = self.queue.deferred();
        self.trials.with_waiting(deferred, |history| {
            let relatives = match is_predicted {
                // Their costs are predicted: those that matter are measured at the end.
                true => Vec::new(),
                false => relatives(problem, history),
            };
            propose(sampler, problem, history, &relatives, &share)
        })
    }

    fn rule_ending(&self) -> Option<Ending> {
        let rule = self.parts.study.stop.as_ref()?;
        let reason = self.trials.stop_reason(rule, &self.problem)?;
        Some(Ending::Stopped { reason })
    }

    /// Steps of a whole trial of a command: what the file says, or those of the longest trial that was not stopped.
    fn whole_steps(&self) -> Option<u64> {
        let Backend::Command(command) = &self.parts.study.backend else {
            return None;
        };
        command.steps.or(self.trials.longest())
    }

    pub(super) fn check_inputs(&self) -> Result<(), TuneError> {
        match self.inputs.changed() {
            Some(path) => Err(TuneError::InputChanged { path: path.to_owned() }),
            None => Ok(()),
        }
    }

    async fn start(&mut self, mut trial: Trial, proposed: Option<Proposed>) -> Result<(), TuneError> {
        self.check_inputs()?;
        let (study, store, id) = (self.parts.study, self.parts.store, self.parts.id);
        let number = trial.number;
        let task = whole_task(study, &trial.params);
        let attempt = store.start_trial(id, number, &trial.params, recipe_of(&task)).await?;
        self.requests.started(store, number).await?;
        if number.0 == 0 && self.queue.baseline() == Some(&trial.params) {
            store.record_baseline(id, number).await?;
        }
        let kernels = self.kernels_of(number);
        self.forms.record(store, id, number, kernels).await?;
        let score = proposed.as_ref().and_then(|proposed| proposed.score.as_ref());
        if let Some(gain) = score.map(|score| score.expected_improvement) {
            store.record_expectation(id, number, gain).await?;
            self.trials.expect_gain(number, gain);
        }
        let bounds = self.memory.bounds(study, &self.problem, &trial.params);
        let outlook = Outlook {
            gain: self.trials.expected_gain(number),
            low: match proposed {
                Some(proposed) => proposed.expected_low(&self.problem),
                None => vec![None; bounds.len()],
            },
            bounds,
        };
        let running = Running::new(attempt, kernels, outlook, self.whole_steps());
        self.running.insert(number, running);
        trial.state = TrialState::Running;
        self.trials.begin(trial.clone());
        let progress = self.progress();
        self.parts.observer.trial_started(&trial, &progress);
        let (there, here) = (
            self.predict_for_target(number, &trial.params),
            self.predict(&trial).await?,
        );
        if let Some(reason) = there.or(here) {
            return self.end(number, TrialState::Skipped { reason }, 0.0).await;
        }
        self.memory.set_kernels(kernels);
        let decision = self.memory.decide(study, &self.problem, &trial.params);
        self.memory.set_kernels(self.forms.current());
        match decision {
            Ok(decision) => self.follow(number, decision).await,
            Err(error) => {
                let message = error.to_string();
                self.fail(number, FailReason::Invalid { message }).await
            }
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

    fn submit(&mut self, number: TrialNumber, task: Task) -> Result<(), TuneError> {
        let running = self.running.get_mut(number);
        let attempt = running.map_or(1, |running| running.begin(&task));
        self.claim(number);
        tracing::info!(trial = number.0, attempt, "a trial begins");
        let pairing = self.rivals.pairing(&task);
        self.hand_out(number, attempt, task, pairing)
    }

    pub(super) fn hand_out(
        &mut self,
        number: TrialNumber,
        attempt: u64,
        task: Task,
        pairing: Option<Pairing>,
    ) -> Result<(), TuneError> {
        let study = self.parts.study;
        let kernels = self.kernels_of(number);
        Ok(self.parts.evaluator.submit(TrialRequest {
            number,
            attempt,
            task,
            kernels: Some(kernels),
            memory_limit_bytes: study.memory_limit_bytes,
            time_limit_s: study.trial_timeout_s,
            assignments: Vec::new(),
            pairing,
        })?)
    }

    async fn inherit(&mut self, number: TrialNumber, taken: Vec<Taken>) -> Result<(), TuneError> {
        let mut inherited = Vec::with_capacity(taken.len());
        for Taken { part, source } in taken {
            self.record_source(number, &part, source).await?;
            let metrics = match self.running.get(source) {
                Some(running) => running.measured(&part),
                None => part.of(&self.parts.store.metrics(self.parts.id, source).await?),
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
        let (store, id) = (self.parts.store, self.parts.id);
        match part {
            Measurement::Cost => store.record_inherited(id, number, "cost", source).await?,
            Measurement::Loss => store.record_inherited(id, number, "loss", source).await?,
            Measurement::Metric(metric) => store.record_inherited_metric(id, number, metric, source).await?,
        }
        Ok(())
    }
}
