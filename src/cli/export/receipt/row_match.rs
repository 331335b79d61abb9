//! The rows that a tool trained on, each beside the row of the engine's that it is, or is most alike.

use std::collections::HashMap;

use super::row_difference::common;
use crate::cli::export::token_row::TokenRow;
use peft_tune_engine::data::{DocumentSet, PreparedData};

/// Rows that are looked for once more where none has their tokens.
const MOST_STRANGE: usize = 32;

/// What a row of the tool's is to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// A row of the engine's, token by token and label by label.
    Same,
    /// No row of the engine's; the one that is most alike.
    Nearest(TokenRow),
    /// No row of the engine's, and no other was looked for.
    Strange,
}

/// Finds each of `rows` among those that `data` trains on and holds out: a tool may hold others out.
pub(super) fn matches(data: &PreparedData, rows: &[TokenRow]) -> Vec<Match> {
    let mut wanted: HashMap<&[u32], Vec<usize>> = HashMap::new();
    for (number, row) in rows.iter().enumerate() {
        wanted.entry(&row.ids).or_default().push(number);
    }
    let mut found = vec![Match::Strange; rows.len()];
    each(data, |ours| {
        for number in wanted.get(ours.ids.as_slice()).into_iter().flatten() {
            match rows[*number].labels == ours.labels {
                true => found[*number] = Match::Same,
                false if found[*number] == Match::Strange => found[*number] = Match::Nearest(ours.clone()),
                false => {}
            }
        }
    });
    let strange = (0..rows.len()).filter(|number| found[*number] == Match::Strange);
    let strange: Vec<usize> = strange.take(MOST_STRANGE).collect();
    if !strange.is_empty() {
        let mut alike: Vec<Option<(usize, TokenRow)>> = vec![None; strange.len()];
        each(data, |ours| {
            for (place, number) in strange.iter().enumerate() {
                let shared = common(&ours.ids, &rows[*number].ids);
                if alike[place].as_ref().is_none_or(|(most, _)| shared > *most) {
                    alike[place] = Some((shared, ours.clone()));
                }
            }
        });
        for (number, nearest) in strange.into_iter().zip(alike) {
            if let Some((_, ours)) = nearest {
                found[number] = Match::Nearest(ours);
            }
        }
    }
    found
}

/// Goes through the engine's rows.
fn each(data: &PreparedData, mut look: impl FnMut(&TokenRow)) {
    let mut all = |set: &DocumentSet| {
        for index in 0..set.len() {
            look(&TokenRow::from(set.document(index)));
        }
    };
    all(data.train());
    all(data.held_out());
}
