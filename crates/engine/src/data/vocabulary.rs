//! Meanings of a model's token ids: its tokenizer or, for data that is tokenised already, just how many there are.

use sha2::{Digest, Sha256};

use super::DataError;
use crate::hub::ModelFiles;
use crate::tokenizer::Tokenizer;
use peft_tune_core::architecture::Architecture;

/// Turns text into token ids, where the model has a tokenizer, and says which ids there are.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of these in a process")]
pub enum Vocabulary {
    Tokenizer(Tokenizer),
    /// A model without tokenizer, whose embedding has so many rows.
    Ids(u32),
}

impl Vocabulary {
    /// The tokenizer of a model, or the size of its embedding where it has none.
    ///
    /// # Errors
    /// A tokenizer or a `config.json` that cannot be read.
    pub fn open(files: &ModelFiles) -> Result<Self, DataError> {
        if files.tokenizer.are_there() {
            return Ok(Self::Tokenizer(Tokenizer::open(&files.tokenizer)?));
        }
        let architecture = Architecture::from_config(&files.config);
        let architecture = architecture.map_err(|source| DataError::Architecture(Box::new(source)))?;
        Ok(Self::Ids(architecture.vocabulary as u32))
    }

    /// The tokenizer, where the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Tokenizer(tokenizer) => Some(tokenizer),
            Self::Ids(_) => None,
        }
    }

    /// The text of one token, special ones written out; `None` where the model has no tokenizer, or the token no text.
    pub(super) fn token_text(&self, id: u32) -> Option<String> {
        self.tokenizer()?.decode(&[id], false).ok()
    }

    /// Number of ids: one more than the greatest.
    pub fn size(&self) -> u32 {
        match self {
            Self::Tokenizer(tokenizer) => tokenizer.vocabulary(),
            Self::Ids(size) => *size,
        }
    }

    /// Hash of everything that decides how rows become tokens.
    pub(super) fn fingerprint(&self) -> [u8; 32] {
        match self {
            Self::Tokenizer(tokenizer) => tokenizer.fingerprint(),
            Self::Ids(size) => Sha256::new_with_prefix("ids")
                .chain_update(size.to_le_bytes())
                .finalize()
                .into(),
        }
    }
}
