//! A study as trackers see it.

use sha2::{Digest, Sha256};

use super::Recommended;
use crate::store::{StepRecord, Store, StoreError, StudyOverview, TrialRun};
use peft_tune_core::hexadecimal;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Phase, TrialNumber, TrialState};

/// A study with the trials that it has so far.
#[derive(Clone, Debug)]
pub struct TrackedStudy {
    pub overview: StudyOverview,
    /// What may be sampled; `None` where the database does not tell.
    pub space: Option<SearchSpace>,
    pub runs: Vec<TrialRun>,
    /// The trial to take, where it was asked for and there is one.
    pub recommended: Option<Recommended>,
}

/// A trial with its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackedTrial {
    pub run: TrialRun,
    /// The profile phase before the training, each in order.
    pub steps: Vec<StepRecord>,
}

impl TrackedStudy {
    /// The study of this name, the latest where absent.
    pub async fn read(store: &Store, name: Option<&str>) -> Result<Self, StoreError> {
        let overview = store.studies().find(name).await?;
        Ok(Self {
            space: store.definitions().search_space(overview.id).await?,
            runs: store.history().runs(overview.id).await?,
            recommended: None,
            overview,
        })
    }

    /// The study with the trial to take.
    pub async fn with_recommended(mut self, store: &Store) -> Result<Self, StoreError> {
        self.recommended = Recommended::read(store, &self.overview).await?;
        Ok(self)
    }

    /// What is told of a trial if it is the one to take.
    pub fn recommendation_of(&self, trial: TrialNumber) -> Option<&Recommended> {
        self.recommended.as_ref().filter(|one| one.trial == trial)
    }

    /// Eight digits that tell studies of one name apart.
    pub fn mark(&self) -> String {
        let hash = Sha256::digest(format!("{}\0{}", self.overview.name, self.overview.created_at));
        hexadecimal(&hash[..4])
    }
}

impl TrackedTrial {
    /// A trial with its steps.
    pub async fn read(store: &Store, study: &TrackedStudy, run: &TrialRun) -> Result<Self, StoreError> {
        let (id, number) = (study.overview.id, run.trial.number);
        let mut steps = store.steps().of(id, number, Phase::Profile).await?;
        steps.extend(store.steps().of(id, number, Phase::Train).await?);
        Ok(Self {
            run: run.clone(),
            steps,
        })
    }

    /// Whether the trial waits for its first attempt, or for another one: there is nothing to tell yet.
    pub fn is_waiting(&self) -> bool {
        matches!(self.run.trial.state, TrialState::Waiting)
    }

    /// Steps and evaluations in the order in which they were made, each with its moment in seconds since 1970. An evaluation
    /// is left out until its step is there, so that what is told later stands behind what was told before.
    pub fn course(&self) -> Vec<(f64, CourseEvent<'_>)> {
        let mut at_s = self.run.started_s;
        let mut events = Vec::with_capacity(self.steps.len() + self.run.evaluations.len());
        let seconds = |seconds: f64| if seconds.is_finite() { seconds } else { 0.0 };
        let mut evaluations = self.run.evaluations.iter().peekable();
        let (profile, train): (Vec<&StepRecord>, Vec<&StepRecord>) =
            self.steps.iter().partition(|step| step.phase == Phase::Profile);
        for step in profile {
            at_s += seconds(step.total_s);
            events.push((at_s, CourseEvent::Step(step)));
        }
        for step in train {
            while let Some(evaluation) = evaluations.next_if(|one| one.step < step.step) {
                at_s += seconds(evaluation.seconds);
                events.push((at_s, CourseEvent::Evaluation(evaluation)));
            }
            at_s += seconds(step.total_s);
            events.push((at_s, CourseEvent::Step(step)));
        }
        let last = self
            .steps
            .last()
            .filter(|step| step.phase == Phase::Train)
            .map(|step| step.step);
        let is_over = self.run.trial.state.is_finished();
        for evaluation in evaluations.filter(|one| is_over || last.is_some_and(|last| last >= one.step)) {
            at_s += seconds(evaluation.seconds);
            events.push((at_s, CourseEvent::Evaluation(evaluation)));
        }
        events
    }
}

/// What happened in a trial.
#[derive(Clone, Copy, Debug)]
pub enum CourseEvent<'a> {
    Step(&'a StepRecord),
    Evaluation(&'a crate::store::EvaluationRecord),
}
