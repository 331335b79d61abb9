//! The rows of a study's data for the plans: all of them where that is quick, else a sample that is said to be one.

use std::path::Path;

use super::prepare::prepared;
use super::row_lengths::{lengths_for, rows_of_data};
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::draft::about_rows;
use crate::report::{Lengths, RowsAtLength, SampleOf, SetShare};
use crate::space::Study;
use crate::tune::TrainingRows;
use peft_tune_core::predict::RowLengths;
use peft_tune_core::recipe::{BatchSettings, DataSettings, HeldOut, Recipe, TrainerKind};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder, on_disk};
use peft_tune_engine::hub::{HubSettings, ModelFiles, TokenizerFiles};

/// Bytes of data that are tokenised for a plan, a few seconds' worth. Parquet packs its rows.
const QUICK_BYTES: u64 = 24 << 20;
const PARQUET: u64 = 4;
/// Rows of a sample where a row's size is not known beforehand.
const SOME_ROWS: u64 = 20_000;
/// Longer than any row that is trained on.
pub(in crate::cli) const UNCUT: usize = 1 << 22;

/// The rows of a study, as far as they could be looked at.
pub(in crate::cli) struct StudyRows {
    pub data: PreparedData,
    pub sample: Option<SampleOf>,
    trainer: TrainerKind,
}

/// The lengths of a study's rows; `None` where they are not here or cannot be looked at, which is told.
///
/// # Errors
/// Bad input: nothing is left of them at some length.
pub(in crate::cli) fn lengths_of(study: &Study, base: &Recipe, has_data: bool) -> Result<Option<Lengths>, CliError> {
    let rows = match has_data {
        true => StudyRows::of(base)?,
        false => None,
    };
    rows.map(|rows| rows.lengths(study, base)).transpose()
}

impl StudyRows {
    /// Reads and tokenises them; `None`, which is told, where the model's tokenizer is not here or the reading fails.
    ///
    /// # Errors
    /// Bad input: data that a search would refuse.
    pub(in crate::cli) fn of(base: &Recipe) -> Result<Option<Self>, CliError> {
        let Some(files) = files_of(&base.model) else {
            tell(format_args!(
                "warning: every row is assumed to be full: the model's tokenizer is not here"
            ));
            return Ok(None);
        };
        let here = match on_disk(&base.data) {
            Ok(here) => here,
            Err(error) => {
                tell(format_args!("warning: every row is assumed to be full: {error}"));
                return Ok(None);
            }
        };
        let (recipe, sample) = quick(base, &here);
        match prepared(&recipe, &files, Reading::shown()) {
            Ok(data) => Ok(Some(Self {
                data,
                sample,
                trainer: base.trainer,
            })),
            Err(error) if error.exit_code() == 2 => Err(error),
            Err(error) => {
                tell(format_args!("warning: every row is assumed to be full: {error}"));
                Ok(None)
            }
        }
    }

    /// Tokens of the longest row of a recipe, uncut; `None` where its rows or the tokenizer are not here, or where there are too many rows
    /// to look at.
    pub(in crate::cli) fn longest(recipe: &Recipe) -> Option<usize> {
        let files = files_of(&recipe.model)?;
        let here = on_disk(&recipe.data).ok()?;
        let (recipe, sample) = quick(recipe, &here);
        if sample.is_some() {
            return None;
        }
        let data = prepared(&recipe, &files, Reading::shown()).ok()?;
        let whole = data.at_length(UNCUT).ok()?;
        let batch = batch_of(UNCUT, false);
        let longest = [whole.train(), whole.held_out()].into_iter().filter_map(|set| {
            let rows = BatchSource::new(set.clone(), &batch, RowOrder::File).ok()?;
            row_tokens(&rows).into_iter().max()
        });
        longest.max()
    }

    /// What the prediction needs of them.
    ///
    /// # Errors
    /// Bad input: nothing is left of them at some length.
    pub(in crate::cli) fn rows(&self, study: &Study, base: &Recipe) -> Result<TrainingRows, CliError> {
        rows_of_data(study, base, &self.data, |rows, length| self.row_lengths(rows, length))
    }

    /// Lengths of the rows as one setting has them.
    ///
    /// # Errors
    /// Bad input: nothing is left of them at this length.
    pub(in crate::cli) fn lengths_in(&self, batch: &BatchSettings) -> Result<RowLengths, CliError> {
        let length = batch.sequence_length;
        let data = self.data.at_length(length).map_err(CliError::bad_input)?;
        let rows = dealt(&data, length, batch.packing)?.row_documents();
        Ok(self.row_lengths(rows, length))
    }

    fn row_lengths(&self, rows: Vec<Vec<(usize, usize)>>, length: usize) -> RowLengths {
        let lengths = lengths_for(self.trainer, rows);
        match self.sample {
            Some(_) => lengths.as_sample(length),
            None => lengths,
        }
    }

    /// What people want to know of them.
    ///
    /// # Errors
    /// Bad input: nothing is left of them at some length.
    pub(in crate::cli) fn lengths(&self, study: &Study, base: &Recipe) -> Result<Lengths, CliError> {
        let whole = self.data.at_length(UNCUT).map_err(CliError::bad_input)?;
        let uncut = dealt(&whole, UNCUT, false)?;
        let mut at = Vec::new();
        for sequence_length in study.sequence_lengths(base) {
            let cut = self.data.at_length(sequence_length).map_err(CliError::bad_input)?;
            let statistics = cut.train().statistics();
            at.push(RowsAtLength {
                sequence_length,
                lengths: row_tokens(&dealt(&cut, sequence_length, false)?),
                cut_rows: statistics.cut_rows,
                cut_tokens: statistics.cut_tokens,
                dropped_rows: statistics.dropped_rows,
                too_long_rows: statistics.too_long_rows,
                packed_rows: self.packed_rows(&cut, sequence_length)?,
            });
        }
        let micro_batches = study.values("micro_batch").into_iter();
        let mut micro_batches: Vec<usize> = micro_batches
            .filter_map(|value| Some(value.as_f64()? as usize))
            .collect();
        if micro_batches.is_empty() {
            micro_batches.push(base.batch.micro_batch);
        }
        micro_batches.sort_unstable();
        let sets = base.data.train.sets().iter().zip(uncut.passes());
        let sets = sets.map(|(set, passes)| SetShare {
            files: set.files.clone(),
            share: set.weight,
            passes: self.sample.is_none().then_some(passes),
        });
        let (lengths, sequences) = (row_tokens(&uncut), self.trainer.sequences());
        Ok(Lengths::new(lengths, sequences, at, &micro_batches, self.sample).with_sets(sets.collect()))
    }

    /// Rows that packing makes of data that are cut; `None` where the trainer packs none.
    fn packed_rows(&self, cut: &PreparedData, sequence_length: usize) -> Result<Option<u64>, CliError> {
        match self.trainer.is_sft() {
            true => Ok(Some(dealt(cut, sequence_length, true)?.rows() as u64)),
            false => Ok(None),
        }
    }
}

fn dealt(data: &PreparedData, sequence_length: usize, packing: bool) -> Result<BatchSource, CliError> {
    let batch = batch_of(sequence_length, packing);
    BatchSource::new(data.train().clone(), &batch, RowOrder::File).map_err(CliError::bad_input)
}

fn batch_of(sequence_length: usize, packing: bool) -> BatchSettings {
    BatchSettings {
        sequence_length,
        packing,
        ..BatchSettings::default()
    }
}

/// Tokens of each sequence of rows that are not packed, those of a pair one after the other.
fn row_tokens(source: &BatchSource) -> Vec<usize> {
    let sequences = source.row_documents().into_iter().flatten();
    sequences.map(|(tokens, _)| tokens).collect()
}

/// A model's tokenizer, without a network and without weights.
pub(in crate::cli) fn files_of(model: &str) -> Option<ModelFiles> {
    let settings = HubSettings {
        offline: true,
        ..HubSettings::from_env().ok()?
    };
    if let Ok(files) = ModelFiles::resolve_with(model, &settings) {
        return Some(files);
    }
    let folder = Path::new(model);
    // Weights may have no tokenizer beside them, where data are tokenised already.
    if let Some(files) = folder
        .is_dir()
        .then(|| ModelFiles::resolve_weights(model, &mut ()).ok())
        .flatten()
    {
        return Some(files);
    }
    let tokenizer = folder.is_dir().then(|| TokenizerFiles::resolve(model).ok()).flatten()?;
    Some(ModelFiles {
        model: model.to_owned(),
        folder: folder.to_owned(),
        config: folder.join("config.json"),
        tokenizer,
        weights: Vec::new(),
    })
}

/// The recipe whose data are quick to read: itself, or the first rows of it. `data` are its settings with files of this disk.
pub(in crate::cli) fn quick(base: &Recipe, data: &DataSettings) -> (Recipe, Option<SampleOf>) {
    let size = |path: &std::path::PathBuf| {
        let factor = if path.extension().is_some_and(|end| end == "parquet") {
            PARQUET
        } else {
            1
        };
        std::fs::metadata(path).map_or(0, |metadata| metadata.len().saturating_mul(factor))
    };
    let files = data.train.files().chain(data.held_out.files()).chain(&data.retain);
    let bytes: u64 = files.map(size).sum();
    if bytes <= QUICK_BYTES {
        return (base.clone(), None);
    }
    let about: Vec<Option<u64>> = data.train.files().map(|path| about_rows(path)).collect();
    let most = data.max_rows.unwrap_or(usize::MAX) as u64;
    let all_rows: Option<u64> = about.into_iter().sum();
    let trained: u64 = data.train.files().map(size).sum();
    let share = QUICK_BYTES as f64 / trained.max(1) as f64;
    let first_rows = all_rows.map_or(SOME_ROWS, |rows| ((rows as f64 * share) as u64).max(1000));
    if most <= first_rows {
        return (base.clone(), None);
    }
    let mut recipe = base.clone();
    recipe.data.max_rows = Some(first_rows as usize);
    // Held-out and retained files may be as large; their rows say nothing of a step.
    recipe.data.held_out = HeldOut::Fraction(0.001);
    recipe.data.retain = Vec::new();
    let all_rows = all_rows.map(|rows| rows.min(most));
    let sample = SampleOf { first_rows, all_rows };
    (recipe, Some(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_data_are_looked_at_as_a_sample_that_says_how_large_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.jsonl");
        let row = format!("{{\"text\": \"{}\"}}\n", "a".repeat(988));
        assert_eq!(row.len(), 1001);
        let recipe = |rows: usize| {
            std::fs::write(&path, row.repeat(rows)).unwrap();
            let data = DataSettings {
                train: vec![path.clone()].into(),
                ..DataSettings::default()
            };
            Recipe::new("m", data)
        };
        let small = recipe(100);
        assert_eq!(quick(&small, &small.data), (small.clone(), None));
        let many = recipe(100_000);
        let (first, sample) = quick(&many, &many.data);
        let sample = sample.unwrap();
        assert_eq!(first.data.max_rows, Some(sample.first_rows as usize));
        assert!(sample.first_rows.abs_diff(25_140) < 30, "{sample:?}");
        assert!(sample.all_rows.unwrap().abs_diff(100_000) < 100, "{sample:?}");
        // As many as the study reads are no sample.
        let mut few = recipe(100_000);
        few.data.max_rows = Some(500);
        let (few, sample) = quick(&few, &few.data);
        assert_eq!((few.data.max_rows, sample), (Some(500), None));
    }
}
