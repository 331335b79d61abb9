//! What LLaMA-Factory's YAML calls what recipes have.

use crate::keys::{ToolKeys, Word, words};
use crate::transformers;
use peft_tune_core::recipe::{
    AdapterInit, AttentionImplementation, Checkpointing, OptimizerKind, Precision, TargetPreset,
};

pub(super) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("method", "finetuning_type"),
        ("rank", "lora_rank"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "lora_target"),
        ("rslora", "use_rslora"),
        ("dora", "use_dora"),
        ("init", "pissa_init"),
        ("sequence_length", "cutoff_len"),
        ("packing", "packing"),
        ("micro_batch", "per_device_train_batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("prefetch_depth", "dataloader_prefetch_factor"),
        ("attn_implementation", "flash_attn"),
        ("torch_compile", "torch_compile"),
        ("use_liger_kernel", "enable_liger_kernel"),
        ("dataloader_num_workers", "dataloader_num_workers"),
        ("gradient_checkpointing", "disable_gradient_checkpointing"),
        ("optimizer", "optim"),
        ("learning_rate", "learning_rate"),
        ("schedule", "lr_scheduler_type"),
        ("warmup", "warmup_steps"),
        ("weight_decay", "weight_decay"),
        ("beta1", "adam_beta1"),
        ("beta2", "adam_beta2"),
        ("epsilon", "adam_epsilon"),
        ("max_grad_norm", "max_grad_norm"),
        ("loraplus_ratio", "loraplus_lr_ratio"),
    ],
    optimizer: |kind| match kind {
        OptimizerKind::Muon => words!("use_muon": true),
        kind => transformers::optimizer("optim", kind),
    },
    precision,
    checkpointing,
    schedule: |kind| transformers::schedule("lr_scheduler_type", kind),
    schedule_after_warmup: |kind| transformers::schedule_after_warmup("lr_scheduler_type", kind),
    schedule_arguments: Some(transformers::SCHEDULE_ARGUMENTS),
    init: |init| match init {
        AdapterInit::Kaiming => words!("pissa_init": false),
        AdapterInit::Gaussian => None,
        // The exact decomposition, and no fast approximation.
        AdapterInit::Pissa => words!("pissa_init": true, "pissa_iter": -1),
    },
    attention: |kind| match kind {
        AttentionImplementation::Auto => words!("flash_attn": "auto"),
        AttentionImplementation::Eager => words!("flash_attn": "disabled"),
        AttentionImplementation::Sdpa => words!("flash_attn": "sdpa"),
        AttentionImplementation::Flash2 => words!("flash_attn": "fa2"),
        // Its `fa3` is for one family alone.
        AttentionImplementation::Flash3 | AttentionImplementation::Flash4 | AttentionImplementation::Flex => None,
    },
    usual_attention: AttentionImplementation::Sdpa,
    preset: |preset| match preset {
        TargetPreset::AllLinear => words!("lora_target": "all"),
        TargetPreset::Attention | TargetPreset::Mlp => None,
    },
};

fn precision(precision: Precision) -> Option<Vec<Word>> {
    let dense = |bf16, fp16| words!("bf16": bf16, "fp16": fp16);
    let nf4 = |is_double| {
        words!(
            "bf16": true, "fp16": false, "quantization_bit": 4,
            "quantization_method": "bnb", "quantization_type": "nf4",
            "double_quantization": is_double,
        )
    };
    match precision {
        Precision::Fp32 => dense(false, false),
        Precision::Bf16 => dense(true, false),
        Precision::Fp16 => dense(false, true),
        Precision::Int8 => words!("bf16": true, "fp16": false, "quantization_bit": 8, "quantization_method": "bnb"),
        Precision::Nf4 => nf4(false),
        Precision::Nf4Double => nf4(true),
    }
}

fn checkpointing(form: Checkpointing) -> Option<Vec<Word>> {
    match form {
        Checkpointing::None => words!("disable_gradient_checkpointing": true),
        Checkpointing::Every(_) => None,
        Checkpointing::Full => words!("disable_gradient_checkpointing": false),
        // It needs no unsloth package for this.
        Checkpointing::Offload => words!("disable_gradient_checkpointing": false, "use_unsloth_gc": true),
    }
}
