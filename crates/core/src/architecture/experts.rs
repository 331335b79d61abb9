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

use serde::Serialize;

use super::config::Config;
use super::{ArchitectureError, LinearModule, LinearRole, TensorShape};

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
    /// Where gate and up are clamped, in the unit that gpt-oss has in place of the MLP's activation.
    pub limit: Option<f64>,
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

/// What makes scores of the router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// Over all experts.
    Softmax,
    Sigmoid,
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
    /// Its width.
    pub intermediate_size: usize,
    /// Whether a sigmoid of one more projection scales its output.
    pub gated: bool,
}

/// Names inside a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertNames {
    pub router: &'static str,
    /// Where the experts' own tensors begin: `mlp.experts`.
    pub experts: &'static str,
    /// All gate and up projections as PEFT sees them, and all down projections.
    pub gate_up: &'static str,
    pub down: &'static str,
    /// gate, up and down of the shared expert.
    pub shared: [&'static str; 3],
    pub shared_gate: &'static str,
    /// Whether PEFT takes `gate_proj`, `up_proj` and `down_proj` for the experts; it takes them for ordinary modules otherwise.
    pub modules_are_experts: bool,
    /// Whether checkpoints have all experts in one tensor, (E, in, out), with gate and up as its even and odd columns.
    pub stacked: bool,
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

/// What the experts of a family are, and which keys of `config.json` decide it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertSwitches {
    /// Keys of E: the first that is there counts.
    pub count: &'static [&'static str],
    /// Key of I.
    pub intermediate_size: &'static str,
    pub scores: Scores,
    /// Whether weights are divided by their sum where `norm_topk_prob` is absent.
    pub normalised: bool,
    /// Whether `routed_scaling_factor`, `n_group` and `topk_group` count.
    pub grouped: bool,
    pub correction: bool,
    pub shared: SharedSwitch,
    pub biases: bool,
    /// Key of the limit, and what it is where that is absent.
    pub limit: Option<(&'static str, f64)>,
    pub sparse: SparseLayers,
    pub names: ExpertNames,
}

/// Where the width of the shared expert is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedSwitch {
    Never,
    /// The width itself; the expert is gated.
    Gated(&'static str),
    /// How many experts it is as wide as.
    Times(&'static str),
}

/// Which layers have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SparseLayers {
    All,
    /// Every `decoder_sparse_step`-th, those in `mlp_only_layers` left out.
    EveryStep,
    /// All but the first `first_k_dense_replace`.
    BehindDense,
}

/// Mixtures that are known and cannot run yet, and what the engine lacks for them.
pub(super) const UNFINISHED: &[(&str, &str)] = &[
    ("deepseek_v2", LATENT),
    ("deepseek_v3", LATENT),
    ("glm4_moe_lite", LATENT),
    ("gpt_oss", "experts with biases that are stored as MXFP4"),
    ("llama4", "chunked attention, and experts whose input is weighted"),
    ("llama4_text", "chunked attention, and experts whose input is weighted"),
    ("mixtral", "experts under the names that its files have"),
    (
        "olmoe",
        "queries, keys and values that are clipped where `clip_qkv` says so",
    ),
];
const LATENT: &str = "latent attention, whose keys and values are projected twice";

/// Most experts of a layer; a larger number is a damaged file.
const MOST_EXPERTS: usize = 65_536;

impl Experts {
    /// Reads the experts of a model of `layers` layers.
    ///
    /// # Errors
    /// A missing key, and sizes that cannot go together.
    pub(super) fn read(config: &Config, switches: &ExpertSwitches, layers: usize) -> Result<Self, ArchitectureError> {
        // Training with it would add a loss that nothing here computes.
        if config.flag("output_router_logits", false)? {
            return Err(config.unsupported("output_router_logits", "true", "false"));
        }
        let written = switches.count.iter().find(|key| config.mentions(key));
        let count_key = written.or(switches.count.first()).copied().unwrap_or_default();
        let count = config.dimension(count_key)?;
        if count > MOST_EXPERTS {
            return Err(config.impossible(count_key, count, format!("at most {MOST_EXPERTS}")));
        }
        let chosen = config.dimension("num_experts_per_tok")?;
        if chosen > count {
            return Err(config.impossible("num_experts_per_tok", chosen, format!("at most {count_key} {count}")));
        }
        let intermediate_size = config.dimension(switches.intermediate_size)?;
        Ok(Self {
            count,
            chosen,
            intermediate_size,
            router: router(config, switches, count, chosen)?,
            shared: shared(config, switches, intermediate_size)?,
            biases: switches.biases,
            limit: match switches.limit {
                Some((key, default)) => Some(config.optional_positive(key)?.unwrap_or(default)),
                None => None,
            },
            is_sparse: sparse_layers(config, switches.sparse, layers)?,
            draft_layers: config.optional_count("num_nextn_predict_layers")?.unwrap_or(0),
            names: switches.names,
        })
    }

    /// The modules of a sparse layer that are linear layers of their own: router, shared expert and its gate.
    pub(super) fn modules(&self, hidden: usize) -> Vec<LinearModule> {
        use LinearRole::{Down, Gate, Router, SharedGate, Up};
        let module = |role, name, in_features, out_features| LinearModule {
            role,
            name,
            in_features,
            out_features,
            bias: false,
        };
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

    /// Which expert's weight a tensor inside a layer is; the inverse of [`Experts::weight_name`].
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

    /// Values of a layer that are no weights of products: the experts' biases, and what corrects scores.
    pub(super) fn vector_elements(&self, hidden: usize) -> usize {
        let biases = self.count * (2 * self.intermediate_size + hidden);
        usize::from(self.biases) * biases + usize::from(self.router.correction) * self.count
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
    pub fn expert_weights(&self, hidden: usize) -> usize {
        3 * hidden * self.intermediate_size
    }
}

/// End of the name of the vector that corrects scores.
pub const CORRECTION: &str = "e_score_correction_bias";

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

fn router(
    config: &Config,
    switches: &ExpertSwitches,
    count: usize,
    chosen: usize,
) -> Result<Router, ArchitectureError> {
    let mut router = Router {
        scores: switches.scores,
        normalised: config.flag("norm_topk_prob", switches.normalised)?,
        scale: 1.0,
        correction: switches.correction,
        groups: None,
    };
    if !switches.grouped {
        return Ok(router);
    }
    router.scale = config.optional_positive("routed_scaling_factor")?.unwrap_or(1.0);
    let groups = ExpertGroups {
        count: config.optional_dimension("n_group")?.unwrap_or(1),
        chosen: config.optional_dimension("topk_group")?.unwrap_or(1),
    };
    if !count.is_multiple_of(groups.count) || groups.count == count && groups.count > 1 {
        let rule = format!("a divisor of the {count} experts, with two or more experts to a group");
        return Err(config.impossible("n_group", groups.count, rule));
    }
    if groups.chosen > groups.count || groups.chosen * (count / groups.count) < chosen {
        let rule = format!(
            "at most n_group {}, with {chosen} experts or more in its groups",
            groups.count
        );
        return Err(config.impossible("topk_group", groups.chosen, rule));
    }
    router.groups = (groups.count > 1).then_some(groups);
    Ok(router)
}

fn shared(
    config: &Config,
    switches: &ExpertSwitches,
    intermediate_size: usize,
) -> Result<Option<SharedExpert>, ArchitectureError> {
    let (width, gated) = match switches.shared {
        SharedSwitch::Never => (None, false),
        SharedSwitch::Gated(key) => (Some(config.dimension(key)?), true),
        SharedSwitch::Times(key) => {
            let times = config.optional_count(key)?.unwrap_or(0);
            ((times > 0).then_some(times * intermediate_size), false)
        }
    };
    Ok(width.map(|intermediate_size| SharedExpert {
        intermediate_size,
        gated,
    }))
}

fn sparse_layers(config: &Config, sparse: SparseLayers, layers: usize) -> Result<Vec<bool>, ArchitectureError> {
    Ok(match sparse {
        SparseLayers::All => vec![true; layers],
        SparseLayers::EveryStep => {
            let step = config.optional_dimension("decoder_sparse_step")?.unwrap_or(1);
            let dense = config.optional_counts("mlp_only_layers")?.unwrap_or_default();
            (0..layers)
                .map(|index| !dense.contains(&index) && (index + 1).is_multiple_of(step))
                .collect()
        }
        SparseLayers::BehindDense => {
            let dense = config.optional_count("first_k_dense_replace")?.unwrap_or(0);
            (0..layers).map(|index| index >= dense).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::Architecture;

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
        let elements: usize = tensors
            .iter()
            .map(|tensor| tensor.shape.iter().product::<usize>())
            .sum();
        assert_eq!(architecture.parameter_count().total(), elements);
    }

    #[test]
    fn active_parameters_are_those_of_the_chosen_experts() {
        let architecture = parse("").unwrap();
        let (all, active) = (architecture.parameter_count().total(), architecture.active_parameters());
        assert_eq!(all - active, 4 * (8 - 2) * 3 * 64 * 24);
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
        for (family, lacks) in UNFINISHED {
            let text = format!(r#"{{"model_type": "{family}"}}"#);
            let error = Architecture::from_json(Path::new("config.json"), &text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(family) && error.contains(lacks), "{error}");
        }
    }
}
