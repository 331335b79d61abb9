//! What one tracker has been given, and what it still lacks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::open::tracker;
use super::{Recommended, TrackError, TrackedStudy, TrackedTrial, Tracker};
use crate::space::Destination;
use crate::store::TrialRun;
use peft_tune_core::study::{TrialNumber, TrialState};

/// How long a tracker that failed is left alone, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// What people are told of a tracker.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// Tracker that failed for the first time since it last worked.
    Failing { destination: Destination, reason: String },
    /// Tracker that works again.
    Recovered { destination: Destination },
}

/// What a tracker never got.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    pub destination: Destination,
    /// Trials that it lacks in whole or in part; 0 where it lacks only what is told of the study as a whole.
    pub trials: usize,
    pub reason: String,
}

/// One tracker with what it has.
pub(super) struct Delivery {
    destination: Destination,
    tracker: Box<dyn Tracker>,
    /// Trials as it has them.
    has: HashMap<TrialNumber, Given>,
    failing: Option<Failing>,
}

/// What tells whether a trial is as it was given, but for steps.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    state: TrialState,
    attempt: u64,
    started_at: String,
    ended_at: Option<String>,
    reason: Option<String>,
    evaluations: usize,
    recommended: Option<Recommended>,
}

impl Given {
    fn of(study: &TrackedStudy, run: &TrialRun) -> Self {
        Self {
            state: run.trial.state.clone(),
            attempt: run.attempt,
            started_at: run.started_at.clone(),
            ended_at: run.ended_at.clone(),
            reason: run.reason.clone(),
            evaluations: run.evaluations.len(),
            recommended: study.recommendation_of(run.trial.number).cloned(),
        }
    }

    fn is(&self, study: &TrackedStudy, run: &TrialRun) -> bool {
        self.state == run.trial.state
            && self.attempt == run.attempt
            && self.started_at == run.started_at
            && self.ended_at == run.ended_at
            && self.reason == run.reason
            && self.evaluations == run.evaluations.len()
            && self.recommended.as_ref() == study.recommendation_of(run.trial.number)
    }
}

struct Failing {
    reason: String,
    pause: Duration,
    until: Instant,
}

impl Delivery {
    pub(super) fn new(destination: Destination) -> Self {
        Self {
            tracker: tracker(&destination),
            destination,
            has: HashMap::new(),
            failing: None,
        }
    }

    /// Whether the tracker lacks something of a trial. A running one may have more steps at any time.
    pub(super) fn lacks(&self, study: &TrackedStudy, run: &TrialRun) -> bool {
        let is_running = matches!(run.trial.state, TrialState::Running);
        is_running || self.has_otherwise(study, run)
    }

    /// Whether the tracker has a trial not at all or otherwise, but for steps.
    fn has_otherwise(&self, study: &TrackedStudy, run: &TrialRun) -> bool {
        self.has.get(&run.trial.number).is_none_or(|has| !has.is(study, run))
    }

    /// Whether the tracker is left alone after a failure.
    pub(super) fn pauses(&self) -> bool {
        self.failing
            .as_ref()
            .is_some_and(|failing| Instant::now() < failing.until)
    }

    /// Whether the tracker has failed and not worked since.
    pub(super) fn fails(&self) -> bool {
        self.failing.is_some()
    }

    /// Ends a pause after a failure.
    pub(super) fn try_again(&mut self) {
        if let Some(failing) = &mut self.failing {
            (failing.until, failing.pause) = (Instant::now(), AGAIN_AFTER);
        }
    }

    /// Gives the tracker those of some trials that it lacks, and returns what there is to tell of that.
    pub(super) fn give(&mut self, study: &TrackedStudy, trials: &[TrackedTrial]) -> Option<Told> {
        let lacking: Vec<&TrackedTrial> = trials.iter().filter(|trial| self.lacks(study, &trial.run)).collect();
        if lacking.is_empty() {
            return None;
        }
        let taken = self.tracker.take(study, &lacking);
        if taken.is_ok() {
            let given = lacking
                .iter()
                .map(|trial| (trial.run.trial.number, Given::of(study, &trial.run)));
            self.has.extend(given);
        }
        self.note(taken)
    }

    /// Gives the tracker what is told of the study as a whole.
    pub(super) fn finish(&mut self, study: &TrackedStudy) -> Option<Told> {
        let taken = self.tracker.finish(study);
        self.note(taken)
    }

    /// Trials that the tracker lacks of a study, at the end of all tries.
    pub(super) fn missing(&self, study: &TrackedStudy) -> Option<Missing> {
        let trials = study.runs.iter().filter(|run| self.has_otherwise(study, run)).count();
        let reason = match &self.failing {
            Some(failing) => failing.reason.clone(),
            None if trials > 0 => "there was no time left".to_owned(),
            None => return None,
        };
        Some(Missing {
            destination: self.destination.clone(),
            trials,
            reason,
        })
    }

    /// Trials that the tracker may lack where that is not known.
    pub(super) fn unknown(&self, reason: String) -> Missing {
        Missing {
            destination: self.destination.clone(),
            trials: 0,
            reason,
        }
    }

    fn note(&mut self, taken: Result<(), TrackError>) -> Option<Told> {
        let destination = self.destination.clone();
        let Err(error) = taken else {
            return self.failing.take().map(|_| Told::Recovered { destination });
        };
        let reason = error.to_string();
        let pause = self
            .failing
            .as_ref()
            .map_or(AGAIN_AFTER, |failing| failing.pause * 2)
            .min(AGAIN_AT_MOST);
        let before = self.failing.replace(Failing {
            reason: reason.clone(),
            pause,
            until: Instant::now() + pause,
        });
        before.is_none().then_some(Told::Failing { destination, reason })
    }
}
