//! Options of `peft-tune plan`.

use std::path::PathBuf;

use clap::ArgGroup;

use super::stack_args::StackArgs;
use super::step_args::StepArgs;
use crate::cli::options::backend::BackendName;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::options::price::{PriceOption, price_option};

/// Predict memory and throughput of a study's settings, the front, and the time that the search will take. Nothing is
/// trained, and no weights are read.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("planned").args(["stack", "check", "step"]).multiple(true))]
pub(in crate::cli) struct Args {
    /// Search-space file (YAML).
    #[arg(required_unless_present_any = ["check", "step"])]
    pub(super) file: Option<PathBuf>,
    /// A device other than this machine, such as `A100 80GB`, `H100 SXM`, `L4`, `RTX 4090`: predicted from its data sheet. With
    /// --stack or --check also `cpu`: this machine's processor, by its measured ceilings.
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Engine that trains the trials, instead of the file's `backend`.
    #[arg(long, value_enum, value_name = "ENGINE", conflicts_with_all = ["stack", "check", "step"])]
    pub(super) backend: Option<BackendName>,
    /// Settings to show, best throughput first.
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with_all = ["stack", "check"])]
    pub(super) top: usize,
    /// Price of an hour of the planned device, in US dollars, such as `2.49/h`, instead of the file's `price` or an unchecked one of
    /// the built-in list. With --gpus, of the device that it names, such as `L4=0.70/h`; then it may be given several times.
    #[arg(long, value_name = "PRICE", value_parser = price_option, conflicts_with_all = ["stack", "check", "step"])]
    pub(super) price: Vec<PriceOption>,
    /// Rank all devices that have data sheets by what the study's training costs there, with its time and the settings that fit.
    #[arg(long, conflicts_with_all = ["device", "top", "threads", "stack", "check", "step"])]
    pub(super) gpus: bool,
    /// Threads a trial computes with [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(conflicts_with_all = ["device", "stack", "check"])]
    pub(super) threads: Option<u16>,
    /// Print JSON with raw numbers.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) step: StepArgs,
    #[command(flatten)]
    pub(super) stack: StackArgs,
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
}
