//! The tensors that a checkpoint of an architecture holds: names, shapes, counts.

use std::ops::Range;

use super::{
    Activation, Architecture, BRANCH_NORMS, KeyValueSource, LAYER_INPUT_END, LAYER_INPUT_TABLE, LinearModule,
    LinearRole, Mixer, NormPlacement, QueryKeyNorm, TensorShape,
};

/// Name of the embedding tensor.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the last norm's tensor in most families; see [`LayerNames::last_norm`](super::LayerNames::last_norm).
pub const FINAL_NORM: &str = "model.norm.weight";
/// Name of a layer's attention sinks, without the layer's name.
pub const SINKS: &str = "self_attn.sinks";
/// Name of the number that a layer's output is multiplied with, without the layer's name.
pub const LAYER_SCALAR: &str = "layer_scalar";
/// Name of the LM head's tensor.
pub const LM_HEAD: &str = "lm_head.weight";

/// The module of a language model that stands alone; see [`Architecture::within`].
const ALONE: &str = "model";

/// Modules where checkpoints keep a language model that other models stand beside: its own, and that of its LM head.
const PLACES: [(&str, &str); 2] = [
    ("language_model.model", "language_model.lm_head"),
    ("model.language_model", "lm_head"),
];

/// The numbers of xIELU: the two that training made, as what softplus is taken of, and two that are the same everywhere.
const XIELU_NUMBERS: [(&str, &[usize]); 4] = [
    ("mlp.act_fn.alpha_p", &[1]),
    ("mlp.act_fn.alpha_n", &[1]),
    ("mlp.act_fn.beta", &[]),
    ("mlp.act_fn.eps", &[]),
];

/// A projection of a decoder layer: a linear layer, or some rows of one that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    pub module: LinearModule,
    pub rows: Range<usize>,
}

/// Parameters by part of the model. They are more than a 32-bit number holds, where sizes have no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCount {
    /// Rows of tokens: the embedding, and the table of layers' inputs.
    pub embedding: u64,
    /// Weights of the linear layers, biases and experts not counted.
    pub linear: u64,
    /// Weights of all experts.
    pub experts: u64,
    /// Norm weights and biases, and what mixers have beside their linear layers.
    pub vectors: u64,
    /// The LM head, 0 where it is the embedding.
    pub lm_head: u64,
}

impl ParameterCount {
    /// All parameters.
    pub fn total(&self) -> u64 {
        let all = [self.embedding, self.linear, self.experts, self.vectors, self.lm_head];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

impl Architecture {
    /// The linear layers of the first decoder layer as it is where it attends and has no experts, in the order of the forward pass.
    pub fn linear_modules(&self) -> Vec<LinearModule> {
        self.dense_modules(0)
    }

    /// Linear modules of decoder layer `index` as it is without experts.
    fn dense_modules(&self, index: usize) -> Vec<LinearModule> {
        use LinearRole::{Down, Gate, GateUp, Key, Output, Query, QueryKeyValue, Up, Value};
        let (hidden, inner) = (self.hidden_size, self.inner_of(index));
        let (query, kv) = (self.query_size(index), self.kv_size(index));
        let gated = if self.head_gates { 2 * query } else { query };
        let module = |role, name, in_features, out_features, bias| LinearModule {
            bias,
            ..LinearModule::without_bias(role, name, in_features, out_features)
        };
        let mut modules = if let Some(latent) = self.latent {
            latent.modules(hidden, self.heads, self.qkv_bias)
        } else if self.fused_qkv {
            vec![module(
                QueryKeyValue,
                "self_attn.qkv_proj",
                hidden,
                query + 2 * kv,
                self.qkv_bias,
            )]
        } else {
            vec![
                module(Query, "self_attn.q_proj", hidden, gated, self.qkv_bias),
                module(Key, "self_attn.k_proj", hidden, kv, self.qkv_bias),
                module(Value, "self_attn.v_proj", hidden, kv, self.qkv_bias),
            ]
        };
        match self.layers.get(index).map(|layer| layer.keys) {
            Some(KeyValueSource::OneProjection) => modules.retain(|module| module.role != Value),
            Some(KeyValueSource::Layer(_)) => modules.retain(|module| ![Key, Value].contains(&module.role)),
            Some(KeyValueSource::Projections) | None => {}
        }
        modules.push(module(
            Output,
            self.names.attention_output,
            self.attended_size(index),
            hidden,
            self.output_bias,
        ));
        let ([gate_up, down], [gate, up]) = (self.names.mlp, self.names.gate_and_up);
        match (self.activation.is_gated(), self.fused_gate_up) {
            (true, true) => modules.push(module(GateUp, gate_up, hidden, 2 * inner, self.mlp_bias)),
            (true, false) => {
                modules.push(module(Gate, gate, hidden, inner, self.mlp_bias));
                modules.push(module(Up, up, hidden, inner, self.mlp_bias));
            }
            (false, _) => modules.push(module(Up, up, hidden, inner, self.mlp_bias)),
        }
        modules.push(module(Down, down, inner, hidden, self.mlp_bias));
        modules.extend(self.layer_inputs.iter().flat_map(|inputs| inputs.modules(hidden)));
        modules
    }

    /// The linear layer beside the decoder layers, by its whole name, where there is one. The LM head is not it.
    pub fn outer_module(&self) -> Option<LinearModule> {
        let inputs = self.layer_inputs.as_ref();
        inputs.map(|inputs| inputs.outer_module(self.hidden_size, self.layers.len()))
    }

    /// The linear layers of decoder layer `index`, in the order of the forward pass. The experts themselves are not among them.
    pub fn layer_modules(&self, index: usize) -> Vec<LinearModule> {
        let mut modules = self.dense_modules(index);
        if let Some(mut mixing) = self.mixer(index).modules(self.hidden_size) {
            modules.retain(|module| !module.role.attends());
            mixing.append(&mut modules);
            modules = mixing;
        }
        if let Some(experts) = self.experts_of(index) {
            modules.retain(|module| module.role.attends());
            modules.extend(experts.modules(self.hidden_size));
        }
        modules
    }

    /// The projections of decoder layer `index` by the input that they read: query, key and value, or what another mixer reads; output;
    /// gate and up; down; the router; the gate of the shared expert; the second projections of latent attention, of queries, and of
    /// keys and values. With experts, gate, up and down are the shared one's. In latent attention the first projections stand for
    /// query, key and value. Last come the gate of the layer's own input, and the projection behind it.
    pub fn projections(&self, index: usize) -> [Vec<Projection>; 10] {
        use LinearRole::{
            Down, Gate, GateUp, Key, MixerInput, Output, Query, QueryKeyValue, Router, SharedGate, Up, Value,
        };
        use LinearRole::{InputGate, InputProjection, LayerInputs};
        use LinearRole::{KeyValueExpansion, KeyValueLatent, QueryExpansion, QueryLatent};
        let (query, kv, inner) = (self.query_size(index), self.kv_size(index), self.inner_of(index));
        let mut groups: [Vec<Projection>; 10] = Default::default();
        for module in self.layer_modules(index) {
            let (group, widths) = match module.role {
                Query | Key | Value | QueryLatent => (0, vec![module.out_features]),
                QueryKeyValue => (0, vec![query, kv, kv]),
                MixerInput => {
                    let mixer = self.mixer(index);
                    (0, mixer.split_input(self.hidden_size, module.out_features))
                }
                Output => (1, vec![module.out_features]),
                Gate | Up => (2, vec![module.out_features]),
                GateUp => (2, vec![inner, inner]),
                Down => (3, vec![module.out_features]),
                Router => (4, vec![module.out_features]),
                SharedGate => (5, vec![module.out_features]),
                // What is projected again, and the part of keys that turns.
                KeyValueLatent => {
                    let turns = self.latent.map_or(0, |latent| latent.rotary_dims);
                    (0, vec![module.out_features - turns, turns])
                }
                QueryExpansion => (6, vec![module.out_features]),
                KeyValueExpansion => (7, vec![module.out_features]),
                InputGate => (8, vec![module.out_features]),
                InputProjection => (9, vec![module.out_features]),
                // It belongs to no decoder layer.
                LayerInputs => continue,
            };
            let mut start = 0;
            groups[group].extend(widths.into_iter().map(|width| {
                let rows = start..start + width;
                start = rows.end;
                Projection { module, rows }
            }));
        }
        groups
    }

    /// Names of a decoder layer's norms over H, in the order of the forward pass.
    pub fn layer_norms(&self) -> Vec<&'static str> {
        let ([attention, attention_behind], [mlp, mlp_behind]) = (self.names.attention_norms, self.names.mlp_norms);
        let mut norms = match self.norm_placement {
            NormPlacement::Before => vec![attention, mlp],
            NormPlacement::BeforeAndBehind => vec![attention, attention_behind, mlp, mlp_behind],
            NormPlacement::Behind => vec![attention_behind, mlp_behind],
            NormPlacement::Shared => vec![attention],
        };
        if self.has_branches() {
            norms.extend(BRANCH_NORMS);
        }
        norms.extend(self.layer_inputs.map(|_| LAYER_INPUT_END));
        norms
    }

    /// Whether MLP and experts of every layer are branches with norms of their own.
    pub fn has_branches(&self) -> bool {
        self.experts.as_ref().is_some_and(|experts| experts.branches)
    }

    /// Mixer of the tokens of decoder layer `index`.
    pub fn mixer(&self, index: usize) -> Mixer {
        self.layers.get(index).map_or(Mixer::Attention, |layer| layer.mixer)
    }

    /// Whether every layer attends.
    pub fn attends_everywhere(&self) -> bool {
        self.layers.iter().all(|layer| layer.mixer == Mixer::Attention)
    }

    /// Names and widths of the norms of queries and keys of decoder layer `index`, or of what they are made from, where it attends.
    pub fn head_norms(&self, index: usize) -> Vec<(String, usize)> {
        if let Some(latent) = self.latent {
            let norms = latent.query_norm().into_iter().chain([latent.key_value_norm()]);
            return norms.map(|(name, width)| (name.to_owned(), width)).collect();
        }
        let [query, key] = self.names.head_norms.map(|name| format!("self_attn.{name}"));
        let widths = match self.query_key_norm {
            QueryKeyNorm::None | QueryKeyNorm::RotatedUnweighted => return Vec::new(),
            QueryKeyNorm::Heads | QueryKeyNorm::RotatedHeads => [self.heads_of(index).head_dim; 2],
            QueryKeyNorm::AllHeads => [self.query_size(index), self.kv_size(index)],
        };
        let mut norms = vec![(query, widths[0]), (key, widths[1])];
        if self.source_of(index).is_some() {
            norms.truncate(1);
        }
        norms
    }

    /// Names of the single numbers of a decoder layer, each a tensor with this shape. They never train.
    pub fn layer_numbers(&self) -> &'static [(&'static str, &'static [usize])] {
        match self.activation {
            Activation::Xielu => &XIELU_NUMBERS,
            Activation::Silu | Activation::GeluTanh => &[],
        }
    }

    /// Name of decoder layer `index`.
    pub fn layer_name(index: usize) -> String {
        format!("model.layers.{index}")
    }

    /// The architecture with an LM head of its own.
    pub fn with_own_head(&self) -> Self {
        Self {
            tied_embeddings: false,
            ..self.clone()
        }
    }

    /// Every tensor that a checkpoint must hold.
    pub fn tensors(&self) -> Vec<TensorShape> {
        self.tensors_of(0..self.layers.len())
    }

    /// Tensors of some decoder layers, and of all that stands beside decoder layers.
    pub fn tensors_of(&self, layers: impl IntoIterator<Item = usize>) -> Vec<TensorShape> {
        let experts = self.experts.as_ref();
        self.with_experts(
            layers,
            &experts.map_or_else(Vec::new, |experts| experts.tensors(self.hidden_size)),
        )
    }

    /// Every tensor but the experts' own weights and biases, which are most of the tensors of a mixture.
    pub fn tensors_beside_experts(&self) -> Vec<TensorShape> {
        self.with_experts(0..self.layers.len(), &[])
    }

    /// Tensors of some decoder layers and of what stands beside them; a mixture has `experts` in each layer.
    fn with_experts(&self, layers: impl IntoIterator<Item = usize>, experts: &[TensorShape]) -> Vec<TensorShape> {
        let mut tensors = vec![TensorShape {
            name: EMBEDDING.to_owned(),
            shape: vec![self.vocabulary, self.hidden_size],
        }];
        for index in layers {
            self.push_layer(index, experts, &mut tensors);
        }
        if let Some(module) = self.outer_module() {
            tensors.push(TensorShape {
                name: format!("{}.weight", module.name),
                shape: vec![module.out_features, module.in_features],
            });
        }
        let inputs = self.layer_inputs.iter();
        tensors.extend(inputs.flat_map(|inputs| inputs.tensors(self.layers.len())));
        tensors.push(TensorShape {
            name: self.names.last_norm.to_owned(),
            shape: vec![self.hidden_size],
        });
        if !self.tied_embeddings {
            tensors.push(TensorShape {
                name: LM_HEAD.to_owned(),
                shape: vec![self.vocabulary, self.hidden_size],
            });
        }
        tensors
    }

    /// Counts the parameters of the base model.
    pub fn parameter_count(&self) -> ParameterCount {
        let embedding = product(&[self.vocabulary, self.hidden_size]);
        let (mut linear, mut biases) = (0_u64, 0_u64);
        let of_layers = (0..self.layers.len()).flat_map(|index| self.layer_modules(index));
        for module in of_layers.chain(self.outer_module()) {
            linear = linear.saturating_add(product(&[module.in_features, module.out_features]));
            biases += if module.bias { module.out_features as u64 } else { 0 };
        }
        let experts = self.experts.as_ref().map_or([0, 0], |experts| {
            let weights = experts.expert_weights(self.hidden_size);
            [
                weights.saturating_mul(product(&[experts.sparse_layers(), experts.count])),
                experts.vector_elements(self.hidden_size) * experts.sparse_layers() as u64,
            ]
        });
        let attending = |index| {
            let head_norms = self.head_norms(index).into_iter().map(|(_, width)| width);
            head_norms.sum::<usize>() + if self.sinks { self.heads } else { 0 }
        };
        let mixing: usize = (0..self.layers.len())
            .map(|index| match self.mixer(index) {
                Mixer::Attention => attending(index),
                mixer => {
                    let tensors = mixer.tensors(self.hidden_size).into_iter();
                    tensors.map(|tensor| tensor.elements()).sum()
                }
            })
            .sum();
        let numbers = self.layer_numbers().len() + usize::from(self.layer_scalar);
        let norms = self.layer_norms().len() * self.hidden_size + numbers;
        let (table, input_norm) = self.layer_inputs.map_or((0, 0), |inputs| {
            let table = product(&[inputs.vocabulary, self.layers.len(), inputs.width]);
            (table, inputs.width)
        });
        let norms = product(&[self.layers.len(), norms]);
        let vectors = biases + norms + (mixing + input_norm + self.hidden_size) as u64;
        ParameterCount {
            embedding: embedding.saturating_add(table),
            linear,
            experts: experts[0],
            vectors: experts[1].saturating_add(vectors),
            lm_head: if self.tied_embeddings { 0 } else { embedding },
        }
    }

    /// Weights of the experts that a token does not go through.
    pub fn idle_parameters(&self) -> u64 {
        self.experts.as_ref().map_or(0, |experts| {
            let idle = experts.count - experts.chosen;
            let weights = experts.expert_weights(self.hidden_size);
            weights.saturating_mul(product(&[experts.sparse_layers(), idle]))
        })
    }

    fn push_layer(&self, index: usize, of_experts: &[TensorShape], tensors: &mut Vec<TensorShape>) {
        let layer = Self::layer_name(index);
        let mut push = |name: &str, shape: Vec<usize>| {
            tensors.push(TensorShape {
                name: format!("{layer}.{name}"),
                shape,
            });
        };
        for module in self.layer_modules(index) {
            push(
                &format!("{}.weight", module.name),
                vec![module.out_features, module.in_features],
            );
            if module.bias {
                push(&format!("{}.bias", module.name), vec![module.out_features]);
            }
        }
        if let Some(experts) = self.experts_of(index) {
            for tensor in of_experts {
                push(&tensor.name, tensor.shape.clone());
            }
            if let Some(name) = experts.correction_name() {
                push(&name, vec![experts.count]);
            }
            for (scale, width) in experts.scales(self.hidden_size) {
                push(scale, vec![width]);
            }
        }
        let attends = self.mixer(index) == Mixer::Attention;
        for tensor in self.mixer(index).tensors(self.hidden_size) {
            push(&tensor.name, tensor.shape);
        }
        if self.sinks && attends {
            push(SINKS, vec![self.heads]);
        }
        for norm in self.layer_norms() {
            push(&format!("{norm}.weight"), vec![self.hidden_size]);
        }
        for (norm, width) in self.head_norms(index).into_iter().filter(|_| attends) {
            push(&format!("{norm}.weight"), vec![width]);
        }
        for (number, shape) in self.layer_numbers() {
            push(number, shape.to_vec());
        }
        if self.layer_scalar {
            push(LAYER_SCALAR, vec![1]);
        }
    }
}

/// Whether a tensor holds a row for each token id, under whichever prefix: the embedding, and the table of the layers' own inputs.
pub fn is_token_table(name: &str) -> bool {
    let ends = [EMBEDDING, LAYER_INPUT_TABLE].map(|table| table.trim_start_matches(ALONE));
    ends.iter().any(|end| name.ends_with(end))
}

/// The name that the module or tensor `name` of a language model has in the whole model, where it is `within` one.
pub fn name_within(within: Option<&str>, name: &str) -> String {
    // Where the whole model holds one with a head of its own.
    let head = PLACES
        .iter()
        .find(|(module, _)| Some(*module) == within)
        .map(|(_, head)| *head);
    if let (Some(head), Some(rest)) = (
        head,
        name.strip_prefix("lm_head")
            .filter(|rest| rest.is_empty() || rest.starts_with('.')),
    ) {
        return format!("{head}{rest}");
    }
    match (within, name.strip_prefix(ALONE).filter(|rest| rest.starts_with('.'))) {
        (Some(module), Some(rest)) => format!("{module}{rest}"),
        _ => name.to_owned(),
    }
}

/// The names that the module or tensor `name` of a language model may have in a whole model, wherever that keeps it.
pub fn names_in_whole_models(name: &str) -> [String; 2] {
    PLACES.map(|(module, _)| name_within(Some(module), name))
}

/// The name in the language model alone of a module or tensor that a multimodal model calls `name`; `name` itself where
/// it is no part of one.
pub fn name_alone(name: &str) -> String {
    for (module, head) in PLACES {
        let rest_of = |place: &str| name.strip_prefix(place).filter(|rest| rest.starts_with('.'));
        if let Some(rest) = rest_of(module) {
            return format!("{ALONE}{rest}");
        }
        if let Some(rest) = rest_of(head) {
            return format!("lm_head{rest}");
        }
    }
    name.to_owned()
}

/// The tensors of the language model among `names`, those of a multimodal checkpoint: the name that each has in the language
/// model alone, and its own. What is left out belongs to the models beside it.
pub fn names_of_language_model<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<(String, &'a str)> {
    let embedding = |module: &str| format!("{module}.embed_tokens.weight");
    let mut places = PLACES.iter().map(|(module, _)| *module);
    let module = places
        .find(|module| names.clone().any(|name| name == embedding(module)))
        .unwrap_or(ALONE);
    let heads = PLACES.map(|(_, head)| head);
    let belongs = |name: &&str| {
        let below = |place: &str| name.strip_prefix(place).is_some_and(|rest| rest.starts_with('.'));
        // Qwen2.5-VL has its language model at the top, beside `visual`.
        (below(module) && !name.starts_with("model.visual.")) || heads.into_iter().any(below)
    };
    names.filter(belongs).map(|name| (name_alone(name), name)).collect()
}

/// Elements of a block of these sizes; the largest number where they are more than it, as a damaged file may say.
fn product(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1, |all, size| all.saturating_mul(*size as u64))
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::{gemma3, llama, phi3, qwen3};
    use super::*;

    #[test]
    fn counts_agree_with_the_tensors() {
        for architecture in [llama(), qwen3(), gemma3(), phi3()] {
            let elements: usize = architecture.tensors().iter().map(|tensor| tensor.elements()).sum();
            assert_eq!(architecture.parameter_count().total(), elements as u64);
        }
    }

    #[test]
    fn a_language_model_is_found_wherever_a_checkpoint_keeps_it() {
        let found = |names: &[&'static str]| -> Vec<String> {
            let found = names_of_language_model(names.iter().copied());
            found.into_iter().map(|(alone, _)| alone).collect()
        };
        let expected = ["model.embed_tokens.weight", "lm_head.weight"];
        let gemma = [
            "language_model.model.embed_tokens.weight",
            "language_model.lm_head.weight",
            "vision_tower.x",
        ];
        assert_eq!(found(&gemma), expected);
        let qwen3 = [
            "model.language_model.embed_tokens.weight",
            "lm_head.weight",
            "model.visual.blocks.0.attn.qkv.bias",
        ];
        assert_eq!(found(&qwen3), expected);
        let qwen2 = [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "visual.blocks.0.attn.qkv.bias",
        ];
        assert_eq!(found(&qwen2), expected);
    }

    #[test]
    fn names_go_into_a_whole_model_and_back() {
        let within = Some("model.language_model");
        for name in ["model.layers.0.mlp.up_proj", "lm_head.weight", "model.norm.weight"] {
            assert_eq!(name_alone(&name_within(within, name)), name);
            assert_eq!(name_within(None, name), name);
        }
        assert_eq!(name_within(within, "model.norm"), "model.language_model.norm");
    }

    #[test]
    fn fused_projections_have_one_tensor_for_three() {
        let names: Vec<String> = phi3().tensors().into_iter().map(|tensor| tensor.name).collect();
        assert!(names.contains(&"model.layers.0.self_attn.qkv_proj.weight".to_owned()));
        assert!(!names.iter().any(|name| name.contains("q_proj")));
    }
}
