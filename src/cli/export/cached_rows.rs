//! Rows of a trial in the cache, where trials on the same rows find them again.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::preference_rows;
use super::row_files::RowFiles;
use super::saved_dataset::write_rows;
use super::token_row::TokenRow;
use super::token_rows;
use crate::cli::CliError;
use peft_tune_core::hexadecimal;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::{WholeFile, make_folder};
use peft_tune_engine::data::{PreparedData, cache_folder, content_digest, make_room, on_disk};
use peft_tune_engine::hub::ModelFiles;

/// Version of what the files of rows hold, which is a part of their names.
const LAYOUT: u32 = 1;

/// Finds the rows of `data` in the cache, as token ids and labels, or writes them.
///
/// # Errors
/// Bad input: there is no cache, or it cannot be written to.
pub(super) fn cached_tokens(data: &PreparedData) -> Result<RowFiles, CliError> {
    let folder = cache_folder().ok_or_else(no_folder)?;
    tokens_in(&folder, data).map_err(|error| cannot_write(&folder, &error))
}

/// Finds the rows of a recipe whose trainer compares answers in the cache, as texts, or writes them.
///
/// # Errors
/// Bad input: there is no cache, or it cannot be written to.
pub(super) fn cached_preferences(
    recipe: &Recipe,
    data: &PreparedData,
    files: &ModelFiles,
) -> Result<RowFiles, CliError> {
    let folder = cache_folder().ok_or_else(no_folder)?;
    let failed = |error: &io::Error| cannot_write(&folder, error);
    let made = make_folder(&folder).and_then(|()| std::path::absolute(&folder));
    let made = made.map_err(|error| failed(&error))?;
    let name = name_of_preferences(recipe, data).map_err(CliError::bad_input)?;
    let rows = named(&made, &name);
    let is_there = [&rows.train, &rows.held_out].into_iter().all(|path| is_kept(path));
    if !is_there {
        preference_rows::write(&rows, recipe, files, true, &|_, error| failed(error))?;
        make_room(&made, &rows.train);
    }
    Ok(rows)
}

fn tokens_in(folder: &Path, data: &PreparedData) -> io::Result<RowFiles> {
    make_folder(folder)?;
    let folder = std::path::absolute(folder)?;
    // Held-out windows are as long as a row may be, which documents do not tell.
    let (tokens, length) = (hexadecimal(&data.fingerprint()[..16]), data.sequence_length());
    let rows = named(&folder, &format!("{tokens}-{length}-{LAYOUT}"));
    let documents = data.train();
    let train_is_new = keep(&rows.train, token_rows::trained(documents, 0..documents.len()))?;
    let held_out_is_new = keep(&rows.held_out, token_rows::scored(data.held_out()))?;
    if train_is_new || held_out_is_new {
        make_room(&folder, &rows.train);
    }
    Ok(rows)
}

/// Files of rows in `folder` whose names begin with `name`.
fn named(folder: &Path, name: &str) -> RowFiles {
    let path = |split: &str| folder.join(format!("{name}.{split}.rows"));
    RowFiles {
        train: path("train"),
        held_out: path("held_out"),
    }
}

fn no_folder() -> CliError {
    CliError::bad("there is no folder for the rows of the trial; set HOME, or name one as PEFT_TUNE_CACHE")
}

fn cannot_write(folder: &Path, error: &io::Error) -> CliError {
    let folder = folder.display();
    CliError::bad(format!(
        "cannot write the rows of the trial into {folder}: {error}; free some space, or name a folder on another disk as \
         PEFT_TUNE_CACHE"
    ))
}

/// Name of the rows of preferences of a recipe: their tokens say which they are, and the files what else stands in them.
fn name_of_preferences(recipe: &Recipe, data: &PreparedData) -> io::Result<String> {
    let settings = on_disk(&recipe.data).map_err(io::Error::other)?;
    let mut hash = Sha256::new();
    hash.update(data.fingerprint());
    hash.update(format!("{:?} {:?}", settings.format, settings.columns));
    for path in settings.train.files().chain(settings.held_out.files()) {
        hash.update(content_digest(path)?);
    }
    let length = recipe.batch.sequence_length;
    Ok(format!(
        "{}-{length}-{LAYOUT}.texts",
        hexadecimal(&hash.finalize()[..16])
    ))
}

/// Whether a file of rows is there already. It counts as used.
fn is_kept(path: &Path) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    // Files that were not used for long make room for others. Who may not write keeps them no younger.
    let _ = file.set_modified(SystemTime::now());
    true
}

/// Writes a file of rows that is not there yet. Returns whether it was not.
fn keep(path: &Path, rows: impl Iterator<Item = TokenRow>) -> io::Result<bool> {
    if is_kept(path) {
        return Ok(false);
    }
    // Another worker may write the same at once: the last file stays, and readers keep the one that they have mapped.
    let mut file = WholeFile::create(path, true)?;
    write_rows(&mut file, rows).map_err(io::Error::other)?;
    file.finish()?;
    Ok(true)
}
