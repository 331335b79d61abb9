//! Tokens of text and text of tokens: the model's tokenizer, its special tokens and its chat template.

mod bounds;
mod chat_template;
mod error;
mod generation;
mod jinja;
mod marked_template;
mod places;
mod python_json;
mod python_methods;
mod special_tokens;
mod strftime;
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod tokenizer;

pub use chat_template::{ChatTemplate, Conversation, GenerationPrompt, Rendered};
pub use error::TokenizerError;
pub use marked_template::marked_template;
pub(crate) use places::{Places, REASONING};
pub use special_tokens::{SpecialToken, SpecialTokens};
pub(crate) use strftime::told_day;
pub use tokenizer::{Encoded, Specials, Tokenizer};
