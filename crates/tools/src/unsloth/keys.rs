//! What the arguments of unsloth's and TRL's functions call what recipes have.

use crate::keys::{ToolKeys, Word, words};
use crate::peft::keys::KEYS as PEFT;
use crate::transformers;
use peft_tune_core::recipe::{Checkpointing, Precision};

pub(super) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("precision", "dtype"),
        ("rank", "r"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "target_modules"),
        ("rslora", "use_rslora"),
        ("dora", "use_dora"),
        ("init", "init_lora_weights"),
        ("bias", "bias"),
        ("sequence_length", "max_length"),
        ("packing", "packing"),
        ("group_by_length", "train_sampling_strategy"),
        ("micro_batch", "per_device_train_batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("prefetch_depth", "dataloader_prefetch_factor"),
        ("dataloader_num_workers", "dataloader_num_workers"),
        ("gradient_checkpointing", "use_gradient_checkpointing"),
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
    checkpointing: |form| match form {
        Checkpointing::None => words!("use_gradient_checkpointing": false),
        Checkpointing::Every(_) => None,
        Checkpointing::Full => words!("use_gradient_checkpointing": true),
        Checkpointing::Offload => words!("use_gradient_checkpointing": "unsloth"),
    },
    schedule: |kind| transformers::schedule("lr_scheduler_type", kind),
    schedule_after_warmup: |kind| transformers::schedule_after_warmup("lr_scheduler_type", kind),
    schedule_arguments: Some(transformers::SCHEDULE_ARGUMENTS),
    init: PEFT.init,
    ..ToolKeys::NONE
};

fn precision(precision: Precision) -> Option<Vec<Word>> {
    let words = |dtype, [is_nf4, is_int8]: [bool; 2], [bf16, fp16]: [bool; 2]| {
        words!(
            "dtype": dtype, "load_in_4bit": is_nf4, "load_in_8bit": is_int8,
            "bf16": bf16, "fp16": fp16,
        )
    };
    match precision {
        Precision::Fp32 => words("float32", [false, false], [false, false]),
        Precision::Bf16 => words("bfloat16", [false, false], [true, false]),
        Precision::Fp16 => words("float16", [false, false], [false, true]),
        Precision::Int8 => words("bfloat16", [false, true], [true, false]),
        // It always quantizes the constants too.
        Precision::Nf4 => None,
        Precision::Nf4Double => words("bfloat16", [true, false], [true, false]),
    }
}
