//! `try-kernels`: attention's kernels for Hopper on a small problem, in a process that they may take with them.

use crate::cli::CliError;
use crate::cli::terminal::output::write_result;
use peft_tune_kernels::device;
use peft_tune_kernels::ops::attention::{Probe, probe_apart_by};

/// Print how far attention's kernels for Hopper are from those for all GPUs, in parts of the largest value.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Device to try them on.
    #[arg(long, value_name = "DEVICE")]
    device: String,
    /// Number type of queries, keys and values: `bf16` or `f16`.
    #[arg(long, value_name = "TYPE")]
    dtype: String,
    /// Elements of a head.
    #[arg(long, value_name = "N")]
    head_dim: usize,
}

/// Lets this program try kernels in a process of its own before it uses them.
pub(in crate::cli) fn set_up() {
    probe_apart_by(|| {
        let mut command = std::process::Command::new(std::env::current_exe().ok()?);
        command.arg("try-kernels");
        Some(command)
    });
}

/// Runs the subcommand.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let device = device::open(&args.device).map_err(CliError::bad_input)?;
    let probe = Probe {
        device: &device,
        dtype: args.dtype.parse().map_err(CliError::bad_input)?,
        head_dim: args.head_dim,
    };
    let difference = probe.run().map_err(CliError::failed)?;
    write_result(&format!("{difference}\n"))
}
