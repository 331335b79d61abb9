//! Tokens that were made of an example.

use super::notes::RowNotes;
use super::tokens::TokenRow;

/// Result of an example: its tokens, unless there is nothing in it to learn from, and what is to be told.
#[derive(Debug, Default)]
pub(super) struct EncodedRow {
    pub row: Option<TokenRow>,
    pub notes: RowNotes,
}

impl EncodedRow {
    /// A row that is left out for a reason.
    pub(super) fn refused(reason: &'static str) -> Self {
        Self {
            row: None,
            notes: RowNotes {
                refused: Some(reason),
                ..Default::default()
            },
        }
    }
}

impl From<Option<TokenRow>> for EncodedRow {
    fn from(row: Option<TokenRow>) -> Self {
        Self {
            row,
            notes: RowNotes::default(),
        }
    }
}
