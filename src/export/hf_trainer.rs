//! What tools built on transformers' `TrainingArguments` (TRL, axolotl, LLaMA-Factory, unsloth) share: the names of
//! optimizers and schedules, and the optimizers' constants.

use serde_json::Value;

use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings, ScheduleSettings};

/// Name in transformers' `OptimizerNames`; `None` for muon, which it does not have.
pub(super) fn optimizer_name(kind: OptimizerKind) -> Option<&'static str> {
    kind.row().keys.trl?.text("optim")
}

/// Name in transformers' `SchedulerType`.
pub(super) fn schedule_name(schedule: &ScheduleSettings) -> &'static str {
    let name = schedule.keys().trl.and_then(|keys| keys.text("lr_scheduler_type"));
    name.unwrap_or(schedule.kind.name())
}

/// Keys and values of the constants that the optimizer has.
pub(super) fn constants(optimizer: &OptimizerSettings) -> Vec<(&'static str, Value)> {
    let (kind, mut constants) = (optimizer.kind, Vec::new());
    if kind.reads_momentum() && optimizer_name(kind).is_some() {
        let is_nesterov = kind.reads_nesterov() && optimizer.nesterov;
        let nesterov = if is_nesterov { ",nesterov=true" } else { "" };
        let momentum = format!("momentum={}{nesterov}", optimizer.momentum);
        constants.push(("optim_args", momentum.into()));
    }
    let kind = kind.of_vectors();
    if kind.reads_betas() {
        constants.push(("adam_beta1", optimizer.beta1.into()));
        constants.push(("adam_beta2", optimizer.beta2().into()));
    }
    if kind.reads_epsilon() {
        constants.push(("adam_epsilon", optimizer.epsilon.into()));
    }
    constants
}
