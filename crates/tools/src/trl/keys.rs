//! What TRL's YAML calls what recipes have.

use crate::keys::{ToolKeys, Word, words};
use crate::transformers;
use peft_tune_core::recipe::{AdapterInit, AttentionImplementation, Checkpointing, Precision, TargetPreset};

pub(super) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("method", "use_peft"),
        ("precision", "dtype"),
        ("rank", "lora_r"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "lora_target_modules"),
        ("rslora", "use_rslora"),
        ("dora", "use_dora"),
        ("sequence_length", "max_length"),
        ("packing", "packing"),
        ("group_by_length", "train_sampling_strategy"),
        ("micro_batch", "per_device_train_batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("prefetch_depth", "dataloader_prefetch_factor"),
        ("attn_implementation", "attn_implementation"),
        ("torch_compile", "torch_compile"),
        ("use_liger_kernel", "use_liger_kernel"),
        ("dataloader_num_workers", "dataloader_num_workers"),
        ("gradient_checkpointing", "gradient_checkpointing"),
        ("optimizer", "optim"),
        ("learning_rate", "learning_rate"),
        ("schedule", "lr_scheduler_type"),
        ("warmup", "warmup_steps"),
        ("weight_decay", "weight_decay"),
        ("beta1", "adam_beta1"),
        ("beta2", "adam_beta2"),
        ("epsilon", "adam_epsilon"),
        ("max_grad_norm", "max_grad_norm"),
    ],
    optimizer: |kind| transformers::optimizer("optim", kind),
    precision,
    checkpointing,
    schedule: |kind| transformers::schedule("lr_scheduler_type", kind),
    schedule_after_warmup: |kind| transformers::schedule_after_warmup("lr_scheduler_type", kind),
    schedule_arguments: Some(transformers::SCHEDULE_ARGUMENTS),
    init: |init| match init {
        AdapterInit::Kaiming => words!(),
        AdapterInit::Gaussian | AdapterInit::Pissa => None,
    },
    attention: |kind| transformers::attention("attn_implementation", kind),
    usual_attention: AttentionImplementation::Auto,
    preset: |preset| match preset {
        TargetPreset::AllLinear => words!("lora_target_modules": "all-linear"),
        TargetPreset::Attention | TargetPreset::Mlp => None,
    },
};

fn precision(precision: Precision) -> Option<Vec<Word>> {
    let dense = |dtype, bf16, fp16| words!("dtype": dtype, "bf16": bf16, "fp16": fp16);
    let nf4 = |is_double| {
        words!(
            "dtype": "bfloat16", "bf16": true, "fp16": false, "load_in_4bit": true,
            "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": is_double,
        )
    };
    match precision {
        Precision::Fp32 => dense("float32", false, false),
        Precision::Bf16 => dense("bfloat16", true, false),
        Precision::Fp16 => dense("float16", false, true),
        Precision::Int8 => words!("dtype": "bfloat16", "bf16": true, "fp16": false, "load_in_8bit": true),
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
