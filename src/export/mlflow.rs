//! An MLflow file store: a folder with one experiment, and in it a folder for each trial.
//!
//! MLflow 3 has put file stores into maintenance: it opens them with `MLFLOW_ALLOW_FILE_STORE=true`, and
//! `mlflow migrate-filestore` moves them into a database. They stay the one form that needs no server and no MLflow to
//! write.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::ExportError;
use crate::files::continue_whole;
use peft_tune_core::hexadecimal;
use peft_tune_core::study::TrialNumber;

/// A study as MLflow has it.
#[derive(Clone, Copy, Debug)]
pub struct MlflowExperiment<'a> {
    pub name: &'a str,
    /// Time of creation, which with the name tells two studies apart; UTC, ISO 8601.
    pub created_at: &'a str,
    pub runs: &'a [MlflowRun],
}

/// A trial as MLflow has it.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowRun {
    pub number: TrialNumber,
    pub status: MlflowStatus,
    /// Seconds since 1970.
    pub started_s: f64,
    pub ended_s: Option<f64>,
    pub params: BTreeMap<String, String>,
    /// What was told step by step, in order.
    pub series: Vec<MlflowMetric>,
    /// Numbers of the whole trial, once it is over.
    pub metrics: Vec<MlflowMetric>,
    pub tags: BTreeMap<String, String>,
    /// YAML that is stored as an artifact.
    pub recipe: Option<String>,
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowMetric {
    pub name: String,
    pub value: f64,
    pub step: u64,
    /// Seconds since 1970.
    pub at_s: f64,
}

/// How a run ended, as MLflow numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlflowStatus {
    Running = 1,
    Scheduled = 2,
    Finished = 3,
    Failed = 4,
    Killed = 5,
}

impl MlflowStatus {
    /// Name of the status in the interface of a server.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Scheduled => "SCHEDULED",
            Self::Finished => "FINISHED",
            Self::Failed => "FAILED",
            Self::Killed => "KILLED",
        }
    }
}

impl MlflowMetric {
    pub fn new(name: &str, value: f64, step: u64, at_s: f64) -> Self {
        Self {
            name: name.to_owned(),
            value,
            step,
            at_s,
        }
    }
}

impl MlflowExperiment<'_> {
    /// Writes the experiment into the store at `folder`, which is made where it is missing, and returns its folder.
    /// Other experiments of the store are left alone.
    ///
    /// # Errors
    /// Where the experiment is there and `force` is not given, or where writing fails.
    pub fn write(&self, folder: &Path, force: bool) -> Result<PathBuf, ExportError> {
        let folder = std::path::absolute(folder).map_err(|source| failed(folder, source))?;
        let experiment = folder.join(self.id());
        if !force && experiment.exists() {
            return Err(ExportError::Exists { path: experiment });
        }
        let times = self.runs.first().zip(self.runs.last());
        let (first_s, last_s) = times.map_or((0.0, 0.0), |(first, last)| (first.started_s, last.started_s));
        self.write_meta(&experiment, first_s, last_s)?;
        for run in self.runs {
            self.write_run(&experiment, run)?;
        }
        Ok(experiment)
    }

    /// Brings the experiment's runs up to date in the store at `folder`, which is made where it is missing. What is
    /// there and the same is left as it is, and files that grow are written on.
    ///
    /// # Errors
    /// Where writing fails.
    pub fn update(&self, folder: &Path) -> Result<(), ExportError> {
        let folder = std::path::absolute(folder).map_err(|source| failed(folder, source))?;
        let experiment = folder.join(self.id());
        let first_s = self.runs.first().map_or(0.0, |run| run.started_s);
        if !experiment.join("meta.yaml").exists() {
            self.write_meta(&experiment, first_s, first_s)?;
        }
        self.runs.iter().try_for_each(|run| self.write_run(&experiment, run))
    }

    /// Whether the store at `folder` has a run of this trial.
    pub fn has(&self, folder: &Path, trial: TrialNumber) -> bool {
        folder
            .join(self.id())
            .join(self.run_id(trial))
            .join("meta.yaml")
            .exists()
    }

    /// Sets a tag of a run that is there, or removes it.
    ///
    /// # Errors
    /// Where writing fails.
    pub fn tag(&self, folder: &Path, trial: TrialNumber, key: &str, value: Option<&str>) -> Result<(), ExportError> {
        let path = folder
            .join(self.id())
            .join(self.run_id(trial))
            .join("tags")
            .join(mlflow_key(key));
        match value {
            Some(value) => write(&path, value),
            None => match fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => Err(failed(&path, source)),
                _ => Ok(()),
            },
        }
    }

    fn write_meta(&self, experiment: &Path, created_s: f64, updated_s: f64) -> Result<(), ExportError> {
        let meta = [
            ("artifact_location", json!(uri(experiment))),
            ("creation_time", json!(milliseconds(created_s))),
            ("experiment_id", json!(self.id())),
            ("last_update_time", json!(milliseconds(updated_s))),
            ("lifecycle_stage", json!("active")),
            ("name", json!(self.name)),
        ];
        write(&experiment.join("meta.yaml"), &yaml(&meta))
    }

    /// Eighteen digits that only this study has, as MLflow's own ids.
    fn id(&self) -> String {
        let hash = Sha256::digest(format!("{}\0{}", self.name, self.created_at));
        let number = hash
            .iter()
            .take(8)
            .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        format!("{:018}", number % 1_000_000_000_000_000_000)
    }

    fn run_id(&self, trial: TrialNumber) -> String {
        let hash = Sha256::digest(format!("{}\0{}\0{}", self.name, self.created_at, trial));
        hexadecimal(&hash[..16])
    }

    fn write_run(&self, experiment: &Path, run: &MlflowRun) -> Result<(), ExportError> {
        let run_id = self.run_id(run.number);
        let folder = experiment.join(&run_id);
        let started = format!("start_time: {}\n", milliseconds(run.started_s));
        // What an attempt before told is not of this one.
        if fs::read_to_string(folder.join("meta.yaml")).is_ok_and(|meta| !meta.contains(&started)) {
            let metrics = folder.join("metrics");
            fs::remove_dir_all(&metrics).map_err(|source| failed(&metrics, source))?;
        }
        let name = format!("trial {}", run.number);
        let meta = [
            ("artifact_uri", json!(format!("{}/artifacts", uri(&folder)))),
            ("end_time", json!(run.ended_s.map(milliseconds))),
            ("entry_point_name", json!("")),
            ("experiment_id", json!(self.id())),
            ("lifecycle_stage", json!("active")),
            ("run_id", json!(run_id)),
            ("run_name", json!(name)),
            ("source_name", json!("peft-tune")),
            ("source_type", json!(4)),
            ("source_version", json!("")),
            ("start_time", json!(milliseconds(run.started_s))),
            ("status", json!(run.status as u8)),
            ("tags", json!([])),
            ("user_id", json!("peft-tune")),
        ];
        write(&folder.join("meta.yaml"), &yaml(&meta))?;
        for part in ["params", "metrics", "tags", "artifacts"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(|source| failed(&path, source))?;
        }
        for (key, value) in &run.params {
            write(&folder.join("params").join(mlflow_key(key)), value)?;
        }
        let own = [("mlflow.runName", name.as_str()), ("mlflow.source.name", "peft-tune")];
        let tags = run.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in tags.chain(own) {
            write(&folder.join("tags").join(mlflow_key(key)), value)?;
        }
        let mut metrics: BTreeMap<String, String> = BTreeMap::new();
        for metric in run
            .series
            .iter()
            .chain(&run.metrics)
            .filter(|metric| metric.value.is_finite())
        {
            let line = format!("{} {:?} {}\n", milliseconds(metric.at_s), metric.value, metric.step);
            metrics.entry(mlflow_key(&metric.name)).or_default().push_str(&line);
        }
        for (name, lines) in &metrics {
            write(&folder.join("metrics").join(name), lines)?;
        }
        match &run.recipe {
            Some(recipe) => write(&folder.join("artifacts/recipe.yaml"), recipe),
            None => Ok(()),
        }
    }
}

/// A key as MLflow takes one, which is also a file's name: nothing in it leads elsewhere.
pub fn mlflow_key(key: &str) -> String {
    let name: String = key
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "_-. ".contains(c) {
                c
            } else {
                '_'
            }
        })
        .take(200)
        .collect();
    let is_only_dots = name.chars().all(|c| c == '.' || c == ' ');
    if is_only_dots { format!("_{name}") } else { name }
}

fn uri(path: &Path) -> String {
    let mut text = String::from("file://");
    for byte in path.to_string_lossy().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}

/// Lines of YAML; a JSON value is one of YAML.
fn yaml(entries: &[(&str, serde_json::Value)]) -> String {
    entries.iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
}

fn write(path: &Path, text: &str) -> Result<(), ExportError> {
    continue_whole(path, text.as_bytes()).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: std::io::Error) -> ExportError {
    ExportError::Write {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_in_its_folder() {
        for key in ["../../etc/passwd", "..", "a/b", "a\nb", ""] {
            let name = mlflow_key(key);
            assert!(
                !name.contains('/') && name != ".." && !name.is_empty(),
                "{key:?} became {name:?}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let run = MlflowRun {
            number: TrialNumber(3),
            status: MlflowStatus::Finished,
            started_s: 1.5,
            ended_s: None,
            params: [("../x".to_owned(), "1".to_owned())].into(),
            metrics: Vec::new(),
            series: vec![
                MlflowMetric::new("loss", 2.5, 4, 1.5),
                MlflowMetric::new("loss", f64::NAN, 5, 1.5),
            ],
            tags: BTreeMap::new(),
            recipe: None,
        };
        let experiment = MlflowExperiment {
            name: "a: b\n\"c",
            created_at: "now",
            runs: &[run],
        };
        let written = experiment.write(folder.path(), false).unwrap();
        let meta = fs::read_to_string(written.join("meta.yaml")).unwrap();
        assert!(meta.contains(r#"name: "a: b\n\"c""#), "{meta}");
        let runs: Vec<_> = fs::read_dir(&written)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        assert_eq!(
            fs::read_to_string(runs[0].join("metrics/loss")).unwrap(),
            "1500 2.5 4\n"
        );
        assert!(matches!(
            experiment.write(folder.path(), false),
            Err(ExportError::Exists { .. })
        ));
    }
}
