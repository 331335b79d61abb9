//! A trial as MLflow has it.

use std::collections::BTreeMap;

use crate::export::{MlflowMetric, MlflowRun, MlflowStatus};
use crate::track::study::CourseEvent;
use crate::track::{TrackedStudy, TrackedTrial};
use peft_tune_core::study::{Phase, TrialNumber, TrialState};

/// A trial as MLflow has it. What is told step by step stands in order, and only grows.
pub fn mlflow_run(study: &TrackedStudy, trial: &TrackedTrial) -> MlflowRun {
    let (run, state) = (&trial.run, &trial.run.trial.state);
    let mut end_s = run.started_s;
    let mut series: Vec<MlflowMetric> = Vec::new();
    for (at_s, event) in trial.course() {
        end_s = at_s;
        match event {
            CourseEvent::Step(step) if step.phase == Phase::Train => {
                series.push(MlflowMetric::new("train_loss", step.loss, step.step, at_s));
                series.push(MlflowMetric::new("learning_rate", step.learning_rate, step.step, at_s));
            }
            CourseEvent::Step(_) => (),
            CourseEvent::Evaluation(evaluation) => {
                series.push(MlflowMetric::new(
                    "held_out_loss",
                    evaluation.loss,
                    evaluation.step,
                    at_s,
                ));
            }
        }
    }
    series.retain(|metric| metric.value.is_finite());
    let end_s = run.ended_s.unwrap_or(end_s);
    let measured = state.metrics().into_iter().flat_map(|metrics| metrics.iter());
    let params = run.trial.params.iter();
    MlflowRun {
        number: run.trial.number,
        status: status(state),
        started_s: run.started_s,
        ended_s: run.ended_s,
        params: params.map(|(name, value)| (name.clone(), value.to_string())).collect(),
        series,
        metrics: measured
            .map(|(name, value)| MlflowMetric::new(name, value, 0, end_s))
            .collect(),
        tags: tags(study, trial),
        recipe: run
            .recipe
            .as_ref()
            .and_then(|recipe| serde_saphyr::to_string(recipe).ok()),
    }
}

fn status(state: &TrialState) -> MlflowStatus {
    match state {
        TrialState::Waiting => MlflowStatus::Scheduled,
        TrialState::Running => MlflowStatus::Running,
        TrialState::Complete { .. } => MlflowStatus::Finished,
        TrialState::Failed { .. } => MlflowStatus::Failed,
        TrialState::Pruned { .. } | TrialState::Skipped { .. } => MlflowStatus::Killed,
    }
}

/// What the run is tagged with.
fn tags(study: &TrackedStudy, trial: &TrackedTrial) -> BTreeMap<String, String> {
    let state = ("state".to_owned(), trial.run.trial.state.name().to_owned());
    let reason = trial.run.reason.clone().map(|reason| ("reason".to_owned(), reason));
    let recommended = recommendation_tags(study, trial.run.trial.number).into_iter();
    let recommended = recommended.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    [state].into_iter().chain(reason).chain(recommended).collect()
}

/// What only the recommended trial's run is tagged with; the others do not have these tags.
pub(super) fn recommendation_tags(study: &TrackedStudy, trial: TrialNumber) -> [(&'static str, Option<String>); 2] {
    let recommended = study.recommended.as_ref().filter(|one| one.trial == trial);
    [
        ("recommended", recommended.map(|one| one.reason.clone())),
        (
            "against_baseline",
            recommended.and_then(|one| one.against_baseline.clone()),
        ),
    ]
}
