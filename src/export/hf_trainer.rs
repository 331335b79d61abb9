//! What tools built on transformers' `TrainingArguments` (TRL, axolotl, LLaMA-Factory, unsloth) share: the names of
//! optimizers and schedules, and the optimizers' constants.

use serde_json::Value;

use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings, ScheduleKind, ScheduleSettings};

/// Name in transformers' `OptimizerNames`; `None` for muon, which it does not have.
pub(super) fn optimizer_name(kind: OptimizerKind) -> Option<&'static str> {
    Some(match kind {
        OptimizerKind::AdamW => "adamw_torch",
        OptimizerKind::Sgd => "sgd",
        OptimizerKind::AdamW8bit => "adamw_8bit",
        OptimizerKind::PagedAdamW => "paged_adamw_32bit",
        OptimizerKind::PagedAdamW8bit => "paged_adamw_8bit",
        OptimizerKind::Lion => "lion_32bit",
        OptimizerKind::Lion8bit => "lion_8bit",
        OptimizerKind::Adafactor => "adafactor",
        OptimizerKind::Muon => return None,
    })
}

/// Name in transformers' `SchedulerType`.
pub(super) fn schedule_name(schedule: &ScheduleSettings) -> &'static str {
    match schedule.kind {
        ScheduleKind::Constant if schedule.warmup > 0.0 => "constant_with_warmup",
        ScheduleKind::Constant => "constant",
        ScheduleKind::Linear => "linear",
        ScheduleKind::Cosine => "cosine",
    }
}

/// Keys and values of the constants that the optimizer has.
pub(super) fn constants(optimizer: &OptimizerSettings) -> Vec<(&'static str, Value)> {
    match optimizer.kind {
        OptimizerKind::Sgd => {
            let nesterov = if optimizer.nesterov { ",nesterov=true" } else { "" };
            vec![(
                "optim_args",
                format!("momentum={}{nesterov}", optimizer.momentum).into(),
            )]
        }
        OptimizerKind::Adafactor | OptimizerKind::Muon => Vec::new(),
        kind => {
            let mut constants = vec![
                ("adam_beta1", optimizer.beta1.into()),
                ("adam_beta2", beta2(optimizer).into()),
            ];
            if !is_lion(kind) {
                constants.push(("adam_epsilon", optimizer.epsilon.into()));
            }
            constants
        }
    }
}

/// Decay of the second moment: as set, or the optimizer's own.
pub(super) fn beta2(optimizer: &OptimizerSettings) -> f64 {
    optimizer
        .beta2
        .unwrap_or(if is_lion(optimizer.kind) { 0.99 } else { 0.999 })
}

fn is_lion(kind: OptimizerKind) -> bool {
    matches!(kind, OptimizerKind::Lion | OptimizerKind::Lion8bit)
}
