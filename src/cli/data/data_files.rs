//! Whether the data that a command is given are there.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::terminal::download_progress::DownloadProgress;
use peft_tune_core::recipe::HubDataSet;
use peft_tune_engine::hub::{DataSetError, data_files};

/// Looks whether a file of rows is there, or downloads a data set of the hub.
///
/// # Errors
/// Bad input: no such file or data set.
pub(in crate::cli) fn check_data(path: &Path) -> Result<(), CliError> {
    if HubDataSet::is_written(path) {
        let files = data_files(path, &mut DownloadProgress::default());
        return files.map(drop).map_err(CliError::bad_input);
    }
    match path.is_file() {
        true => Ok(()),
        false => Err(CliError::bad_input(anyhow::anyhow!(
            "no data at {}: name a file of rows, or hf://datasets/OWNER/NAME, with `--data`",
            path.display()
        ))),
    }
}

/// Looks whether rows can be read as [`check_data`] does; `false` of a data set of the hub that is not on this machine while there is no
/// network, or none is to be used.
///
/// # Errors
/// Bad input: no such file or data set.
pub(in crate::cli) fn is_here(path: &Path) -> Result<bool, CliError> {
    if !HubDataSet::is_written(path) {
        return check_data(path).map(|()| true);
    }
    match data_files(path, &mut DownloadProgress::default()) {
        Ok(_) => Ok(true),
        Err(DataSetError::NotCached { .. } | DataSetError::Unreachable { .. }) => Ok(false),
        Err(error) => Err(CliError::bad_input(error)),
    }
}
