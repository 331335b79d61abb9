//! What torchtune's config calls what recipes have.

use crate::keys::{ToolKeys, Word, words};
use peft_tune_core::recipe::{AdapterInit, Checkpointing, OptimizerKind, Precision, ScheduleKind};

pub(super) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("precision", "dtype"),
        ("rank", "lora_rank"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "lora_attn_modules"),
        ("dora", "use_dora"),
        ("sequence_length", "max_seq_len"),
        ("packing", "packed"),
        ("micro_batch", "batch_size"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("torch_compile", "compile"),
        ("gradient_checkpointing", "enable_activation_checkpointing"),
        ("optimizer", "optimizer"),
        ("learning_rate", "lr"),
        ("schedule", "lr_scheduler"),
        ("warmup", "num_warmup_steps"),
        ("weight_decay", "weight_decay"),
        ("momentum", "momentum"),
        ("nesterov", "nesterov"),
        ("epsilon", "eps"),
        ("max_grad_norm", "clip_grad_norm"),
    ],
    optimizer: |kind| words!("_component_": optimizer_class(kind)?),
    precision: |precision| match precision {
        Precision::Fp32 => words!("quantize_base": false, "dtype": "fp32"),
        Precision::Bf16 => words!("quantize_base": false, "dtype": "bf16"),
        // It always quantizes the constants too.
        Precision::Nf4Double => words!("quantize_base": true, "dtype": "bf16"),
        Precision::Fp16 | Precision::Int8 | Precision::Nf4 => None,
    },
    checkpointing,
    schedule,
    schedule_after_warmup: |kind| match kind {
        ScheduleKind::Constant => schedule(kind),
        ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::CosineWithMinLr | ScheduleKind::Wsd => None,
    },
    init: |init| match init {
        AdapterInit::Kaiming => words!(),
        AdapterInit::Gaussian | AdapterInit::Pissa => None,
    },
    ..ToolKeys::NONE
};

const COSINE: &str = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup";

fn optimizer_class(kind: OptimizerKind) -> Option<&'static str> {
    match kind {
        OptimizerKind::AdamW => Some("torch.optim.AdamW"),
        OptimizerKind::Sgd => Some("torch.optim.SGD"),
        OptimizerKind::AdamW8bit => Some("bitsandbytes.optim.AdamW8bit"),
        OptimizerKind::PagedAdamW => Some("bitsandbytes.optim.PagedAdamW"),
        OptimizerKind::PagedAdamW8bit => Some("bitsandbytes.optim.PagedAdamW8bit"),
        OptimizerKind::Lion => Some("bitsandbytes.optim.Lion"),
        OptimizerKind::Lion8bit => Some("bitsandbytes.optim.Lion8bit"),
        OptimizerKind::Adafactor => Some("torch.optim.Adafactor"),
        OptimizerKind::Muon => Some("torch.optim.Muon"),
        // It never tells an optimizer whether it trains or evaluates.
        OptimizerKind::AdamWScheduleFree => None,
    }
}

fn checkpointing(form: Checkpointing) -> Option<Vec<Word>> {
    let (is_on, is_offloaded) = match form {
        Checkpointing::None => (false, false),
        Checkpointing::Every(_) => return None,
        Checkpointing::Full => (true, false),
        Checkpointing::Offload => (true, true),
    };
    words!("enable_activation_checkpointing": is_on, "enable_activation_offloading": is_offloaded)
}

fn schedule(kind: ScheduleKind) -> Option<Vec<Word>> {
    match kind {
        // It knows a constant rate as a cosine of no cycles.
        ScheduleKind::Constant => words!("_component_": COSINE, "num_cycles": 0.0),
        ScheduleKind::Linear => words!("_component_": "transformers.get_linear_schedule_with_warmup"),
        ScheduleKind::Cosine => words!("_component_": COSINE),
        ScheduleKind::CosineWithMinLr => {
            words!("_component_": "transformers.get_cosine_with_min_lr_schedule_with_warmup")
        }
        ScheduleKind::Wsd => words!("_component_": "transformers.get_wsd_schedule"),
    }
}
