//! What axolotl's YAML calls what recipes have.

use serde_json::json;

use crate::keys::{ToolKeys, Word, words};
use crate::transformers;
use peft_tune_core::recipe::{
    AdapterInit, AttentionImplementation, Checkpointing, OptimizerKind, Precision, TargetPreset,
};

pub(super) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("rank", "lora_r"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "lora_target_modules"),
        ("rslora", "peft_use_rslora"),
        ("dora", "peft_use_dora"),
        ("init", "peft_init_lora_weights"),
        ("sequence_length", "sequence_len"),
        ("packing", "sample_packing"),
        ("group_by_length", "group_by_length"),
        ("micro_batch", "micro_batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("prefetch_depth", "dataloader_prefetch_factor"),
        ("attn_implementation", "attn_implementation"),
        ("torch_compile", "torch_compile"),
        ("dataloader_num_workers", "dataloader_num_workers"),
        ("gradient_checkpointing", "gradient_checkpointing"),
        ("optimizer", "optimizer"),
        ("learning_rate", "learning_rate"),
        ("schedule", "lr_scheduler"),
        ("warmup", "warmup_steps"),
        ("weight_decay", "weight_decay"),
        ("beta1", "adam_beta1"),
        ("beta2", "adam_beta2"),
        ("epsilon", "adam_epsilon"),
        ("max_grad_norm", "max_grad_norm"),
        ("loraplus_ratio", "loraplus_lr_ratio"),
    ],
    optimizer: |kind| match kind {
        OptimizerKind::Muon => words!("optimizer": "muon"),
        kind => transformers::optimizer("optimizer", kind),
    },
    precision,
    checkpointing,
    schedule: |kind| transformers::schedule("lr_scheduler", kind),
    schedule_after_warmup: |kind| transformers::schedule_after_warmup("lr_scheduler", kind),
    schedule_arguments: Some(transformers::SCHEDULE_ARGUMENTS),
    init: |init| match init {
        AdapterInit::Kaiming => words!(),
        AdapterInit::Gaussian => words!("peft_init_lora_weights": "gaussian"),
        AdapterInit::Pissa => words!("peft_init_lora_weights": "pissa"),
    },
    attention: |kind| transformers::attention("attn_implementation", kind),
    usual_attention: AttentionImplementation::Sdpa,
    preset: |preset| match preset {
        TargetPreset::AllLinear => words!("lora_target_linear": true),
        TargetPreset::Attention | TargetPreset::Mlp => None,
    },
};

/// The plugin with liger's kernels.
pub(super) const LIGER: &str = "axolotl.integrations.liger.LigerPlugin";
/// Keys of the plugin's kernels that transformers' trainer takes too.
pub(super) const LIGER_KERNELS: [&str; 3] = ["liger_rope", "liger_rms_norm", "liger_glu_activation"];

/// Share of the steps to warm up that every version takes for none: it is read as one that is said, and no training has so many steps
/// that one of them is left of it.
pub(super) const NO_WARMUP: f64 = 1e-9;

fn precision(precision: Precision) -> Option<Vec<Word>> {
    let lora = |is_int8, bf16, fp16| {
        words!(
            "adapter": "lora", "load_in_8bit": is_int8, "load_in_4bit": false,
            "bf16": bf16, "fp16": fp16, "tf32": false,
        )
    };
    let nf4 = |is_double| {
        words!(
            "adapter": "qlora", "load_in_8bit": false, "load_in_4bit": true,
            "bnb_config_kwargs": json!({
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": is_double,
                "bnb_4bit_compute_dtype": "bfloat16",
            }),
            "bf16": true, "fp16": false, "tf32": false,
        )
    };
    match precision {
        Precision::Fp32 => lora(false, false, false),
        Precision::Bf16 => lora(false, true, false),
        Precision::Fp16 => lora(false, false, true),
        Precision::Int8 => lora(true, true, false),
        Precision::Nf4 => nf4(false),
        Precision::Nf4Double => nf4(true),
    }
}

fn checkpointing(form: Checkpointing) -> Option<Vec<Word>> {
    match form {
        Checkpointing::None => words!("gradient_checkpointing": false),
        Checkpointing::Every(_) => None,
        Checkpointing::Full => words!("gradient_checkpointing": true),
        Checkpointing::Offload => words!("gradient_checkpointing": true, "activation_offloading": true),
    }
}
