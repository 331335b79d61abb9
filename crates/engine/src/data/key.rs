//! The cache key: a hash of everything that decides the tokens.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::cache::Key;
use super::{DataError, Vocabulary, progress};
use peft_tune_core::recipe::{DataSettings, HeldOut};

/// Raised whenever the same input gives other tokens than before.
const VERSION: u32 = 1;

/// Hashes the files' contents, the settings that matter, the tokenizer and, where it splits, the seed. Where the
/// files lie does not matter.
pub(super) fn cache_key(settings: &DataSettings, vocabulary: &Vocabulary, seed: u64) -> Result<Key, DataError> {
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
        settings.train.len(),
    );
    hash.update(format!("{plain:?}"));
    for path in settings.train.iter().chain(settings.held_out.files()) {
        hash_file(&mut hash, path)?;
    }
    Ok(hash.finalize().into())
}

/// Adds a file's ending, which decides how it is read, its content and its length.
fn hash_file(hash: &mut Sha256, path: &Path) -> Result<(), DataError> {
    let read_error = |source| DataError::Read {
        path: path.to_owned(),
        source,
    };
    hash.update(path.extension().unwrap_or_default().as_encoded_bytes());
    hash.update([0]);
    let mut file = File::open(path).map_err(read_error)?;
    let mut buffer = vec![0; 1 << 20];
    let mut length = 0_u64;
    loop {
        let count = file.read(&mut buffer).map_err(read_error)?;
        if count == 0 {
            break;
        }
        length += count as u64;
        progress::count();
        hash.update(&buffer[..count]);
    }
    hash.update(length.to_le_bytes());
    Ok(())
}
