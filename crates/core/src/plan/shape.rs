//! Shape of the base model, as an adapter has to know it: names and sizes.

use std::collections::HashSet;

use crate::architecture::{
    Architecture, EXPERT_SCALE, ExpertPart, Experts, LAYER_SCALAR, LinearModule, LinearRole, ROUTER_SCALE, SINKS,
    is_frozen,
};

/// Kind of weight that an adapter can attach to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinearKind {
    /// A linear layer.
    #[default]
    Layer,
    /// A weight that is multiplied as a linear layer's, but is a bare parameter to PEFT: a router.
    Parameter,
    /// The stacked weights of so many experts, of which PEFT sees one parameter.
    Experts(usize),
}

/// One linear layer of the base model, or the same projection of all experts of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinearShape {
    /// Module name as in the checkpoint, without `.weight`: `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Columns of the weight (out, in).
    pub inputs: usize,
    /// Rows of the weight (out, in).
    pub outputs: usize,
    /// Whether the layer has a bias of its own.
    pub bias: bool,
    pub kind: LinearKind,
    /// Whether its few outputs, scores or a gate, are no bound of a rank: names that mean all layers mean it too, and PEFT takes any.
    pub any_rank: bool,
}

/// Parameter of the base model beside the linear layers (norms, embedding, LM head).
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
    /// Linear layers of the decoder layers, in the order in which the model reads them, and what stands beside them; the LM head is
    /// not among them.
    pub linears: Vec<LinearShape>,
    /// Every other parameter; `modules_to_save` chooses from them and from the linears. Experts' own tensors are not among them, nor
    /// what never trains.
    pub others: Vec<ParameterShape>,
    /// Whether PEFT takes `gate_proj`, `up_proj` and `down_proj` for the experts of a layer.
    pub modules_are_experts: bool,
    /// Whether the LM head is the embedding.
    pub tied_embeddings: bool,
}

impl BaseShape {
    /// The parts of a model of this architecture.
    pub fn new(architecture: &Architecture) -> Self {
        let layers = 0..architecture.layers.len();
        let mut linears: Vec<LinearShape> = layers.flat_map(|index| linears_of(architecture, index)).collect();
        linears.extend(
            architecture
                .outer_module()
                .map(|module| linear(module.name.to_owned(), &module, false)),
        );
        let known: HashSet<&str> = linears.iter().map(|linear| linear.name.as_str()).collect();
        let of_linear = |name: &str| name.rsplit_once('.').is_some_and(|(module, _)| known.contains(module));
        let experts = architecture
            .experts
            .as_ref()
            .map(|experts| format!(".{}.", experts.names.experts));
        let of_expert = |name: &str| {
            [SINKS, LAYER_SCALAR, ROUTER_SCALE, EXPERT_SCALE]
                .iter()
                .any(|end| name.ends_with(end))
                || is_frozen(name)
                || experts.as_ref().is_some_and(|experts| name.contains(experts))
        };
        let others = architecture
            .tensors_beside_experts()
            .into_iter()
            .filter(|tensor| !of_linear(&tensor.name) && !of_expert(&tensor.name));
        let others = others.map(|tensor| ParameterShape {
            name: tensor.name,
            shape: tensor.shape,
        });
        Self {
            layers: architecture.layers.len(),
            within: architecture.within,
            others: others.collect(),
            linears,
            modules_are_experts: architecture
                .experts
                .as_ref()
                .is_some_and(|experts| experts.names.modules_are_experts),
            tied_embeddings: architecture.tied_embeddings,
        }
    }

    /// Whether some layer is a mixture of experts.
    pub(super) fn has_experts(&self) -> bool {
        self.linears
            .iter()
            .any(|linear| matches!(linear.kind, LinearKind::Experts(_)))
    }
}

/// Linear layers of decoder layer `index` that an adapter can attach to.
fn linears_of(architecture: &Architecture, index: usize) -> Vec<LinearShape> {
    let layer = Architecture::layer_name(index);
    let is_layer = architecture
        .experts
        .as_ref()
        .is_some_and(|experts| experts.names.router_is_layer);
    let modules = architecture.layer_modules(index);
    let named = modules
        .iter()
        .map(|module| linear(format!("{layer}.{}", module.name), module, is_layer));
    let mut linears: Vec<LinearShape> = named.collect();
    if let Some(experts) = architecture.experts_of(index) {
        linears.extend(of_experts(experts, &layer, architecture.hidden_size));
    }
    linears
}

fn linear(name: String, module: &LinearModule, router_is_layer: bool) -> LinearShape {
    LinearShape {
        name,
        inputs: module.in_features,
        outputs: module.out_features,
        bias: module.bias,
        kind: match module.role {
            LinearRole::Router if !router_is_layer => LinearKind::Parameter,
            _ => LinearKind::Layer,
        },
        any_rank: matches!(module.role, LinearRole::Router | LinearRole::SharedGate),
    }
}

/// gate and up of all experts together, and down.
fn of_experts(experts: &Experts, layer: &str, hidden: usize) -> [LinearShape; 2] {
    let of_part = |name: &str, part, stacked: usize| {
        let [outputs, inputs] = experts.part_shape(part, hidden);
        let (inputs, outputs) = match experts.names.swapped {
            true => (stacked * outputs, inputs),
            false => (inputs, stacked * outputs),
        };
        LinearShape {
            name: format!("{layer}.{name}"),
            inputs,
            outputs,
            bias: false,
            kind: LinearKind::Experts(experts.count),
            any_rank: false,
        }
    };
    [
        of_part(experts.names.gate_up, ExpertPart::Gate, 2),
        of_part(experts.names.down, ExpertPart::Down, 1),
    ]
}

impl LinearShape {
    /// How many weights of (outputs, inputs) there are: the experts, or one.
    pub fn count(&self) -> usize {
        match self.kind {
            LinearKind::Experts(count) => count,
            LinearKind::Layer | LinearKind::Parameter => 1,
        }
    }

    /// Name of the parameter that an adapter changes, as PEFT has it.
    pub fn parameter_name(&self) -> String {
        match self.kind {
            LinearKind::Experts(_) => self.name.clone(),
            LinearKind::Layer | LinearKind::Parameter => format!("{}.weight", self.name),
        }
    }

    /// The last component of the name: `q_proj`.
    pub fn suffix(&self) -> &str {
        last_component(&self.name)
    }
}

/// The part of a module name behind its last dot.
pub fn last_component(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
