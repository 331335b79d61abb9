//! How much of a model is needed, by the names of its files.

/// Name of a checkpoint's only weight file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Name of the list of a checkpoint's shards.
pub(super) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
/// Name of a checkpoint's only weight file in PyTorch's own form, a pickle.
pub(super) const PICKLED_WEIGHTS: &str = "pytorch_model.bin";
/// Name of the list of shards in that form.
pub(super) const PICKLED_INDEX: &str = "pytorch_model.bin.index.json";

pub(super) const CONFIG: &str = "config.json";
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(super) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// How much of a model is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeededFiles {
    Config,
    Tokenizer,
    /// Configuration and weights; the tokenizer where the model has one.
    Weights(WeightReader),
    Everything(WeightReader),
}

/// Reader of a model's weights, by which some forms of them will do and others not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightReader {
    /// The engine: safetensors and GGUF.
    Engine,
    /// transformers, which reads PyTorch's own form too where there is no other, and GGUF only where it is named.
    Transformers,
    /// Reader of the files beside the weights alone: these may have any of those forms.
    Nobody,
}

impl WeightReader {
    /// Names of the files that hold the weights or list their shards: the first one that is there is read.
    pub(super) fn forms(self) -> &'static [&'static str] {
        match self {
            Self::Engine => &[WEIGHTS_INDEX, WEIGHTS],
            Self::Transformers | Self::Nobody => &[WEIGHTS_INDEX, WEIGHTS, PICKLED_WEIGHTS, PICKLED_INDEX],
        }
    }

    /// Whether a GGUF file will do where none of the other forms is there.
    pub(super) fn takes_gguf(self) -> bool {
        match self {
            Self::Engine | Self::Nobody => true,
            Self::Transformers => false,
        }
    }
}

/// Whether a file lists the shards of a checkpoint.
pub(super) fn is_index(name: &str) -> bool {
    [WEIGHTS_INDEX, PICKLED_INDEX].contains(&name)
}

impl NeededFiles {
    /// Files to bring where the model has them; weights come on top.
    pub(super) fn wanted(self) -> &'static [&'static str] {
        match self {
            Self::Config => &[CONFIG],
            Self::Tokenizer => &[
                TOKENIZER,
                TOKENIZER_CONFIG,
                SPECIAL_TOKENS_MAP,
                CHAT_TEMPLATE,
                GENERATION_CONFIG,
            ],
            Self::Weights(_) | Self::Everything(_) => &[
                CONFIG,
                TOKENIZER,
                TOKENIZER_CONFIG,
                SPECIAL_TOKENS_MAP,
                CHAT_TEMPLATE,
                GENERATION_CONFIG,
            ],
        }
    }

    /// Files without which nothing works; weights come on top.
    pub(super) fn required(self) -> &'static [&'static str] {
        match self {
            Self::Config | Self::Weights(_) => &[CONFIG],
            Self::Tokenizer => &[TOKENIZER],
            Self::Everything(_) => &[CONFIG, TOKENIZER],
        }
    }

    /// Reader of the weights; `None` where they are no part of it.
    pub(super) fn weight_reader(self) -> Option<WeightReader> {
        match self {
            Self::Config | Self::Tokenizer => None,
            Self::Weights(reader) | Self::Everything(reader) => Some(reader),
        }
    }
}
