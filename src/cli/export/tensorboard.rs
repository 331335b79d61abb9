//! An event file for each trial.

use std::path::PathBuf;

use super::args::Args;
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::track::{TrackedStudy, TrackedTrial, trial_file};
use peft_tune_core::whole_file::write_whole;

/// Writes `trial-N/events...` for each trial that has started, and returns the folders.
pub(super) fn write(args: &Args, study: &TrackedStudy, trials: &[TrackedTrial]) -> Result<Vec<PathBuf>, CliError> {
    let files = trials.iter().filter(|trial| !trial.is_waiting());
    let files: Vec<(PathBuf, Vec<u8>)> = files
        .map(|trial| trial_file(study, trial))
        .map(|(name, bytes)| (args.output.join(name), bytes))
        .collect();
    let folders: Vec<PathBuf> = files
        .iter()
        .filter_map(|(path, _)| path.parent())
        .map(PathBuf::from)
        .collect();
    if let Some(folder) = folders.iter().find(|folder| !args.force && folder.exists()) {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{} already exists; choose another --output, or overwrite it with --force",
            folder.display()
        )));
    }
    for ((path, bytes), folder) in files.iter().zip(&folders) {
        std::fs::create_dir_all(folder)
            .and_then(|()| write_whole(path, bytes, args.force))
            .map_err(|error| CliError::failed(anyhow::anyhow!("cannot write in {}: {error}", folder.display())))?;
    }
    tell(format_args!("tensorboard --logdir {}", args.output.display()));
    Ok(folders)
}
