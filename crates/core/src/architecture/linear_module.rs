//! [`LinearModule`]: a linear layer of a decoder layer, and its role there.

/// Role of a linear layer in a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearRole {
    Query,
    Key,
    Value,
    /// Query, key and value in one product, stacked in this order.
    QueryKeyValue,
    Output,
    /// Input of a mixer in the place of attention.
    MixerInput,
    Gate,
    Up,
    /// Gate and up in one product, stacked in this order.
    GateUp,
    Down,
    /// Scores of the experts.
    Router,
    /// Scale of the shared expert.
    SharedGate,
    /// Gate that a layer's own input is multiplied with.
    InputGate,
    /// Projection of the product onto the stream.
    InputProjection,
    /// Source of the inputs of all layers, beside the decoder layers.
    LayerInputs,
    /// First projection of queries in latent attention, and the second one.
    QueryLatent,
    QueryExpansion,
    /// First projection of keys and values, with the rotated part of keys behind it, and the second one.
    KeyValueLatent,
    KeyValueExpansion,
}

/// One linear layer of every decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearModule {
    pub role: LinearRole,
    /// Name inside the decoder layer, such as `self_attn.q_proj`.
    pub name: &'static str,
    pub in_features: usize,
    pub out_features: usize,
    pub bias: bool,
}

impl LinearModule {
    /// A linear layer without a bias.
    pub(super) fn without_bias(role: LinearRole, name: &'static str, in_features: usize, out_features: usize) -> Self {
        Self {
            role,
            name,
            in_features,
            out_features,
            bias: false,
        }
    }
}

impl LinearRole {
    /// Whether it belongs to attention, or to what stands in its place.
    pub fn attends(self) -> bool {
        matches!(
            self,
            Self::Query
                | Self::Key
                | Self::Value
                | Self::QueryKeyValue
                | Self::Output
                | Self::QueryLatent
                | Self::QueryExpansion
                | Self::KeyValueLatent
                | Self::KeyValueExpansion
                | Self::MixerInput
        )
    }
}
