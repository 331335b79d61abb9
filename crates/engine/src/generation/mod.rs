//! Text and tokens from a model: greedy decoding with kept keys and values.

mod decoding;
mod generate;

pub use decoding::Decoding;
pub use generate::{Generated, GenerationSettings, Generator, TextEnd};
