//! What `check` is asked for.

use std::path::PathBuf;

use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::{ComputeArgs, parse_precision};
use crate::cli::options::count::counts;
use crate::cli::processes::interpreter::Stack;
use crate::cli::terminal::output::tell;
use peft_tune_core::recipe::Precision;
use peft_tune_kernels::device;

/// Train a few steps of a recipe in two engines, from one adapter on the same rows, and say whether they agree.
///
/// Print losses, norms of gradients, learning rates, tokens, memory and seconds side by side, with the largest difference and the
/// bound that the precision allows. In both, dropout is off and the file decides the order of rows. Nothing is kept of the
/// training. Exit code 11 where the engines do not agree.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Recipe file (YAML) [default: one on the quickstart's model].
    #[arg(value_name = "RECIPE")]
    pub(super) recipe: Option<PathBuf>,
    /// Engine to compare the built-in one with.
    #[arg(long, value_enum, default_value = "trl")]
    pub(super) backend: BackendName,
    /// Python that has TRL [default: that of the active environment, else python3].
    #[arg(long, value_name = "PATH")]
    pub(super) python: Option<PathBuf>,
    /// Number of optimizer steps.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = counts::<u64>(1..=1000))]
    pub(super) steps: u64,
    /// Precision to compare in, instead of the recipe's.
    #[arg(long, value_name = "PRECISION", value_parser = parse_precision)]
    pub(super) precision: Option<Precision>,
    /// Print JSON with raw numbers.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
}

impl Args {
    /// The device that both engines compute on, by the name that workers know it by.
    ///
    /// # Errors
    /// Bad input: a device that one of the two cannot use.
    pub(super) fn device(&self, stack: &Stack) -> Result<String, CliError> {
        let asked = self.compute.device.as_deref().filter(|name| *name != "auto");
        let name = match asked {
            None => common_device(device::gpu_count(), stack.devices.len()).to_owned(),
            Some("cuda") => FIRST_GPU.to_owned(),
            Some(name) => name.to_owned(),
        };
        device::check(&name).map_err(CliError::bad_input)?;
        match stack.has_device(&name) {
            true => Ok(name),
            false => Err(CliError::bad(format!(
                "`--device {name}`: PyTorch in {} computes on {}; name a device that both engines have",
                stack.interpreter.display(),
                stack.devices_text()
            ))),
        }
    }
}

const CPU: &str = "cpu";
const FIRST_GPU: &str = "cuda:0";

/// The first GPU where both engines see one, else the processor. Says so where one of them alone sees a GPU.
fn common_device(ours: usize, theirs: usize) -> &'static str {
    match (ours > 0, theirs > 0) {
        (true, true) => return FIRST_GPU,
        (true, false) => tell("PyTorch sees no GPU here: both engines compute on the CPU"),
        (false, true) => tell("this program was built without GPUs, or sees none: both engines compute on the CPU"),
        (false, false) => {}
    }
    CPU
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_compared_on_a_device_that_both_have() {
        assert_eq!(
            [(2, 1), (1, 0), (0, 3), (0, 0)].map(|(ours, theirs)| common_device(ours, theirs)),
            [FIRST_GPU, CPU, CPU, CPU]
        );
    }
}
