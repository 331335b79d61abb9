//! What is done and said before a training's first step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::cli::CliError;
use crate::cli::data::mixture;
use crate::cli::data::model_family::{TRAIN_IN_TRL, architecture_of};
use crate::cli::data::model_warnings::tell_of_model;
use crate::cli::data::prepare::prepared_for_training;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::cli::terminal::signals::{First, Reaction};
use crate::cli::terminal::this_command::this_command;
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::run::{RunError, TrainingRun};

/// The data of a recipe, with the warnings that belong to them.
pub(in crate::cli) fn data_of(recipe: &Recipe, files: &ModelFiles) -> Result<PreparedData, CliError> {
    let data = prepared_for_training(recipe, files, Reading::shown())?;
    let architecture = architecture_of(&files.config, TRAIN_IN_TRL)?;
    data.check_fits(&architecture).map_err(CliError::bad_input)?;
    tell_of_model(&architecture, recipe.adapter.as_slice());
    for warning in data.warnings() {
        tell(format_args!("warning: {warning}"));
    }
    let length = Some(recipe.training.length);
    for warning in mixture::warnings(&recipe.data.train, &recipe.batch, length, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    Ok(data)
}

/// Whatever keeps a training from starting is bad input, but for the file system and the memory.
pub(super) fn opening_error(error: RunError) -> CliError {
    match &error {
        RunError::File { .. } => CliError::failed(error),
        RunError::Train(inner) if inner.out_of_memory() => CliError::failed(error),
        _ => CliError::bad_input(error),
    }
}

/// Says where a training continues from, and which one it is where there are several.
pub(super) fn announce(run: &TrainingRun, name: Option<&str>) {
    let name = name.map_or_else(String::new, |name| format!("{name}: "));
    for damaged in run.damaged() {
        tell(format_args!("warning: {} is damaged and skipped", damaged.display()));
    }
    if let Some(checkpoint) = run.resumed_from() {
        let (steps, checkpoint) = (run.trainer().steps(), checkpoint.display());
        tell(format_args!("{name}continuing after step {steps} from {checkpoint}"));
    }
}

/// What a training says when it is interrupted: it holds whether there is something to finish.
pub(super) struct Interrupted(pub Arc<AtomicBool>);

impl Reaction for Interrupted {
    fn first(&self) -> First {
        if self.0.load(Relaxed) {
            let message = "finishing the step under way and writing a checkpoint; Ctrl-C again ends at once";
            return First::GoesOn(message.to_owned());
        }
        First::Ends(format!(
            "stopped before the first step, and nothing is lost; `{}` begins again",
            this_command(&[], &[])
        ))
    }
}
