//! What is different of one row of the tool's, and the key that says so.

use crate::cli::export::token_row::TokenRow;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// What is known of rows beside their tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowFacts {
    /// Token that the tool pads rows with.
    pub pad: Option<u32>,
    /// Token that ends a text.
    pub end: Option<u32>,
    /// Whether a chat template makes the text of a row.
    pub is_chat: bool,
}

/// A difference, under the key that decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowDifference {
    pub key: &'static str,
    pub what: String,
}

impl RowDifference {
    /// What is different of `theirs`, a row that is not `ours`.
    pub(super) fn between(ours: &TokenRow, theirs: &TokenRow, facts: RowFacts) -> Self {
        match ours.ids == theirs.ids {
            true => Self::of_labels(ours, theirs, facts),
            false => Self::of_tokens(ours, theirs, facts),
        }
    }

    fn of_labels(ours: &TokenRow, theirs: &TokenRow, facts: RowFacts) -> Self {
        let pairs = ours.labels.iter().zip(&theirs.labels).enumerate();
        let differing: Vec<usize> = pairs
            .filter(|(_, (our, their))| our != their)
            .map(|(at, _)| at)
            .collect();
        let is_masked = |at: &usize| theirs.labels[*at] == IGNORE;
        let is_end = |at: &usize| Some(ours.ids[*at]) == facts.end;
        if differing.iter().all(|at| is_masked(at) && is_end(at)) {
            let why = match facts.pad == facts.end {
                true => ": it is the token that rows are padded with, and masked as padding",
                false => "",
            };
            return Self {
                key: "pad_token",
                what: format!("the token that ends a text is no target{why}; the model never learns to stop"),
            };
        }
        Self {
            key: "data.loss_on",
            what: format!(
                "the same {} tokens have {} targets there and {} here, from token {} on",
                ours.ids.len(),
                theirs.targets(),
                ours.targets(),
                differing.first().copied().unwrap_or_default()
            ),
        }
    }

    fn of_tokens(ours: &TokenRow, theirs: &TokenRow, facts: RowFacts) -> Self {
        let (our, their) = (ours.ids.len(), theirs.ids.len());
        let common = common(&ours.ids, &theirs.ids);
        if common == our.min(their) {
            let longer = if our > their { &ours.ids } else { &theirs.ids };
            let is_end = longer.len() == common + 1 && longer.last().copied() == facts.end;
            let (key, what) = match is_end {
                true if our > their => (
                    "eos_token",
                    "the row does not end with the token that ends a text".to_owned(),
                ),
                true => (
                    "eos_token",
                    "the row ends with a second token that ends a text".to_owned(),
                ),
                false => (
                    "batch.sequence_length",
                    format!("the row has {their} tokens there and {our} here, which begin alike"),
                ),
            };
            return Self { key, what };
        }
        let key = if facts.is_chat {
            "data.chat_template"
        } else {
            "data.format"
        };
        Self {
            key,
            what: format!("the row has other tokens from token {common} on: {their} there and {our} here"),
        }
    }
}

/// Tokens with which two rows begin alike.
pub(super) fn common(ours: &[u32], theirs: &[u32]) -> usize {
    ours.iter().zip(theirs).take_while(|(our, their)| our == their).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ids: &[u32], learnt: std::ops::Range<usize>) -> TokenRow {
        let label = |(at, id): (usize, &u32)| if learnt.contains(&at) { i64::from(*id) } else { IGNORE };
        TokenRow {
            ids: ids.to_vec(),
            labels: ids.iter().enumerate().map(label).collect(),
        }
    }

    #[test]
    fn each_difference_has_the_key_that_decides_it() {
        let facts = RowFacts {
            pad: Some(2),
            end: Some(2),
            is_chat: true,
        };
        let ours = row(&[5, 6, 7, 2], 2..4);
        for (theirs, key) in [
            (row(&[5, 6, 7, 2], 2..3), "pad_token"),
            (row(&[5, 6, 7, 2], 1..4), "data.loss_on"),
            (row(&[5, 6, 7], 2..3), "eos_token"),
            (row(&[5, 6, 7, 2, 2], 2..5), "eos_token"),
            (row(&[5, 6], 1..2), "batch.sequence_length"),
            (row(&[5, 9, 7, 2], 2..4), "data.chat_template"),
        ] {
            let found = RowDifference::between(&ours, &theirs, facts);
            assert_eq!(found.key, key, "{found:?}");
        }
        let plain = RowFacts {
            is_chat: false,
            ..facts
        };
        let found = RowDifference::between(&ours, &row(&[5, 9, 7, 2], 2..4), plain);
        assert_eq!(found.key, "data.format");
        let padded = RowDifference::between(&ours, &row(&[5, 6, 7, 2], 2..3), facts);
        assert!(padded.what.contains("masked as padding"), "{padded:?}");
    }
}
