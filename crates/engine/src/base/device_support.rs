//! Models that a GPU trains.

use candle_core::Device;

use crate::{CpuOnlyError, TrainError};
use peft_tune_core::architecture::Architecture;

/// Families with experts whose trainings on a GPU are compared with the CPU's.
const EXPERTS_ON_GPU: [&str; 4] = ["qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss"];

/// Fails where `device` is a GPU that has no kernels for the model: mixers other than plain attention, and some experts.
pub(super) fn refuse_on(device: &Device, architecture: &Architecture) -> Result<(), TrainError> {
    let family = architecture.family.name();
    if !device.is_cpu() && !architecture.attends_everywhere() {
        return Err(CpuOnlyError::Mixers { family }.into());
    }
    // Attention's kernels for a GPU have values as wide as keys.
    if !device.is_cpu() && architecture.latent.is_some() {
        return Err(CpuOnlyError::Latent { family }.into());
    }
    if !device.is_cpu() && architecture.experts.is_some() && !EXPERTS_ON_GPU.contains(&family) {
        return Err(CpuOnlyError::Experts { family }.into());
    }
    Ok(())
}
