//! Checks by which a trainer refuses recipes for another base or device, and micro-batches that the model cannot take.

use crate::base::BaseModel;
use crate::data::MicroBatch;
use crate::{BatchError, CpuOnlyError, SparsityError, TrainError};
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
        return Err(BatchError::NoTargets {
            micro_batches: micro_batches.len(),
            tokens,
        }
        .into());
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
        return Err(BatchError::UnknownToken { token, vocabulary }.into());
    }
    if batch.longest() > architecture.max_positions {
        return Err(BatchError::TooLong {
            tokens: batch.longest(),
            max_positions: architecture.max_positions,
        }
        .into());
    }
    Ok(())
}

/// The base model must be the one that the recipe asks for.
pub(super) fn refuse_other_sparsity(asked: WeightSparsity, base: &BaseModel) -> Result<(), TrainError> {
    let loaded = base.sparsity().kind();
    match asked == loaded {
        true => Ok(()),
        false => Err(SparsityError::Other { asked, loaded }.into()),
    }
}

/// Refuses products of bytes of experts and codes that change: neither have kernels for a GPU yet.
pub(super) fn refuse_without_kernels(
    recipe: &Recipe,
    architecture: &Architecture,
    is_cpu: bool,
) -> Result<(), TrainError> {
    let (activations, aware) = (recipe.activation_quantization, recipe.quantization_aware);
    match is_cpu {
        false if !activations.is_none() && architecture.experts.is_some() => Err(CpuOnlyError::ActivationsOfExperts {
            activations,
            family: architecture.family.name(),
        }
        .into()),
        false if !aware.is_none() => Err(CpuOnlyError::QuantizationAware { aware }.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{ActivationQuantization, QuantizationAware};
    use std::path::Path;

    fn architecture(config: &str) -> Architecture {
        let sizes = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256"#;
        Architecture::from_json(Path::new("config.json"), &format!("{{{sizes}, {config}}}")).unwrap()
    }

    #[test]
    fn what_has_no_kernels_is_refused_on_a_gpu_by_name() {
        let dense = architecture(r#""model_type": "qwen3""#);
        let mixture = architecture(
            r#""model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24"#,
        );
        let plain = Recipe::new("model", Default::default());
        let mut activations = plain.clone();
        activations.activation_quantization = ActivationQuantization::Int8Forward;
        let mut aware = plain.clone();
        aware.quantization_aware = QuantizationAware::Nf4;
        let all = [&plain, &activations, &aware];
        for architecture in [&dense, &mixture] {
            assert!(
                all.iter()
                    .all(|one| refuse_without_kernels(one, architecture, true).is_ok())
            );
            assert!(refuse_without_kernels(&plain, architecture, false).is_ok());
        }
        assert!(refuse_without_kernels(&activations, &dense, false).is_ok());
        for (recipe, said) in [
            (
                &activations,
                "`activation_quantization: int8_forward` has no kernels on a GPU for the experts of `qwen3_moe`",
            ),
            (&aware, "`quantization_aware: nf4` runs on the CPU only"),
        ] {
            let error = refuse_without_kernels(recipe, &mixture, false).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
