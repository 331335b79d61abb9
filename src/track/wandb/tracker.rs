//! An offline run for each trial.
//!
//! A run is rendered whole. While its trial runs, the file only grows; once the trial is over, the run ends with its summary and
//! its exit. What changes after that (a confirmation) is written anew, and the mark that the run was sent is taken away.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::log::RunLog;
use super::record::{Records, Run};
use crate::files::{continue_whole, plain_name};
use crate::track::param_json::param_json;
use crate::track::study::CourseEvent;
use crate::track::{Recommended, TrackError, TrackedStudy, TrackedTrial, Tracker};
use peft_tune_core::hexadecimal;
use peft_tune_core::study::{Phase, TrialState};

/// Keeps offline runs in `FOLDER/wandb`.
#[derive(Debug)]
pub(in crate::track) struct WandbTracker {
    folder: PathBuf,
    /// Folders of runs that are there, by the run's id; unknown at first.
    folders: Option<HashMap<String, Vec<String>>>,
}

impl WandbTracker {
    pub(in crate::track) fn new(folder: PathBuf) -> Self {
        Self { folder, folders: None }
    }
}

impl Tracker for WandbTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        let runs = self.folder.join("wandb");
        // Read anew after a failure: what is there may be something else.
        let mut folders = self.folders.take().unwrap_or_else(|| folders_by_run(&runs));
        for trial in trials.iter().filter(|trial| !trial.is_waiting()) {
            let id = run_id(study, trial);
            let name = format!("offline-run-{}-{id}", moment(&trial.run.started_at));
            let of_run = folders.entry(id.clone()).or_default();
            remove_earlier_attempts(&runs, &name, of_run)?;
            write_run(study, trial, &runs.join(name), &id)?;
        }
        self.folders = Some(folders);
        Ok(())
    }
}

/// Folders of runs that are there, by the run's id.
fn folders_by_run(runs: &Path) -> HashMap<String, Vec<String>> {
    let mut folders: HashMap<String, Vec<String>> = HashMap::new();
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name
            .strip_prefix("offline-run-")
            .and_then(|name| name.rsplit('-').next());
        if let Some(id) = id {
            folders.entry(id.to_owned()).or_default().push(name.clone());
        }
    }
    folders
}

/// Attempts that were lost tell nothing of the trial. `of_run` has the folders of all of them.
fn remove_earlier_attempts(runs: &Path, name: &str, of_run: &mut Vec<String>) -> Result<(), TrackError> {
    while let Some(place) = of_run.iter().position(|other| other != name) {
        let path = runs.join(&of_run[place]);
        std::fs::remove_dir_all(&path).map_err(TrackError::writing(&path))?;
        of_run.swap_remove(place);
    }
    if of_run.is_empty() {
        of_run.push(name.to_owned());
    }
    Ok(())
}

/// Brings a run's folder to what its trial is now.
fn write_run(study: &TrackedStudy, trial: &TrackedTrial, folder: &Path, id: &str) -> Result<(), TrackError> {
    let path = folder.join(format!("run-{id}.wandb"));
    write(&path, &render(study, trial, id)).map_err(TrackError::writing(&path))?;
    let recipe = trial.run.recipe.as_ref();
    let recipe = recipe.and_then(|recipe| serde_saphyr::to_string(recipe).ok());
    let path = folder.join("files/recipe.yaml");
    match recipe {
        Some(recipe) => continue_whole(&path, recipe.as_bytes()).map_err(TrackError::writing(&path)),
        None => Ok(()),
    }
}

/// Brings a run's log to these bytes. Where it changes, it has to be sent again.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let mut sent = path.as_os_str().to_owned();
    sent.push(".synced");
    match std::fs::remove_file(sent) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    continue_whole(path, bytes)
}

/// Eight letters that only this trial has.
fn run_id(study: &TrackedStudy, trial: &TrackedTrial) -> String {
    let hash = Sha256::digest(format!("{}\0{}", study.mark(), trial.run.trial.number));
    hexadecimal(&hash[..4])
}

/// `2025-11-20T10:50:00.123Z` as folders of runs are called.
fn moment(started_at: &str) -> String {
    let digits: String = started_at.chars().take(19).filter(char::is_ascii_digit).collect();
    match digits.split_at_checked(8) {
        Some((day, time)) => format!("{day}_{time}"),
        None => digits,
    }
}

/// The run's file.
fn render(study: &TrackedStudy, trial: &TrackedTrial, id: &str) -> Vec<u8> {
    let run = &trial.run;
    let (mut log, mut records) = (RunLog::new(), Records::default());
    log.add(&records.header());
    let recommended = study.recommendation_of(run.trial.number);
    let tags: Vec<String> = recommended.iter().map(|_| "recommended".to_owned()).collect();
    let params = run.trial.params.iter();
    let config: Vec<(String, Value)> = params.map(|(name, value)| (name.clone(), param_json(value))).collect();
    log.add(&records.run(&Run {
        id,
        project: &plain_name(&study.overview.name),
        group: &study.overview.name,
        name: &format!("trial {}", run.trial.number),
        config: &config,
        tags: &tags,
        started_s: run.started_s,
    }));
    if run.recipe.is_some() {
        log.add(&records.file("recipe.yaml"));
    }
    let mut end_s = run.started_s;
    let mut latest: Vec<(String, Value)> = Vec::new();
    for (step_of_run, (at_s, event)) in (0..).zip(trial.course()) {
        end_s = at_s;
        let mut values = values(event);
        values.retain(|(_, value)| !value.is_null());
        values.push(("_timestamp", json!(at_s)));
        values.push(("_runtime", json!(at_s - run.started_s)));
        values.push(("_step", json!(step_of_run)));
        log.add(&records.history(step_of_run, &values));
        for (key, value) in values {
            latest.retain(|(known, _)| known != key);
            latest.push((key.to_owned(), value));
        }
    }
    let state = &run.trial.state;
    if state.is_finished() {
        let end_s = run.ended_s.unwrap_or(end_s);
        let metrics = state.metrics().into_iter().flat_map(|metrics| metrics.iter());
        latest.extend(metrics.map(|(name, value)| (name.to_owned(), json!(value))));
        latest.push(("state".to_owned(), json!(state.name())));
        latest.extend(run.reason.iter().map(|reason| ("reason".to_owned(), json!(reason))));
        let notes = recommended.into_iter().flat_map(Recommended::notes);
        latest.extend(notes.map(|(name, value)| (name.to_owned(), json!(value))));
        log.add(&records.summary(&latest));
        let succeeded = !matches!(state, TrialState::Failed { .. });
        log.add(&records.exit(u64::from(!succeeded), end_s - run.started_s));
    }
    log.bytes().to_vec()
}

/// What is drawn of a step or an evaluation; numbers that are not finite are null.
fn values(event: CourseEvent<'_>) -> Vec<(&'static str, Value)> {
    match event {
        CourseEvent::Step(step) if step.phase == Phase::Profile => vec![
            ("profile/step", json!(step.step)),
            ("profile/loss", json!(step.loss)),
            ("profile/tokens_per_s", json!(step.tokens as f64 / step.total_s)),
            ("profile/step_s", json!(step.total_s)),
        ],
        CourseEvent::Step(step) => vec![
            ("train/step", json!(step.step)),
            ("train/loss", json!(step.loss)),
            ("train/learning_rate", json!(step.learning_rate)),
            ("train/grad_norm", json!(step.grad_norm)),
            ("train/tokens_per_s", json!(step.tokens as f64 / step.total_s)),
            ("train/step_s", json!(step.total_s)),
        ],
        CourseEvent::Evaluation(evaluation) => vec![
            ("held_out/step", json!(evaluation.step)),
            ("held_out/loss", json!(evaluation.loss)),
            ("held_out/accuracy", json!(evaluation.accuracy)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_called_as_wandb_calls_them() {
        assert_eq!(moment("2025-11-20T10:50:00.123Z"), "20251120_105000");
    }
}
