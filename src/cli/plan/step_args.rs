//! Options of `peft-tune plan --step`.

use std::path::PathBuf;

/// Recipes whose step is asked for: one, or several that train together.
#[derive(Debug, clap::Args)]
pub(super) struct StepArgs {
    /// Print where the seconds of a step go, on paper: each part of it, with what its ops compute, move, launch and keep. Of a recipe
    /// file or a study's own recipe; several recipes train together.
    #[arg(long, value_name = "RECIPE", num_args = 1.., conflicts_with_all = ["file", "stack", "check", "sharing", "offload", "rows_differ", "top"])]
    pub step: Vec<PathBuf>,
}
