//! How tokens are batched, and what is kept of them for the backward pass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How tokens are batched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Rows that go through the model at once.
    pub micro_batch: usize,
    /// Micro-batches whose gradients are added up before a step.
    pub gradient_accumulation: usize,
    /// Longest row in tokens; longer ones are cut.
    pub sequence_length: usize,
    /// Fills rows with several documents, each attending to itself only.
    pub packing: bool,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self {
            micro_batch: 4,
            gradient_accumulation: 1,
            sequence_length: 1024,
            packing: false,
        }
    }
}

impl BatchSettings {
    /// Rows in one step.
    pub fn global_batch(&self) -> usize {
        self.micro_batch * self.gradient_accumulation
    }
}

/// Which activations are kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Checkpointing {
    /// Keeps everything; the fastest and largest.
    #[default]
    None,
    /// Keeps the inputs of all layers and recomputes every second layer in the backward pass.
    EverySecond,
    /// Keeps layer inputs only and recomputes each layer in the backward pass.
    Full,
    /// As `full`, with the layer inputs moved to host memory.
    Offload,
}
