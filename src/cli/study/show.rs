//! `peft-tune show`: a study with its trials, or one trial in depth.

use std::fmt::Write;

use super::costs::{PriceArgs, costs_of};
use super::studies::study_json;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::report::{
    Align, Counts, StudyCosts, TextTable, duration, loss_rows_text, metric_heading, metric_value, minute, param_value,
    printable, target_note, trial_detail_json, trial_detail_text,
};
use crate::store::{EndingRecord, StudyOverview, Variants};
use peft_tune_core::objective::{Bound, Direction, TARGET_SHORTFALL, measured_of};
use peft_tune_core::study::{Trial, TrialNumber, TrialState, disturbed};
use peft_tune_search::hypervolume_history;

/// Show a study with its trials, or one trial in depth
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent; or the number of a trial of the latest study
    study: Option<String>,
    /// Number of a trial of that study, to show in depth: params, metrics, phases, evaluations, recipe
    #[arg(value_name = "TRIAL")]
    number: Option<u64>,
    /// Number of a trial to show in depth, as an option: the study may be left out then
    #[arg(long, value_name = "NUMBER", conflicts_with = "number")]
    trial: Option<u64>,
    /// Show only the last N trials
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["trial", "number"])]
    last: Option<usize>,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    price: PriceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let args = with_trial(args)?;
    let text = match args.trial {
        Some(number) => show_trial(&args, TrialNumber(number))?,
        None => show_study(&args)?,
    };
    write_result(&text)
}

/// Finds out which trial is meant: `show 12` means one unless a study is called so.
fn with_trial(mut args: Args) -> Result<Args, CliError> {
    if args.number.is_some() {
        args.trial = args.number;
        return Ok(args);
    }
    let number = args.study.as_ref().and_then(|name| name.parse::<u64>().ok());
    let (Some(number), None) = (number, args.trial) else {
        return Ok(args);
    };
    let studies = args.database.read(async |store| store.studies().all().await)?;
    if studies.iter().all(|study| Some(&study.name) != args.study.as_ref()) {
        if args.last.is_some() {
            return Err(CliError::bad(format!(
                "{number} is a trial of the latest study, and `--last` is for the trials of a study: leave it out"
            )));
        }
        args.study = None;
        args.trial = Some(number);
    }
    Ok(args)
}

fn show_study(args: &Args) -> Result<String, CliError> {
    let (study, trials, variants, ending, costs) = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let trials = store.history().confirmed_trials(study.id).await?.0;
        let ending = store.searches().last_ending(study.id).await?;
        let variants = store.inheritance().variants(study.id).await?;
        let costs = costs_of(store, &study, &trials, args.price.price).await?;
        Ok((study, trials, variants, ending, costs))
    })?;
    let volumes = hypervolume_history(&study.problem(None), &trials);
    let first = args.last.map_or(0, |last| trials.len().saturating_sub(last));
    if args.json {
        let mut shown = study_json(&study);
        shown["trials"] = serde_json::to_value(&trials[first..]).map_err(CliError::failed)?;
        shown["hypervolume"] = serde_json::to_value(&volumes[first..]).map_err(CliError::failed)?;
        shown["variant_of"] = serde_json::to_value(&variants).map_err(CliError::failed)?;
        shown["costs"] = serde_json::to_value(&costs).map_err(CliError::failed)?;
        shown["ending"] = serde_json::to_value(&ending).map_err(CliError::failed)?;
        return Ok(serde_json::to_string_pretty(&shown).map_err(CliError::failed)? + "\n");
    }
    let counts = Counts::of(&trials).with_variants(&trials, &variants);
    let mut text = heading(&study, &counts, costs.as_ref());
    text.push_str(&standing(&volumes, ending.as_ref()));
    if !trials.is_empty() {
        text.push('\n');
        text.push_str(&trial_table(&study, &trials[first..], &variants).to_text(terminal_width()));
        text.push('\n');
    }
    Ok(text)
}

fn show_trial(args: &Args, number: TrialNumber) -> Result<String, CliError> {
    let (study, detail) = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let detail = store.trial_details().of(study.id, number).await?;
        Ok((study, detail))
    })?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&trial_detail_json(&study, &detail)).map_err(CliError::failed)? + "\n");
    }
    let recipe = serde_saphyr::to_string(&detail.recipe).map_err(CliError::failed)?;
    Ok(trial_detail_text(&study, &detail, &recipe, terminal_width()))
}

/// The facts about a study, a line each.
fn heading(study: &StudyOverview, counts: &Counts, costs: Option<&StudyCosts>) -> String {
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
        ("target", study.target.map(target_note).unwrap_or_default()),
        (
            "began",
            format!("{} UTC{}", minute(&study.created_at), resumed.unwrap_or_default()),
        ),
        ("trials", format!("{} in {}", counts.to_text(), duration(study.wall_s))),
        ("cost", costs.map(StudyCosts::search_text).unwrap_or_default()),
    ];
    let mut text = format!("study {}\n", printable(&study.name));
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<12}{}", printable(value));
    }
    text
}

/// How far the study came, and why it ended.
fn standing(volumes: &[f64], ending: Option<&EndingRecord>) -> String {
    let mut text = String::new();
    let now = volumes.last().copied().unwrap_or(0.0);
    if now > 0.0 {
        let mut marks = [4, 2].map(|part| (volumes.len() / part).max(1)).to_vec();
        marks.dedup();
        let parts = marks
            .into_iter()
            .map(|mark| format!(", {:.1}% of it after {mark}", 100.0 * volumes[mark - 1] / now));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<12}{now:.4e}{}", "hypervolume", parts.collect::<String>());
    }
    if let Some(ending) = ending {
        let _ = writeln!(text, "  {:<12}{}", "ended", printable(&ending.reason));
    }
    text
}

/// The objectives, each prediction of another stack with what was measured here.
fn shown_metrics(study: &StudyOverview) -> Vec<(&str, String)> {
    let names = study.objectives.iter().flat_map(|objective| {
        let metric = objective.metric.as_str();
        let here = measured_of(metric).map(|own| (own, format!("{} here", metric_heading(own))));
        std::iter::once((metric, metric_heading(metric))).chain(here)
    });
    names.collect()
}

fn trial_table(study: &StudyOverview, trials: &[Trial], variants: &Variants) -> TextTable {
    let mut names: Vec<&String> = trials.iter().flat_map(|trial| trial.params.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut columns = vec![("trial".to_owned(), Align::Right), ("state".to_owned(), Align::Left)];
    let metrics = shown_metrics(study);
    columns.extend(metrics.iter().map(|(_, heading)| (heading.clone(), Align::Right)));
    columns.extend(names.iter().map(|name| ((*name).clone(), Align::Left)));
    let mut table = TextTable::new(columns);
    for trial in trials {
        let mut cells = vec![trial.number.to_string(), outcome_text(trial, variants)];
        cells.extend(metrics.iter().map(|(metric, _)| {
            let value = trial.state.metrics().and_then(|metrics| metrics.value(metric));
            value.map_or_else(|| "-".to_owned(), |value| metric_value(metric, value))
        }));
        cells.extend(names.iter().map(|name| {
            let value = trial.params.get(name);
            value.map_or_else(|| "-".to_owned(), param_value)
        }));
        table.push(cells);
    }
    table
}

/// How a trial ended, whose variant it is, where it is one, and whether its loss rests on a part of the rows.
fn outcome_text(trial: &Trial, variants: &Variants) -> String {
    let variant = variants.get(&trial.number);
    let variant = variant.map(|training| format!("variant of {training}"));
    let rows = trial.state.metrics().and_then(loss_rows_text);
    let all = [Some(state_text(&trial.state)), variant, rows];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// How a trial ended, in few words.
fn state_text(state: &TrialState) -> String {
    match state {
        TrialState::Failed { reason, .. } => reason.name().to_owned(),
        TrialState::Complete { metrics } if disturbed(metrics).is_some() => "complete, disturbed".to_owned(),
        TrialState::Complete { metrics } if metrics.value(TARGET_SHORTFALL).is_some() => {
            "complete, may not fit the target".to_owned()
        }
        TrialState::Pruned { at_step, rule, .. } => format!("pruned at step {at_step} ({rule})"),
        other => other.name().to_owned(),
    }
}
