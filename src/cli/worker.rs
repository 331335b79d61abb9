//! `peft-tune worker`: the trial process. A search starts it by itself.

use super::CliError;
use crate::worker::serve;

/// Runs trials that a coordinator sends on standard input (one JSON object a line), and reports on standard output.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Serves until standard input ends.
pub fn run(_args: Args) -> Result<(), CliError> {
    let input = std::io::BufReader::new(std::io::stdin());
    serve(input, std::io::stdout()).map_err(CliError::failed)
}
