//! Whether the data that a command is given are there.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::terminal::download_progress::DownloadProgress;
use peft_tune_core::recipe::HubDataSet;
use peft_tune_engine::hub::data_files;

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
