//! The optimizer and its constants.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OptimizerKind, OptimizerOffload};

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
    /// Decay of the mean of squares; absent, 0.999 for AdamW and 0.99 for Lion.
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
    /// Place where the states lie and updates are computed.
    #[serde(skip_serializing_if = "OptimizerOffload::is_none")]
    pub offload: OptimizerOffload,
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
            offload: OptimizerOffload::None,
        }
    }
}

impl OptimizerSettings {
    /// Decay of the second moment: as set, or the optimizer's own.
    pub fn beta2(&self) -> f64 {
        let own = |kind: OptimizerKind| kind.row().reads.default_beta2;
        let default = own(self.kind).or(own(self.kind.of_vectors()));
        self.beta2.or(default).unwrap_or_default()
    }
}
