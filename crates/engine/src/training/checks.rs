//! What a trainer refuses: recipes for another base or device, and micro-batches that the model cannot take.

use crate::TrainError;
use crate::base::BaseModel;
use crate::data::MicroBatch;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{Recipe, WeightSparsity};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Checks every micro-batch and counts the targets, of which there must be one.
pub(super) fn targets_of(micro_batches: &[MicroBatch], architecture: &Architecture) -> Result<u64, TrainError> {
    let (mut targets, mut tokens) = (0, 0);
    for batch in micro_batches {
        tokens_of(batch, architecture)?;
        targets += batch.target_tokens();
        tokens += batch.tokens();
    }
    if targets == 0 {
        return Err(TrainError::NoTargets {
            micro_batches: micro_batches.len(),
            tokens,
        });
    }
    Ok(targets as u64)
}

/// Checks the tokens and the documents of a micro-batch.
pub(super) fn tokens_of(batch: &MicroBatch, architecture: &Architecture) -> Result<(), TrainError> {
    let vocabulary = architecture.vocabulary;
    let inputs = batch.input_ids.iter().map(|token| i64::from(*token));
    let targets = batch.targets.iter().copied().filter(|target| *target != IGNORE);
    let unknown = inputs
        .chain(targets)
        .find(|token| !(0..vocabulary as i64).contains(token));
    if let Some(token) = unknown {
        return Err(TrainError::UnknownToken { token, vocabulary });
    }
    if batch.longest() > architecture.max_positions {
        return Err(TrainError::TooLong {
            tokens: batch.longest(),
            max_positions: architecture.max_positions,
        });
    }
    Ok(())
}

/// The base model must be the one that the recipe asks for.
pub(super) fn refuse_other_sparsity(asked: WeightSparsity, base: &BaseModel) -> Result<(), TrainError> {
    let loaded = base.sparsity().kind();
    match asked == loaded {
        true => Ok(()),
        false => Err(TrainError::OtherSparsity { asked, loaded }),
    }
}

/// Neither products of bytes nor codes that change have kernels for a GPU yet.
pub(super) fn refuse_without_kernels(recipe: &Recipe, is_cpu: bool) -> Result<(), TrainError> {
    let (activations, aware) = (recipe.activation_quantization, recipe.quantization_aware);
    match is_cpu {
        false if !activations.is_none() => Err(TrainError::ActivationsOnGpu { activations }),
        false if !aware.is_none() => Err(TrainError::AwareOnGpu { aware }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{ActivationQuantization, QuantizationAware};

    #[test]
    fn what_has_no_kernels_is_refused_on_a_gpu_by_name() {
        let plain = Recipe::new("model", Default::default());
        let mut activations = plain.clone();
        activations.activation_quantization = ActivationQuantization::Int8Forward;
        let mut aware = plain.clone();
        aware.quantization_aware = QuantizationAware::Nf4;
        let all = [&plain, &activations, &aware];
        assert!(all.iter().all(|one| refuse_without_kernels(one, true).is_ok()));
        assert!(refuse_without_kernels(&plain, false).is_ok());
        for (recipe, setting) in [
            (&activations, "`activation_quantization: int8_forward`"),
            (&aware, "`quantization_aware: nf4`"),
        ] {
            let error = refuse_without_kernels(recipe, false).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{setting} runs on the CPU only")), "{error}");
        }
    }
}
