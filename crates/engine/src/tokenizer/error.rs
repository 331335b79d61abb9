//! Errors in a tokenizer or a chat template.

use std::path::PathBuf;

/// A tokenizer or chat template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a tokenizer ({reason}); fetch it again, or save it again with transformers' AutoTokenizer")]
    BadTokenizer { path: PathBuf, reason: String },
    #[error("{path} is not valid JSON: {source}")]
    BadJson { path: PathBuf, source: serde_json::Error },
    #[error("key `{key}` in {path} is not {expected}")]
    BadKey {
        path: PathBuf,
        key: String,
        expected: &'static str,
    },
    #[error("special token `{token}` (key `{key}` in {path}) is not in the vocabulary")]
    NotInVocabulary { path: PathBuf, key: String, token: String },
    #[error("chat template of {origin} does not compile: {source}")]
    TemplateSyntax { origin: String, source: minijinja::Error },
    #[error("chat template of {origin} fails on this chat: {source}")]
    Template { origin: String, source: minijinja::Error },
    #[error("this chat holds the character U+{code:X}, which marks answers while templates are rendered; remove it")]
    ReservedCharacter { code: u32 },
    #[error("cannot tokenise: {reason}")]
    Encode { reason: String },
}
