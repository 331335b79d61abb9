//! Inputs and settings of a training besides its recipe.

use std::path::PathBuf;
use std::sync::Arc;

use crate::BaseModel;
use crate::data::PreparedData;
use peft_tune_core::recipe::Recipe;

/// Recipe, model and data of a training, loaded.
#[derive(Clone, Debug)]
pub struct RunInputs {
    pub recipe: Recipe,
    pub base: Arc<BaseModel>,
    pub data: PreparedData,
    /// Folder that the model was loaded from.
    pub model_folder: PathBuf,
}

/// Settings for where a training writes, how often, and when it gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    pub output: PathBuf,
    pub start: Start,
    /// Steps from one checkpoint to the next; a tenth of the training where absent.
    pub checkpoint_every: Option<u64>,
    /// Checkpoints that are kept, at least one; at least two where the training backs off.
    pub keep_checkpoints: usize,
    /// Ends the training after so many evaluations in a row without a lower held-out loss.
    pub patience: Option<u64>,
    pub on_spike: OnSpike,
    /// Whether reports of spikes have the text of rows.
    pub shows_rows: bool,
}

/// Action at a spike of the training loss that no row explains, and at a loss that is no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSpike {
    /// Go on behind a spike, and end where a number is none any more.
    #[default]
    GoOn,
    /// Return to the last good checkpoint at half the learning rate.
    BackOff,
}

/// Treatment of what is in the output folder already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Refuse a folder that is not empty.
    New,
    /// Continue from its latest whole checkpoint; begin where there is nothing yet.
    Resume,
    /// Remove an earlier training and begin again.
    Force,
}

impl RunSettings {
    /// Settings for a new training into `output`.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        Self {
            output: output.into(),
            start: Start::New,
            checkpoint_every: None,
            keep_checkpoints: 2,
            patience: None,
            on_spike: OnSpike::default(),
            shows_rows: false,
        }
    }
}
