//! Errors in a GGUF file, or in a model that is to become one.

use std::path::PathBuf;

/// A GGUF file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("{path} is not a whole GGUF file: {reason}; download it again")]
    Damaged { path: PathBuf, reason: String },

    #[error("{folder} holds several GGUF files ({files}); keep the one to train on, in a folder of its own")]
    Several { folder: PathBuf, files: String },

    #[error("{path} is a part of a model that was split; join it with llama.cpp's `llama-gguf-split --merge`")]
    Split { path: PathBuf },

    #[error(
        "{path} is a model of llama.cpp's architecture `{got}`, but config.json beside it is of `{family}` ({expected}); \
         put the two of one model together"
    )]
    Architecture {
        path: PathBuf,
        got: String,
        family: &'static str,
        expected: &'static str,
    },

    #[error("models of the family {family} cannot be in GGUF form here; take the safetensors form")]
    Family { family: &'static str },

    #[error("`{tensor}` has no name in GGUF; write safetensors instead")]
    Name { tensor: String },

    #[error("tensor `{tensor}` in {path} has shape {got:?}, but config.json asks for {expected:?}")]
    Shape {
        path: PathBuf,
        tensor: String,
        expected: Vec<usize>,
        got: Vec<usize>,
    },

    #[error("tensor `{tensor}` in {path} holds a value that is not finite, at element {element}; download it again")]
    NotFinite {
        path: PathBuf,
        tensor: String,
        element: usize,
    },

    #[error("{path}: {what}, which GGUF's vocabulary has no form for here; write safetensors instead")]
    Vocabulary { path: PathBuf, what: String },

    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },

    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
