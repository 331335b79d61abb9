//! A trace of PyTorch's profiler as a profile, with the findings of the rules that have their numbers in it.

use std::path::Path;

use crate::cli::CliError;
use peft_tune_core::recipe::{DataSettings, Recipe};
use peft_tune_engine::profile::diagnosis;
use peft_tune_engine::profile::diagnosis::{Evidence, Finding};
use peft_tune_engine::profile::{Profile, read_torch_trace};

/// Reads a trace.
///
/// # Errors
/// Bad input: a file that cannot be read, that is cut off, or that is no trace of PyTorch's profiler.
pub(in crate::cli) fn read_trace(path: &Path) -> Result<(Profile, Vec<Finding>), CliError> {
    let profile = read_torch_trace(path).map_err(CliError::bad_input)?;
    // A trace does not tell its recipe. Rules that go by one find in this one what asks for no change.
    let recipe = Recipe::new("", DataSettings::default());
    let findings = diagnosis::diagnose(&Evidence {
        profile: &profile,
        recipe: &recipe,
        oracle: &(),
        faster_type: None,
        losses_by_rank: &[],
    });
    Ok((profile, findings))
}
