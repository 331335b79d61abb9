//! Names of transformers, which the tools on its Trainer (TRL, axolotl, LLaMA-Factory, unsloth) share.

use super::keys::Word;
use peft_tune_core::recipe::{AttentionImplementation, OptimizerKind, ScheduleKind};

/// An optimizer's name in `OptimizerNames`, which all its trainers take.
pub(super) fn optimizer_name(kind: OptimizerKind) -> Option<&'static str> {
    match kind {
        OptimizerKind::AdamW => Some("adamw_torch_fused"),
        OptimizerKind::Sgd => Some("sgd"),
        OptimizerKind::AdamW8bit => Some("adamw_8bit"),
        OptimizerKind::PagedAdamW => Some("paged_adamw_32bit"),
        OptimizerKind::PagedAdamW8bit => Some("paged_adamw_8bit"),
        OptimizerKind::Lion => Some("lion_32bit"),
        OptimizerKind::Lion8bit => Some("lion_8bit"),
        OptimizerKind::Adafactor => Some("adafactor"),
        OptimizerKind::Muon => None,
        OptimizerKind::AdamWScheduleFree => Some("schedule_free_adamw"),
    }
}

/// Whether transformers takes an optimizer from bitsandbytes.
pub fn is_of_bitsandbytes(kind: OptimizerKind) -> bool {
    let name = optimizer_name(kind).unwrap_or_default();
    ["8bit", "paged", "lion"].iter().any(|part| name.contains(part))
}

/// Whether transformers takes an optimizer from schedulefree.
pub fn is_of_schedulefree(kind: OptimizerKind) -> bool {
    optimizer_name(kind).is_some_and(|name| name.starts_with("schedule_free"))
}

/// An optimizer under a tool's key for it.
pub(super) fn optimizer(key: &'static str, kind: OptimizerKind) -> Option<Vec<Word>> {
    optimizer_name(kind).map(|name| vec![(key, name.into())])
}

/// A schedule of `SchedulerType` under a tool's key for it.
pub(super) fn schedule(key: &'static str, kind: ScheduleKind) -> Option<Vec<Word>> {
    let name = match kind {
        ScheduleKind::Constant => "constant",
        ScheduleKind::Linear => "linear",
        ScheduleKind::Cosine => "cosine",
        ScheduleKind::CosineWithMinLr => "cosine_with_min_lr",
        ScheduleKind::Wsd => "warmup_stable_decay",
    };
    Some(vec![(key, name.into())])
}

/// An implementation of attention under a tool's key for it, by transformers' name; no word where transformers chooses.
pub(super) fn attention(key: &'static str, kind: AttentionImplementation) -> Option<Vec<Word>> {
    let name = (!kind.is_auto()).then(|| (key, kind.name().into()));
    Some(name.into_iter().collect())
}

/// The key of a map with the arguments of a schedule's function.
pub(super) const SCHEDULE_ARGUMENTS: &str = "lr_scheduler_kwargs";

/// A schedule that has another name behind a warm-up.
pub(super) fn schedule_after_warmup(key: &'static str, kind: ScheduleKind) -> Option<Vec<Word>> {
    match kind {
        ScheduleKind::Constant => Some(vec![(key, "constant_with_warmup".into())]),
        ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::CosineWithMinLr | ScheduleKind::Wsd => None,
    }
}
