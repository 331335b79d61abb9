//! The model families, one row each: the switches in which they differ, and their names elsewhere.
//!
//! A family that is a combination of known switches is a variant and a row. Defaults are those of the family's configuration
//! class in transformers, since published files leave them out.

use serde::Serialize;

use super::{Activation, NormPlacement};

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
    /// RMS norm over d on queries and keys.
    pub query_key_norm: bool,
    /// One tensor for q, k and v, one for gate and up.
    pub fused_projections: bool,
    pub norm_placement: NormPlacement,
    /// Added to every norm weight.
    pub norm_offset: f32,
    /// Key of the activation, and what it is where that is absent.
    pub activation: (&'static str, Activation),
    /// Whether the LM head is the embedding where `tie_word_embeddings` is absent.
    pub tied_embeddings: bool,
    /// Embeddings are multiplied by sqrt(H).
    pub scaled_embeddings: bool,
    /// The factor on q·k is that of `query_pre_attn_scalar`, of this one where it is absent; of d where the switch is off.
    pub query_scalar: Option<f64>,
    /// `attn_logit_softcapping`
    pub attention_soft_cap: SoftCap,
    /// `final_logit_softcapping`
    pub logit_soft_cap: SoftCap,
    pub windows: Windows,
    /// Layers with a window have a rope of their own (`rope_local_base_freq`).
    pub sliding_rope: bool,
    /// A switch of the file that must be off.
    pub refused: Option<&'static str>,
}

/// Whether linear layers have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    Never,
    Always,
    /// Where this key says so.
    Key(&'static str),
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
        text_names: &[],
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
        text_names: &[],
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
        text_names: &["qwen2_vl_text", "qwen2_5_vl_text"],
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
        text_names: &["qwen3_vl_text"],
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
        text_names: &[],
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
        text_names: &[],
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
        text_names: &[],
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
