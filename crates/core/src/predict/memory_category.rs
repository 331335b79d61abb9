//! Uses of memory.

use serde::{Deserialize, Serialize};

/// Use of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryCategory {
    /// Weights of the base model; codes where they are quantized.
    BaseWeights,
    /// Block constants of quantized weights.
    // As the memory of other stacks has it.
    #[serde(rename = "quantisation_constants")]
    QuantizationConstants,
    /// Values of what trains.
    Adapters,
    /// Gradients of what trains.
    Gradients,
    OptimizerState,
    /// Tensors that the forward pass keeps for the backward pass.
    SavedActivations,
    /// One chunk of logits with its inputs and gradients.
    Logits,
    /// Score blocks, gathered heads and shares of gradients in attention.
    AttentionWorkspace,
    /// Activations and gradients that live for a moment.
    Scratch,
    /// Bytes that are there whatever the setting: packing buffers of the threads, tables, objects.
    Framework,
}

/// Number of parts.
pub const MEMORY_CATEGORIES: usize = 10;

impl MemoryCategory {
    /// All parts, in the order in which they are shown.
    pub const ALL: [Self; MEMORY_CATEGORIES] = [
        Self::BaseWeights,
        Self::QuantizationConstants,
        Self::Adapters,
        Self::Gradients,
        Self::OptimizerState,
        Self::SavedActivations,
        Self::Logits,
        Self::AttentionWorkspace,
        Self::Scratch,
        Self::Framework,
    ];

    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::BaseWeights => "base_weights",
            Self::QuantizationConstants => "quantisation_constants",
            Self::Adapters => "adapters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::SavedActivations => "saved_activations",
            Self::Logits => "logits",
            Self::AttentionWorkspace => "attention_workspace",
            Self::Scratch => "scratch",
            Self::Framework => "framework",
        }
    }
}

/// Bytes by category at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes([u64; MEMORY_CATEGORIES]);

impl Bytes {
    /// Bytes of one category.
    pub fn of(&self, category: MemoryCategory) -> u64 {
        self.0[category as usize]
    }

    /// Adds bytes to a category.
    pub fn add(&mut self, category: MemoryCategory, bytes: u64) {
        self.0[category as usize] += bytes;
    }

    /// Sum over the parts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Bytes of the one of the two with the higher sum.
    pub(super) fn higher(self, other: Self) -> Self {
        match other.total() > self.total() {
            true => other,
            false => self,
        }
    }

    /// Parts with their bytes, in the order of [`MemoryCategory::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (MemoryCategory, u64)> + '_ {
        MemoryCategory::ALL.into_iter().zip(self.0)
    }

    pub(super) fn from_signed(bytes: [i64; MEMORY_CATEGORIES]) -> Self {
        Self(bytes.map(|bytes| bytes.max(0).cast_unsigned()))
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(category, bytes)| (category.name(), bytes)))
    }
}
