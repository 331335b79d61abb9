//! What `export` is asked for: the options, and how to choose among trials.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{ArgGroup, ValueEnum};

use super::installed::CheckArgs;
use super::receipt_args::ReceiptArgs;
use crate::cli::options::database::DatabaseArgs;
use crate::export::ExportFormat;
use crate::space::Bytes;
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT};

/// Write a trial's settings as a config file of a training tool, or a whole study for other tools
///
/// Without --trial or --front it is the recommended trial. What a tool cannot express is named in a warning, and in the file.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("asked_tool").args(["check", "receipt"]).multiple(true))]
pub(in crate::cli) struct Args {
    /// Tool to write for.
    #[arg(long, value_enum)]
    pub format: Format,
    /// Study to take the trial from; the latest one if absent.
    #[arg(long)]
    pub study: Option<String>,
    /// Trial to export; the recommended one if absent.
    #[arg(long, conflicts_with_all = ["prefer", "max_memory", "max_loss_increase", "weights"])]
    pub trial: Option<u64>,
    /// Export every trial of the front, each into a folder of its own.
    #[arg(long, conflicts_with_all = ["trial", "prefer", "max_memory", "max_loss_increase", "weights"])]
    pub front: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Directory to write into; created if missing.
    #[arg(long)]
    pub output: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    pub force: bool,
    /// The device that the tool will run on, such as `A100 40GB`: a setting that does not fit there gets a smaller micro-batch
    /// and as much more accumulation. The study's `target_device` where absent and the tool is the study's `target_stack`.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Refuse a setting that does not fit the device, instead of changing its micro-batch.
    #[arg(long)]
    pub strict: bool,
    /// Leave the rows as they are, also where the tool reads them otherwise than the trials did; that is told then.
    #[arg(long)]
    pub no_data: bool,
    #[command(flatten)]
    pub(super) check: CheckArgs,
    #[command(flatten)]
    pub(super) receipt: ReceiptArgs,
    #[command(flatten)]
    pub(super) rule: RuleArgs,
}

/// How to choose among the trials of the front, instead of the fastest with a loss at most 1% above the best.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct RuleArgs {
    /// Take the best trial in this objective, or the knee: where giving up a little of one objective no longer buys much of
    /// another.
    #[arg(long, value_enum)]
    pub prefer: Option<Preference>,
    /// Consider only trials with at most this peak memory, such as 16GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_memory: Option<u64>,
    /// Consider only trials whose loss is at most this much above the best, such as 1%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    pub max_loss_increase: Option<f64>,
    /// Weigh the objectives, such as throughput=1,loss=2; those not named weigh nothing.
    #[arg(long, value_name = "NAME=WEIGHT,..", value_parser = parse_weights, conflicts_with = "prefer")]
    pub weights: Option<Weights>,
}

/// What to write: the file of a tool, or a whole study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Format {
    Trial(ExportFormat),
    Study(StudyFormat),
}

/// A form of a whole study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum StudyFormat {
    /// The whole study: optuna.db, which optuna and optuna-dashboard open.
    Optuna,
    /// The whole study: trials.csv, evaluations.csv and steps.csv.
    Csv,
    /// The whole study: trials.parquet, evaluations.parquet and steps.parquet.
    Parquet,
    /// The whole study: an event file for each trial, with the table of TensorBoard's HParams tab.
    Tensorboard,
    /// The whole study: an MLflow file store with a run for each trial.
    Mlflow,
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Format>> = LazyLock::new(|| {
            let tools = ExportFormat::all().map(Format::Trial);
            let studies = StudyFormat::value_variants().iter().copied().map(Format::Study);
            tools.chain(studies).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Trial(format) => Some(PossibleValue::new(format.name()).help(format.about())),
            Self::Study(format) => format.to_possible_value(),
        }
    }
}

/// An objective to put first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Preference {
    Throughput,
    Memory,
    Loss,
    Knee,
}

impl Preference {
    /// The metric of that objective; none is the knee.
    pub(super) fn metric(self) -> Option<&'static str> {
        match self {
            Self::Throughput => Some(THROUGHPUT),
            Self::Memory => Some(PEAK_MEMORY),
            Self::Loss => Some(LOSS),
            Self::Knee => None,
        }
    }
}

/// Weights by metric, each above zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Weights(pub BTreeMap<String, f64>);

fn parse_bytes(text: &str) -> Result<u64, String> {
    text.parse::<Bytes>()
        .map(|bytes| bytes.0)
        .map_err(|error| error.to_string())
}

/// `1%` or `0.01`, as a share of 1.
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value / unit),
        _ => Err("write a percentage, 0% or more, such as 1%".into()),
    }
}

/// `throughput=1,loss=2`. `memory` is short for `peak_memory`.
fn parse_weights(text: &str) -> Result<Weights, String> {
    let mut weights = BTreeMap::new();
    for part in text.split(',') {
        let weight = part.split_once('=').and_then(|(name, weight)| {
            let weight: f64 = weight.trim().parse().ok()?;
            let name = match name.trim() {
                "memory" => PEAK_MEMORY,
                name => name,
            };
            (!name.is_empty() && weight.is_finite() && weight > 0.0).then_some((name.to_owned(), weight))
        });
        let Some((name, weight)) = weight else {
            return Err(format!(
                "`{part}` is not NAME=WEIGHT with a weight above 0, such as throughput=1"
            ));
        };
        if weights.insert(name.clone(), weight).is_some() {
            return Err(format!("`{name}` appears twice; remove one"));
        }
    }
    Ok(Weights(weights))
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    /// The options of a command line.
    pub(in crate::cli::export) fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("export").chain(line.split_whitespace());
        Program::try_parse_from(words)
            .map(|program| program.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_read_with_their_units() {
        let line =
            "--format trl --output out --max-memory 16GiB --max-loss-increase 1% --weights throughput=1,memory=.5";
        let rule = parse(line).unwrap().rule;
        assert_eq!(rule.max_memory, Some(16 << 30));
        assert_eq!(rule.max_loss_increase, Some(0.01));
        let weights = rule.weights.unwrap().0;
        assert_eq!((weights["throughput"], weights["peak_memory"]), (1.0, 0.5));
        assert_eq!(rule.prefer, None);
    }

    #[test]
    fn a_rule_beside_a_trial_and_wrong_values_are_refused() {
        for wrong in [
            "--trial 3 --prefer loss",
            "--weights throughput",
            "--weights loss=-1",
            "--weights loss=1,loss=2",
            "--weights loss=1 --prefer loss",
            "--max-memory 16G",
            "--max-loss-increase some",
            "--prefer speed",
            "--python python3",
            "--accept",
            "--check --receipt-within 1m",
        ] {
            assert!(parse(&format!("--format trl --output out {wrong}")).is_err(), "{wrong}");
        }
        assert!(parse("--format gguf --output out").is_err());
        for asked in ["--check", "--receipt --accept", "--check --receipt"] {
            assert!(
                parse(&format!("--format trl --output out --python python3 {asked}")).is_ok(),
                "{asked}"
            );
        }
    }
}
