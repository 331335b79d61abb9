//! A row that was trained on, as token ids and labels.

use peft_tune_engine::data::DocumentView;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// A row of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenRow {
    pub ids: Vec<u32>,
    /// The token itself where it is a target, else -100. The first token is none: nothing predicts it, and tools that divide losses by
    /// the number of labels would count it.
    pub labels: Vec<i64>,
}

impl From<DocumentView> for TokenRow {
    fn from(document: DocumentView) -> Self {
        let predicted = document.labels().skip(1);
        Self {
            labels: std::iter::once(IGNORE).chain(predicted).collect(),
            ids: document.input_ids,
        }
    }
}
