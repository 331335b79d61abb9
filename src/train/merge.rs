//! The model that a training has made, as plain weights: the adapter folded into the base.
//!
//! W' = W + s·B·A, with DoRA m ⊙ W' / |W'| by rows; a trained bias of lora_b goes to the layer's bias. The sum is made
//! in F32 and rounded once, when it is written.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::adapter::{AdaptedLinear, LinearSlots};
use super::model::update_norm;
use super::ops::matmul;
use super::{TrainError, Trainer, WeightsError};
use crate::architecture::Dtype;

impl Trainer {
    /// Every tensor of the trained model by its name in the base checkpoint, F32 on the training's device.
    ///
    /// # Errors
    ///
    /// Memory; a trained bias of lora_b on a layer that has no bias to hold it.
    pub fn merged_tensors(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let trained = self.trained();
        let mut tensors = BTreeMap::new();
        for tensor in self.base().architecture().tensors() {
            let value = trained.frozen(self.base(), &tensor.name)?.to_dtype(DType::F32)?;
            tensors.insert(tensor.name, value);
        }
        for (name, slot) in trained.trainables().whole {
            // A copy: the optimizer would go on changing a view.
            tensors.insert(name.to_owned(), self.parameters().value(slot)?.copy()?);
        }
        for (linear, slots) in trained.adapted_linears() {
            self.merge_linear(linear, slots, &mut tensors)?;
        }
        Ok(tensors)
    }

    fn merge_linear(
        &self,
        linear: &AdaptedLinear,
        slots: &LinearSlots,
        tensors: &mut BTreeMap<String, Tensor>,
    ) -> Result<(), TrainError> {
        let module = &linear.linear.name;
        let parameters = self.parameters();
        let (a, b) = (parameters.value(slots.lora_a)?, parameters.value(slots.lora_b)?);
        let name = format!("{module}.weight");
        let weight = tensors.get(&name).ok_or_else(|| WeightsError::MissingTensor {
            path: "memory".into(),
            tensor: name.clone(),
            missing: 1,
        })?;
        let mut merged = (weight + (matmul::nn(&b, &a)? * linear.scaling)?)?;
        if let Some(magnitude) = slots.magnitude {
            let norm = update_norm(weight, &a, &b, linear.scaling)?;
            let gain = (parameters.value(magnitude)? / norm)?;
            merged = merged.broadcast_mul(&gain.unsqueeze(1)?)?;
        }
        tensors.insert(name, merged);
        let Some(slot) = slots.lora_bias else { return Ok(()) };
        let name = format!("{module}.bias");
        let Some(bias) = tensors.get(&name) else {
            return Err(TrainError::NoBiasToMergeInto { module: module.clone() });
        };
        let bias = (bias + (parameters.value(slot)? * linear.scaling)?)?;
        tensors.insert(name, bias);
        Ok(())
    }
}

/// Writes `tensors` as one safetensors file in `dtype`; it appears under `path` only when it is whole.
///
/// # Errors
///
/// Those of the file system, with the path.
pub fn write_checkpoint(path: &Path, tensors: &BTreeMap<String, Tensor>, dtype: Dtype) -> Result<(), TrainError> {
    let dtype = match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    };
    let converted = |(name, tensor): (&String, &Tensor)| {
        let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(dtype)?.contiguous()?;
        Ok((name.clone(), tensor))
    };
    let tensors: Vec<(String, Tensor)> = tensors.iter().map(converted).collect::<candle_core::Result<_>>()?;
    let partial = path.with_extension("partial");
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let written = safetensors::serialize_to_file(tensors, Some(metadata), &partial);
    written.map_err(|source| WeightsError::Write {
        path: path.to_owned(),
        source,
    })?;
    std::fs::rename(&partial, path).map_err(|source| WeightsError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(())
}
