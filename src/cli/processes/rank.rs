//! `peft-tune rank`: one device of a trial that runs on several. The trial process starts these by itself.

use std::time::Duration;

use crate::cli::CliError;
use crate::cli::options::compute::KernelArgs;
use crate::worker::{RankSettings, pin_to, serve_rank};
use peft_tune_kernels::set_kernels;

/// Run one device's share of trials that come on standard input, and report on standard output.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Rank of this process, from 0.
    #[arg(long)]
    rank: usize,
    /// How many ranks there are.
    #[arg(long)]
    ranks: usize,
    /// Descriptor of the memory that they share, open since the start of the process.
    #[arg(long)]
    segment: i32,
    /// Seconds after which a rank that the others wait for counts as hanging.
    #[arg(long, env = "PEFT_TUNE_RANK_PATIENCE_S", default_value_t = 300.0)]
    patience_s: f64,
    /// Device to compute on [default: the GPU of its number, else the CPU].
    #[arg(long)]
    device: Option<String>,
    /// Processors to stay on.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    #[command(flatten)]
    kernels: KernelArgs,
}

/// Serves until standard input ends.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    // Before any thread is started, so that all of them stay there.
    if !args.cpus.is_empty() && !pin_to(&args.cpus) {
        tracing::warn!(rank = args.rank, "cannot stay on its processors");
    }
    set_kernels(args.kernels.form());
    let patience = Duration::try_from_secs_f64(args.patience_s).map_err(CliError::bad_input)?;
    let settings = RankSettings {
        rank: args.rank,
        ranks: args.ranks,
        segment: args.segment,
        patience,
        device: args.device,
    };
    let input = std::io::BufReader::new(std::io::stdin());
    serve_rank(&settings, input, std::io::stdout()).map_err(CliError::failed)
}
