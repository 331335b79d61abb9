//! Models and settings that have no kernels on a GPU.

use peft_tune_core::recipe::{ActivationQuantization, QuantizationAware, WeightSparsity};

/// A model or a setting that runs on the CPU only.
#[derive(Debug, thiserror::Error)]
pub enum CpuOnlyError {
    #[error("the experts of `{family}` run on the CPU only so far; name `cpu` as the device, or take another model")]
    Experts { family: &'static str },

    #[error(
        "the latent attention of `{family}` runs on the CPU only so far; name `cpu` as the device, or take another model"
    )]
    Latent { family: &'static str },

    #[error(
        "layers of `{family}` have a convolution or a delta rule in place of attention, which run on the CPU only so far; name `cpu` as \
         the device, or take a model that attends in every layer"
    )]
    Mixers { family: &'static str },

    #[error(
        "`activation_quantization: {activations}` has no kernels on a GPU for the experts of `{family}`; name `cpu` as the device, or \
         take it out of the recipe"
    )]
    ActivationsOfExperts {
        activations: ActivationQuantization,
        family: &'static str,
    },

    #[error("`weight_sparsity: {sparsity}` runs on the CPU only so far; name `cpu` as the device, or set it to none")]
    Sparsity { sparsity: WeightSparsity },

    #[error(
        "`quantization_aware: {aware}` runs on the CPU only so far; name `cpu` as the device, or take it out of the recipe"
    )]
    QuantizationAware { aware: QuantizationAware },
}
