//! Tensors that a forward pass keeps of each layer for the backward pass, and where.

use crate::recipe::Checkpointing;

/// Memory in which activations lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Memory of the host.
    Host,
    /// Memory of a device beside the host.
    Device,
}

/// Tensors that the forward pass keeps of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKeep {
    /// No tensor: the layer is below all that trains.
    Nothing,
    /// Input of the layer; backward runs the layer forward again.
    Input,
    /// Input of the layer, in the host's memory.
    HostInput,
    /// Tensors that backward reads.
    Saved,
}

/// Tensors that are kept of layer `index`, where a gradient reaches it.
pub fn layer_keep(checkpointing: Checkpointing, index: usize) -> LayerKeep {
    match checkpointing {
        Checkpointing::None => LayerKeep::Saved,
        Checkpointing::Every(nth) if !index.is_multiple_of(nth.get() as usize) => LayerKeep::Saved,
        Checkpointing::Every(_) | Checkpointing::Full => LayerKeep::Input,
        Checkpointing::Offload => LayerKeep::HostInput,
    }
}
