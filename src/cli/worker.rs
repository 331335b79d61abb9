//! `peft-tune worker`: the trial process. A search starts it by itself.

use super::CliError;
use crate::worker::serve;

/// Runs trials that a coordinator sends on standard input (one JSON object a line), and reports on standard output.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Threads to compute with [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
}

/// Serves until standard input ends.
pub fn run(args: Args) -> Result<(), CliError> {
    crate::train::set_threads(args.threads);
    let input = std::io::BufReader::new(std::io::stdin());
    serve(input, std::io::stdout()).map_err(CliError::failed)
}
