//! Text and tokens from a model, the most likely ones or drawn at a temperature, with kept keys and values.

mod answers;
mod decoding;
mod generate;
mod reader;

pub use answers::{AnswerSettings, Prompt};
pub use decoding::Decoding;
pub use generate::{Generated, GenerationSettings, Generator, TextEnd};
