//! How long the rows of a study's data are, at each sequence length that its trials may have.

use super::prepare::prepared;
use crate::cli::CliError;
use crate::cli::terminal::reading_progress::Reading;
use crate::space::Study;
use crate::tune::TrainingRows;
use peft_tune_core::predict::RowLengths;
use peft_tune_core::recipe::{BatchSettings, Recipe, TrainerKind};
use peft_tune_core::study::ParamValue;
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;

/// The lengths of the training rows at every sequence length of the study.
pub(in crate::cli) fn rows_of(study: &Study, base: &Recipe, files: &ModelFiles) -> Result<TrainingRows, CliError> {
    rows_of_data(study, base, &prepared(base, files, Reading::shown())?, |rows, _| {
        lengths_for(base.trainer, rows)
    })
}

/// Lengths of rows from those of their documents, as a trainer lays them into micro-batches.
pub(super) fn lengths_for(trainer: TrainerKind, rows: Vec<Vec<(usize, usize)>>) -> RowLengths {
    match trainer.sequences() {
        1 => RowLengths::new(rows),
        _ => RowLengths::of_pairs(rows),
    }
}

/// The lengths of the rows of data that are ready; `of` makes the lengths of the documents of rows, and the sequence length.
pub(super) fn rows_of_data(
    study: &Study,
    base: &Recipe,
    data: &PreparedData,
    of: impl Fn(Vec<Vec<(usize, usize)>>, usize) -> RowLengths,
) -> Result<TrainingRows, CliError> {
    let is_true = |value: ParamValue| value == ParamValue::Bool(true);
    let mut packings: Vec<bool> = study.values("packing").into_iter().map(is_true).collect();
    if packings.is_empty() {
        packings.push(base.batch.packing);
    }
    let mut rows = TrainingRows::default();
    for sequence_length in study.sequence_lengths(base) {
        let data = data.at_length(sequence_length).map_err(CliError::bad_input)?;
        for packing in &packings {
            let batch = BatchSettings {
                sequence_length,
                packing: *packing,
                ..BatchSettings::default()
            };
            let source = BatchSource::new(data.train().clone(), &batch, RowOrder::File).map_err(CliError::bad_input)?;
            rows.insert(&batch, of(source.row_documents(), sequence_length));
        }
    }
    Ok(rows)
}
