//! GGUF, the file format of llama.cpp and of what builds on it: one file with configuration, vocabulary and weights.
//!
//! Weights have names and sometimes values of their own there ([`names`]): the rows of Llama's queries and keys stand in
//! another order, and Gemma's norms hold w + 1. A file serves as a base model beside a `config.json`; `merge` writes one.
//!
//! Sources: GGUF specification (ggml `docs/gguf.md`, version 3), llama.cpp's `convert_hf_to_gguf.py` and `gguf-py` 0.19
//! (names of tensors and keys).

mod error;
mod metadata;
mod names;
mod read;
mod value;
mod write;

pub use error::GgufError;
pub(crate) use metadata::{ModelMetadata, of_architecture};
pub(crate) use names::Layout;
pub(crate) use read::GgufWeights;
pub(crate) use value::{Metadata, Value};
pub use write::GgufType;
pub(crate) use write::{GgufEntry, write};
