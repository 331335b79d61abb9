//! `peft-tune show`: a study with its trials, or one trial in depth.

use std::fmt::Write;

use serde_json::json;

use super::CliError;
use super::database::DatabaseArgs;
use super::output::{terminal_width, write_result};
use super::studies::{minute, study_json};
use crate::objective::{Bound, Direction};
use crate::report::{Align, Counts, TextTable, duration, metric_heading, metric_value, param_value, printable};
use crate::store::{StudyOverview, TrialDetail};
use crate::study::{FailReason, Trial, TrialNumber, TrialState};

/// Show a study with its trials, or one trial in depth
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// Show this trial in depth: params, metrics, phases, evaluations, recipe
    #[arg(long, value_name = "NUMBER")]
    trial: Option<u64>,
    /// Show only the last so many trials
    #[arg(long, value_name = "COUNT", conflicts_with = "trial")]
    last: Option<usize>,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub fn run(args: Args) -> Result<(), CliError> {
    let text = match args.trial {
        Some(number) => show_trial(&args, TrialNumber(number))?,
        None => show_study(&args)?,
    };
    write_result(&text)
}

fn show_study(args: &Args) -> Result<String, CliError> {
    let (study, trials) = args.database.read(async |store| {
        let study = store.study(args.study.as_deref()).await?;
        let trials = store.trials(study.id).await?;
        Ok((study, trials))
    })?;
    let first = args.last.map_or(0, |last| trials.len().saturating_sub(last));
    if args.json {
        let mut shown = study_json(&study);
        shown["trials"] = serde_json::to_value(&trials[first..]).map_err(CliError::failed)?;
        return Ok(serde_json::to_string_pretty(&shown).map_err(CliError::failed)? + "\n");
    }
    let mut text = heading(&study, &Counts::of(&trials));
    if !trials.is_empty() {
        text.push('\n');
        text.push_str(&trial_table(&study, &trials[first..]).to_text(terminal_width()));
        text.push('\n');
    }
    Ok(text)
}

fn show_trial(args: &Args, number: TrialNumber) -> Result<String, CliError> {
    let (study, detail) = args.database.read(async |store| {
        let study = store.study(args.study.as_deref()).await?;
        let detail = store.trial(study.id, number).await?;
        Ok((study, detail))
    })?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&detail_json(&study, &detail)).map_err(CliError::failed)? + "\n");
    }
    let recipe = serde_saphyr::to_string(&detail.recipe).map_err(CliError::failed)?;
    Ok(detail_text(&study, &detail, &recipe, terminal_width()))
}

/// The facts about a study, a line each.
fn heading(study: &StudyOverview, counts: &Counts) -> String {
    let objectives: Vec<String> = study
        .objectives
        .iter()
        .map(|objective| match objective.direction {
            Direction::Minimize => format!("{} (minimize)", objective.metric),
            Direction::Maximize => format!("{} (maximize)", objective.metric),
        })
        .collect();
    let constraints: Vec<String> = study
        .constraints
        .iter()
        .map(|constraint| match constraint.bound {
            Bound::AtMost(limit) => format!("{} <= {}", constraint.metric, metric_value(&constraint.metric, limit)),
            Bound::AtLeast(limit) => format!("{} >= {}", constraint.metric, metric_value(&constraint.metric, limit)),
        })
        .collect();
    let resumed = study
        .resumed_at
        .as_deref()
        .map(|time| format!(", resumed {}", minute(time)));
    let lines = [
        ("space", study.space_path.display().to_string()),
        ("model", study.model.clone().unwrap_or_default()),
        ("sampler", format!("{}, seed {}", study.sampler, study.seed)),
        ("objectives", objectives.join(", ")),
        ("constraints", constraints.join(", ")),
        (
            "began",
            format!("{} UTC{}", minute(&study.created_at), resumed.unwrap_or_default()),
        ),
        ("trials", format!("{} in {}", counts.to_text(), duration(study.wall_s))),
    ];
    let mut text = format!("study {}\n", printable(&study.name));
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<12}{}", printable(value));
    }
    text
}

fn trial_table(study: &StudyOverview, trials: &[Trial]) -> TextTable {
    let mut names: Vec<&String> = trials.iter().flat_map(|trial| trial.params.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut columns = vec![("trial".to_owned(), Align::Right), ("state".to_owned(), Align::Left)];
    let objectives = study
        .objectives
        .iter()
        .map(|objective| metric_heading(&objective.metric));
    columns.extend(objectives.map(|heading| (heading, Align::Right)));
    columns.extend(names.iter().map(|name| ((*name).clone(), Align::Left)));
    let mut table = TextTable::new(columns);
    for trial in trials {
        let mut cells = vec![trial.number.to_string(), state_text(&trial.state)];
        cells.extend(study.objectives.iter().map(|objective| {
            let value = trial
                .state
                .metrics()
                .and_then(|metrics| metrics.value(&objective.metric));
            value.map_or_else(|| "-".to_owned(), |value| metric_value(&objective.metric, value))
        }));
        cells.extend(names.iter().map(|name| {
            let value = trial.params.get(*name);
            value.map_or_else(|| "-".to_owned(), param_value)
        }));
        table.push(cells);
    }
    table
}

/// How a trial ended, in few words.
fn state_text(state: &TrialState) -> String {
    match state {
        TrialState::Failed { reason, .. } => reason.name().to_owned(),
        TrialState::Pruned { at_step, rule, .. } => format!("pruned at step {at_step} ({rule})"),
        other => other.name().to_owned(),
    }
}

/// Why a trial ended early, in a sentence.
fn reason_text(state: &TrialState) -> Option<String> {
    let optional =
        |value: &Option<u64>| value.map_or_else(|| "unknown".to_owned(), |value| crate::report::bytes(value as f64));
    Some(match state {
        TrialState::Pruned { at_step, rule, .. } => format!("stopped after step {at_step} by {rule}"),
        TrialState::Skipped { reason } => reason.clone(),
        TrialState::Failed { reason, .. } => match reason {
            FailReason::OutOfMemory {
                phase,
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            } => format!(
                "out of memory in phase {}: {} in use, {} asked for, limit {}",
                phase.name(),
                optional(in_use_bytes),
                optional(requested_bytes),
                optional(limit_bytes)
            ),
            FailReason::Diverged { at_step, loss } => match loss {
                Some(loss) => format!("diverged at step {at_step}, last loss {loss:.4}"),
                None => format!("diverged at step {at_step}"),
            },
            FailReason::Crashed { phase, message } => format!("crashed in phase {}: {message}", phase.name()),
            FailReason::TimedOut { phase, after_s } => {
                format!("timed out in phase {} after {}", phase.name(), duration(*after_s))
            }
            FailReason::Invalid { message } => format!("invalid: {message}"),
        },
        TrialState::Waiting | TrialState::Running | TrialState::Complete { .. } => return None,
    })
}

fn detail_text(study: &StudyOverview, detail: &TrialDetail, recipe: &str, width: Option<usize>) -> String {
    let trial = &detail.trial;
    let mut text = format!(
        "trial {} of study {}: {}",
        trial.number,
        printable(&study.name),
        trial.state.name()
    );
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if detail.attempt > 1 {
        add(format!(", attempt {}", detail.attempt));
    } else {
        add(String::new());
    }
    if let Some(reason) = reason_text(&trial.state) {
        add(format!("  {}", printable(&reason)));
    }
    let ended = detail
        .ended_at
        .as_deref()
        .map(|time| format!(", ended {}", minute(time)));
    let took = detail.wall_s.map(|seconds| format!(", took {}", duration(seconds)));
    add(format!(
        "  started {} UTC{}{}",
        minute(&detail.started_at),
        ended.unwrap_or_default(),
        took.unwrap_or_default()
    ));
    let params: Vec<(String, String)> = trial
        .params
        .iter()
        .map(|(name, value)| (name.clone(), value.to_string()))
        .collect();
    let metrics: Vec<(String, String)> = trial
        .state
        .metrics()
        .into_iter()
        .flat_map(|metrics| metrics.iter())
        .map(|(name, value)| (name.to_owned(), metric_value(name, value)))
        .collect();
    for (title, values) in [("params", params), ("metrics", metrics)] {
        if !values.is_empty() {
            add(format!("\n{title}\n{}", aligned(&values)));
        }
    }
    if !detail.phases.is_empty() {
        add(format!("\nsteps\n{}", phase_table(detail).to_text(width)));
    }
    if !detail.evaluations.is_empty() {
        add(format!("\nevaluations\n{}", evaluation_table(detail).to_text(width)));
    }
    add(format!("\nrecipe\n{}", recipe.trim_end()));
    text
}

/// Names and values in two columns.
fn aligned(values: &[(String, String)]) -> String {
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = values
        .iter()
        .map(|(name, value)| format!("  {:<width$}  {}", printable(name), printable(value)))
        .collect();
    lines.join("\n")
}

fn phase_table(detail: &TrialDetail) -> TextTable {
    let headings = [
        "steps",
        "tokens",
        "first loss",
        "last loss",
        "seconds",
        "data",
        "forward",
        "backward",
        "optimizer",
    ];
    let columns = headings.map(|heading| (heading.to_owned(), Align::Right));
    let mut table = TextTable::new([("phase".to_owned(), Align::Left)].into_iter().chain(columns));
    let loss = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    for phase in &detail.phases {
        let seconds = [
            phase.total_s,
            phase.data_s,
            phase.forward_s,
            phase.backward_s,
            phase.optimizer_s,
        ];
        let mut cells = vec![
            phase.phase.clone(),
            phase.steps.to_string(),
            phase.tokens.to_string(),
            loss(phase.first_loss),
            loss(phase.last_loss),
        ];
        cells.extend(seconds.map(|seconds| format!("{seconds:.2}")));
        table.push(cells);
    }
    table
}

fn evaluation_table(detail: &TrialDetail) -> TextTable {
    let headings = ["step", "tokens", "loss", "accuracy", "seconds"];
    let mut table = TextTable::new(headings.map(|heading| (heading.to_owned(), Align::Right)));
    for evaluation in &detail.evaluations {
        table.push([
            evaluation.step.to_string(),
            evaluation.tokens.to_string(),
            format!("{:.4}", evaluation.loss),
            format!("{:.1}%", 100.0 * evaluation.accuracy),
            format!("{:.2}", evaluation.seconds),
        ]);
    }
    table
}

fn detail_json(study: &StudyOverview, detail: &TrialDetail) -> serde_json::Value {
    let evaluations: Vec<serde_json::Value> = detail
        .evaluations
        .iter()
        .map(|evaluation| {
            json!({
                "step": evaluation.step,
                "tokens": evaluation.tokens,
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
                "target_tokens": evaluation.target_tokens,
                "seconds": evaluation.seconds,
            })
        })
        .collect();
    json!({
        "study": study.name,
        "trial": detail.trial.number,
        "state": detail.trial.state,
        "attempt": detail.attempt,
        "phase": detail.phase,
        "started_at": detail.started_at,
        "ended_at": detail.ended_at,
        "wall_s": detail.wall_s,
        "params": detail.trial.params,
        "phases": detail.phases,
        "evaluations": evaluations,
        "recipe": detail.recipe,
    })
}
