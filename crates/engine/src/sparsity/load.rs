//! The base model of a recipe.

use std::path::Path;

use candle_core::Device;

use super::wanda;
use crate::base::{BaseModel, CONFIG, RankShare, Sparsity};
use crate::data::{MicroBatch, PreparedData, evaluation_batches};
use crate::{CpuOnlyError, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::ModelPlan;
use peft_tune_core::recipe::{Recipe, WeightSparsity};

/// First rows of the training data whose activations decide, one after the other.
const CALIBRATION_ROWS: usize = 32;

/// Loads the model in `folder` as `recipe` has it: in the storage of its precision, without the values that its `weight_sparsity`
/// leaves out. A rank that shares weights out has its part of dense ones (see [`BaseModel::load_share`]). Where activations decide which, they are those of the first rows of the recipe's training `data`, whatever the batch.
///
/// # Errors
/// Errors of [`BaseModel::load`]; a sparsity that the recipe, the model or the device has no place for; no rows where they decide.
pub fn load_base(
    folder: &Path,
    recipe: &Recipe,
    data: &PreparedData,
    share: Option<RankShare>,
    device: &Device,
) -> Result<BaseModel, TrainError> {
    let (sparsity, precision) = (recipe.weight_sparsity, recipe.precision);
    if sparsity.is_none() {
        return BaseModel::load_share(folder, precision, device, share);
    }
    if !device.is_cpu() {
        return Err(CpuOnlyError::Sparsity { sparsity }.into());
    }
    let architecture = Architecture::from_config(&folder.join(CONFIG))?;
    ModelPlan::of_recipe(&architecture, recipe)?;
    if sparsity == WeightSparsity::Magnitude {
        return BaseModel::load_sparse(folder, precision, Sparsity::magnitude(precision), device);
    }
    let rows = evaluation_batches(data.train(), 1, Some(CALIBRATION_ROWS)).take(CALIBRATION_ROWS);
    wanda::load(folder, precision, &rows.collect::<Vec<MicroBatch>>(), device)
}
