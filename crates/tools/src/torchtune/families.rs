//! torchtune's families: it builds models by functions of its own, and has few of them.

use peft_tune_core::architecture::Family;
use serde::Serialize;

/// What torchtune calls the parts of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TorchtuneFamily {
    /// Function under `torchtune.models` that builds the model with adapters.
    pub builder: &'static str,
    /// Arguments of the builder beside those that all builders have.
    pub arguments: &'static [&'static str],
    /// The tokenizer of all models, or of those with the first one's vocabulary before the one of all others.
    pub tokenizers: &'static [TorchtuneTokenizer],
    pub checkpoint: &'static str,
    /// The checkpoint of models whose LM head is the embedding, where that has another name.
    pub tied_checkpoint: Option<&'static str>,
}

/// A tokenizer of torchtune.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TorchtuneTokenizer {
    /// Function under `torchtune.models`.
    pub builder: &'static str,
    /// The file that it reads, and one more.
    pub file: &'static str,
    pub merges: Option<&'static str>,
    /// Rows of the embedding of the models that it is for; all where absent.
    pub vocabulary: Option<usize>,
}

const FAMILIES: &[(Family, TorchtuneFamily)] = &[
    (
        Family::Llama,
        TorchtuneFamily {
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
        },
    ),
    (
        Family::Mistral,
        TorchtuneFamily {
            builder: "mistral.lora_mistral",
            arguments: &["rope_base", "apply_lora_to_output"],
            tokenizers: &[tokenizer("mistral.mistral_tokenizer", "tokenizer.model")],
            checkpoint: "MISTRAL",
            tied_checkpoint: None,
        },
    ),
    (
        Family::Qwen2,
        TorchtuneFamily {
            builder: "qwen2.lora_qwen2",
            arguments: &["rope_base_float", "tie_word_embeddings", "apply_lora_to_output"],
            tokenizers: &[TorchtuneTokenizer {
                merges: Some("merges.txt"),
                ..tokenizer("qwen2_5.qwen2_5_tokenizer", "vocab.json")
            }],
            checkpoint: "QWEN2",
            tied_checkpoint: None,
        },
    ),
    (
        Family::Gemma2,
        TorchtuneFamily {
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
        },
    ),
    (
        Family::Phi3,
        TorchtuneFamily {
            builder: "phi3.lora_phi3",
            arguments: &["rope_base", "apply_lora_to_output"],
            tokenizers: &[tokenizer("phi3.phi3_mini_tokenizer", "tokenizer.model")],
            checkpoint: "PHI3_MINI",
            tied_checkpoint: None,
        },
    ),
];

/// The tokenizer of all models of a family.
const fn tokenizer(builder: &'static str, file: &'static str) -> TorchtuneTokenizer {
    TorchtuneTokenizer {
        builder,
        file,
        merges: None,
        vocabulary: None,
    }
}

impl TorchtuneFamily {
    /// The parts of a family that torchtune has.
    pub(super) fn of(family: Family) -> Option<&'static Self> {
        let found = FAMILIES.iter().find(|(one, _)| *one == family);
        found.map(|(_, parts)| parts)
    }

    /// The tokenizer of models whose embedding has so many rows.
    pub(super) fn tokenizer(&self, vocabulary: usize) -> Option<&'static TorchtuneTokenizer> {
        let serves = |one: &&TorchtuneTokenizer| one.vocabulary.is_none_or(|rows| rows == vocabulary);
        self.tokenizers.iter().find(serves)
    }

    /// The checkpoint of a model whose LM head is the embedding or is not.
    pub(super) fn checkpoint(&self, is_tied: bool) -> &'static str {
        self.tied_checkpoint.filter(|_| is_tied).unwrap_or(self.checkpoint)
    }
}
