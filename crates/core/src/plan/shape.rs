//! What an adapter has to know of the base model: names and shapes.

use std::collections::HashSet;

use crate::architecture::{Architecture, LinearModule};

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
    /// See [`Architecture::within`]; names here are those of the language model alone.
    pub within: Option<&'static str>,
    /// Linear layers of the decoder layers, in the order in which the model reads them; the LM head is not among them.
    pub linears: Vec<LinearShape>,
    /// Every other parameter; `modules_to_save` chooses from them and from the linears.
    pub others: Vec<ParameterShape>,
}

impl BaseShape {
    /// The parts of a model of this architecture.
    pub fn new(architecture: &Architecture) -> Self {
        let modules = architecture.linear_modules();
        let names = (0..architecture.layers.len()).map(Architecture::layer_name);
        let of_layer = |layer: String| {
            let linear = move |module: &LinearModule| LinearShape {
                name: format!("{layer}.{}", module.name),
                inputs: module.in_features,
                outputs: module.out_features,
                bias: module.bias,
            };
            modules.iter().map(linear).collect::<Vec<_>>()
        };
        let linears: Vec<LinearShape> = names.flat_map(of_layer).collect();
        let known: HashSet<&str> = linears.iter().map(|linear| linear.name.as_str()).collect();
        let of_linear = |name: &str| name.rsplit_once('.').is_some_and(|(module, _)| known.contains(module));
        let others = architecture
            .tensors()
            .into_iter()
            .filter(|tensor| !of_linear(&tensor.name));
        let others = others.map(|tensor| ParameterShape {
            name: tensor.name,
            shape: tensor.shape,
        });
        Self {
            layers: architecture.layers.len(),
            within: architecture.within,
            others: others.collect(),
            linears,
        }
    }
}

impl LinearShape {
    /// The last component of the name: `q_proj`.
    pub fn suffix(&self) -> &str {
        last_component(&self.name)
    }
}

/// The part of a module name behind its last dot.
pub fn last_component(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
