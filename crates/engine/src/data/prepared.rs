//! Data made ready for training: read, split, tokenised and cut.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::cache::TokenCache;
use super::cache_folder::cache_folder;
use super::documents::SHORTEST;
use super::encode::encode;
use super::key::cache_key;
use super::split::{Located, hold_out, join_pieces, read_examples};
use super::tokens::{TableBuilder, Tables};
use super::{DataError, DataWarning, DocumentSet, Vocabulary, progress};
use crate::hub::ModelFiles;
use crate::tokenizer::Tokenizer;
use peft_tune_core::recipe::{DataSettings, HeldOut, Recipe};

/// The training and held-out documents of a recipe.
#[derive(Clone, Debug)]
pub struct PreparedData {
    train: DocumentSet,
    held_out: DocumentSet,
    tables: Tables,
    sequence_length: usize,
    /// Length that held-out documents are cut to; the sequence length where absent.
    held_out_length: Option<usize>,
    /// Warnings that do not depend on the sequence length.
    general: Vec<DataWarning>,
}

impl PreparedData {
    /// Reads and tokenises the data of `settings`, or takes it from the cache in `cache_dir`, and cuts it to
    /// `sequence_length` tokens; held-out documents to `held_out_length`, where `settings` have one. `seed` decides which rows a held-out fraction takes.
    ///
    /// The rows are held in memory while they are tokenised: about the size of the files. Afterwards the tokens are
    /// mapped from the cache, or, without one, take 8 bytes each.
    ///
    /// # Errors
    /// See [`DataError`]. A cache that cannot be read or written is a warning.
    pub fn prepare(
        settings: &DataSettings,
        tokenizer: &Tokenizer,
        sequence_length: usize,
        seed: u64,
        cache_dir: Option<&Path>,
    ) -> Result<Self, DataError> {
        let vocabulary = Vocabulary::Tokenizer(tokenizer.clone());
        Self::prepare_with(settings, &vocabulary, sequence_length, seed, cache_dir)
    }

    /// [`PreparedData::prepare`] for the model in `files` and the settings of `recipe`, through the cache of this user.
    /// The model needs a tokenizer only where the data is text.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn of_recipe(recipe: &Recipe, files: &ModelFiles) -> Result<Self, DataError> {
        let vocabulary = Vocabulary::open(files)?;
        let (length, seed) = (recipe.batch.sequence_length, recipe.training.seed);
        Self::prepare_with(&recipe.data, &vocabulary, length, seed, cache_folder().as_deref())
    }

    fn prepare_with(
        settings: &DataSettings,
        vocabulary: &Vocabulary,
        sequence_length: usize,
        seed: u64,
        cache_dir: Option<&Path>,
    ) -> Result<Self, DataError> {
        check(settings)?;
        let vocabulary = match (vocabulary, &settings.chat_template) {
            (Vocabulary::Tokenizer(tokenizer), Some(path)) => {
                Vocabulary::Tokenizer(tokenizer.with_chat_template(path)?)
            }
            _ => vocabulary.clone(),
        };
        let mut general = Vec::new();
        if vocabulary
            .tokenizer()
            .is_some_and(|tokenizer| tokenizer.eos_id().is_none())
        {
            general.push(DataWarning::NoEndOfDocument);
        }
        let trained = |path: &&PathBuf| settings.train.contains(path);
        let both = settings.held_out.files().iter().filter(trained);
        general.extend(both.map(|path| DataWarning::HeldOutIsTrained { path: path.clone() }));

        let tables = match cache_dir {
            None => {
                let (train, held_out) = tokenize(settings, &vocabulary, seed)?;
                in_memory(&train, &held_out)
            }
            Some(folder) => cached(settings, &vocabulary, seed, folder, &mut general)?,
        };
        Self::cut(tables, (sequence_length, settings.held_out_length), general)
    }

    /// The same data at another sequence length, without reading or tokenising anything again. Held-out documents with a
    /// length of their own stay as they are, and are scored in windows of the new length.
    ///
    /// # Errors
    /// Fails where nothing is left to train on or to evaluate on.
    pub fn at_length(&self, sequence_length: usize) -> Result<Self, DataError> {
        let lengths = (sequence_length, self.held_out_length);
        Self::cut(self.tables.clone(), lengths, self.general.clone())
    }

    /// The training documents, in file order.
    pub fn train(&self) -> &DocumentSet {
        &self.train
    }

    /// The held-out documents, in file order.
    pub fn held_out(&self) -> &DocumentSet {
        &self.held_out
    }

    /// Longest training document, and longest stretch of a held-out one, in tokens that is possible here.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// Hash of all documents, to tell whether data is still the same.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.train.hash_into(&mut hash);
        self.held_out.hash_into(&mut hash);
        hash.finalize().into()
    }

    /// What the user should know: rows left out or cut, and the like.
    pub fn warnings(&self) -> Vec<DataWarning> {
        let held_out_length = self.held_out_length.unwrap_or(self.sequence_length);
        let sets = [
            ("training", &self.train, self.sequence_length),
            ("held-out", &self.held_out, held_out_length),
        ];
        let of_sets = sets
            .iter()
            .flat_map(|(name, set, length)| set_warnings(name, set, *length));
        self.general.iter().cloned().chain(of_sets).collect()
    }

    fn cut(
        tables: Tables,
        (sequence_length, held_out_length): (usize, Option<usize>),
        general: Vec<DataWarning>,
    ) -> Result<Self, DataError> {
        let cut_at = held_out_length.unwrap_or(sequence_length);
        for (key, value) in [("sequence_length", sequence_length), ("data.held_out_length", cut_at)] {
            if value < SHORTEST {
                let least = SHORTEST;
                return Err(DataError::TooSmall { key, value, least });
            }
        }
        let cut = |table, set, sequence_length| {
            let documents = DocumentSet::cut(table, sequence_length);
            if documents.is_empty() {
                let rows = documents.statistics().rows;
                return Err(DataError::NothingLeft {
                    set,
                    rows,
                    sequence_length,
                });
            }
            Ok(documents)
        };
        Ok(Self {
            train: cut(&tables.train, "training", sequence_length)?,
            held_out: cut(&tables.held_out, "held-out", cut_at)?.scored_in(sequence_length),
            tables,
            sequence_length,
            held_out_length,
            general,
        })
    }
}

fn check(settings: &DataSettings) -> Result<(), DataError> {
    if settings.train.is_empty() {
        return Err(DataError::NoTrainingFile);
    }
    if let HeldOut::Fraction(fraction) = settings.held_out
        && !(fraction > 0.0 && fraction < 1.0)
    {
        return Err(DataError::BadFraction { fraction });
    }
    if settings.max_rows == Some(0) {
        return Err(DataError::TooSmall {
            key: "data.max_rows",
            value: 0,
            least: 1,
        });
    }
    Ok(())
}

/// The tables from the cache, which is filled first where need be.
fn cached(
    settings: &DataSettings,
    vocabulary: &Vocabulary,
    seed: u64,
    folder: &Path,
    warnings: &mut Vec<DataWarning>,
) -> Result<Tables, DataError> {
    let cache = TokenCache { folder };
    let key = cache_key(settings, vocabulary, seed)?;
    if let Some(tables) = cache.read(&key) {
        return Ok(tables);
    }
    let (train, held_out) = tokenize(settings, vocabulary, seed)?;
    if let Err(error) = cache.write(&key, &train, &held_out) {
        warnings.push(DataWarning::CacheNotWritten {
            folder: folder.to_owned(),
            reason: error.to_string(),
        });
    }
    // Mapped from the file, the tokens do not count as memory of the training.
    Ok(cache.read(&key).unwrap_or_else(|| in_memory(&train, &held_out)))
}

fn in_memory(train: &TableBuilder, held_out: &TableBuilder) -> Tables {
    Tables::in_memory(train, held_out).expect("the builders hold as many tokens as their rows say")
}

fn tokenize(
    settings: &DataSettings,
    vocabulary: &Vocabulary,
    seed: u64,
) -> Result<(TableBuilder, TableBuilder), DataError> {
    let has_template = vocabulary
        .tokenizer()
        .is_some_and(|tokenizer| tokenizer.chat_template().is_some());
    let examples = read_examples(&settings.train, settings, has_template, settings.max_rows)?;
    let (train, held_out) = match &settings.held_out {
        HeldOut::Fraction(fraction) => hold_out(examples, *fraction, seed)?,
        files => (examples, read_examples(files.files(), settings, has_template, None)?),
    };
    let tokenize = |examples| tokenize_set(examples, settings, vocabulary);
    Ok((tokenize(train)?, tokenize(held_out)?))
}

/// Tokenises in parallel; rows stay in order, and the first row at fault is the one that is told.
fn tokenize_set(
    examples: Vec<Located>,
    settings: &DataSettings,
    vocabulary: &Vocabulary,
) -> Result<TableBuilder, DataError> {
    const AT_ONCE: usize = 2048;
    let mut table = TableBuilder::default();
    let mut examples = join_pieces(examples).into_iter();
    loop {
        let some: Vec<Located> = examples.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return Ok(table);
        }
        // Rows behind one at fault need not be looked at; those before it may hold the one that is told.
        let at_fault = AtomicUsize::new(usize::MAX);
        let rows: Vec<_> = some
            .par_iter()
            .enumerate()
            .map(|(index, (location, example))| {
                if index > at_fault.load(Relaxed) {
                    return Ok(None);
                }
                let row = encode(location, example, vocabulary, settings.loss_on);
                if row.is_err() {
                    at_fault.fetch_min(index, Relaxed);
                }
                progress::count();
                row
            })
            .collect();
        for row in rows {
            table.push(row?);
        }
    }
}

fn set_warnings(name: &str, set: &DocumentSet, sequence_length: usize) -> Vec<DataWarning> {
    let statistics = set.statistics();
    let (set, of) = (name.to_owned(), statistics.rows);
    let empty = (statistics.empty_rows > 0).then(|| DataWarning::Empty {
        set: set.clone(),
        rows: statistics.empty_rows,
        of,
    });
    let dropped = (statistics.dropped_rows > 0).then(|| DataWarning::Dropped {
        set: set.clone(),
        rows: statistics.dropped_rows,
        of,
        sequence_length,
    });
    let cut = (statistics.cut_rows > 0).then_some(DataWarning::Cut {
        set,
        rows: statistics.cut_rows,
        of,
        tokens: statistics.cut_tokens,
        sequence_length,
    });
    [empty, dropped, cut].into_iter().flatten().collect()
}
