//! Sparsity by weights and activations (Wanda, Sun et al. 2023, arXiv:2306.11695).
//!
//! Layer by layer: the layer runs dense on what the sparse layers below it make of the calibration rows, the norm of each column of
//! each linear layer's input is taken over all of their tokens, values are left out by |w| times that norm, and the layer runs
//! again, sparse. One layer at a time is dense in memory.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Device;

use crate::base::{BaseLoader, BaseModel, Sparsity};
use crate::data::MicroBatch;
use crate::model::LayerRun;
use crate::{SparsityError, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{Precision, WeightSparsity};

/// Loads the model in `folder` with the values that stay on `rows`.
///
/// # Errors
/// Errors of [`load_base`](super::load_base).
pub(super) fn load(
    folder: &Path,
    precision: Precision,
    rows: &[MicroBatch],
    device: &Device,
) -> Result<BaseModel, TrainError> {
    if rows.is_empty() {
        return Err(SparsityError::NoCalibrationRows {
            sparsity: WeightSparsity::Wanda,
        }
        .into());
    }
    let mut loader = BaseLoader::open(folder, precision, device)?;
    let layers = loader.base().architecture().layers.len();
    let prefixes: Vec<String> = (0..layers)
        .map(|index| format!("{}.", Architecture::layer_name(index)))
        .collect();
    let is_outside = |name: &str| !prefixes.iter().any(|prefix| name.starts_with(prefix));
    loader.read(is_outside, |_, weight| Ok(weight))?;
    let mut run = LayerRun::begin(loader.base(), rows)?;
    let mut norms = BTreeMap::new();
    for (index, prefix) in prefixes.iter().enumerate() {
        let is_inside = |name: &str| name.starts_with(prefix);
        loader.read(is_inside, |_, weight| Ok(weight))?;
        let of_layer = run.input_norms(loader.base(), index)?;
        if let Some((tensor, _)) = of_layer
            .iter()
            .find(|(_, norms)| norms.iter().any(|norm| !norm.is_finite()))
        {
            return Err(SparsityError::BadActivations { tensor: tensor.clone() }.into());
        }
        loader.sparsify(is_inside, &Sparsity::wanda(precision, of_layer.clone()))?;
        norms.extend(of_layer);
        if index + 1 < layers {
            run.advance(loader.base(), index)?;
        }
    }
    Ok(loader.into_sparse_base(Sparsity::wanda(precision, norms)))
}
