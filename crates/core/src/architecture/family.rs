//! The model families: the switches in which they differ, and their names elsewhere.
//!
//! A family that is a combination of known switches is a variant here and a row in `family_rows`. Defaults are
//! those of the family's configuration class in transformers, since published files leave them out.

use serde::Serialize;

use super::{Activation, ExpertSwitches, LayerNames, Mixers, NormPlacement, QueryKeyNorm, RopeOrder};

/// A model family, by `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
    SmolLm3,
    Granite,
    Ernie45,
    HunYuanDense,
    Ministral3,
    Exaone4,
    Olmo3,
    Glm4,
    Cohere2,
    Apertus,
    Granite4,
    Qwen3Moe,
    Qwen2Moe,
    Glm4Moe,
    GptOss,
    Olmoe,
    DeepseekV3,
    DeepseekV2,
    Glm4MoeLite,
    Lfm2,
    Qwen35,
    Gemma,
    Olmo2,
    Glm,
    Helium,
    Cohere,
    Gemma4,
    Llama4,
    SeedOss,
    Mixtral,
}

/// Row of the table of families.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FamilyRow {
    #[serde(skip)]
    pub family: Family,
    /// Name of the family: its `model_type` in `config.json`.
    pub name: &'static str,
    /// Names that `model_type` has where the same language model is a part of a multimodal one.
    pub text_names: &'static [&'static str],
    pub switches: Switches,
    /// Marks around the turns of the family's chat template.
    pub chat: ChatMarks,
}

/// Properties of a family's decoder, and the keys of `config.json` that decide on them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Switches {
    pub qkv_bias: Bias,
    pub output_bias: Bias,
    pub mlp_bias: Bias,
    pub query_key_norm: QueryKeyNorm,
    /// Key that says whether there are norms of queries and keys, where a family has models without.
    /// And whether there are where it is absent.
    pub query_key_norm_key: Option<(&'static str, bool)>,
    /// One tensor for q, k and v.
    pub fused_qkv: bool,
    /// One tensor for gate and up.
    pub fused_gate_up: bool,
    pub names: LayerNames,
    /// Place where the MLP's width is written.
    pub mlp_width: MlpWidth,
    pub norm_placement: NormPlacement,
    /// Key of the norms' epsilon.
    pub norm_epsilon: &'static str,
    /// The norms' epsilon where that is absent.
    pub default_epsilon: f64,
    /// Norms take the mean from each row first.
    pub centred_norms: bool,
    /// Offset of every norm weight.
    pub norm_offset: f32,
    /// Key of the activation, and what it is where that is absent.
    pub activation: (&'static str, Activation),
    /// Whether the LM head is the embedding where `tie_word_embeddings` is absent.
    pub tied_embeddings: bool,
    /// A key that says so before `tie_word_embeddings` does.
    pub tied_key: Option<&'static str>,
    /// Factor on the embeddings.
    pub embedding_scale: Factor,
    /// Factor on what attention and MLP add to the residual stream.
    pub residual_scale: Factor,
    /// Factor on the logits.
    pub logit_scale: Factor,
    /// Factor on q·k.
    pub query_scale: QueryScale,
    /// `attn_logit_softcapping`
    pub attention_soft_cap: SoftCap,
    /// `final_logit_softcapping`
    pub logit_soft_cap: SoftCap,
    pub windows: Windows,
    /// The window of sliding layers where the file names none.
    pub window: usize,
    /// Full layers have heads of their own, or one projection for keys and values (`global_head_dim`,
    /// `num_global_key_value_heads`, `attention_k_eq_v`, `per_layer_config`); the last layer is full.
    pub full_heads: bool,
    /// The last layers may have the keys and values of earlier ones (`num_kv_shared_layers`), and an MLP of twice the width
    /// (`use_double_wide_mlp`).
    pub shared_keys: bool,
    /// Width of each layer's input beside the stream where `hidden_size_per_layer_input` is absent; `None` where the family has none.
    pub layer_inputs: Option<usize>,
    /// Values have a norm of each head, without a weight.
    pub value_norm: bool,
    /// Each layer's output is multiplied with a number of its own.
    pub layer_scalar: bool,
    /// The rope of layers with a window.
    pub sliding_rope: SlidingRope,
    /// Layers that rotate queries and keys at all.
    pub rope_layers: RopeLayers,
    pub rope_order: RopeOrder,
    /// Key that says whether neighbours turn together, where a family has models of both orders; they do where it is absent.
    pub rope_order_key: Option<&'static str>,
    /// Base of the rope where the file names none.
    pub rope_base: f64,
    /// Share of a head that is rotated where the file names none.
    pub rotary_share: f64,
    /// Rotated queries grow with their position where the file says so (`llama_4_scaling_beta`).
    pub query_growth: bool,
    /// Switches and counts of the file that must be off, or 0.
    pub refused: &'static [&'static str],
    /// Each head has one more logit in its softmax (`self_attn.sinks`).
    pub sinks: bool,
    /// Experts that layers have in place of one MLP.
    pub experts: Option<ExpertSwitches>,
    /// Whether queries, keys and values are projected twice.
    pub latent: bool,
    /// Mixers that layers have in place of attention.
    pub mixers: Mixers,
    /// Each query comes with a gate that its head's result is multiplied with.
    pub head_gates: bool,
    /// Width of a head where the file does not mention it; H over the heads where there is none here, or the file says null.
    pub head_dim: Option<usize>,
    /// Heads of keys and values where the file does not mention them; as many as of queries where there is none here, or the file
    /// says null.
    pub kv_heads: Option<usize>,
    /// Layers that rotate see chunks of a document (Llama 4).
    pub chunks: bool,
    /// Keys of probabilities by which transformers drops values of the base model in training, and what each is where it is absent.
    pub dropout: &'static [(&'static str, f64)],
}

/// Place where the width of the MLP is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpWidth {
    Key(&'static str),
    /// `block_ff_dim` or `intermediate_size`; unless `block_auto_adjust_ff_dim` is off two thirds of it, times
    /// `block_ffn_dim_multiplier`, up to the next multiple of `block_multiple_of`.
    Blocks,
}

/// A factor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// 1
    None,
    /// sqrt(H)
    RootHidden,
    /// Value of a key, or this one where it is absent.
    Key(&'static str, f64),
    /// Inverse of the value of a key; 1 where it is absent.
    Inverse(&'static str),
}

/// The factor on q·k.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryScale {
    /// 1/sqrt(d)
    HeadDim,
    /// 1/sqrt(d) times the square of what YaRN says by `mscale_all_dim`.
    Yarn,
    /// 1
    One,
    /// 1/sqrt of `query_pre_attn_scalar`, or of this one where it is absent.
    Scalar(f64),
    /// Value of a key; 1 where it is absent.
    Key(&'static str),
}

/// The rope of layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlidingRope {
    /// Rope of the other layers.
    Shared,
    /// Rope with a base of its own (`rope_local_base_freq`), without scaling.
    OwnBase,
    /// Rope of the other layers without their scaling.
    Unscaled,
    /// Ropes of each kind of layer in `rope_parameters`; where that is absent, full layers turn a quarter of a head by
    /// `proportional` angles with [`Switches::rope_base`], sliding ones all of it with a base of 10,000.
    Both,
    /// Growth of the queries of layers that do not turn, as the second rope; there are no windows.
    Growth,
}

/// Layers that rotate queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayers {
    All,
    /// Layers with a window.
    Sliding,
    /// Layers with a window, all where none has one.
    SlidingIfAny,
    /// Layers with a 1 in `no_rope_layers`; where it is absent all but every n-th one, n that of
    /// `no_rope_layer_interval` or 4.
    Listed,
    /// All where `position_embedding_type` is `rope`, else none.
    Named,
}

/// Whether linear layers have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    Never,
    Always,
    /// Biases where this key says so.
    Key(&'static str),
    /// Biases unless this key says no.
    Unless(&'static str),
}

/// c in c·tanh(x / c).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SoftCap {
    Never,
    /// Cap as the file says; none where it says nothing.
    WhereSet,
    /// Cap as the file says; this one where the key is absent, none where it is null.
    Default(f64),
}

/// Layers that see `sliding_window` tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    Never,
    /// All, where the file names a window; with the default where the key is absent.
    All {
        default: Option<usize>,
    },
    /// Layers from `max_window_layers` on, where `use_sliding_window` says so.
    FromLayer,
    /// All but every n-th one, n that of a key where the family has one.
    ExceptEvery {
        nth: usize,
        key: Option<&'static str>,
    },
    /// Layers with an L in `sliding_window_pattern`, from its start again and again, or all but every n-th one of that
    /// number; none where `sliding_window` is null.
    Pattern,
}

/// Marks before the turns of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMarks {
    pub user: &'static str,
    pub assistant: &'static str,
}

/// Window of a sliding layer where the file names none.
pub(super) const DEFAULT_WINDOW: usize = 4096;
