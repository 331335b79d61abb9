//! A folder of trackio's, with the study as a project.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

use super::param_json::param_json;
use super::study::CourseEvent;
use super::{Recommended, TrackError, TrackedStudy, TrackedTrial, Tracker};
use crate::store::{TrackioFile, TrackioRow, TrackioRun};
use peft_tune_core::study::Phase;

/// Ends of names that trackio keeps for itself.
const RESERVED: [&str; 8] = [
    "_system",
    "_configs",
    "_traces",
    "_artifacts",
    "_artifact_versions",
    "_artifact_aliases",
    "_run_artifact_links",
    "_external_run_artifact_links",
];

/// What trackio shows and its Python module reads.
#[derive(Debug)]
pub(super) struct TrackioTracker {
    folder: PathBuf,
    open: Option<(Runtime, TrackioFile)>,
}

impl TrackioTracker {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, open: None }
    }

    fn open(&self, study: &TrackedStudy) -> Result<(Runtime, TrackioFile), TrackError> {
        let path = self.folder.join(format!("{}.db", project(&study.overview.name)));
        std::fs::create_dir_all(&self.folder).map_err(TrackError::writing(&self.folder))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TrackError::writing(&path))?;
        let file = runtime.block_on(TrackioFile::open(&path))?;
        Ok((runtime, file))
    }
}

impl Tracker for TrackioTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        let begun = trials.iter().filter(|trial| !trial.is_waiting());
        let runs: Vec<TrackioRun> = begun.map(|trial| run(study, trial)).collect();
        if runs.is_empty() {
            return Ok(());
        }
        // Opened anew after a failure: the file may be another one.
        let (runtime, file) = match self.open.take() {
            Some(open) => open,
            None => self.open(study)?,
        };
        runtime.block_on(file.put(&runs))?;
        self.open = Some((runtime, file));
        Ok(())
    }
}

/// A study's name as trackio calls a project's file.
fn project(study: &str) -> String {
    let plain = |c: &char| c.is_alphanumeric() || ['-', '_'].contains(c);
    let name: String = study.chars().filter(plain).take(100).collect();
    let is_taken = name.is_empty() || name.starts_with("registry-") || RESERVED.iter().any(|end| name.ends_with(end));
    match is_taken {
        true => format!("study-{name}-study"),
        false => name,
    }
}

fn run(study: &TrackedStudy, trial: &TrackedTrial) -> TrackioRun {
    let run = &trial.run;
    let mut config: Map<String, Value> = run
        .trial
        .params
        .iter()
        .map(|(name, value)| (name.clone(), param_json(value)))
        .collect();
    // As trackio itself writes them.
    config.insert("_Username".to_owned(), json!("peft-tune"));
    config.insert("_Created".to_owned(), json!(run.started_at));
    config.insert("_Group".to_owned(), json!(study.overview.name));
    let notes = study.recommendation_of(run.trial.number).into_iter();
    let notes = notes.flat_map(Recommended::notes);
    config.extend(notes.map(|(name, value)| (name.to_owned(), json!(value))));
    let mut end_s = run.started_s;
    let mut rows = Vec::new();
    for (at_s, event) in trial.course() {
        end_s = at_s;
        rows.push(row(at_s, event));
    }
    let state = &run.trial.state;
    let end = state.is_finished().then(|| {
        let measured = state.metrics().into_iter().flat_map(|metrics| metrics.iter());
        let mut metrics: Map<String, Value> = measured
            .map(|(name, value)| (format!("metric/{name}"), json!(value)))
            .collect();
        metrics.insert("state".to_owned(), json!(state.name()));
        metrics.extend(run.reason.iter().map(|reason| ("reason".to_owned(), json!(reason))));
        TrackioRow {
            step: trial.steps.last().map_or(0, |step| step.step),
            at_s: run.ended_s.unwrap_or(end_s),
            metrics: Value::Object(metrics),
        }
    });
    TrackioRun {
        id: format!("{}-{}", study.mark(), run.trial.number),
        name: format!("trial {}", run.trial.number),
        started_at: run.started_at.clone(),
        config: Value::Object(config),
        rows,
        end,
    }
}

fn row(at_s: f64, event: CourseEvent<'_>) -> TrackioRow {
    let (step, mut metrics) = match event {
        CourseEvent::Step(step) => {
            let phase = if step.phase == Phase::Profile {
                "profile"
            } else {
                "train"
            };
            let values = [
                ("loss", step.loss),
                ("learning_rate", step.learning_rate),
                ("grad_norm", step.grad_norm),
                ("tokens_per_s", step.tokens as f64 / step.total_s),
            ];
            (
                step.step,
                values.map(|(name, value)| (format!("{phase}/{name}"), value)).to_vec(),
            )
        }
        CourseEvent::Evaluation(evaluation) => {
            let values = [("loss", evaluation.loss), ("accuracy", evaluation.accuracy)];
            (
                evaluation.step,
                values.map(|(name, value)| (format!("held_out/{name}"), value)).to_vec(),
            )
        }
    };
    metrics.retain(|(_, value)| value.is_finite());
    TrackioRow {
        step,
        at_s,
        metrics: metrics.into_iter().map(|(name, value)| (name, json!(value))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_called_as_trackio_calls_their_files() {
        for (study, expected) in [
            ("my study.v2", "mystudyv2"),
            ("../x", "x"),
            ("my_system", "study-my_system-study"),
            ("", "study--study"),
        ] {
            assert_eq!(project(study), expected);
        }
    }
}
