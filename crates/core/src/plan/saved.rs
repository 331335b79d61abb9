//! What the forward pass keeps for its backward pass: the whole list, in one place.
//!
//! Norm outputs and the activation's output are not in it: they are made again, since they cost one pass over memory and
//! would be the largest part.

use crate::recipe::Checkpointing;

/// Where activations lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The host's own.
    Host,
    /// That of a device beside it.
    Device,
}

/// What the forward pass keeps of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKeep {
    /// Nothing: below all that trains.
    Nothing,
    /// Its input; backward runs the layer forward again.
    Input,
    /// The same, in the host's memory.
    HostInput,
    /// What backward reads.
    Saved,
}

/// What is kept of layer `index`, where a gradient reaches it.
pub fn layer_keep(checkpointing: Checkpointing, index: usize) -> LayerKeep {
    match checkpointing {
        Checkpointing::None => LayerKeep::Saved,
        Checkpointing::Every(nth) if !index.is_multiple_of(nth.get() as usize) => LayerKeep::Saved,
        Checkpointing::Every(_) | Checkpointing::Full => LayerKeep::Input,
        Checkpointing::Offload => LayerKeep::HostInput,
    }
}

/// What a decoder layer keeps, by what it is kept for: one tensor or some that live as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedTensor {
    /// The layer's input, which is the output of the layer below and is not held twice, and what its norm keeps: the normed
    /// input is made again from them.
    Input,
    /// What a mixer in the place of attention reads.
    MixerInput,
    /// As rotated, or before its norm.
    Query,
    Key,
    /// Before its norm, where there is one; not held twice where it is the key.
    Value,
    /// What the norms of queries, keys and values keep.
    HeadNorms,
    /// The gates of the queries.
    HeadGates,
    /// With the log-sum-exp; or what a delta rule gives.
    AttentionOutput,
    /// x A^T of the adapters on query, key and value: the gradient of lora_b reads it.
    QkvXa,
    OutputXa,
    /// Input of the norm behind attention, and what it keeps.
    AttentionBehind,
    /// The stream between attention and MLP.
    Between,
    /// What the norm on it keeps.
    BetweenNorm,
    Gate,
    Up,
    GateUpXa,
    DownXa,
    /// Input of the norm behind the MLP, and what it keeps.
    MlpBehind,
    /// Inputs of the norms behind an MLP and experts that are branches, and what those keep.
    BranchesBehind,
    /// Scores of all experts, and for each chosen one its weight, whose token it has, and where the token's output lies.
    Routing,
    RouterXa,
    /// What scales the shared expert.
    SharedGate,
    SharedGateXa,
    /// Of the chosen experts, sorted by expert.
    ExpertGate,
    ExpertUp,
    ExpertGateUpXa,
    ExpertDownXa,
    /// Compressed queries, keys and values, and what their norms keep.
    Latents,
    /// Of the adapters on their second projections.
    LatentXa,
    /// The stream that the gate of the layer's own input reads.
    InputStream,
    InputGate,
    InputGateXa,
    InputProjectionXa,
    /// Input of the norm behind the layer's own input, and what it keeps.
    InputBehind,
}

impl SavedTensor {
    /// Whether it is held until the backward pass. The stream between the blocks is a tenth of the list, and the product of
    /// attention's output that makes it again 2% of a step: it is not held in the host's memory.
    pub fn is_held(self, memory: Memory) -> bool {
        self != Self::Between || memory == Memory::Device
    }
}
