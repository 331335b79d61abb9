//! The prompts of requests.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::prepare::{prepared_for_training, prompt_tokens};
use crate::cli::data::study_file::recipe_with_data_of;
use crate::cli::data::study_rows::files_of;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::worker::Preparation;
use peft_tune_core::bounded;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::Tokenizer;

/// Bytes of a file of prompts that are read at most.
const MOST_BYTES: u64 = 64 << 20;
/// Held-out rows of a study that are asked at most, and tokens of each.
const ROWS: usize = 32;
const ROW_TOKENS: usize = 1024;

/// Texts, and what makes tokens of them.
pub(super) struct Prompts {
    pub texts: Vec<String>,
    pub tokenizer: Tokenizer,
}

impl Prompts {
    /// Reads the prompts of `path`; see [`texts`].
    ///
    /// # Errors
    /// Bad input: a file that cannot be read or holds no prompt, a tokenizer that cannot be used.
    pub(super) fn read(path: &Path, files: &ModelFiles) -> Result<Self, CliError> {
        let texts = texts(path)?;
        // A tokenizer that never ends, or takes all memory, does so in a process of its own, and is refused.
        prompt_tokens(Preparation::Text(texts.join("\n")), files)?;
        let tokenizer = Tokenizer::open(&files.tokenizer).map_err(CliError::bad_input)?;
        Ok(Self { texts, tokenizer })
    }
}

/// The prompts of a file: each line of a text that is not empty, or what held-out rows of a study or recipe ask.
///
/// # Errors
/// Bad input: a file that cannot be read or holds no prompt, rows that cannot be read.
pub(super) fn texts(path: &Path) -> Result<Vec<String>, CliError> {
    let refused = |what: &str| CliError::bad_input(anyhow::anyhow!("{}: {what}", path.display()));
    if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
        return match texts_of_rows(path)? {
            texts if texts.is_empty() => Err(refused(
                "no held-out row asks anything; hold some out (`data.held_out`)",
            )),
            texts => Ok(texts),
        };
    }
    let text = bounded::read_text(path, MOST_BYTES).map_err(|error| refused(&error.to_string()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let texts: Vec<String> = lines.map(str::to_owned).collect();
    match texts.is_empty() {
        true => Err(refused("there is no prompt in it; write one in each line")),
        false => Ok(texts),
    }
}

/// What held-out rows of a study or recipe ask, as text. Whoever makes tokens of it puts the ones in front that begin a document.
fn texts_of_rows(path: &Path) -> Result<Vec<String>, CliError> {
    let recipe = recipe_with_data_of(path)?;
    let files = files_of(&recipe.model).ok_or_else(|| {
        CliError::bad(format!(
            "{}: the tokenizer of {} is not here, and rows are asked as it writes them; download it, or write the prompts into a \
             text file",
            path.display(),
            recipe.model
        ))
    })?;
    let data = prepared_for_training(&recipe, &files, Reading::shown())?;
    let tokenizer = Tokenizer::open(&files.tokenizer).map_err(CliError::bad_input)?;
    let front = tokenizer.encode_open("").map_err(CliError::bad_input)?.ids;
    let rows = data.held_out().beginnings(ROWS, ROW_TOKENS);
    let texts = rows.iter().map(|ids| {
        let asked = ids.strip_prefix(front.as_slice()).unwrap_or(ids);
        tokenizer.decode(asked, false).map_err(CliError::bad_input)
    });
    let mut texts = texts.collect::<Result<Vec<String>, CliError>>()?;
    texts.retain(|text| !text.trim().is_empty());
    tell(format_args!(
        "{} held-out rows of {} are asked",
        texts.len(),
        path.display()
    ));
    Ok(texts)
}
