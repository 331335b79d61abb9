//! Keys of PEFT's `LoraConfig` (0.10 to 0.21) that no recipe has.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "0.21",
    silent: &[SILENT],
    told: &[TOLD],
};

/// Keys of the file itself, and settings that say nothing without a key of the other list.
pub(crate) const SILENT: &str = "
    task_type peft_version auto_mapping inference_mode fan_in_fan_out megatron_config megatron_core
    runtime_config layers_pattern qalora_group_size parent_library base_model_class";

/// Keys that change what is trained.
pub(crate) const TOLD: &[ToldKey] = &[
    learnt(
        "revision",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    costly("exclude_modules", "modules of these names get no adapter there"),
    costly("layer_replication", "layers are repeated there"),
    costly("trainable_token_indices", "rows of the embedding are trained too there"),
    learnt("loftq_config", "adapters start from what quantization loses there"),
    learnt("eva_config", "adapters start from activations there"),
    learnt("corda_config", "adapters start from a context there"),
    learnt("lora_ga_config", "adapters start from gradients there"),
    costly("use_qalora", "adapters are those of QALoRA there"),
    costly("use_bdlora", "factors are block-diagonal there"),
    costly("arrow_config", "several adapters are routed there"),
    costly(
        "alora_invocation_tokens",
        "the adapter begins behind these tokens there",
    ),
    costly("velora_config", "activations are compressed there"),
    learnt("kasa_config", "singular values are trained there"),
    costly("monteclora_config", "adapters are drawn there"),
    learnt("ensure_weight_tying", "adapters of tied weights are tied there"),
];
