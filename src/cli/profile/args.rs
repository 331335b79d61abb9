//! Options of `peft-tune profile`.

use std::path::PathBuf;

use super::bench::BenchSettings;
use super::source::{ProfileSource, SourceArgs};
use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::count::counts;
use crate::cli::options::database::DatabaseArgs;
use crate::space::{Bytes, Seconds};

/// Throughput that a profile is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReferenceRate {
    TokensPerS(f64),
    /// The nearest published rate.
    Published,
}

/// Options that say what to measure and how: with a trace nothing is.
const MEASURES: [&str; 13] = [
    "recipe",
    "trial",
    "study",
    "backend",
    "python",
    "budget",
    "interval",
    "trace",
    "log_every",
    "verify",
    "memory_limit",
    "threads",
    "device",
];

/// Profile one setting in depth: where a step's time and memory go, and what would help.
///
/// Run steps of the recipe until the throughput is known to 2% or the time is spent, then print phases, modules, ops,
/// memory at the peak and a diagnosis, and store them. Nothing is trained: the adapter is discarded. With `--backend trl`, and with
/// `unsloth`, the steps are TRL's, timed by PyTorch's profiler. With `--read`
/// nothing runs: the steps are those of a trace that PyTorch's profiler has written.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Run nothing, and read a trace that PyTorch's profiler has exported (`export_chrome_trace`; `.json` or `.json.gz`).
    #[arg(long, value_name = "TRACE", conflicts_with_all = MEASURES)]
    pub(super) read: Option<PathBuf>,
    /// Engine that trains the steps [default: the one that trained the trial, else the built-in one].
    #[arg(long, value_enum)]
    pub(super) backend: Option<BackendName>,
    /// Python that has TRL, for `--backend trl`, or unsloth [default: that of the active environment, else python3].
    #[arg(long, value_name = "PATH")]
    pub(super) python: Option<PathBuf>,
    /// Time that measuring may take, such as `90s`; each change of `--verify` may take as much.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(super) budget: Seconds,
    /// End earlier, once the throughput is known to this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    pub(super) interval: f64,
    /// Write a trace that ui.perfetto.dev and chrome://tracing open.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write an event file for TensorBoard into this folder.
    #[arg(long, value_name = "DIR")]
    pub(super) tensorboard: Option<PathBuf>,
    /// Log one measured step in N, as `train --log-every` does.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = counts::<u64>(1..=u64::MAX))]
    pub(super) log_every: u64,
    /// Run the changes that the diagnosis proposes, and show measured beside predicted gains.
    #[arg(long)]
    pub(super) verify: bool,
    /// Throughput from elsewhere, such as a paper's, in tokens per second: shown as a share of this device's peak. `auto` is the
    /// nearest published rate of a built-in table, where one is near in model, method and GPU.
    #[arg(long, value_name = "TOKENS_PER_S|auto", value_parser = ReferenceRate::parse)]
    pub(super) reference_throughput: Option<ReferenceRate>,
    /// Device memory that a training may use, such as `24GB` [default: all of it].
    #[arg(long, value_name = "BYTES")]
    pub(super) memory_limit: Option<Bytes>,
    /// Compare with an earlier profile, by its number in the database.
    #[arg(long, value_name = "NUMBER")]
    pub(super) against: Option<i64>,
    /// Show every op and every layer.
    #[arg(long)]
    pub(super) all: bool,
    /// Print the profile as JSON.
    #[arg(long, conflicts_with_all = ["against", "all"])]
    pub(super) json: bool,
    /// Store nothing in the database.
    #[arg(long)]
    pub(super) no_store: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
}

impl Args {
    pub(super) fn bench_settings(&self) -> BenchSettings<'_> {
        BenchSettings {
            budget_s: self.budget.0,
            interval: self.interval / 100.0,
            memory_limit: self.memory_limit,
            compute: &self.compute,
            database: (!self.no_store).then_some(&self.database),
        }
    }

    /// The engine that was asked for, else the one that trained the trial.
    pub(super) fn backend(&self, source: &ProfileSource) -> Result<BackendName, CliError> {
        let backend = self.backend.unwrap_or(BackendName::by(source.loader));
        if backend == BackendName::Native && self.python.is_some() {
            return Err(CliError::bad(
                "`--python`: the built-in engine runs in no Python; leave it out, or add `--backend trl`",
            ));
        }
        Ok(backend)
    }
}

impl ReferenceRate {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(Self::TokensPerS(number)),
            _ if text == "auto" => Ok(Self::Published),
            _ => Err("write a number above 0, such as 12000, or `auto`".to_owned()),
        }
    }
}

pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent),
        _ => Err("write a number of percent above 0, such as 2".to_owned()),
    }
}
