//! A study on an MLflow server.
//!
//! | tag of a run | what for |
//! |---|---|
//! | `peft_tune.study`, `peft_tune.trial` | whose it is |
//! | `peft_tune.attempt` | when the attempt began: another one takes another run |
//! | `peft_tune.sent` | how many values told step by step are there |

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::client::Client;
use super::mlflow_run;
use super::run::recommendation_tags;
use crate::export::{MlflowMetric, MlflowRun, mlflow_key};
use crate::track::{TrackError, TrackedStudy, TrackedTrial, Tracker};
use peft_tune_core::study::TrialNumber;

/// What one request may hold: 1,000 things in all, of them 100 params and 100 tags.
const VALUES_AT_ONCE: usize = 800;
const PARAMS_AT_ONCE: usize = 100;

/// Runs of one page of a search.
const PAGE: usize = 1000;

/// Characters of a name or a param, and of a tag, that servers of all versions take.
const PARAM: usize = 500;
const TAG: usize = 5000;

const STUDY: &str = "peft_tune.study";
const TRIAL: &str = "peft_tune.trial";
const ATTEMPT: &str = "peft_tune.attempt";
const SENT: &str = "peft_tune.sent";
const RECIPE: &str = "peft_tune.recipe";

/// A server with what it has of the study.
pub(in crate::track) struct ServerTracker {
    client: Client,
    /// What is there; unknown at first, and after a request that failed: the server may have done it or not.
    there: Option<There>,
}

/// What a server has of a study.
struct There {
    experiment: String,
    runs: HashMap<TrialNumber, RunThere>,
}

/// A run as the server has it.
#[derive(Clone, Debug, Default)]
struct RunThere {
    id: String,
    artifacts: String,
    status: String,
    ended_ms: Option<i64>,
    /// The latest value of each metric, and its moment in milliseconds.
    metrics: HashMap<String, (f64, i64)>,
    params: usize,
    tags: HashMap<String, String>,
}

impl ServerTracker {
    pub(in crate::track) fn new(address: &str) -> Self {
        Self {
            client: Client::new(address),
            there: None,
        }
    }

    fn bring(&self, there: &mut There, study: &TrackedStudy, trial: &TrackedTrial) -> Result<(), TrackError> {
        let number = trial.run.trial.number;
        if trial.is_waiting() {
            // Handed back: what was told of the attempt stays until the next one begins.
            return match there.runs.get_mut(&number) {
                Some(run) if run.status == "RUNNING" => self.update(run, "KILLED", None),
                _ => Ok(()),
            };
        }
        let wanted = mlflow_run(study, trial);
        let attempt = &trial.run.started_at;
        let known = there.runs.get(&number);
        if let Some(earlier) = known.filter(|run| run.tags.get(ATTEMPT) != Some(attempt)) {
            self.client.post("runs/delete", &json!({"run_id": earlier.id}))?;
            there.runs.remove(&number);
        }
        if !there.runs.contains_key(&number) {
            let run = self.create(&there.experiment, study, &wanted, attempt)?;
            there.runs.insert(number, run);
        }
        match there.runs.get_mut(&number) {
            Some(run) => self.send(run, &wanted),
            None => Ok(()),
        }
    }

    /// Sends what a run lacks.
    fn send(&self, run: &mut RunThere, wanted: &MlflowRun) -> Result<(), TrackError> {
        let params: Vec<(&String, &String)> = wanted.params.iter().skip(run.params).collect();
        for chunk in params.chunks(PARAMS_AT_ONCE) {
            let pair = |(key, value): &(&String, &String)| json!({"key": mlflow_key(key), "value": cut(value, PARAM)});
            let params: Vec<Value> = chunk.iter().map(pair).collect();
            self.log(run, json!({"params": params}))?;
            run.params += chunk.len();
        }
        let sent = run.tags.get(SENT).and_then(|sent| sent.parse().ok()).unwrap_or(0);
        let mut sent: usize = wanted.series.len().min(sent);
        while sent < wanted.series.len() {
            let chunk = &wanted.series[sent..wanted.series.len().min(sent + VALUES_AT_ONCE)];
            let metrics: Vec<Value> = chunk.iter().map(metric).collect();
            sent += chunk.len();
            // With how many there are then, in the same request.
            let tags = [json!({"key": SENT, "value": sent.to_string()})];
            self.log(run, json!({"metrics": metrics, "tags": tags}))?;
            run.tags.insert(SENT.to_owned(), sent.to_string());
        }
        self.send_whole(run, wanted)?;
        self.send_recipe(run, wanted)?;
        let (status, ended_ms) = (wanted.status.name(), wanted.ended_s.map(milliseconds));
        match run.status != status || run.ended_ms != ended_ms {
            true => self.update(run, status, ended_ms),
            false => Ok(()),
        }
    }

    /// Metrics of the whole trial, and tags, where the server has others.
    fn send_whole(&self, run: &mut RunThere, wanted: &MlflowRun) -> Result<(), TrackError> {
        let mut metrics = Vec::new();
        for one in wanted.metrics.iter().filter(|one| one.value.is_finite()) {
            let key = mlflow_key(&one.name);
            let there = run.metrics.get(&key).copied();
            if there.is_some_and(|(value, _)| value == one.value) {
                continue;
            }
            // Of two values of one moment MLflow takes the larger one for the latest.
            let at_ms = there.map_or(milliseconds(one.at_s), |(_, before)| now_ms().max(before + 1));
            metrics.push(json!({"key": key, "value": one.value, "timestamp": at_ms, "step": one.step}));
            run.metrics.insert(key, (one.value, at_ms));
        }
        let wanted = wanted.tags.iter().map(|(key, value)| (key, cut(value, TAG)));
        let changed: Vec<(&String, String)> = wanted
            .filter(|(key, value)| run.tags.get(*key) != Some(value))
            .collect();
        let tag = |(key, value): &(&String, String)| json!({"key": key, "value": value});
        let tags: Vec<Value> = changed.iter().map(tag).collect();
        if !metrics.is_empty() || !tags.is_empty() {
            self.log(run, json!({"metrics": metrics, "tags": tags}))?;
        }
        run.tags
            .extend(changed.into_iter().map(|(key, value)| (key.clone(), value)));
        Ok(())
    }

    /// Sets or removes a tag where the server has it otherwise.
    fn tag(&self, run: &mut RunThere, key: &str, value: Option<String>) -> Result<(), TrackError> {
        match (run.tags.get(key), value) {
            (there, Some(value)) if there != Some(&value) => {
                let tag = json!({"run_id": run.id, "key": key, "value": value});
                self.client.post("runs/set-tag", &tag)?;
                run.tags.insert(key.to_owned(), value);
            }
            (Some(_), None) => {
                self.client
                    .post("runs/delete-tag", &json!({"run_id": run.id, "key": key}))?;
                run.tags.remove(key);
            }
            _ => (),
        }
        Ok(())
    }

    fn send_recipe(&self, run: &mut RunThere, wanted: &MlflowRun) -> Result<(), TrackError> {
        let Some(recipe) = wanted.recipe.as_ref().filter(|_| !run.tags.contains_key(RECIPE)) else {
            return Ok(());
        };
        let stored = self.client.store(&run.artifacts, "recipe.yaml", recipe.as_bytes())?;
        // A server without artifacts of its own has none.
        let name = if stored { "recipe.yaml" } else { "none" };
        self.tag(run, RECIPE, Some(name.to_owned()))
    }

    fn log(&self, run: &RunThere, mut batch: Value) -> Result<(), TrackError> {
        batch["run_id"] = json!(run.id);
        self.client.post("runs/log-batch", &batch).map(drop)
    }

    fn update(&self, run: &mut RunThere, status: &str, ended_ms: Option<i64>) -> Result<(), TrackError> {
        let mut body = json!({"run_id": run.id, "status": status});
        if let Some(ended_ms) = ended_ms {
            body["end_time"] = json!(ended_ms);
        }
        self.client.post("runs/update", &body)?;
        (run.status, run.ended_ms) = (status.to_owned(), ended_ms);
        Ok(())
    }

    fn create(
        &self,
        experiment: &str,
        study: &TrackedStudy,
        run: &MlflowRun,
        attempt: &str,
    ) -> Result<RunThere, TrackError> {
        let tags = [
            (STUDY, study.mark()),
            (TRIAL, run.number.to_string()),
            (ATTEMPT, attempt.to_owned()),
            ("mlflow.source.name", "peft-tune".to_owned()),
            ("mlflow.user", "peft-tune".to_owned()),
        ];
        let tags: Vec<Value> = tags
            .iter()
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let body = json!({
            "experiment_id": experiment,
            "run_name": format!("trial {}", run.number),
            "start_time": milliseconds(run.started_s),
            "tags": tags,
        });
        let answer = self.client.post("runs/create", &body)?;
        Ok(run_there(&answer["run"]))
    }

    /// What the server has of a study; its experiment is made where it is missing.
    fn look(&self, study: &TrackedStudy) -> Result<There, TrackError> {
        let name = cut(&study.overview.name, PARAM);
        let experiment = match self.client.experiment(&name)? {
            Some(experiment) => text(&experiment["experiment_id"]),
            None => {
                let answer = self.client.post("experiments/create", &json!({"name": name}))?;
                text(&answer["experiment_id"])
            }
        };
        let mut runs = HashMap::new();
        let mut body = json!({
            "experiment_ids": [experiment],
            "filter": format!("tags.`{STUDY}` = '{}'", study.mark()),
            "max_results": PAGE,
        });
        loop {
            let answer = self.client.post("runs/search", &body)?;
            for run in answer["runs"].as_array().into_iter().flatten().map(run_there) {
                if let Some(number) = run.tags.get(TRIAL).and_then(|number| number.parse().ok()) {
                    runs.insert(TrialNumber(number), run);
                }
            }
            match answer["next_page_token"].as_str() {
                Some(token) if !token.is_empty() => body["page_token"] = json!(token),
                _ => return Ok(There { experiment, runs }),
            }
        }
    }
}

impl Tracker for ServerTracker {
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError> {
        let mut there = match self.there.take() {
            Some(there) => there,
            None => self.look(study)?,
        };
        for trial in trials {
            self.bring(&mut there, study, trial)?;
        }
        self.there = Some(there);
        Ok(())
    }

    fn finish(&mut self, study: &TrackedStudy) -> Result<(), TrackError> {
        let Some(mut there) = self.there.take() else {
            return Ok(());
        };
        for (number, run) in &mut there.runs {
            for (key, value) in recommendation_tags(study, *number) {
                self.tag(run, key, value.map(|value| cut(&value, TAG)))?;
            }
        }
        self.there = Some(there);
        Ok(())
    }
}

/// A run as the interface tells it.
fn run_there(run: &Value) -> RunThere {
    let (info, data) = (&run["info"], &run["data"]);
    let entries = |key: &str| data[key].as_array().into_iter().flatten();
    let milliseconds = |value: &Value| value.as_i64().or_else(|| value.as_str()?.parse().ok());
    let metric = |one: &Value| {
        let at_ms = milliseconds(&one["timestamp"]).unwrap_or(0);
        Some((text(&one["key"]), (one["value"].as_f64()?, at_ms)))
    };
    RunThere {
        id: text(&info["run_id"]),
        artifacts: text(&info["artifact_uri"]),
        status: text(&info["status"]),
        ended_ms: milliseconds(&info["end_time"]).filter(|end| *end > 0),
        metrics: entries("metrics").filter_map(metric).collect(),
        params: entries("params").count(),
        tags: entries("tags")
            .map(|tag| (text(&tag["key"]), text(&tag["value"])))
            .collect(),
    }
}

fn metric(one: &MlflowMetric) -> Value {
    json!({
        "key": mlflow_key(&one.name),
        "value": one.value,
        "timestamp": milliseconds(one.at_s),
        "step": one.step,
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn cut(value: &str, characters: usize) -> String {
    value.chars().take(characters).collect()
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
