//! An event file for each trial.

use std::io;
use std::path::PathBuf;

use super::Args;
use super::study::WholeStudy;
use crate::cli::CliError;
use crate::cli::output::tell;
use crate::store::{StepRecord, TrialRun};
use peft_tune_core::study::{ParamValue, Phase, TrialState};
use peft_tune_engine::profile::{HparamValue, TrialLog, TrialStart};

/// Writes `trial-N/events...` for each trial that has started, and returns the folders.
pub(super) fn write(args: &Args, study: &WholeStudy) -> Result<Vec<PathBuf>, CliError> {
    let folder_of = |run: &TrialRun| args.output.join(format!("trial-{:04}", run.trial.number.0));
    let began = |run: &TrialRun| !matches!(run.trial.state, TrialState::Waiting);
    let runs = || study.runs.iter().zip(&study.steps).filter(|(run, _)| began(run));
    if let Some((run, _)) = runs().find(|(run, _)| !args.force && folder_of(run).exists()) {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{} already exists; choose another --output, or overwrite it with --force",
            folder_of(run).display()
        )));
    }
    let tags: Vec<String> = study
        .overview
        .objectives
        .iter()
        .map(|objective| metric_tag(&objective.metric))
        .collect();
    let mut folders = Vec::new();
    for (run, steps) in runs() {
        let folder = folder_of(run);
        write_trial(&folder, run, steps, &tags)
            .map_err(|error| CliError::failed(anyhow::anyhow!("cannot write in {}: {error}", folder.display())))?;
        folders.push(folder);
    }
    tell(format_args!("tensorboard --logdir {}", args.output.display()));
    Ok(folders)
}

fn metric_tag(metric: &str) -> String {
    format!("metric/{metric}")
}

fn write_trial(folder: &std::path::Path, run: &TrialRun, steps: &[StepRecord], tags: &[String]) -> io::Result<()> {
    let name = format!("trial {}", run.trial.number);
    let params: Vec<(&str, HparamValue)> = run
        .trial
        .params
        .iter()
        .map(|(name, value)| (name.as_str(), hparam(value)))
        .collect();
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let start = TrialStart {
        name: &name,
        at_s: run.started_s,
        params: &params,
        metrics: &tags,
    };
    let mut log = TrialLog::create(folder, &start)?;
    let mut at_s = run.started_s;
    for step in steps {
        at_s += if step.total_s.is_finite() { step.total_s } else { 0.0 };
        let phase = if step.phase == Phase::Profile {
            "profile"
        } else {
            "train"
        };
        let speed = step.tokens as f64 / step.total_s;
        let names =
            ["loss", "learning_rate", "grad_norm", "tokens_per_s", "step_s"].map(|name| format!("{phase}/{name}"));
        let values = [step.loss, step.learning_rate, step.grad_norm, speed, step.total_s];
        let scalars: Vec<(&str, f64)> = names.iter().map(String::as_str).zip(values).collect();
        log.scalars(at_s, step.step, &scalars)?;
    }
    let end_s = run.ended_s.unwrap_or(at_s);
    for evaluation in &run.evaluations {
        let scalars = [
            ("held_out/loss", evaluation.loss),
            ("held_out/accuracy", evaluation.accuracy),
        ];
        log.scalars(end_s, evaluation.step, &scalars)?;
    }
    let measured = run.trial.state.metrics().into_iter().flat_map(|metrics| metrics.iter());
    for (name, value) in measured {
        log.scalars(end_s, 0, &[(&metric_tag(name), value)])?;
    }
    log.finish(end_s, matches!(run.trial.state, TrialState::Complete { .. }))
}

fn hparam(value: &ParamValue) -> HparamValue {
    match value {
        ParamValue::Bool(value) => HparamValue::Bool(*value),
        ParamValue::Int(value) => HparamValue::Number(*value as f64),
        ParamValue::Float(value) => HparamValue::Number(*value),
        ParamValue::Text(_) | ParamValue::List(_) => HparamValue::Text(value.to_string()),
    }
}
