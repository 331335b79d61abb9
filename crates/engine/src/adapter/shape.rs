//! What an adapter has to know of the base model: names and shapes.

/// One linear layer of the base model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// Module name as in the checkpoint, without `.weight`: `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Columns of the weight (out, in).
    pub inputs: usize,
    /// Rows of the weight (out, in).
    pub outputs: usize,
    /// Whether the layer has a bias of its own.
    pub bias: bool,
}

/// Any other parameter of the base model (norms, embedding, LM head).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShape {
    /// Name as in the checkpoint: `model.norm.weight`.
    pub name: String,
    pub shape: Vec<usize>,
}

/// The parts of a base model that an adapter can attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseShape {
    /// Number of decoder layers.
    pub layers: usize,
    /// Linear layers of the decoder layers, in the order in which the model reads them; the LM head is not among them.
    pub linears: Vec<LinearShape>,
    /// Every other parameter; `modules_to_save` chooses from them and from the linears.
    pub others: Vec<ParameterShape>,
}

impl LinearShape {
    /// The last component of the name: `q_proj`.
    pub fn suffix(&self) -> &str {
        last_component(&self.name)
    }
}

/// The part of a module name behind its last dot.
pub(super) fn last_component(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
