//! The folder that a training writes to: where it is, and what lies in it from the start.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::space::RecipeFile;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::profile::{DeviceMemory, TensorBoard};
use peft_tune_engine::run::{RunSettings, TrainingRun};

/// Folder that a training writes to if nobody names one.
pub(super) fn usual_output(recipe: &Path) -> PathBuf {
    let stem = recipe.file_stem().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("{stem}-trained"))
}

/// Writes the recipe into the folder.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write_recipe(output: &Path, recipe: &Recipe) -> Result<(), CliError> {
    let path = output.join("recipe.yaml");
    let text = RecipeFile::to_yaml(recipe).map_err(CliError::bad_input)?;
    write_whole(&path, text.as_bytes(), true).map_err(|error| {
        let message = format!("cannot write {}", path.display());
        CliError::failed(anyhow::Error::new(error).context(message))
    })
}

/// Begins the event file for TensorBoard, or goes on with it.
///
/// # Errors
/// A file that cannot be written, or a device whose memory cannot be read.
pub(super) fn event_file(settings: &RunSettings, run: &TrainingRun) -> Result<TensorBoard, CliError> {
    let memory = DeviceMemory::of(run.trainer().base().device()).map_err(CliError::failed)?;
    let folder = settings.output.join("tensorboard");
    TensorBoard::create(&folder, run.trainer().steps(), memory).map_err(|error| {
        let message = format!("cannot write an event file into {}", folder.display());
        CliError::failed(anyhow::Error::new(error).context(message))
    })
}
