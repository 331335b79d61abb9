//! The cache key: a hash of everything that decides the tokens.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::cache::Key;
use super::digest::digest_of;
use super::meter::bytes_of;
use super::progress::{self, ReadingStage};
use super::{DataError, Vocabulary};
use peft_tune_core::recipe::{DataSettings, HeldOut};

/// Version of the tokens, raised whenever the same input gives other ones than before.
const VERSION: u32 = 3;

/// Hashes the files' contents, the settings that matter, the tokenizer and, where it splits, the seed. Where the
/// files lie does not matter. `folder` remembers the hashes of large ones. With it come the rows of the training files, where they
/// are known now.
pub(super) fn cache_key(
    settings: &DataSettings,
    vocabulary: &Vocabulary,
    seed: u64,
    folder: &Path,
) -> Result<(Key, Vec<Option<usize>>), DataError> {
    let mut hash = Sha256::new();
    hash.update(VERSION.to_le_bytes());
    hash.update(vocabulary.fingerprint());
    let split = match &settings.held_out {
        HeldOut::Fraction(fraction) => Some((fraction.to_bits(), seed)),
        HeldOut::File(_) | HeldOut::Files(_) => None,
    };
    let plain = (
        settings.format,
        &settings.columns,
        settings.loss_on,
        settings.max_rows,
        split,
        settings.train.files().count(),
    );
    hash.update(format!("{plain:?}"));
    // Absent where nothing is said: what was kept without it is read.
    if !settings.template_targets.is_all() {
        hash.update(format!("{:?}", settings.template_targets));
    }
    let files = || settings.train.files().chain(settings.held_out.files());
    progress::begin(ReadingStage::Hashing, bytes_of(files()));
    let mut rows = Vec::new();
    for path in files() {
        rows.push(hash_file(&mut hash, path, folder)?);
    }
    rows.truncate(settings.train.files().count());
    Ok((hash.finalize().into(), rows))
}

/// Adds a file's ending, which decides how it is read, and its content; its rows, where they are known.
fn hash_file(hash: &mut Sha256, path: &Path, folder: &Path) -> Result<Option<usize>, DataError> {
    hash.update(path.extension().unwrap_or_default().as_encoded_bytes());
    hash.update([0]);
    let digest = digest_of(path, Some(folder)).map_err(|source| DataError::Read {
        path: path.to_owned(),
        source,
    })?;
    hash.update(digest.hash);
    Ok(digest.rows)
}
