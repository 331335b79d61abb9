//! MLflow's file store, kept up to date.

use std::path::PathBuf;

use super::mlflow_run;
use super::run::recommendation_tags;
use crate::export::{MlflowExperiment, MlflowRun, MlflowStatus};
use crate::track::{TrackError, TrackedStudy, TrackedTrial, Tracker};

/// A folder that MLflow reads.
#[derive(Debug)]
pub(in crate::track) struct FileStoreTracker {
    folder: PathBuf,
}

impl FileStoreTracker {
    pub(in crate::track) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }
}

fn experiment<'a>(study: &'a TrackedStudy, runs: &'a [MlflowRun]) -> MlflowExperiment<'a> {
    MlflowExperiment {
        name: &study.overview.name,
        created_at: &study.overview.created_at,
        runs,
    }
}

impl Tracker for FileStoreTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        let mut runs: Vec<MlflowRun> = Vec::with_capacity(trials.len());
        for trial in trials {
            let mut run = mlflow_run(study, trial);
            if trial.is_waiting() {
                // Handed back: what was told of the attempt stays until the next one begins.
                run.status = MlflowStatus::Killed;
                if !experiment(study, &[]).has(&self.folder, run.number) {
                    continue;
                }
            }
            runs.push(run);
        }
        match runs.is_empty() {
            true => Ok(()),
            false => Ok(experiment(study, &runs).update(&self.folder)?),
        }
    }

    fn finish(&mut self, study: &TrackedStudy) -> Result<(), TrackError> {
        let experiment = experiment(study, &[]);
        for run in &study.runs {
            let number = run.trial.number;
            if !experiment.has(&self.folder, number) {
                continue;
            }
            for (key, value) in recommendation_tags(study, number) {
                experiment.tag(&self.folder, number, key, value.as_deref())?;
            }
        }
        Ok(())
    }
}
