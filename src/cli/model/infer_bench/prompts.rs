//! The prompts of requests.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::prepare::prompt_tokens;
use crate::worker::Preparation;
use peft_tune_core::bounded;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::Tokenizer;

/// Bytes of a file of prompts that are read at most.
const MOST_BYTES: u64 = 64 << 20;

/// Texts, and what makes tokens of them.
pub(super) struct Prompts {
    pub texts: Vec<String>,
    pub tokenizer: Tokenizer,
}

impl Prompts {
    /// Reads a prompt from each line of `path` that is not empty.
    ///
    /// # Errors
    /// Bad input: a file that cannot be read or holds no prompt, a tokenizer that cannot be used.
    pub(super) fn read(path: &Path, files: &ModelFiles) -> Result<Self, CliError> {
        let refused = |what: &str| CliError::bad_input(anyhow::anyhow!("{}: {what}", path.display()));
        let text = bounded::read_text(path, MOST_BYTES).map_err(|error| refused(&error.to_string()))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let texts: Vec<String> = lines.map(str::to_owned).collect();
        if texts.is_empty() {
            return Err(refused("there is no prompt in it; write one in each line"));
        }
        // A tokenizer that never ends, or takes all memory, does so in a process of its own, and is refused.
        prompt_tokens(Preparation::Text(texts.join("\n")), files)?;
        let tokenizer = Tokenizer::open(&files.tokenizer).map_err(CliError::bad_input)?;
        Ok(Self { texts, tokenizer })
    }
}
