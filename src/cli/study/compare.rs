//! `peft-tune compare`: two or more trials beside each other, or two profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use serde_json::{Value, json};

use super::stored_profile::stored_profile;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::report::change as share_text;
use crate::report::{Align, TextTable, comparison_text, metric_value, printable};
use crate::store::{StudyOverview, TrialDetail};
use peft_tune_core::objective::Direction;
use peft_tune_core::study::TrialNumber;
use peft_tune_engine::profile::Comparison;

/// Compare trials: the settings in which they differ, and their metrics with the differences in percent
///
/// With --profiles, two stored profiles instead: what got slower and what grew, by phase, op and part of the memory.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Trials to compare, the first with each of the others: NUMBER, or STUDY/NUMBER for a trial of another study
    #[arg(required = true, num_args = 2.., value_name = "TRIAL")]
    trials: Vec<TrialName>,
    /// The numbers are those of two profiles, as `peft-tune profile` stored them: the earlier one first
    #[arg(long, conflicts_with_all = ["study", "all"])]
    profiles: bool,
    /// Study that plain numbers refer to; the latest where absent
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Show the settings that are equal too
    #[arg(long)]
    all: bool,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// A trial as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TrialName {
    study: Option<String>,
    number: TrialNumber,
}

impl FromStr for TrialName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (study, number) = match text.rsplit_once('/') {
            Some((study, number)) => (Some(study.to_owned()), number),
            None => (None, text),
        };
        let number = number
            .parse()
            .map_err(|_| "write a trial's number, or STUDY/NUMBER, such as 12 or quickstart/12".to_owned())?;
        Ok(Self {
            study,
            number: TrialNumber(number),
        })
    }
}

/// A trial with the study that it belongs to.
struct Compared {
    study: StudyOverview,
    detail: TrialDetail,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    if args.profiles {
        return write_result(&compare_profiles(&args)?);
    }
    let mut compared = Vec::with_capacity(args.trials.len());
    args.database.read(async |store| {
        for name in &args.trials {
            let study = name.study.as_deref().or(args.study.as_deref());
            let study = store.studies().find(study).await?;
            let detail = store.trial_details().of(study.id, name.number).await?;
            compared.push(Compared { study, detail });
        }
        Ok(())
    })?;
    let text = if args.json {
        serde_json::to_string_pretty(&to_json(&compared)).map_err(CliError::failed)? + "\n"
    } else {
        to_text(&compared, args.all, terminal_width())
    };
    write_result(&text)
}

/// What changed from the first profile to the second.
fn compare_profiles(args: &Args) -> Result<String, CliError> {
    let [first, second] = args.trials.as_slice() else {
        let message = format!("`--profiles` compares two profiles, not {}", args.trials.len());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    };
    let read = |name: &TrialName| match &name.study {
        None => stored_profile(&args.database, name.number.0.cast_signed()),
        Some(study) => {
            let message = format!("with `--profiles` write a profile's number alone, without `{study}/`");
            Err(CliError::bad_input(anyhow::anyhow!(message)))
        }
    };
    let ((before_name, before), (after_name, after)) = (read(first)?, read(second)?);
    let comparison = Comparison::new(&before, &after);
    Ok(match args.json {
        true => serde_json::to_string_pretty(&comparison).map_err(CliError::failed)? + "\n",
        false => comparison_text(&comparison, &before_name, &after_name, terminal_width()),
    })
}

/// Every setting of a trial by its dotted name: the recipe's, or the params where there is no recipe.
fn settings(compared: &Compared) -> BTreeMap<String, Value> {
    let mut settings = BTreeMap::new();
    match &compared.detail.recipe {
        Some(recipe) => flatten("", recipe, &mut settings),
        None => {
            for (name, value) in &compared.detail.trial.params {
                settings.insert(name.clone(), json!(value));
            }
        }
    }
    settings
}

fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let name = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                flatten(&name, value, into);
            }
        }
        value => {
            into.insert(prefix.to_owned(), value.clone());
        }
    }
}

fn metrics(compared: &Compared) -> BTreeMap<String, f64> {
    let metrics = compared.detail.trial.state.metrics();
    metrics
        .into_iter()
        .flat_map(|metrics| metrics.iter())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The change from `from` to `to` in percent; `None` where it starts from zero.
fn percent(from: f64, to: f64) -> Option<f64> {
    let change = 100.0 * (to - from) / from.abs();
    change.is_finite().then_some(change)
}

fn to_text(compared: &[Compared], all: bool, width: Option<usize>) -> String {
    let is_one_study = compared.iter().all(|trial| trial.study.id == compared[0].study.id);
    let name = |trial: &Compared| match is_one_study {
        true => format!("trial {}", trial.detail.trial.number),
        false => format!("{}/{}", trial.study.name, trial.detail.trial.number),
    };
    let columns = || compared.iter().map(name);
    let mut text = String::new();
    if is_one_study {
        text.push_str(&format!("study {}\n\n", printable(&compared[0].study.name)));
    }
    let outcomes = compared.iter().map(|trial| trial.detail.trial.state.name().to_owned());
    let mut table = table("", columns());
    table.push(std::iter::once("state".to_owned()).chain(outcomes));
    add_settings(&mut table, compared, all);
    text.push_str(&table.to_text(width));
    text.push_str("\n\n");
    text.push_str(&metric_table(compared, columns()).to_text(width));
    text.push('\n');
    text
}

fn table(first: &str, columns: impl Iterator<Item = String>) -> TextTable {
    let columns = columns.map(|name| (name, Align::Left));
    TextTable::new([(first.to_owned(), Align::Left)].into_iter().chain(columns))
}

fn add_settings(table: &mut TextTable, compared: &[Compared], all: bool) {
    let settings: Vec<_> = compared.iter().map(settings).collect();
    let names: BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    for name in names {
        let values: Vec<Option<&Value>> = settings.iter().map(|settings| settings.get(name)).collect();
        if !all && values.iter().all(|value| value == &values[0]) {
            continue;
        }
        let cells = values.iter().map(|value| match value {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        });
        table.push(std::iter::once(name.clone()).chain(cells));
    }
}

fn metric_table(compared: &[Compared], columns: impl Iterator<Item = String>) -> TextTable {
    let mut headings = vec![("metric".to_owned(), Align::Left)];
    for (index, name) in columns.enumerate() {
        headings.push((name, Align::Right));
        if index > 0 {
            headings.push(("difference".to_owned(), Align::Right));
        }
    }
    let mut table = TextTable::new(headings);
    let metrics: Vec<_> = compared.iter().map(metrics).collect();
    for name in metric_names(compared, &metrics) {
        let mut cells = vec![name.clone()];
        for (index, of) in metrics.iter().enumerate() {
            let value = of.get(&name).copied();
            cells.push(value.map_or_else(|| "-".to_owned(), |value| metric_value(&name, value)));
            if index > 0 {
                cells.push(difference(
                    &compared[0].study,
                    &name,
                    metrics[0].get(&name).copied(),
                    value,
                ));
            }
        }
        table.push(cells);
    }
    table
}

/// Objectives first, in their order; the others by name.
fn metric_names(compared: &[Compared], metrics: &[BTreeMap<String, f64>]) -> Vec<String> {
    let mut names: Vec<String> = compared[0]
        .study
        .objectives
        .iter()
        .map(|objective| objective.metric.clone())
        .collect();
    let all: BTreeSet<&String> = metrics.iter().flat_map(BTreeMap::keys).collect();
    let others: Vec<String> = all.into_iter().filter(|name| !names.contains(name)).cloned().collect();
    names.extend(others);
    names
}

/// `+12.3% better`: whether it is better is said of objectives only.
fn difference(study: &StudyOverview, name: &str, from: Option<f64>, to: Option<f64>) -> String {
    let Some(change) = from.zip(to).and_then(|(from, to)| percent(from, to)) else {
        return "-".to_owned();
    };
    let objective = study.objectives.iter().find(|objective| objective.metric == name);
    let verdict = match objective.map(|objective| objective.direction) {
        Some(Direction::Maximize) if change > 0.0 => " better",
        Some(Direction::Minimize) if change < 0.0 => " better",
        Some(_) if change != 0.0 => " worse",
        _ => "",
    };
    format!("{}{verdict}", share_text(change / 100.0))
}

fn to_json(compared: &[Compared]) -> Value {
    let trials: Vec<Value> = compared
        .iter()
        .map(|trial| {
            json!({
                "study": trial.study.name,
                "trial": trial.detail.trial.number,
                "state": trial.detail.trial.state.name(),
                "settings": settings(trial),
                "metrics": metrics(trial),
            })
        })
        .collect();
    let first = metrics(&compared[0]);
    let differences: Vec<Value> = compared[1..]
        .iter()
        .map(|trial| {
            let changes: BTreeMap<String, f64> = metrics(trial)
                .into_iter()
                .filter_map(|(name, value)| Some((name.clone(), percent(*first.get(&name)?, value)?)))
                .collect();
            json!(changes)
        })
        .collect();
    json!({"trials": trials, "difference_percent": differences})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ProfileRecord;

    #[test]
    fn trials_are_named_by_number_or_with_their_study() {
        let name = |text: &str| text.parse::<TrialName>();
        assert_eq!(name("12").unwrap().study, None);
        let other = name("my/study/3").unwrap();
        assert_eq!((other.study.as_deref(), other.number.0), (Some("my/study"), 3));
        assert!(name("a").is_err() && name("-1").is_err() && name("a/b").is_err());
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(path: &std::path::Path, rest: &[&str]) -> Args {
        let line = ["compare", "--db", path.to_str().unwrap()];
        <Line as clap::Parser>::parse_from(line.iter().chain(rest)).args
    }

    #[test]
    fn two_stored_profiles_say_what_got_slower_and_what_grew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let args = parsed(&path, &["--profiles", "1", "2"]);
        let mut before = peft_tune_engine::profile::fixtures::sound_profile();
        before.memory.parts.push(peft_tune_engine::profile::MemoryPart {
            part: "scratch".to_owned(),
            bytes: 1 << 20,
        });
        let mut after = before.clone();
        after.ops[1].seconds *= 2.0;
        after.memory.parts[0].bytes += 1 << 20;
        args.database
            .create_or_write(async |store| {
                for profile in [&before, &after] {
                    let record = ProfileRecord {
                        name: "recipe.yaml".to_owned(),
                        recipe: json!({}),
                        document: json!({"profile": profile, "diagnosis": []}),
                        ..ProfileRecord::default()
                    };
                    store.profiles().record(&record).await?;
                }
                Ok(())
            })
            .unwrap();
        let text = compare_profiles(&args).unwrap();
        assert!(
            text.starts_with("profile 1 (recipe.yaml) against profile 2 (recipe.yaml)"),
            "{text}"
        );
        assert!(
            text.contains("slower: backward matmul_nn") && text.contains("grown: "),
            "{text}"
        );
        let json = compare_profiles(&parsed(&path, &["--profiles", "--json", "1", "2"])).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["ops"][0]["name"], "backward matmul_nn");
        for (rest, told) in [
            (&["--profiles", "1", "9"][..], "no profile 9"),
            (&["--profiles", "1", "2", "2"], "two profiles, not 3"),
            (&["--profiles", "1", "a/2"], "without `a/`"),
        ] {
            let error = compare_profiles(&parsed(&path, rest)).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_change_from_nothing_has_no_percentage() {
        assert_eq!(percent(0.0, 1.0), None);
        assert_eq!(percent(-2.0, -1.0), Some(50.0));
    }
}
