//! Rows of preferences for trainers that read texts: the very rows that are trained on and held out here, as such trainers read
//! them.
//!
//! Rows are read again, and those that [`PreparedData`](super::PreparedData) leaves out are left out.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rayon::prelude::*;
use serde_json::{Map, Value};

use super::encode::encode;
use super::encoded_row::EncodedRow;
use super::example::Example;
use super::format::RowParser;
use super::learnt::Learnt;
use super::length_limit::LengthLimit;
use super::meter::Meter;
use super::on_disk::on_disk;
use super::prepared::{check, with_template};
use super::progress;
use super::readers::{count_rows, read_rows};
use super::seen::learnt;
use super::split::HeldOutRows;
use super::{DataError, RowLocation, Vocabulary};
use crate::hub::ModelFiles;
use peft_tune_core::recipe::{DataSettings, HeldOut, Recipe};

/// Rows that are tokenised at once.
const ROWS_AT_ONCE: usize = 1024;

/// Set that a row of preferences belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferenceSet {
    Train,
    HeldOut,
}

/// Takes a row with its columns, and says whether it wants more.
type Taker<'a> = dyn FnMut(PreferenceSet, &Map<String, Value>) -> ControlFlow<()> + 'a;

/// Hands over the rows of a recipe that are trained on and held out, in the order of the files.
///
/// # Errors
/// See [`DataError`].
pub fn each_preference(recipe: &Recipe, files: &ModelFiles, take: &mut Taker<'_>) -> Result<(), DataError> {
    check(&recipe.data)?;
    let settings = &on_disk(&recipe.data)?;
    let vocabulary = &with_template(&Vocabulary::open(files)?, settings)?;
    let train: Vec<PathBuf> = settings.train.files().cloned().collect();
    let limit = settings.max_rows.unwrap_or(usize::MAX);
    let chosen = match settings.held_out {
        HeldOut::Fraction(fraction) => HeldOutRows::new(count_rows(&train, &[], limit), fraction, recipe.training.seed),
        HeldOut::File(_) | HeldOut::Files(_) => HeldOutRows::default(),
    };
    let mut reading = Reading {
        settings,
        vocabulary,
        sequence_length: recipe.batch.sequence_length,
        take,
        waiting: Vec::new(),
    };
    if reading
        .read(&train, limit, &chosen, PreferenceSet::Train)?
        .is_continue()
    {
        let files = settings.held_out.files();
        // Behind the last row nobody asks for more.
        let _ = reading.read(files, usize::MAX, &HeldOutRows::default(), PreferenceSet::HeldOut)?;
    }
    Ok(())
}

/// Rows on their way.
struct Reading<'a, 'b> {
    settings: &'a DataSettings,
    vocabulary: &'a Vocabulary,
    sequence_length: usize,
    take: &'a mut Taker<'b>,
    waiting: Vec<(PreferenceSet, RowLocation, Example)>,
}

impl Reading<'_, '_> {
    fn read(
        &mut self,
        files: &[PathBuf],
        limit: usize,
        chosen: &HeldOutRows,
        set: PreferenceSet,
    ) -> Result<ControlFlow<()>, DataError> {
        let settings = self.settings;
        let tokenizer = self.vocabulary.tokenizer();
        let has_template = tokenizer.is_some_and(|tokenizer| tokenizer.chat_template().is_some());
        let (mut count, mut flow) = (0, ControlFlow::Continue(()));
        for path in files {
            if count >= limit || flow.is_break() {
                break;
            }
            let mut parser = RowParser::new(settings.format, &settings.columns, has_template);
            read_rows(path, &Meter::default(), &mut |location, record| {
                let example = parser.parse(&location, record)?;
                let set = match chosen.contain(count) {
                    true => PreferenceSet::HeldOut,
                    false => set,
                };
                count += 1;
                self.waiting.push((set, location, example));
                if self.waiting.len() >= ROWS_AT_ONCE {
                    flow = self.hand_over()?;
                }
                Ok(match count >= limit {
                    true => ControlFlow::Break(()),
                    false => flow,
                })
            })?;
        }
        match flow.is_break() {
            true => Ok(flow),
            false => self.hand_over(),
        }
    }

    /// Hands over what waits, but for rows that teach nothing within their length.
    fn hand_over(&mut self) -> Result<ControlFlow<()>, DataError> {
        let waiting = std::mem::take(&mut self.waiting);
        let (vocabulary, of_rows) = (self.vocabulary, Learnt::from(self.settings));
        let encoded: Vec<Result<EncodedRow, DataError>> = waiting
            .par_iter()
            .map(|(_, location, example)| {
                progress::count();
                encode(location, example, vocabulary, of_rows)
            })
            .collect();
        for ((set, _, example), encoded) in waiting.iter().zip(encoded) {
            let limit = self.limit(*set);
            let is_kept = encoded?.row.is_some_and(|row| learnt(&row, limit) > 0);
            if let (Example::Preference(preference), true) = (example, is_kept)
                && (self.take)(*set, &preference.row).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn limit(&self, set: PreferenceSet) -> LengthLimit {
        let of_set = match set {
            PreferenceSet::Train => None,
            PreferenceSet::HeldOut => self.settings.held_out_length,
        };
        LengthLimit {
            tokens: of_set.unwrap_or(self.sequence_length),
            long_rows: self.settings.long_rows,
        }
    }
}
