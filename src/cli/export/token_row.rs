//! A row that was trained on, as token ids and labels.

use peft_tune_engine::data::DocumentView;

/// A row of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenRow {
    pub ids: Vec<u32>,
    /// The token itself where it is a target, else -100.
    pub labels: Vec<i64>,
}

impl From<DocumentView> for TokenRow {
    fn from(document: DocumentView) -> Self {
        Self {
            labels: document.labels().collect(),
            ids: document.input_ids,
        }
    }
}
