//! The setting that is profiled, as a profile names it.

use super::Setting;
use super::variant_name::named;
use crate::Trainer;
use peft_tune_core::recipe::Recipe;
use peft_tune_kernels::device::Device;
use peft_tune_kernels::{attention_kernels, device, kernels, longer_sums};

/// The setting of a recipe that `trainer` trains.
pub(super) fn setting_of(recipe: &Recipe, trainer: &Trainer, memory_limit_bytes: Option<u64>) -> Setting {
    let base = trainer.base();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let adapter = recipe.adapter.as_ref();
    Setting {
        model: recipe.model.clone(),
        base_parameters: base.architecture().parameter_count().total(),
        trained_parameters: trainer.parameters().layout.elements() as u64,
        device: device_name(base.device()),
        threads: rayon::current_num_threads(),
        cores,
        precision: named(&recipe.precision),
        compute_dtype: base.compute_dtype().as_str().to_owned(),
        rank: adapter.map(|adapter| adapter.rank),
        dropout: adapter.map_or(0.0, |adapter| adapter.dropout),
        optimizer: named(&recipe.optimizer.kind),
        checkpointing: named(&recipe.gradient_checkpointing),
        micro_batch: recipe.batch.micro_batch,
        gradient_accumulation: recipe.batch.gradient_accumulation,
        sequence_length: recipe.batch.sequence_length,
        packing: recipe.batch.packing,
        log_every: 0,
        kernels: kernels().name().to_owned(),
        attention: attention_kernels().map(|kernels| kernels.name().to_owned()),
        longer_sums: longer_sums(),
        memory_limit_bytes,
        stack: None,
    }
}

/// `cpu`, or what the driver calls the GPU.
fn device_name(device: &Device) -> String {
    let fallback = if device.is_cpu() { "cpu" } else { "cuda" };
    device::facts(device).map_or_else(|| fallback.to_owned(), |facts| facts.name)
}
