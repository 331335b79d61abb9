//! A folder of event files, one folder a trial, in the folder of the study.

use std::path::{Path, PathBuf};

use super::study::CourseEvent;
use super::{TrackError, TrackedStudy, TrackedTrial, Tracker, continue_file};
use crate::files::plain_name;
use peft_tune_core::study::{ParamValue, Phase, TrialState};
use peft_tune_engine::profile::{HparamValue, TrialLog, TrialStart};

/// What our files are called at their end, before the study's mark.
const OWNER: &str = "peft-tune";

/// Tag of the number that only the trial to take has: 1, and 0 once it is another one.
const RECOMMENDED: &str = "recommended";

/// Keeps event files up to date.
#[derive(Debug)]
pub(super) struct TensorBoardTracker {
    folder: PathBuf,
}

impl TensorBoardTracker {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }
}

impl Tracker for TensorBoardTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        let mut begun = trials.iter().filter(|trial| !trial.is_waiting());
        begun.try_for_each(|trial| self.bring(study, trial))
    }
}

impl TensorBoardTracker {
    fn bring(&self, study: &TrackedStudy, trial: &TrackedTrial) -> Result<(), TrackError> {
        let folder = self.folder.join(plain_name(&study.overview.name));
        let folder = folder.join(trial_folder(trial));
        let name = TrialLog::file_name(trial.run.started_s, &format!("{OWNER}-{}", study.mark()));
        remove_earlier_attempts(&folder, &name, &study.mark())?;
        let path = folder.join(name);
        let (head, mut tail) = events(study, trial);
        if study.recommendation_of(trial.run.trial.number).is_none() && is_marked(&path, head.bytes()) {
            mark(&mut tail, trial, 0.0);
        }
        let written = continue_file(&path, head.bytes(), tail.bytes(), TrialLog::whole_bytes);
        written.map(drop).map_err(TrackError::writing(&path))
    }
}

/// A trial's event file: its name below the folder of the study, and its bytes.
pub fn trial_file(study: &TrackedStudy, trial: &TrackedTrial) -> (PathBuf, Vec<u8>) {
    let name = TrialLog::file_name(trial.run.started_s, OWNER);
    let (head, tail) = events(study, trial);
    (
        Path::new(&trial_folder(trial)).join(name),
        [head.bytes(), tail.bytes()].concat(),
    )
}

fn trial_folder(trial: &TrackedTrial) -> String {
    format!("trial-{:04}", trial.run.trial.number.0)
}

/// Attempts that were lost tell nothing of the trial.
fn remove_earlier_attempts(folder: &Path, name: &str, mark: &str) -> Result<(), TrackError> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(());
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let other = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if other == name || !other.contains(OWNER) {
            continue;
        }
        if !other.ends_with(mark) {
            return Err(TrackError::OtherStudy {
                path: folder.to_owned(),
            });
        }
        std::fs::remove_file(&path).map_err(TrackError::writing(&path))?;
    }
    Ok(())
}

/// What is told of a trial: what only grows, and what may change once it is over.
fn events(study: &TrackedStudy, trial: &TrackedTrial) -> (TrialLog, TrialLog) {
    let mut log = begin(study, trial);
    let mut end_s = trial.run.started_s;
    for (at_s, event) in trial.course() {
        end_s = at_s;
        match event {
            CourseEvent::Step(step) => {
                let phase = if step.phase == Phase::Profile {
                    "profile"
                } else {
                    "train"
                };
                let names = ["loss", "learning_rate", "grad_norm", "tokens_per_s", "step_s"];
                let names = names.map(|name| format!("{phase}/{name}"));
                let speed = step.tokens as f64 / step.total_s;
                let values = [step.loss, step.learning_rate, step.grad_norm, speed, step.total_s];
                let scalars: Vec<(&str, f64)> = names.iter().map(String::as_str).zip(values).collect();
                log.scalars(at_s, step.step, &scalars);
            }
            CourseEvent::Evaluation(evaluation) => {
                let scalars = [
                    ("held_out/loss", evaluation.loss),
                    ("held_out/accuracy", evaluation.accuracy),
                ];
                log.scalars(at_s, evaluation.step, &scalars);
            }
        }
    }
    let mut tail = TrialLog::default();
    let state = &trial.run.trial.state;
    if state.is_finished() {
        let end_s = trial.run.ended_s.unwrap_or(end_s);
        for (name, value) in state.metrics().into_iter().flat_map(|metrics| metrics.iter()) {
            tail.scalars(end_s, 0, &[(&metric_tag(name), value)]);
        }
        tail.end(end_s, matches!(state, TrialState::Complete { .. }));
        if study.recommendation_of(trial.run.trial.number).is_some() {
            mark(&mut tail, trial, 1.0);
        }
    }
    (log, tail)
}

/// Says whether a trial is the one to take.
fn mark(tail: &mut TrialLog, trial: &TrackedTrial, value: f64) {
    let at_s = trial.run.ended_s.unwrap_or(trial.run.started_s);
    tail.scalars(at_s, 0, &[(RECOMMENDED, value)]);
}

/// Whether a file says behind its head that its trial is the one to take, or was.
fn is_marked(path: &Path, head: &[u8]) -> bool {
    let there = std::fs::read(path).unwrap_or_default();
    let tail = there.strip_prefix(head).unwrap_or_default();
    tail.windows(RECOMMENDED.len())
        .any(|part| part == RECOMMENDED.as_bytes())
}

fn begin(study: &TrackedStudy, trial: &TrackedTrial) -> TrialLog {
    let (run, params) = (&trial.run, &trial.run.trial.params);
    let objectives = study.overview.objectives.iter();
    let metrics = objectives.map(|objective| metric_tag(&objective.metric));
    let metrics: Vec<String> = metrics.chain([RECOMMENDED.to_owned()]).collect();
    let searched = study.space.iter().flat_map(|space| &space.parameters);
    let mut columns: Vec<&str> = searched.map(|parameter| parameter.name.as_str()).collect();
    columns.extend(params.keys().map(String::as_str));
    columns.sort_unstable();
    columns.dedup();
    let params: Vec<(&str, HparamValue)> = params
        .iter()
        .map(|(name, value)| (name.as_str(), hparam(value)))
        .collect();
    TrialLog::begin(&TrialStart {
        name: &format!("trial {}", run.trial.number),
        at_s: run.started_s,
        columns: &columns,
        params: &params,
        metrics: &metrics.iter().map(String::as_str).collect::<Vec<_>>(),
        again: run.attempt > 1,
    })
}

fn metric_tag(metric: &str) -> String {
    format!("metric/{metric}")
}

fn hparam(value: &ParamValue) -> HparamValue {
    match value {
        ParamValue::Bool(value) => HparamValue::Bool(*value),
        ParamValue::Int(value) => HparamValue::Number(*value as f64),
        ParamValue::Float(value) => HparamValue::Number(*value),
        ParamValue::Text(_) | ParamValue::List(_) => HparamValue::Text(value.to_string()),
    }
}
