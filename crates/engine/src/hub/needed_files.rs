//! How much of a model is needed, by the names of its files.

/// Name of a checkpoint's only weight file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Name of the list of a checkpoint's shards.
pub(super) const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

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
    Weights,
    Everything,
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
            Self::Weights | Self::Everything => &[
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
            Self::Config | Self::Weights => &[CONFIG],
            Self::Tokenizer => &[TOKENIZER],
            Self::Everything => &[CONFIG, TOKENIZER],
        }
    }

    /// Whether the weights are part of it.
    pub(super) fn has_weights(self) -> bool {
        matches!(self, Self::Weights | Self::Everything)
    }
}
