//! Counting the tokens of the rows, with the model's own tokenizer.

use crate::cli::data::prepare::prepared;
use crate::cli::data::study_rows::{UNCUT, files_of, quick};
use crate::cli::terminal::reading_progress::Reading;
use crate::draft::{Answers, TokenLengths};
use peft_tune_core::recipe::{DataFormat, DataSettings, Recipe, TrainingData};
use peft_tune_engine::data::on_disk;

/// Tokenises the rows, once and uncut. `None` where the model's tokenizer is not here or the rows cannot be read.
pub(super) fn count_tokens(answers: &Answers) -> Option<TokenLengths> {
    let data = DataSettings {
        train: TrainingData::from(&answers.data),
        format: answers.format,
        columns: answers.columns.clone(),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new(answers.model.as_str(), data);
    recipe.batch.sequence_length = UNCUT;
    let files = files_of(&recipe.model)?;
    let here = on_disk(&recipe.data).ok()?;
    let (recipe, sample) = quick(&recipe, &here);
    let data = prepared(&recipe, &files, Reading::shown()).ok()?;
    let sets = [data.train(), data.held_out()];
    let tokens = sets
        .iter()
        .flat_map(|set| (0..set.len()).map(move |index| set.tokens(index)));
    Some(TokenLengths {
        rows: sets.iter().map(|set| set.statistics().rows).sum(),
        is_sample: sample.is_some(),
        is_running: answers.format == DataFormat::Text,
        ..TokenLengths::new(tokens.collect())
    })
}
