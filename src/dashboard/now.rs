//! What happens at this moment: the trials under way, the queue, the machine.

use serde::Serialize;

use super::gather::training_curve;
use super::machine::{Machine, Sample};
use crate::report::Outlook;
use crate::store::{StepRecord, Store, StoreError, StudyId, TrialTimes};
use peft_tune_core::study::{Params, Phase, StudyRequest};

/// Points of the curve of a running trial.
const CURVE_POINTS: usize = 240;
/// Last steps over which the throughput is taken.
const LAST_STEPS: usize = 10;

/// A study at this moment.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Now {
    /// Whether a process runs the study.
    pub running: bool,
    pub paused: bool,
    /// Spending of the budget, and how long the rest takes; null for studies whose last search told no budget.
    pub outlook: Option<Outlook>,
    /// Spending of the budget, for people.
    pub spent: Option<String>,
    pub trials: Vec<RunningTrial>,
    pub queue: Vec<Waiting>,
    /// Why settings were refused a short time ago.
    pub refused: Vec<String>,
    pub sample: Sample,
}

/// A trial under way.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct RunningTrial {
    pub number: u64,
    pub phase: Option<String>,
    /// Steps of that phase.
    pub steps: usize,
    pub elapsed_s: f64,
    /// Training loss of the last step.
    pub loss: Option<f64>,
    pub tokens_per_s: Option<f64>,
    /// Training loss over tokens.
    pub curve: Vec<(f64, f64)>,
}

/// A request that waits, or a trial that is to be repeated.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Waiting {
    pub kind: String,
    pub params: Option<Params>,
}

impl Now {
    /// Reads the moment.
    pub(super) async fn read(store: &Store, study: StudyId, machine: &Machine) -> Result<Self, StoreError> {
        let runner = store.studies().runner(study);
        let sample = machine.sample(runner);
        let running = sample.process_bytes.is_some();
        let paused = running && store.requests().is_paused(study).await?;
        let spending = store.searches().spending(study).await?;
        let outlook = spending.map(|spending| Outlook::new(&spending, running, paused));
        let times = store.history().times(study).await?;
        let mut trials = Vec::new();
        if running {
            for one in times.iter().filter(|one| one.ended_at.is_none()) {
                trials.extend(running_trial(store, study, one).await?);
            }
        }
        let queue = store
            .requests()
            .waiting(study)
            .await?
            .into_iter()
            .map(|waiting| Waiting {
                kind: waiting.request.kind().to_owned(),
                params: match waiting.request {
                    StudyRequest::Enqueue(params) => Some(params),
                    StudyRequest::Pause | StudyRequest::Resume | StudyRequest::Stop => None,
                },
            });
        Ok(Self {
            running,
            paused,
            spent: outlook.as_ref().map(Outlook::spent_text),
            outlook,
            trials,
            queue: queue.collect(),
            refused: store.requests().refusals(study, 3).await?,
            sample,
        })
    }
}

/// The trial, unless it still waits to be repeated.
async fn running_trial(store: &Store, study: StudyId, times: &TrialTimes) -> Result<Option<RunningTrial>, StoreError> {
    let profile = store.steps().of(study, times.number, Phase::Profile).await?;
    let train = store.steps().of(study, times.number, Phase::Train).await?;
    let latest = if train.is_empty() { &profile } else { &train };
    let curve = training_curve(&train).points;
    let every = curve.len().div_ceil(CURVE_POINTS).max(1);
    Ok(Some(RunningTrial {
        number: times.number.0,
        phase: times.phase.clone(),
        steps: latest.len(),
        elapsed_s: times.since_start_s,
        loss: latest.last().map(|step| step.loss).filter(|loss| loss.is_finite()),
        tokens_per_s: tokens_per_s(latest),
        curve: curve.into_iter().step_by(every).collect(),
    }))
}

fn tokens_per_s(steps: &[StepRecord]) -> Option<f64> {
    let last = &steps[steps.len().saturating_sub(LAST_STEPS)..];
    let seconds: f64 = last.iter().map(|step| step.total_s).sum();
    let tokens: u64 = last.iter().map(|step| step.tokens).sum();
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}
