//! Forms of a decoder layer in which the families differ: its activation, its norms and the names of its modules.

use serde::Serialize;

/// Activation of the MLP: of the gate, which is multiplied with up, or of up alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·sigmoid(x)
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
    /// xIELU, which has no gate beside it and two numbers in each layer (Apertus).
    Xielu,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNorm {
    None,
    /// Norm over d, of each head before the rotation.
    Heads,
    /// Norm over d, of each head after the rotation (Hunyuan).
    RotatedHeads,
    /// Norm over all heads of a token at once, before the rotation (OLMo).
    AllHeads,
    /// Norm over d, of each head after the rotation, without a weight (Llama 4).
    RotatedUnweighted,
}

/// Names of the modules of a decoder layer, where families differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LayerNames {
    /// The norm before attention, and the one behind it.
    pub attention_norms: [&'static str; 2],
    /// The norm before the MLP, and the one behind it.
    pub mlp_norms: [&'static str; 2],
    /// The norms of queries and of keys.
    pub head_norms: [&'static str; 2],
    /// Gate and up, where they are one, and down.
    pub mlp: [&'static str; 2],
    /// Gate and up, where they are two.
    pub gate_and_up: [&'static str; 2],
    /// The output projection of attention.
    pub attention_output: &'static str,
    /// The tensor of the norm behind the last layer, in the whole model.
    pub last_norm: &'static str,
}

/// Placement of the norms of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// Norms before attention and before the MLP.
    Before,
    /// Norms before and behind each of attention and MLP (Gemma 2 and 3, GLM-4).
    BeforeAndBehind,
    /// Norms behind attention and behind the MLP, before the residual sum (OLMo, EXAONE 4).
    Behind,
    /// One norm before both attention and MLP, which run side by side (Cohere).
    Shared,
}

impl NormPlacement {
    /// Whether norms stand before attention and MLP.
    pub fn is_before(self) -> bool {
        self != Self::Behind
    }

    /// Whether norms stand behind attention and MLP.
    pub fn is_behind(self) -> bool {
        matches!(self, Self::BeforeAndBehind | Self::Behind)
    }
}

impl Activation {
    /// Whether the MLP has a gate beside up.
    pub fn is_gated(self) -> bool {
        self != Self::Xielu
    }
}

impl QueryKeyNorm {
    /// Whether there are any.
    pub fn is_there(self) -> bool {
        self != Self::None
    }
}
