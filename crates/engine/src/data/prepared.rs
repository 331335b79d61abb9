//! Data made ready for training: read, split, tokenised and cut.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::cache::{Check, TokenCache};
use super::cache_folder::cache_folder;
use super::documents::SHORTEST;
use super::key::cache_key;
use super::length_limit::LengthLimit;
use super::meter::bytes_of;
use super::notes::{Notes, SetNotes};
use super::on_disk::on_disk;
use super::retained::{RETAINED, left_out, retained_settings};
use super::row_warnings::{note_warnings, set_warnings};
use super::token_writer::TokenWriter;
use super::tokenize::{Failure, Source, tokenize};
use super::tokens::{Tables, Width};
use super::{DataError, DataWarning, DocumentSet, RowsSummary, SetSummary, Vocabulary};
use crate::hub::ModelFiles;
use crate::tokenizer::Tokenizer;
use peft_tune_core::recipe::{DataSettings, HeldOut, LongRows, Recipe, TrainingData, TrainingSet};

/// The training and held-out documents of a recipe, and those of rows that the training has nothing to do with.
#[derive(Clone, Debug)]
pub struct PreparedData {
    train: DocumentSet,
    held_out: DocumentSet,
    retained: Option<DocumentSet>,
    sequence_length: usize,
    uncut: Uncut,
}

/// Data that does not depend on the sequence length.
#[derive(Clone, Debug)]
struct Uncut {
    /// Tables of each set of a mixture, else one.
    tables: Vec<Tables>,
    /// Tables of `data.retain`, whose rows are the held-out ones.
    retained: Option<Tables>,
    /// Names and weights of the sets, where sets are mixed.
    names: Vec<String>,
    weights: Option<Arc<[f64]>>,
    /// Length that held-out documents are cut to; the sequence length where absent.
    held_out_length: Option<usize>,
    long_rows: LongRows,
    warnings: Vec<DataWarning>,
}

impl PreparedData {
    /// Reads and tokenises the data of `settings`, or takes it from the cache in `cache_dir`, and cuts it to
    /// `sequence_length` tokens; held-out documents to `held_out_length`, where `settings` have one. `seed` decides which rows a held-out fraction takes.
    ///
    /// Rows are read, tokenised and written a few at a time; JSON lists and plain text are held whole while they are read.
    /// Afterwards the tokens are mapped from the cache, or, without one, are held in memory.
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
        let cache = cache_dir.map(|folder| (folder, Check::Whole));
        Self::prepare_with(settings, &vocabulary, sequence_length, seed, cache)
    }

    /// [`PreparedData::prepare`] for the model in `files` and the settings of `recipe`, through the cache of this user.
    /// The model needs a tokenizer only where the data is text. Of a large cache file only the entries are looked over.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn of_recipe(recipe: &Recipe, files: &ModelFiles) -> Result<Self, DataError> {
        Self::checked(recipe, files, Check::Entries)
    }

    /// [`PreparedData::of_recipe`] without the rows of `data.retain`, for who trains and does not evaluate on them: their files are not
    /// looked at.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn of_training(recipe: &Recipe, files: &ModelFiles) -> Result<Self, DataError> {
        let mut recipe = recipe.clone();
        recipe.data.retain.clear();
        Self::of_recipe(&recipe, files)
    }

    /// [`PreparedData::of_recipe`] for who makes the data ready that others read: a damaged cache file is made anew,
    /// wherever the damage is.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn make(recipe: &Recipe, files: &ModelFiles) -> Result<Self, DataError> {
        Self::checked(recipe, files, Check::Whole)
    }

    fn checked(recipe: &Recipe, files: &ModelFiles, check: Check) -> Result<Self, DataError> {
        let vocabulary = Vocabulary::open(files)?;
        let (length, seed) = (recipe.batch.sequence_length, recipe.training.seed);
        let folder = cache_folder();
        let cache = folder.as_deref().map(|folder| (folder, check));
        Self::prepare_with(&recipe.data, &vocabulary, length, seed, cache)
    }

    fn prepare_with(
        settings: &DataSettings,
        vocabulary: &Vocabulary,
        sequence_length: usize,
        seed: u64,
        cache: Option<(&Path, Check)>,
    ) -> Result<Self, DataError> {
        check(settings)?;
        let settings = &on_disk(settings)?;
        let vocabulary = with_template(vocabulary, settings)?;
        let mut general = Vec::new();
        if vocabulary
            .tokenizer()
            .is_some_and(|tokenizer| tokenizer.eos_id().is_none())
        {
            general.push(DataWarning::NoEndOfDocument);
        }
        let trained = |path: &&PathBuf| settings.train.files().any(|file| file == *path);
        let both = settings.held_out.files().iter().filter(trained);
        general.extend(both.map(|path| DataWarning::HeldOutIsTrained { path: path.clone() }));

        let sets = settings.train.sets();
        let names: Vec<String> = sets.iter().map(TrainingSet::name).collect();
        let mut tables = Vec::new();
        for (number, settings) in by_set(settings).iter().enumerate() {
            let of_set = tables_of(settings, &vocabulary, seed, cache, &mut general);
            tables.push(of_set.map_err(|error| error.of_set(names.get(number)))?);
        }
        let retained = retained_settings(settings);
        let retained = retained.map(|own| tables_of(&own, &vocabulary, seed, cache, &mut general));
        let retained = retained.transpose()?;
        // A cache that cannot be written is told once.
        general.dedup();
        let noted = tables.iter().map(|tables| {
            let rows = [&tables.train, &tables.held_out].map(|table| table.extent().counts.read);
            (&tables.notes, rows)
        });
        general.extend(note_warnings(noted, &vocabulary));
        general.extend(retained.iter().flat_map(left_out));
        let uncut = Uncut {
            tables,
            retained,
            weights: (!sets.is_empty()).then(|| sets.iter().map(|set| set.weight).collect()),
            names,
            held_out_length: settings.held_out_length,
            long_rows: settings.long_rows,
            warnings: general,
        };
        uncut.cut(sequence_length)
    }

    /// Cuts the data at another sequence length, without reading or tokenising anything again. Held-out documents with
    /// a length of their own stay as they are, and are scored in windows of the new length.
    ///
    /// # Errors
    /// Fails where nothing is left to train on or to evaluate on.
    pub fn at_length(&self, sequence_length: usize) -> Result<Self, DataError> {
        self.uncut.clone().cut(sequence_length)
    }

    /// The training documents, in file order.
    pub fn train(&self) -> &DocumentSet {
        &self.train
    }

    /// The held-out documents, in file order.
    pub fn held_out(&self) -> &DocumentSet {
        &self.held_out
    }

    /// Documents of rows that the training has nothing to do with (`data.retain`), in file order; `None` without such rows.
    pub fn retained(&self) -> Option<&DocumentSet> {
        self.retained.as_ref()
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

    /// The rows in numbers, without what only who looks at each of them knows: formats, columns and the chat template.
    pub fn summary(&self) -> RowsSummary {
        let of = |set: &DocumentSet| {
            let known = set.statistics();
            SetSummary {
                rows: known.rows,
                left_out: known.left_out_rows(),
                cut: known.cut_rows,
                cut_tokens: known.cut_tokens,
                tokens: known.tokens,
                target_tokens: known.target_tokens,
                longest: known.longest,
            }
        };
        let stops = self.uncut.tables.iter().map(|tables| tables.notes.train.stops_learnt());
        RowsSummary {
            training: of(&self.train),
            held_out: of(&self.held_out),
            is_whole: true,
            sequence_length: self.sequence_length,
            stops: stops.fold((0, 0), |all, of_set| (all.0 + of_set.0, all.1 + of_set.1)),
            ..RowsSummary::default()
        }
    }

    /// Notes on the rows of each set.
    pub(super) fn notes(&self) -> impl Iterator<Item = &Notes> {
        self.uncut.tables.iter().map(|tables| &tables.notes)
    }

    /// Warnings that the user should know: rows left out or cut, and the like.
    pub fn warnings(&self) -> Vec<DataWarning> {
        let held_out_length = self.uncut.held_out_length.unwrap_or(self.sequence_length);
        let sets = [
            ("training", &self.train, self.sequence_length),
            ("held-out", &self.held_out, held_out_length),
        ];
        let refused = [
            self.uncut.refused(|notes| &notes.train),
            self.uncut.refused(|notes| &notes.held_out),
        ];
        let of_sets = sets
            .iter()
            .zip(refused)
            .flat_map(|((name, set, length), refused)| set_warnings(name, set, *length, refused));
        let retained = self.retained.iter().zip(&self.uncut.retained);
        let of_retained = retained.flat_map(|(set, tables)| {
            set_warnings(RETAINED, set, held_out_length, tables.notes.held_out.refused_rows())
        });
        let general = self.uncut.warnings.iter().cloned();
        general.chain(of_sets).chain(of_retained).collect()
    }
}

impl Uncut {
    /// Rows of a set that were left out for reasons that are told by themselves.
    fn refused(&self, of: impl Fn(&Notes) -> &SetNotes) -> u64 {
        self.tables.iter().map(|tables| of(&tables.notes).refused_rows()).sum()
    }

    fn cut(self, sequence_length: usize) -> Result<PreparedData, DataError> {
        let cut_at = self.held_out_length.unwrap_or(sequence_length);
        for (key, value) in [("sequence_length", sequence_length), ("data.held_out_length", cut_at)] {
            if value < SHORTEST {
                let least = SHORTEST;
                return Err(DataError::TooSmall { key, value, least });
            }
        }
        let long_rows = self.long_rows;
        let cut = |table, notes: &SetNotes, set, sequence_length| {
            let limit = LengthLimit {
                tokens: sequence_length,
                long_rows,
            };
            let documents = DocumentSet::cut(table, limit);
            let known = documents.statistics();
            match documents.is_empty() {
                true => Err(DataError::NothingLeft {
                    set,
                    rows: known.rows,
                    dropped: known.dropped_rows,
                    sequence_length,
                    why: notes.reasons() + &too_long(known.too_long_rows),
                }),
                false => Ok(documents),
            }
        };
        let (mut train, mut held_out) = (Vec::new(), Vec::new());
        for (number, tables) in self.tables.iter().enumerate() {
            let of_set = |error: DataError| error.of_set(self.names.get(number));
            train.push(cut(&tables.train, &tables.notes.train, "training", sequence_length).map_err(of_set)?);
            // Held-out files stand with the first set, so that the others have none.
            if number == 0 || tables.held_out.extent().counts.read > 0 {
                held_out.push(cut(&tables.held_out, &tables.notes.held_out, "held-out", cut_at).map_err(of_set)?);
            }
        }
        let retained = self.retained.as_ref();
        let retained = retained.map(|tables| cut(&tables.held_out, &tables.notes.held_out, RETAINED, cut_at));
        let retained = retained.transpose()?;
        let none = "there is a set where nothing is mixed, too";
        Ok(PreparedData {
            train: DocumentSet::mixed(train, self.weights.clone()).expect(none),
            held_out: DocumentSet::mixed(held_out, None)
                .expect(none)
                .scored_in(sequence_length),
            retained: retained.map(|set| set.scored_in(sequence_length)),
            sequence_length,
            uncut: self,
        })
    }
}

/// The rows that were left out for their length as a reason for having none; empty where there are none.
fn too_long(rows: u64) -> String {
    match rows {
        0 => String::new(),
        rows => format!("; {rows} left out: they are longer (`data.long_rows: drop`)"),
    }
}

/// The vocabulary with the chat template that the settings name.
pub(super) fn with_template(vocabulary: &Vocabulary, settings: &DataSettings) -> Result<Vocabulary, DataError> {
    Ok(match (vocabulary, &settings.chat_template) {
        (Vocabulary::Tokenizer(tokenizer), Some(path)) => Vocabulary::Tokenizer(tokenizer.with_chat_template(path)?),
        _ => vocabulary.clone(),
    })
}

/// The settings of each set of a mixture by itself, or those that there are. Held-out files go with the first.
pub(super) fn by_set(settings: &DataSettings) -> Vec<DataSettings> {
    let sets = settings.train.sets();
    if sets.is_empty() {
        return vec![settings.clone()];
    }
    let of_set = |(number, set): (usize, &TrainingSet)| DataSettings {
        train: TrainingData::Files(set.files.clone()),
        held_out: match &settings.held_out {
            HeldOut::File(_) | HeldOut::Files(_) if number > 0 => HeldOut::Files(Vec::new()),
            held_out => held_out.clone(),
        },
        ..settings.clone()
    };
    sets.iter().enumerate().map(of_set).collect()
}

pub(super) fn check(settings: &DataSettings) -> Result<(), DataError> {
    if settings.train.is_empty() {
        return Err(DataError::NoTrainingFile);
    }
    settings.train.normalized().map_err(|(_, fault)| fault)?;
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

/// Bytes of files whose tokens may be held in memory where the cache cannot be written.
const HELD_BYTES: u64 = 256 << 20;

/// The tables of a set: through the cache, where there is one.
fn tables_of(
    settings: &DataSettings,
    vocabulary: &Vocabulary,
    seed: u64,
    cache: Option<(&Path, Check)>,
    warnings: &mut Vec<DataWarning>,
) -> Result<Tables, DataError> {
    match cache {
        None => in_memory(Source {
            settings,
            vocabulary,
            seed,
            rows: &[],
        }),
        Some((folder, check)) => cached(settings, vocabulary, seed, folder, check, warnings),
    }
}

/// The tables from the cache, which is filled first where need be.
fn cached(
    settings: &DataSettings,
    vocabulary: &Vocabulary,
    seed: u64,
    folder: &Path,
    check: Check,
    warnings: &mut Vec<DataWarning>,
) -> Result<Tables, DataError> {
    let cache = TokenCache { folder };
    let (key, rows) = cache_key(settings, vocabulary, seed, folder)?;
    let source = Source {
        settings,
        vocabulary,
        seed,
        rows: &rows,
    };
    if let Some(tables) = cache.read(&key, check) {
        return Ok(tables);
    }
    let written = cache.create(&key, Width::of(vocabulary.size())).map_err(Failure::Write);
    let written = written.and_then(|mut writer| {
        tokenize(source, &mut writer.tokens, Some(folder))?;
        writer.finish().map_err(Failure::Write)
    });
    let error = match written {
        Ok(()) => match cache.read(&key, Check::Entries) {
            // Mapped from the file, the tokens do not count as memory of the training.
            Some(tables) => return Ok(tables),
            None => io::Error::other("what was written is not what is read"),
        },
        Err(Failure::Data(error)) => return Err(error),
        Err(Failure::Write(error)) => error,
    };
    let bytes = bytes_of(settings.train.files().chain(settings.held_out.files()));
    if is_full(&error) || bytes > HELD_BYTES {
        return Err(DataError::CacheNotWritten {
            folder: folder.to_owned(),
            source: error,
        });
    }
    warnings.push(DataWarning::CacheNotWritten {
        folder: folder.to_owned(),
        reason: error.to_string(),
    });
    in_memory(source)
}

/// Whether a disk, a quota or the limit of a file is what ended the writing.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn in_memory(source: Source) -> Result<Tables, DataError> {
    let mut writer = TokenWriter::in_memory(Width::of(source.vocabulary.size()));
    tokenize(source, &mut writer, None).map_err(|failure| match failure {
        Failure::Data(error) => error,
        Failure::Write(source) => DataError::Unwritten { source },
    })?;
    Ok(writer
        .into_tables()
        .expect("all parts are in memory and as long as they were written"))
}
