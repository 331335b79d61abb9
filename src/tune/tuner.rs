//! Runs a study until its budget is spent: asks the sampler, hands trials to the evaluator, records what comes back.
//!
//! Every trial is committed to the store as it starts and as it ends, so that the study survives the end of this
//! process at any moment: what finished is there, what was under way is run again.

use std::sync::Arc;

use super::clock::Clock;
use super::confirmation::{Confirmation, RunsMade};
use super::disturbed::DisturbedTrials;
use super::failures::Failures;
use super::interrupt::POLL;
use super::kept_metrics::KeptMetrics;
use super::kernel_form::KernelForms;
use super::known_measurements::KnownMeasurements;
use super::predictions::Predictions;
use super::queue::Queue;
use super::requests::Requests;
use super::rivals::Rivals;
use super::running_trials::RunningTrials;
use super::schedule::Schedule;
use super::trials::Trials;
use super::widening_problem::WideningProblem;
use super::{Ending, Inputs, Interrupt, Lack, Progress, TargetForecast, TuneError, TuneObserver};
use crate::space::Study;
use crate::store::{SearchStage, SpentTime, Store, StudyId};
use crate::worker::Evaluator;
use peft_tune_core::study::Trial;
use peft_tune_search::{Problem, Pruner, Sampler, build_pruner};

/// Rounds of trials in one search: behind a confirmation that left them time they go on.
const MOST_ROUNDS: usize = 3;

/// Parts that a [`Tuner`] works with.
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
    pub(super) problem: WideningProblem,
    pub(super) trials: Trials,
    pub(super) queue: Queue,
    pub(super) running: RunningTrials,
    pub(super) known: KnownMeasurements,
    pub(super) pruner: Option<Box<dyn Pruner>>,
    /// Best trainings that the evaluations of trials are compared with.
    pub(super) rivals: Rivals,
    /// Requests of people to the study meanwhile.
    pub(super) requests: Requests,
    /// Predictions of what trials cost, where that is known.
    pub(super) predictions: Option<Predictions>,
    /// Predictions of what trials cost in the stack that the study is for.
    pub(super) target: Option<Arc<TargetForecast>>,
    /// Trials that something else disturbed.
    pub(super) disturbed: DisturbedTrials,
    /// Time that the study's runs took.
    pub(super) clock: Clock,
    pub(super) confirmation: Confirmation,
    pub(super) failures: Failures,
    /// Files that must stay as they are.
    pub(super) inputs: Inputs,
    pub(super) forms: KernelForms,
}

impl<'a> Tuner<'a> {
    /// A tuner that continues where the stored study stands.
    pub async fn new(parts: TunerParts<'a>) -> Result<Self, TuneError> {
        let history = parts.store.history().trials(parts.id).await?;
        let problem = WideningProblem::stored(parts.study.problem(), parts.store, parts.id).await?;
        let overview = parts.store.studies().find(Some(&parts.study.name)).await?;
        let mut known = KnownMeasurements::new(parts.study);
        let forms = KernelForms::stored(parts.study, parts.store, parts.id).await?;
        for trial in &history {
            known.learn(parts.study, &problem, trial, forms.of_measured(trial.number));
        }
        for number in parts.store.inheritance().costs_from_unfinished(parts.id).await? {
            known.forget(number);
        }
        let waiting = history.iter().filter(|trial| !trial.state.is_finished());
        let queue = Queue::new(waiting.map(|trial| trial.number).collect());
        let rivals = Rivals::stored(parts.study, &problem, parts.store, parts.id, &history).await?;
        let pruner = build_pruner(&parts.study.pruner);
        let kept = KeptMetrics::new(&problem, parts.sampler.as_ref(), pruner.is_some());
        let trials = Trials::stored(history, kept, &problem, parts.store, parts.id).await?;
        let disturbed = DisturbedTrials::of(&trials, &parts.store.measurements().of(parts.id).await?);
        let seconds = parts.store.spent_times().of_trials(parts.id).await?;
        let trainings = seconds.iter().filter(|(number, _)| !trials.is_variant(*number));
        let clock = Clock::new(
            parts.store.spent_times().of(parts.id).await?,
            trainings.map(|(_, seconds)| *seconds),
        );
        let runs_made = RunsMade::of(parts.study, &parts.store.repeats().of(parts.id).await?);
        Ok(Self {
            trials,
            disturbed,
            queue,
            clock,
            confirmation: Confirmation::new(overview.trained, runs_made),
            pruner,
            rivals,
            requests: Requests::begin(parts.store, parts.id).await?,
            running: RunningTrials::default(),
            predictions: None,
            target: None,
            failures: Failures::default(),
            inputs: Inputs::default(),
            forms,
            known,
            problem,
            parts,
        })
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
        self.parts.store.searches().record_begin(self.parts.id, budget).await?;
        let mut ending = self.run_round().await?;
        for _ in 1..MOST_ROUNDS {
            let finished = self.trials.finished_trials().finished();
            if !self.goes_on_after(&ending) {
                break;
            }
            ending = self.run_round().await?;
            if self.trials.finished_trials().finished() == finished {
                break;
            }
        }
        self.now_at(SearchStage::Ended).await?;
        let record = ending.record(self.trials.finished_trials().finished());
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
        let record = ending.record(self.trials.finished_trials().finished());
        self.parts
            .store
            .searches()
            .record_ending(self.parts.id, &record)
            .await?;
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
        self.confirmation.resume_trials();
        let schedule = self.schedule();
        let goes_on = schedule.has_time_for_training() && schedule.budget_ending().is_none();
        if !goes_on {
            self.confirmation.end_trials();
        }
        goes_on
    }

    /// Tells whoever looks at the database what the search does from now on.
    async fn now_at(&self, stage: SearchStage) -> Result<(), TuneError> {
        Ok(self.parts.store.searches().record_stage(self.parts.id, stage).await?)
    }

    async fn run_trials(&mut self) -> Result<Ending, TuneError> {
        let mut ending = None;
        let mut is_rehearsed = !self.failures.rehearses() || self.confirmation.is_done();
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
                && !self.failures.are_suspicious()
            {
                self.widen_ranges().await?;
                let Some((trial, proposed)) = self.next_trial(&mut ending) else {
                    break;
                };
                if !std::mem::replace(&mut is_rehearsed, true) {
                    self.rehearse()?;
                    if self.parts.interrupt.is_requested() {
                        ending = Some(Ending::Interrupted);
                        break;
                    }
                }
                self.start(trial, proposed).await?;
            }
            if self.running.is_empty() && self.failures.are_suspicious() {
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
        Ok(ending.unwrap_or(Ending::Exhausted))
    }

    pub(super) async fn look_at_requests(&mut self) -> Result<(), TuneError> {
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

    /// Returns once nobody asks to wait any more, or the search is to end.
    pub(super) async fn wait_while_paused(&mut self) -> Result<(), TuneError> {
        self.look_at_requests().await?;
        while self.is_paused() {
            tokio::time::sleep(POLL).await;
            self.look_at_requests().await?;
        }
        Ok(())
    }

    /// All trials of the study, by number: their params and outcomes, and the metrics that decide. The database has the rest.
    pub fn history(&self) -> &[Trial] {
        self.trials.all()
    }

    /// The problem that is searched, with the ranges as wide as they are by now.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The progress of the study.
    pub fn progress(&self) -> Progress {
        self.schedule().progress()
    }

    /// Seconds that the runs of the study took so far, earlier searches included.
    pub fn spent(&self) -> SpentTime {
        self.clock.spent()
    }

    /// What the finalists' longer trainings lacked; `None` where nothing is missing.
    pub fn lack(&self) -> Option<Lack> {
        self.confirmation.lack()
    }

    /// The schedule that says what there is time for, as things stand.
    pub(super) fn schedule(&self) -> Schedule<'_> {
        Schedule {
            study: self.parts.study,
            problem: &self.problem,
            trials: &self.trials,
            running: &self.running,
            queue: &self.queue,
            known: &self.known,
            kernels: self.forms.current(),
            predictions: self.predictions.as_ref(),
            clock: &self.clock,
            disturbed: &self.disturbed,
            confirmation: &self.confirmation,
            workers: self.parts.evaluator.workers(),
        }
    }

    pub(super) fn check_inputs(&self) -> Result<(), TuneError> {
        match self.inputs.changed() {
            Some(path) => Err(TuneError::InputChanged { path: path.to_owned() }),
            None => Ok(()),
        }
    }
}
