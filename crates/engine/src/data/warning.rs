//! What a user should know about data that is used all the same.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Something odd about data that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "warning")]
pub enum DataWarning {
    /// Rows without text, completion or answer.
    Empty { set: String, rows: u64, of: u64 },
    /// Rows none of whose targets lies within the sequence length.
    Dropped {
        set: String,
        rows: u64,
        of: u64,
        sequence_length: usize,
    },
    /// Rows whose end was cut away.
    Cut {
        set: String,
        rows: u64,
        of: u64,
        /// Tokens cut away.
        tokens: u64,
        sequence_length: usize,
    },
    /// A held-out file that is trained on.
    HeldOutIsTrained { path: PathBuf },
    /// The tokenizer names no end-of-document token.
    NoEndOfDocument,
    /// The tokenised cache cannot be written.
    CacheNotWritten { folder: PathBuf, reason: String },
}

impl fmt::Display for DataWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { set, rows, of } => {
                write!(f, "{rows} of {of} {set} rows hold nothing to learn and are left out")
            }
            Self::Dropped {
                set,
                rows,
                of,
                sequence_length,
            } => write!(
                f,
                "{rows} of {of} {set} rows are left out: their answers begin after {sequence_length} tokens; raise \
                 `sequence_length` to use them"
            ),
            Self::Cut {
                set,
                rows,
                of,
                tokens,
                sequence_length,
            } => write!(
                f,
                "{rows} of {of} {set} rows are cut to {sequence_length} tokens ({tokens} tokens lost); raise \
                 `sequence_length` to keep them"
            ),
            Self::HeldOutIsTrained { path } => write!(
                f,
                "{} is both training and held-out data, so the loss says nothing about new text; use another file, or \
                 a fraction as `data.held_out`",
                path.display()
            ),
            Self::NoEndOfDocument => write!(
                f,
                "the tokenizer names no `eos_token`, so the model cannot learn where a document ends; add it to \
                 tokenizer_config.json"
            ),
            Self::CacheNotWritten { folder, reason } => write!(
                f,
                "the tokenised cache in {} cannot be written ({reason}); the data is tokenised again next time",
                folder.display()
            ),
        }
    }
}
