//! The update rule and the course of its learning rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The optimizer and its constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled weight decay (added to the gradient for SGD).
    pub weight_decay: f64,
    pub beta1: f64,
    /// Absent: 0.999 for AdamW, 0.99 for Lion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,
    pub epsilon: f64,
    /// Momentum of SGD and Muon.
    pub momentum: f64,
    /// Nesterov's form of the momentum (SGD).
    pub nesterov: bool,
    /// Learning rate of lora_b over that of lora_a (LoRA+, arXiv:2402.12354).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loraplus_ratio: Option<f64>,
    /// Global gradient norm above which gradients are scaled down; `null` never clips.
    pub max_grad_norm: Option<f64>,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            learning_rate: 2e-4,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: None,
            epsilon: 1e-8,
            momentum: 0.9,
            nesterov: false,
            loraplus_ratio: None,
            max_grad_norm: Some(1.0),
        }
    }
}

/// The update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OptimizerKind {
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    #[serde(rename = "sgd")]
    Sgd,
    #[serde(rename = "adamw_8bit")]
    AdamW8bit,
    #[serde(rename = "paged_adamw")]
    PagedAdamW,
    #[serde(rename = "paged_adamw_8bit")]
    PagedAdamW8bit,
    #[serde(rename = "lion")]
    Lion,
    #[serde(rename = "lion_8bit")]
    Lion8bit,
    #[serde(rename = "adafactor")]
    Adafactor,
    #[serde(rename = "muon")]
    Muon,
}

/// Course of the learning rate over the training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    pub kind: ScheduleKind,
    /// Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).
    pub warmup: f64,
}

impl ScheduleSettings {
    /// Warm-up steps of a training of `total` steps.
    pub fn warmup_steps(&self, total: u64) -> u64 {
        if self.warmup >= 1.0 {
            self.warmup as u64
        } else {
            (self.warmup * total as f64).ceil() as u64
        }
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    /// Falls to zero in a straight line.
    Linear,
    /// Falls to zero along half a cosine.
    #[default]
    Cosine,
}
