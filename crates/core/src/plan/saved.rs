//! What a forward pass keeps of each layer for the backward pass, and where.

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
