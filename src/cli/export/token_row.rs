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

impl TokenRow {
    /// Makes a row of its tokens and a label for each, of which the first one is passed over.
    pub(super) fn new(ids: Vec<u32>, mut labels: Vec<i64>) -> Self {
        if let Some(first) = labels.first_mut() {
            *first = IGNORE;
        }
        Self { ids, labels }
    }

    /// Tokens that count in the loss.
    pub(super) fn targets(&self) -> usize {
        self.labels.iter().filter(|label| **label != IGNORE).count()
    }

    /// Whether the row can be learnt from: the engine leaves others out.
    pub(super) fn is_learnt(&self) -> bool {
        self.targets() > 0
    }
}

impl From<DocumentView> for TokenRow {
    fn from(document: DocumentView) -> Self {
        let labels = document.labels().collect();
        Self::new(document.input_ids, labels)
    }
}
