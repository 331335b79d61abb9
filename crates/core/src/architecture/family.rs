//! The model families: the switches in which they differ, and their names elsewhere.
//!
//! A family that is a combination of known switches is a variant here and a row in [`super::family_rows`]. Defaults are
//! those of the family's configuration class in transformers, since published files leave them out.

use serde::Serialize;

use super::family_rows::ROWS;
use super::{Activation, ExpertSwitches, LayerNames, NormPlacement, QueryKeyNorm, RopeOrder};

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
}

/// What is to be known of a family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FamilyRow {
    #[serde(skip)]
    pub family: Family,
    /// Its `model_type` in `config.json`.
    pub name: &'static str,
    /// What `model_type` is where the same language model is a part of a multimodal one.
    pub text_names: &'static [&'static str],
    pub switches: Switches,
    /// Its parts in torchtune, where torchtune has it.
    pub torchtune: Option<TorchtuneFamily>,
    /// What stands around the turns of its chat template.
    pub chat: ChatMarks,
}

/// What the decoder of a family does, and which keys of `config.json` decide it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Switches {
    pub qkv_bias: Bias,
    pub output_bias: Bias,
    pub mlp_bias: Bias,
    pub query_key_norm: QueryKeyNorm,
    /// Key that says whether there are norms of queries and keys, where a family has models without.
    pub query_key_norm_key: Option<&'static str>,
    /// One tensor for q, k and v.
    pub fused_qkv: bool,
    /// One tensor for gate and up.
    pub fused_gate_up: bool,
    pub names: LayerNames,
    /// Key of the MLP's width.
    pub mlp_width: &'static str,
    pub norm_placement: NormPlacement,
    /// Key of the norms' epsilon.
    pub norm_epsilon: &'static str,
    /// Norms take the mean from each row first.
    pub centred_norms: bool,
    /// Added to every norm weight.
    pub norm_offset: f32,
    /// Key of the activation, and what it is where that is absent.
    pub activation: (&'static str, Activation),
    /// Whether the LM head is the embedding where `tie_word_embeddings` is absent.
    pub tied_embeddings: bool,
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
    /// The rope of layers with a window.
    pub sliding_rope: SlidingRope,
    /// Which layers rotate queries and keys at all.
    pub rope_layers: RopeLayers,
    pub rope_order: RopeOrder,
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
    /// What layers have in place of one MLP.
    pub experts: Option<ExpertSwitches>,
}

/// A factor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// 1
    None,
    /// sqrt(H)
    RootHidden,
    /// That of a key, or this one where it is absent.
    Key(&'static str, f64),
    /// One over that of a key; 1 where it is absent.
    Inverse(&'static str),
}

/// The factor on q·k.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryScale {
    /// 1/sqrt(d)
    HeadDim,
    /// 1/sqrt of `query_pre_attn_scalar`, or of this one where it is absent.
    Scalar(f64),
    /// That of a key; 1 where it is absent.
    Key(&'static str),
}

/// The rope of layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlidingRope {
    /// That of the others.
    Shared,
    /// One with a base of its own (`rope_local_base_freq`), without scaling.
    OwnBase,
    /// That of the others without their scaling.
    Unscaled,
}

/// Which layers rotate queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayers {
    All,
    /// Those with a window.
    Sliding,
    /// Those with a window, all where none has one.
    SlidingIfAny,
    /// Those with a 1 in `no_rope_layers`; where it is absent all but every n-th one, n that of `no_rope_layer_interval` or 4.
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
    /// Where this key says so.
    Key(&'static str),
    /// But where this key says no.
    Unless(&'static str),
}

/// c in c·tanh(x / c).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SoftCap {
    Never,
    /// As the file says; none where it says nothing.
    WhereSet,
    /// As the file says; this one where the key is absent, none where it is null.
    Default(f64),
}

/// Which layers see `sliding_window` tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    Never,
    /// All, where the file names a window; with the default where the key is absent.
    All {
        default: Option<usize>,
    },
    /// From layer `max_window_layers` on, where `use_sliding_window` says so.
    FromLayer,
    /// All but every n-th one, n that of a key where the family has one.
    ExceptEvery {
        nth: usize,
        key: Option<&'static str>,
    },
    /// Those with an L in `sliding_window_pattern`, from its start again and again, or all but every n-th one of that number;
    /// none where `sliding_window` is null.
    Pattern,
}

/// What torchtune calls the parts of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TorchtuneFamily {
    /// Function under `torchtune.models` that builds the model with adapters.
    pub builder: &'static str,
    /// Its arguments beside those that all builders have.
    pub arguments: &'static [&'static str],
    /// The tokenizer of all models, or of those with the first one's vocabulary before the one of all others.
    pub tokenizers: &'static [TorchtuneTokenizer],
    pub checkpoint: &'static str,
    /// The checkpoint of models whose LM head is the embedding, where that has another name.
    pub tied_checkpoint: Option<&'static str>,
}

/// A tokenizer of torchtune.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TorchtuneTokenizer {
    /// Function under `torchtune.models`.
    pub builder: &'static str,
    /// The file that it reads, and one more.
    pub file: &'static str,
    pub merges: Option<&'static str>,
    /// Rows of the embedding of the models that it is for; all where absent.
    pub vocabulary: Option<usize>,
}

/// What stands before the turns of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMarks {
    pub user: &'static str,
    pub assistant: &'static str,
}

/// Window of a sliding layer where the file names none.
pub(super) const DEFAULT_WINDOW: usize = 4096;

/// Full attention, no biases, a norm before attention and MLP.
const PLAIN: Switches = Switches {
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    query_key_norm: false,
    query_key_norm_key: None,
    fused_projections: false,
    norm_placement: NormPlacement::Before,
    norm_offset: 0.0,
    activation: ("hidden_act", Activation::Silu),
    tied_embeddings: false,
    scaled_embeddings: false,
    query_scalar: None,
    attention_soft_cap: SoftCap::Never,
    logit_soft_cap: SoftCap::Never,
    windows: Windows::Never,
    sliding_rope: false,
    refused: None,
    sinks: false,
    experts: None,
};

/// Names of the experts in most families.
const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "mlp.gate",
    experts: "mlp.experts",
    gate_up: "mlp.experts.gate_up_proj",
    down: "mlp.experts.down_proj",
    shared: [
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.down_proj",
    ],
    shared_gate: "mlp.shared_expert_gate",
    modules_are_experts: true,
    stacked: false,
};

/// A softmax over all experts, whose weights need not add up to 1.
const PLAIN_EXPERTS: ExpertSwitches = ExpertSwitches {
    count: &["num_experts", "num_local_experts"],
    intermediate_size: "moe_intermediate_size",
    scores: Scores::Softmax,
    normalised: false,
    grouped: false,
    correction: false,
    shared: SharedSwitch::Never,
    biases: false,
    limit: None,
    sparse: SparseLayers::EveryStep,
    names: EXPERT_NAMES,
};

/// What Gemma 2 and 3 share.
const GEMMA: Switches = Switches {
    qkv_bias: Bias::Key("attention_bias"),
    output_bias: Bias::Key("attention_bias"),
    norm_placement: NormPlacement::BeforeAndBehind,
    norm_offset: 1.0,
    // Gemma's first files say `hidden_act: gelu` and mean the tanh form, which `hidden_activation` corrects.
    activation: ("hidden_activation", Activation::GeluTanh),
    tied_embeddings: true,
    scaled_embeddings: true,
    query_scalar: Some(256.0),
    ..PLAIN
};

/// The marks of ChatML.
const CHATML: ChatMarks = ChatMarks {
    user: "<|im_start|>user\n",
    assistant: "<|im_start|>assistant\n",
};
const GEMMA_CHAT: ChatMarks = ChatMarks {
    user: "<start_of_turn>user\n",
    assistant: "<start_of_turn>model\n",
};

/// A tokenizer for all models of its family.
const fn tokenizer(builder: &'static str, file: &'static str) -> TorchtuneTokenizer {
    TorchtuneTokenizer {
        builder,
        file,
        merges: None,
        vocabulary: None,
    }
}

const ROWS: &[FamilyRow] = &[
    FamilyRow {
        family: Family::Llama,
        name: "llama",
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            mlp_bias: Bias::Key("mlp_bias"),
            ..PLAIN
        },
        torchtune: Some(TorchtuneFamily {
            // The builder of Llama 3.2 serves all llamas.
            builder: "llama3_2.lora_llama3_2",
            arguments: &[
                "rope_base",
                "scale_factor",
                "tie_word_embeddings",
                "apply_lora_to_output",
            ],
            tokenizers: &[
                TorchtuneTokenizer {
                    vocabulary: Some(128_256),
                    ..tokenizer("llama3.llama3_tokenizer", "original/tokenizer.model")
                },
                tokenizer("llama2.llama2_tokenizer", "tokenizer.model"),
            ],
            checkpoint: "LLAMA3",
            tied_checkpoint: Some("LLAMA3_2"),
        }),
        chat: ChatMarks {
            user: "<|start_header_id|>user<|end_header_id|>\n\n",
            assistant: "<|start_header_id|>assistant<|end_header_id|>\n\n",
        },
    },
    FamilyRow {
        family: Family::Mistral,
        name: "mistral",
        switches: Switches {
            windows: Windows::All {
                default: Some(DEFAULT_WINDOW),
            },
            ..PLAIN
        },
        torchtune: Some(TorchtuneFamily {
            builder: "mistral.lora_mistral",
            arguments: &["rope_base", "apply_lora_to_output"],
            tokenizers: &[tokenizer("mistral.mistral_tokenizer", "tokenizer.model")],
            checkpoint: "MISTRAL",
            tied_checkpoint: None,
        }),
        chat: ChatMarks {
            user: "[INST]",
            assistant: "[/INST]",
        },
    },
    FamilyRow {
        family: Family::Qwen2,
        name: "qwen2",
        switches: Switches {
            qkv_bias: Bias::Always,
            windows: Windows::FromLayer,
            ..PLAIN
        },
        torchtune: Some(TorchtuneFamily {
            builder: "qwen2.lora_qwen2",
            arguments: &["rope_base_float", "tie_word_embeddings", "apply_lora_to_output"],
            tokenizers: &[TorchtuneTokenizer {
                merges: Some("merges.txt"),
                ..tokenizer("qwen2_5.qwen2_5_tokenizer", "vocab.json")
            }],
            checkpoint: "QWEN2",
            tied_checkpoint: None,
        }),
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Qwen3,
        name: "qwen3",
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: true,
            windows: Windows::FromLayer,
            ..PLAIN
        },
        torchtune: None,
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Gemma2,
        name: "gemma2",
        switches: Switches {
            attention_soft_cap: SoftCap::Default(50.0),
            logit_soft_cap: SoftCap::Default(30.0),
            windows: Windows::ExceptEvery { nth: 2, key: None },
            ..GEMMA
        },
        torchtune: Some(TorchtuneFamily {
            builder: "gemma2.lora_gemma2",
            arguments: &[
                "head_dim",
                "rope_base",
                "hidden_capping_value",
                "final_capping_value",
                "sliding_window_size",
                "query_pre_attn_scalar",
            ],
            tokenizers: &[tokenizer("gemma.gemma_tokenizer", "tokenizer.model")],
            checkpoint: "GEMMA2",
            tied_checkpoint: None,
        }),
        chat: GEMMA_CHAT,
    },
    FamilyRow {
        family: Family::Gemma3,
        name: "gemma3_text",
        switches: Switches {
            query_key_norm: true,
            attention_soft_cap: SoftCap::WhereSet,
            logit_soft_cap: SoftCap::WhereSet,
            windows: Windows::ExceptEvery {
                nth: 6,
                key: Some("sliding_window_pattern"),
            },
            sliding_rope: true,
            refused: Some("use_bidirectional_attention"),
            ..GEMMA
        },
        torchtune: None,
        chat: GEMMA_CHAT,
    },
    FamilyRow {
        family: Family::Phi3,
        name: "phi3",
        switches: Switches {
            fused_projections: true,
            windows: Windows::All { default: None },
            ..PLAIN
        },
        torchtune: Some(TorchtuneFamily {
            builder: "phi3.lora_phi3",
            arguments: &["rope_base", "apply_lora_to_output"],
            tokenizers: &[tokenizer("phi3.phi3_mini_tokenizer", "tokenizer.model")],
            checkpoint: "PHI3_MINI",
            tied_checkpoint: None,
        }),
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::Qwen3Moe,
        name: "qwen3_moe",
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: true,
            refused: Some("use_sliding_window"),
            experts: Some(PLAIN_EXPERTS),
            ..PLAIN
        },
        torchtune: None,
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Qwen2Moe,
        name: "qwen2_moe",
        switches: Switches {
            qkv_bias: Bias::Unless("qkv_bias"),
            refused: Some("use_sliding_window"),
            experts: Some(ExpertSwitches {
                shared: SharedSwitch::Gated("shared_expert_intermediate_size"),
                names: ExpertNames {
                    modules_are_experts: false,
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        torchtune: None,
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Glm4Moe,
        name: "glm4_moe",
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            query_key_norm: true,
            query_key_norm_key: Some("use_qk_norm"),
            experts: Some(ExpertSwitches {
                count: &["n_routed_experts", "num_local_experts"],
                scores: Scores::Sigmoid,
                normalised: true,
                grouped: true,
                correction: true,
                shared: SharedSwitch::Times("n_shared_experts"),
                sparse: SparseLayers::BehindDense,
                names: ExpertNames {
                    shared: [
                        "mlp.shared_experts.gate_proj",
                        "mlp.shared_experts.up_proj",
                        "mlp.shared_experts.down_proj",
                    ],
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        torchtune: None,
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::GptOss,
        name: "gpt_oss",
        switches: Switches {
            qkv_bias: Bias::Unless("attention_bias"),
            output_bias: Bias::Unless("attention_bias"),
            windows: Windows::ExceptEvery { nth: 2, key: None },
            sinks: true,
            experts: Some(ExpertSwitches {
                count: &["num_local_experts", "num_experts"],
                intermediate_size: "intermediate_size",
                // A softmax over the chosen logits is one over all, divided by the chosen ones' sum.
                normalised: true,
                biases: true,
                limit: Some(("swiglu_limit", 7.0)),
                sparse: SparseLayers::All,
                names: ExpertNames {
                    router: "mlp.router",
                    modules_are_experts: false,
                    stacked: true,
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        torchtune: None,
        chat: ChatMarks {
            user: "<|start|>user<|message|>",
            assistant: "<|start|>assistant",
        },
    },
];

impl Family {
    /// All families, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        ROWS.iter().map(|row| row.family)
    }

    /// All that is known of it.
    pub fn row(self) -> &'static FamilyRow {
        const { assert_order() }
        &ROWS[self as usize]
    }

    /// Its `model_type`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The family of a `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::all().find(|family| {
            let row = family.row();
            row.name == model_type || row.text_names.contains(&model_type)
        })
    }
}

/// The rows stand in the order of the enum.
const fn assert_order() {
    let mut index = 0;
    while index < ROWS.len() {
        assert!(ROWS[index].family as usize == index);
        index += 1;
    }
}

impl TorchtuneFamily {
    /// The tokenizer of models whose embedding has so many rows.
    pub fn tokenizer(&self, vocabulary: usize) -> Option<&'static TorchtuneTokenizer> {
        let serves = |one: &&TorchtuneTokenizer| one.vocabulary.is_none_or(|rows| rows == vocabulary);
        self.tokenizers.iter().find(serves)
    }

    /// The checkpoint of a model whose LM head is the embedding or is not.
    pub fn checkpoint(&self, is_tied: bool) -> &'static str {
        self.tied_checkpoint.filter(|_| is_tied).unwrap_or(self.checkpoint)
    }
}
