//! Models that have learned nothing.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use sha2::{Digest, Sha256};

use super::base_model::BaseModel;
use crate::TrainError;
use peft_tune_core::architecture::{Architecture, GATED_NORM, TensorShape};
use peft_tune_core::recipe::Precision;

impl BaseModel {
    /// A model that has learned nothing: matrices normal with deviation 0.02, norms 1, biases 0, each tensor from a
    /// generator of its own that `seed` and its name decide.
    pub fn random(
        architecture: Architecture,
        seed: u64,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let mut tensors = BTreeMap::new();
        for tensor in architecture.tensors() {
            let values = random_start(&tensor, seed, architecture.norm_offset);
            let value = Tensor::from_vec(values, tensor.shape, &Device::Cpu)?;
            tensors.insert(tensor.name, value);
        }
        Self::from_tensors(architecture, tensors, precision, device)
    }

    /// Makes the model of [`BaseModel::random`] with values that a GPU draws itself: for sizes that take the CPU
    /// minutes. They are the same each time, and not the same on another device.
    pub fn random_on_device(
        architecture: Architecture,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        const SEED: u64 = 1;
        if device.is_cpu() {
            return Self::random(architecture, SEED, precision, device);
        }
        // A device's generator continues where it was: without it the next model would be another one.
        device.set_seed(SEED)?;
        Self::of(architecture, precision, device, |tensor, architecture| {
            let shape = tensor.shape.as_slice();
            Ok(match (tensor.name.ends_with(".bias"), shape) {
                (true, _) => Tensor::zeros(shape, DType::F32, device)?,
                (false, []) => Tensor::new(0.5f32, device)?,
                (false, [_]) => Tensor::full(1.0 - architecture.norm_offset, shape, device)?,
                (false, _) => Tensor::randn(0f32, 0.02, shape, device)?,
            })
        })
    }
}

fn random_start(tensor: &TensorShape, seed: u64, norm_offset: f32) -> Vec<f32> {
    let elements: usize = tensor.shape.iter().product();
    // With those of all experts, and what corrects scores.
    if tensor.name.ends_with("bias") {
        return vec![0.0; elements];
    }
    if tensor.name.ends_with(GATED_NORM) {
        return vec![1.0; elements];
    }
    if tensor.shape.len() == 1 {
        return vec![1.0 - norm_offset; elements];
    }
    if tensor.shape.is_empty() {
        return vec![0.5];
    }
    let mut digest = Sha256::new();
    digest.update(seed.to_le_bytes());
    digest.update(tensor.name.as_bytes());
    let mut generator = Pcg64::from_seed(digest.finalize().into());
    let mut normal = || 0.02 * generator.sample::<f32, _>(StandardNormal);
    (0..elements).map(|_| normal()).collect()
}
