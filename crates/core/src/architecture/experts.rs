//! Mixtures of experts: which layers have them, how a token's experts are chosen, and what their tensors are called.
//!
//! | letter | field |
//! |---|---|
//! | E | `count`, experts of a layer |
//! | k | `chosen`, experts of a token |
//! | I | `intermediate_size`, width of one expert |
//!
//! y = x + sum over the k chosen experts e of w_e · down_e(act(gate_e(n)) · up_e(n)) + shared(n), with n = norm(x). The weights w
//! come from a router, a linear layer (E, H) on n whose logits are computed in F32. A shared expert is an MLP that every token
//! goes through; where it is gated, it is multiplied by sigmoid(g·n).
//!
//! In Gemma 4 the MLP of every layer stays, and experts stand beside it. It is the shared expert here, and both branches have norms of
//! their own before and behind them: y = x + norm(norm_1(shared(norm(x))) + norm_2(sum of the experts of norm_2'(x))). Its router reads x
//! through a norm whose weight is `router.scale` / sqrt(H), and the weight of each expert has a factor in `router.per_expert_scale`.

use serde::Serialize;

use super::{LinearModule, LinearRole, TensorShape};

/// The experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// E, experts of a layer that has some.
    pub count: usize,
    /// k, experts that a token goes through.
    pub chosen: usize,
    /// I, width of one expert.
    pub intermediate_size: usize,
    pub router: Router,
    pub shared: Option<SharedExpert>,
    /// Whether the router and every projection of an expert have a bias.
    pub biases: bool,
    /// Limit at which gate and up are clamped, in the unit that gpt-oss has in place of the MLP's activation.
    pub limit: Option<f64>,
    /// Whether the weight of an expert is a factor on its input (Llama 4), and not on its output.
    pub weighs_input: bool,
    /// Whether the shared expert and the others are branches with norms of their own, and the router has one too (Gemma 4).
    pub branches: bool,
    /// Whether each layer has experts; the others have an MLP.
    pub is_sparse: Vec<bool>,
    /// Layers behind the last one that predict further tokens; training leaves them out.
    pub draft_layers: usize,
    pub names: ExpertNames,
}

/// How a token's experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    pub scores: Scores,
    /// Whether the chosen scores are divided by their sum.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// Whether a vector (E,) is added to the scores to choose by, and to choose by only.
    pub correction: bool,
    /// Experts are chosen from the best groups of neighbours only.
    pub groups: Option<ExpertGroups>,
}

/// Function that makes scores of the router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Sigmoid, with experts chosen by the logits themselves: sigmoids of large ones are alike.
    SigmoidOfChosen,
}

/// Groups of experts, the best of which are chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    pub count: usize,
    pub chosen: usize,
}

/// The expert that every token goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Width of the expert's MLP.
    pub intermediate_size: usize,
    /// Whether a sigmoid of one more projection scales its output.
    pub gated: bool,
}

/// Names inside a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertNames {
    pub router: &'static str,
    /// Prefix of the experts' own tensors: `mlp.experts`.
    pub experts: &'static str,
    /// All gate and up projections as PEFT sees them, and all down projections.
    pub gate_up: &'static str,
    pub down: &'static str,
    /// gate, up and down of the shared expert.
    pub shared: [&'static str; 3],
    pub shared_gate: &'static str,
    /// Whether PEFT takes the names of an MLP's projections for the experts; it takes them for ordinary modules otherwise.
    pub modules_are_experts: bool,
    /// Whether checkpoints have all experts in one tensor, (E, in, out), with gate and up as its even and odd columns.
    pub stacked: bool,
    /// Whether gate and up are the halves of such a tensor instead, and PEFT takes the inputs of a stack for its outputs (Llama 4).
    pub swapped: bool,
    /// Whether such a tensor is (E, out, in) instead, with gate and up as the halves of its outputs (Gemma 4).
    pub upright: bool,
    /// Whether the router is a linear layer to PEFT, and not a parameter.
    pub router_is_layer: bool,
}

/// A projection of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertPart {
    /// (I, H)
    Gate,
    /// (I, H)
    Up,
    /// (H, I)
    Down,
}

/// One expert's rows of what PEFT sees as one parameter of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertWeight {
    pub expert: usize,
    pub part: ExpertPart,
}

impl Experts {
    /// The modules of a sparse layer that are linear layers of their own: router, shared expert and its gate.
    pub(super) fn modules(&self, hidden: usize) -> Vec<LinearModule> {
        use LinearRole::{Down, Gate, Router, SharedGate, Up};
        let module = LinearModule::without_bias;
        let mut modules = vec![LinearModule {
            bias: self.biases,
            ..module(Router, self.names.router, hidden, self.count)
        }];
        if let Some(shared) = self.shared {
            let ([gate, up, down], inner) = (self.names.shared, shared.intermediate_size);
            if shared.gated {
                modules.push(module(SharedGate, self.names.shared_gate, hidden, 1));
            }
            modules.push(module(Gate, gate, hidden, inner));
            modules.push(module(Up, up, hidden, inner));
            modules.push(module(Down, down, inner, hidden));
        }
        modules
    }

    /// (outputs, inputs) of a projection of one expert.
    pub fn part_shape(&self, part: ExpertPart, hidden: usize) -> [usize; 2] {
        match part {
            ExpertPart::Gate | ExpertPart::Up => [self.intermediate_size, hidden],
            ExpertPart::Down => [hidden, self.intermediate_size],
        }
    }

    /// Name of one expert's weight inside its layer: `mlp.experts.3.up_proj.weight`.
    pub fn weight_name(&self, expert: usize, part: ExpertPart) -> String {
        format!("{}.{expert}.{}.weight", self.names.experts, part.name())
    }

    /// Weight of an expert that a tensor inside a layer is; the inverse of [`Experts::weight_name`].
    pub fn weight_of(&self, name: &str) -> Option<ExpertWeight> {
        let rest = name.strip_prefix(self.names.experts)?.strip_prefix('.')?;
        let (expert, part) = rest.strip_suffix(".weight")?.split_once('.')?;
        let expert = expert.parse().ok().filter(|expert| *expert < self.count)?;
        let part = ExpertPart::ALL.into_iter().find(|known| known.name() == part)?;
        Some(ExpertWeight { expert, part })
    }

    /// The tensors of all experts of a layer, without the layer's name.
    pub(super) fn tensors(&self, hidden: usize) -> Vec<TensorShape> {
        let tensor = |name: String, shape: &[usize]| TensorShape {
            name,
            shape: shape.to_vec(),
        };
        if !self.names.stacked {
            let of_expert = |expert: usize| {
                ExpertPart::ALL.map(|part| tensor(self.weight_name(expert, part), &self.part_shape(part, hidden)))
            };
            return (0..self.count).flat_map(of_expert).collect();
        }
        let (count, inner) = (self.count, self.intermediate_size);
        if self.names.upright {
            return vec![
                tensor(self.names.gate_up.to_owned(), &[count, 2 * inner, hidden]),
                tensor(self.names.down.to_owned(), &[count, hidden, inner]),
            ];
        }
        let mut tensors = vec![
            tensor(self.names.gate_up.to_owned(), &[count, hidden, 2 * inner]),
            tensor(self.names.down.to_owned(), &[count, inner, hidden]),
        ];
        if let Some([gate_up, down]) = self.bias_names() {
            tensors.push(tensor(gate_up, &[count, 2 * inner]));
            tensors.push(tensor(down, &[count, hidden]));
        }
        tensors
    }

    /// Names of the biases of all experts, of gate and up and of down, without the layer's name.
    pub fn bias_names(&self) -> Option<[String; 2]> {
        let names = || [self.names.gate_up, self.names.down].map(|name| format!("{name}_bias"));
        self.biases.then(names)
    }

    /// Tensors that scale the router's input and its weights, without the layer's name; they never train.
    pub(super) fn scales(&self, hidden: usize) -> Vec<(&'static str, usize)> {
        match self.branches {
            true => vec![(ROUTER_SCALE, hidden), (EXPERT_SCALE, self.count)],
            false => Vec::new(),
        }
    }

    /// Values of a layer that are no weights of products: the experts' biases, what corrects scores, and scales.
    pub(super) fn vector_elements(&self, hidden: usize) -> u64 {
        let count = self.count as u64;
        let biases = count * (2 * self.intermediate_size + hidden) as u64;
        let scales: usize = self.scales(hidden).into_iter().map(|(_, width)| width).sum();
        u64::from(self.biases) * biases + u64::from(self.router.correction) * count + scales as u64
    }

    /// Name of the vector that is added to the scores, without the layer's name.
    pub fn correction_name(&self) -> Option<String> {
        let name = || format!("{}.{CORRECTION}", self.names.router);
        self.router.correction.then(name)
    }

    /// Layers that have experts.
    pub fn sparse_layers(&self) -> usize {
        self.is_sparse.iter().filter(|is_sparse| **is_sparse).count()
    }

    /// Weights of one expert.
    pub fn expert_weights(&self, hidden: usize) -> u64 {
        3 * hidden as u64 * self.intermediate_size as u64
    }
}

/// End of the name of the vector that corrects scores.
pub const CORRECTION: &str = "e_score_correction_bias";

/// The vector that the router's normed input is multiplied with, where experts are a branch.
pub const ROUTER_SCALE: &str = "router.scale";
/// A factor on the weight of each expert there.
pub const EXPERT_SCALE: &str = "router.per_expert_scale";
/// The norms of branches, beside those of every MLP: behind the shared expert, before the experts and behind them.
pub const BRANCH_NORMS: [&str; 3] = [
    "post_feedforward_layernorm_1",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm_2",
];

impl ExpertPart {
    /// All, in the order in which they are stacked and multiplied.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::{Architecture, ArchitectureError};

    const SIZES: &str = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24"#;

    fn parse(more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(r#"{{"model_type": "qwen3_moe", {SIZES}{more}}}"#);
        Architecture::from_json(Path::new("config.json"), &text)
    }

    fn sparse(more: &str) -> Vec<bool> {
        parse(more).unwrap().experts.unwrap().is_sparse
    }

    #[test]
    fn dense_layers_are_those_that_the_file_names() {
        assert_eq!(sparse(""), [true; 4]);
        assert_eq!(sparse(r#", "mlp_only_layers": [0, 2]"#), [false, true, false, true]);
        assert_eq!(sparse(r#", "decoder_sparse_step": 2"#), [false, true, false, true]);
        let both = r#", "decoder_sparse_step": 2, "mlp_only_layers": [3]"#;
        assert_eq!(sparse(both), [false, true, false, false]);
    }

    #[test]
    fn a_dense_layer_has_the_tensors_of_an_mlp() {
        let architecture = parse(r#", "mlp_only_layers": [1]"#).unwrap();
        let tensors = architecture.tensors();
        let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        assert!(has("model.layers.1.mlp.up_proj.weight") && !has("model.layers.1.mlp.gate.weight"));
        assert!(has("model.layers.0.mlp.experts.7.up_proj.weight") && has("model.layers.0.mlp.gate.weight"));
        assert!(!has("model.layers.0.mlp.up_proj.weight"));
        let elements: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        assert_eq!(architecture.parameter_count().total(), elements as u64);
    }

    #[test]
    fn idle_parameters_are_those_of_experts_that_are_not_chosen() {
        assert_eq!(parse("").unwrap().idle_parameters(), 4 * (8 - 2) * 3 * 64 * 24);
    }

    #[test]
    fn names_of_weights_are_read_as_they_are_written() {
        let experts = parse("").unwrap().experts.unwrap();
        for part in ExpertPart::ALL {
            let weight = ExpertWeight { expert: 5, part };
            assert_eq!(experts.weight_of(&experts.weight_name(5, part)), Some(weight));
        }
        for name in [
            "mlp.experts.8.up_proj.weight",
            "mlp.experts.x.up_proj.weight",
            "mlp.experts.1.gate.weight",
            "mlp.expertsx.1.up_proj.weight",
        ] {
            assert_eq!(experts.weight_of(name), None, "{name}");
        }
    }

    #[test]
    fn impossible_mixtures_are_explained() {
        let message = |more: &str| parse(more).unwrap_err().to_string();
        let many = message(r#", "num_experts_per_tok": 9"#);
        assert!(
            many.contains("num_experts_per_tok") && many.contains("at most num_experts 8"),
            "{many}"
        );
        let layers = message(r#", "mlp_only_layers": ["one"]"#);
        assert!(layers.contains("mlp_only_layers"), "{layers}");
        let loss = message(r#", "output_router_logits": true"#);
        assert!(loss.contains("output_router_logits"), "{loss}");
    }
}
