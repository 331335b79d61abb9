//! [`Architecture`]: what the decoder needs to know about a model, and nothing about its weights.
//!
//! | letter | field |
//! |---|---|
//! | H | `hidden_size` |
//! | I | `intermediate_size` |
//! | V | `vocabulary` |
//! | Hq, Hkv | `heads`, `kv_heads` |
//! | d | `head_dim` |

use super::{Activation, Experts, Family, Latent, LayerInputs, LayerNames, Mixer, NormPlacement, QueryKeyNorm, Rope};

/// A decoder-only model's dimensions and the switches in which the families differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    pub family: Family,
    /// The module of the whole model that holds the language model's embedding, layers and last norm, where other models
    /// stand beside it; `model` where it stands alone.
    pub within: Option<&'static str>,
    /// Number type of the published weights.
    pub dtype: Option<Dtype>,
    /// V, rows of the embedding.
    pub vocabulary: usize,
    /// H, width of the residual stream.
    pub hidden_size: usize,
    /// I, width of the MLP.
    pub intermediate_size: usize,
    /// Hq, query heads.
    pub heads: usize,
    /// Hkv, key and value heads of layers that have no others of their own; divides `heads`.
    pub kv_heads: usize,
    /// d, width of a head in layers that have no others of their own.
    pub head_dim: usize,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// One entry for each decoder layer.
    pub layers: Vec<LayerAttention>,
    /// The position encodings that [`LayerAttention::rope`] points into.
    pub ropes: Vec<Rope>,
    /// Epsilon of every norm.
    pub norm_epsilon: f64,
    /// Offset of every norm weight: 0, or 1 where the checkpoint holds w - 1 (Gemma).
    pub norm_offset: f32,
    /// Norms take the mean from each row first: LayerNorm without a bias.
    pub centred_norms: bool,
    /// Placement of a layer's norms.
    pub norm_placement: NormPlacement,
    /// Norms of queries and keys.
    pub query_key_norm: QueryKeyNorm,
    /// Values have a norm of each head, without a weight (Gemma 4).
    pub value_norm: bool,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// gate, up and down have a bias.
    pub mlp_bias: bool,
    /// One tensor for query, key and value instead of three (Phi-3).
    pub fused_qkv: bool,
    /// One tensor for gate and up instead of two (Phi-3, GLM-4).
    pub fused_gate_up: bool,
    /// Names of the modules of a decoder layer.
    pub names: LayerNames,
    pub activation: Activation,
    /// The LM head is the embedding.
    pub tied_embeddings: bool,
    /// Factor on the embeddings, rounded to the compute dtype (Gemma: sqrt(H)).
    pub embedding_scale: Option<f64>,
    /// Factor on what attention and MLP add to the residual stream.
    pub residual_scale: Option<f64>,
    /// Factor on the logits.
    pub logit_scale: Option<f64>,
    /// Factor on q·k.
    pub attention_scale: f64,
    /// c in c·tanh(score / c), on attention scores.
    pub attention_soft_cap: Option<f64>,
    /// c in c·tanh(logit / c), on the logits.
    pub logit_soft_cap: Option<f64>,
    /// Each query comes with a gate, and the result of its head is multiplied with the gate's logistic (Qwen3.5).
    pub head_gates: bool,
    /// Each head has one more logit in its softmax, whose weight goes nowhere (gpt-oss).
    pub sinks: bool,
    /// Each layer's output is multiplied with a number of its own, which never trains (Gemma 4).
    pub layer_scalar: bool,
    /// Experts that some or all layers have in place of one MLP.
    pub experts: Option<Experts>,
    /// Layers with the keys and values of another have an MLP of twice the width (Gemma 4 E2B).
    pub wide_mlp: bool,
    /// Inputs that layers have beside the stream.
    pub layer_inputs: Option<LayerInputs>,
    /// How queries, keys and values come by two projections each, where they do.
    pub latent: Option<Latent>,
    /// Keys of `config.json` with probabilities above 0 by which transformers drops values of the base model in training.
    pub dropout: Vec<(&'static str, f64)>,
}

/// Attention of one decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerAttention {
    pub mixer: Mixer,
    /// A query sees itself and the `window - 1` tokens before it; all tokens before it where absent.
    pub window: Option<usize>,
    /// A query sees the tokens of its own chunk only: documents are cut into chunks of so many.
    pub chunk: Option<usize>,
    /// Index into [`Architecture::ropes`]; absent where queries and keys are not rotated.
    pub rope: Option<usize>,
    /// Whether the family's norms of queries and keys are there.
    pub normed: bool,
    /// Heads of the layer's keys and values where they are not the model's.
    pub heads: Option<LayerHeads>,
    pub keys: KeyValueSource,
}

/// Heads of one layer where they are not those of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerHeads {
    /// Hkv
    pub kv_heads: usize,
    /// d
    pub head_dim: usize,
}

/// Source of a layer's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyValueSource {
    /// A projection each.
    #[default]
    Projections,
    /// One projection: its output goes through the norm of keys and, as it is, through that of values.
    OneProjection,
    /// Keys and values of an earlier layer, as its attention reads them.
    Layer(usize),
}

/// Number type of published weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Architecture {
    /// Hkv and d of layer `index`.
    pub fn heads_of(&self, index: usize) -> LayerHeads {
        let own = self.layers.get(index).and_then(|layer| layer.heads);
        own.unwrap_or(LayerHeads {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        })
    }

    /// The layer whose keys and values layer `index` has, where they are not its own.
    pub fn source_of(&self, index: usize) -> Option<usize> {
        match self.layers.get(index).map(|layer| layer.keys) {
            Some(KeyValueSource::Layer(source)) => Some(source),
            _ => None,
        }
    }

    /// Layers that have the keys and values of layer `index` beside itself.
    pub fn readers_of(&self, index: usize) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.layers.len()).filter(move |layer| self.source_of(*layer) == Some(index))
    }

    /// I of layer `index`.
    pub fn inner_of(&self, index: usize) -> usize {
        match self.wide_mlp && self.source_of(index).is_some() {
            true => 2 * self.intermediate_size,
            false => self.intermediate_size,
        }
    }

    /// Widths of heads that some layer has, each once.
    pub fn head_dims(&self) -> Vec<usize> {
        let mut dims: Vec<usize> = (0..self.layers.len())
            .map(|index| self.heads_of(index).head_dim)
            .collect();
        dims.sort_unstable();
        dims.dedup();
        dims
    }

    /// Width of all query heads of layer `index` together, Hq·d.
    pub fn query_size(&self, index: usize) -> usize {
        self.heads * self.heads_of(index).head_dim
    }

    /// Norms of queries and keys of layer `index`.
    pub fn head_norm_of(&self, index: usize) -> QueryKeyNorm {
        match self.layers[index].normed {
            true => self.query_key_norm,
            false => QueryKeyNorm::None,
        }
    }

    /// The experts of layer `index`, where it has some.
    pub fn experts_of(&self, index: usize) -> Option<&Experts> {
        let experts = self.experts.as_ref();
        experts.filter(|experts| experts.is_sparse.get(index).copied().unwrap_or(false))
    }

    /// Width of all key heads of layer `index` together, Hkv·d.
    pub fn kv_size(&self, index: usize) -> usize {
        let LayerHeads { kv_heads, head_dim } = self.heads_of(index);
        kv_heads * head_dim
    }

    /// dv, width of a head's value in layer `index`: d but for latent attention.
    pub fn value_dim(&self, index: usize) -> usize {
        let head_dim = self.heads_of(index).head_dim;
        self.latent.map_or(head_dim, |latent| latent.value_dim)
    }

    /// Width of what attention gives in layer `index`, Hq·dv.
    pub fn attended_size(&self, index: usize) -> usize {
        self.heads * self.value_dim(index)
    }
}
