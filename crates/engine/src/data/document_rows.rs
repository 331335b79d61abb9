//! The rows of the files that training documents were cut from, for messages. Tables of tokens do not hold where their rows stood, so the
//! files are read again, up to the last row that is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;

use super::documents::TableRow;
use super::encode::encode;
use super::format::RowParser;
use super::learnt::Learnt;
use super::meter::Meter;
use super::on_disk::on_disk;
use super::prepared::{by_set, with_template};
use super::readers::{count_rows, read_rows};
use super::split::{HeldOutRows, Located, PieceJoiner};
use super::{DataError, DocumentSet, RowLocation, Vocabulary};
use crate::hub::ModelFiles;
use peft_tune_core::recipe::{DataSettings, HeldOut, Recipe};

/// Rows of the files that training documents of a recipe were cut from.
#[derive(Debug)]
pub struct DocumentRows {
    rows: BTreeMap<TableRow, RowLocation>,
    vocabulary: Vocabulary,
}

/// Search for rows of one set.
struct Search<'a> {
    settings: &'a DataSettings,
    vocabulary: &'a Vocabulary,
    /// Whether rows must be tokenised to know which were left out.
    has_left_out: bool,
    wanted: BTreeSet<usize>,
    /// Number of the next row of the table.
    next: usize,
    found: BTreeMap<usize, RowLocation>,
}

impl DocumentRows {
    /// Finds the rows of these documents of `set`, which are the training documents of `recipe`, in its files.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn find(
        recipe: &Recipe,
        files: &ModelFiles,
        set: &DocumentSet,
        documents: &[usize],
    ) -> Result<Self, DataError> {
        let settings = on_disk(&recipe.data)?;
        let vocabulary = with_template(&Vocabulary::open(files)?, &settings)?;
        Self::find_in(&settings, vocabulary, recipe.training.seed, (set, documents))
    }

    fn find_in(
        settings: &DataSettings,
        vocabulary: Vocabulary,
        seed: u64,
        (set, documents): (&DocumentSet, &[usize]),
    ) -> Result<Self, DataError> {
        let wanted: BTreeSet<TableRow> = documents.iter().map(|index| set.table_row(*index)).collect();
        let mut rows = BTreeMap::new();
        for (number, settings) in by_set(settings).iter().enumerate() {
            let of_set = wanted.iter().filter(|row| row.set == number).map(|row| row.row);
            let mut search = Search {
                settings,
                vocabulary: &vocabulary,
                has_left_out: set.has_left_out(number),
                wanted: of_set.collect(),
                next: 0,
                found: BTreeMap::new(),
            };
            search.run(seed)?;
            let found = search.found.into_iter();
            rows.extend(found.map(|(row, location)| (TableRow { set: number, row }, location)));
        }
        Ok(Self { rows, vocabulary })
    }

    /// Location of the row that a document was cut from; `None` where the files no longer have it.
    pub fn location(&self, set: &DocumentSet, document: usize) -> Option<&RowLocation> {
        self.rows.get(&set.table_row(document))
    }

    /// Text of tokens; their ids where the model has no tokenizer.
    pub fn text(&self, ids: &[u32]) -> String {
        let text = self.vocabulary.tokenizer();
        text.and_then(|tokenizer| tokenizer.decode(ids, false).ok())
            .unwrap_or_else(|| format!("{ids:?}"))
    }
}

impl Search<'_> {
    /// Goes through the training files as tokenising does.
    fn run(&mut self, seed: u64) -> Result<(), DataError> {
        if self.wanted.is_empty() {
            return Ok(());
        }
        let files: Vec<PathBuf> = self.settings.train.files().cloned().collect();
        let limit = self.settings.max_rows.unwrap_or(usize::MAX);
        let held_out = match &self.settings.held_out {
            HeldOut::Fraction(fraction) if *fraction > 0.0 => {
                HeldOutRows::new(count_rows(&files, &[], limit), *fraction, seed)
            }
            _ => HeldOutRows::default(),
        };
        let has_template = self
            .vocabulary
            .tokenizer()
            .is_some_and(|tokenizer| tokenizer.chat_template().is_some());
        let (mut count, mut joiner) = (0, PieceJoiner::default());
        for path in &files {
            if count >= limit || self.wanted.is_empty() {
                break;
            }
            let mut parser = RowParser::new(self.settings.format, &self.settings.columns, has_template);
            read_rows(path, &Meter::default(), &mut |location, record| {
                let example = parser.parse(&location, record)?;
                let is_trained = !held_out.contain(count);
                count += 1;
                if is_trained && let Some(located) = joiner.push((location, example)) {
                    self.take(&located)?;
                }
                Ok(match count >= limit || self.wanted.is_empty() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            })?;
        }
        joiner.rest().map_or(Ok(()), |located| self.take(&located))
    }

    /// Counts a row, unless it was left out.
    fn take(&mut self, (location, example): &Located) -> Result<(), DataError> {
        let learnt = Learnt::from(self.settings);
        if self.has_left_out && encode(location, example, self.vocabulary, learnt)?.row.is_none() {
            return Ok(());
        }
        if self.wanted.remove(&self.next) {
            self.found.insert(self.next, location.clone());
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::length_limit::LengthLimit;
    use super::super::token_writer::TokenWriter;
    use super::super::tokenize::{Source, tokenize};
    use super::super::tokens::Width;
    use super::*;
    use peft_tune_core::recipe::TrainingData;

    #[test]
    fn documents_are_found_behind_rows_that_are_left_out_or_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        // Each tenth row has nothing to learn; the first token of the others is their line.
        let row = |line: u32| match line % 10 {
            0 => r#"{"input_ids": [1]}"#.to_owned(),
            _ => format!(r#"{{"input_ids": [{line}, 1, 2]}}"#),
        };
        let text: Vec<String> = (1..=40).map(row).collect();
        std::fs::write(&file, text.join("\n")).unwrap();
        let settings = DataSettings {
            train: TrainingData::Files(vec![file]),
            held_out: HeldOut::Fraction(0.2),
            ..DataSettings::default()
        };
        let vocabulary = Vocabulary::Ids(64);
        let mut writer = TokenWriter::in_memory(Width::Two);
        let source = Source {
            settings: &settings,
            vocabulary: &vocabulary,
            seed: 7,
            rows: &[],
        };
        tokenize(source, &mut writer, None).unwrap();
        let set = DocumentSet::cut(&writer.into_tables().unwrap().train, LengthLimit::cutting(16));
        let all: Vec<usize> = (0..set.len()).collect();
        let rows = DocumentRows::find_in(&settings, vocabulary, 7, (&set, &all)).unwrap();
        for index in all {
            let ids = set.document(index).input_ids;
            let location = rows.location(&set, index).unwrap().to_string();
            assert!(location.ends_with(&format!("rows.jsonl line {}", ids[0])), "{location}");
            assert_eq!(rows.text(&ids), format!("{ids:?}"));
        }
    }
}
