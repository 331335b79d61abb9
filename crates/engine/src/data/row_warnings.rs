//! What people are told of rows that are used, left out or cut.

use std::collections::BTreeMap;

use super::notes::Notes;
use super::{DataWarning, DocumentSet, Vocabulary};

fn is_told(warnings: &[DataWarning], one: &DataWarning) -> bool {
    warnings
        .iter()
        .any(|told| std::mem::discriminant(told) == std::mem::discriminant(one))
}

/// Warnings from the notes on rows, whatever the sequence length; with the notes come the rows of both sets.
pub(super) fn note_warnings<'a>(
    notes: impl IntoIterator<Item = (&'a Notes, [u64; 2])>,
    vocabulary: &Vocabulary,
) -> Vec<DataWarning> {
    let text_of = |token: u32| vocabulary.token_text(token).unwrap_or_else(|| token.to_string());
    let mut unread: BTreeMap<String, u64> = BTreeMap::new();
    let mut warnings = Vec::new();
    for (notes, rows) in notes {
        for ((set, notes), rows) in [("training", &notes.train), ("held-out", &notes.held_out)]
            .into_iter()
            .zip(rows)
        {
            let told = notes.warnings(set, rows, &text_of);
            // What holds of both sets is told of the first; rows that are left out are counted in each.
            for one in told {
                if one.counts_rows() || !(set == "held-out" && is_told(&warnings, &one)) {
                    warnings.push(one);
                }
            }
        }
        for (column, rows) in &notes.unread {
            *unread.entry(column.clone()).or_default() += rows;
        }
    }
    if !unread.is_empty() {
        let columns = unread.into_iter().collect();
        warnings.push(DataWarning::Unread { columns });
    }
    warnings
}

/// Warnings of what was left out and cut of a set at a length, `refused` rows that are told by themselves not counted.
pub(super) fn set_warnings(name: &str, set: &DocumentSet, sequence_length: usize, refused: u64) -> Vec<DataWarning> {
    let statistics = set.statistics();
    let (set, of) = (name.to_owned(), statistics.rows);
    // Rows that were left out for a reason are told by it.
    let empty_rows = statistics.empty_rows.saturating_sub(refused);
    let empty = (empty_rows > 0).then(|| DataWarning::Empty {
        set: set.clone(),
        rows: empty_rows,
        of,
    });
    let untargeted = (statistics.untargeted_rows > 0).then(|| DataWarning::NoTarget {
        set: set.clone(),
        rows: statistics.untargeted_rows,
        of,
    });
    let dropped = (statistics.dropped_rows > 0).then(|| DataWarning::Dropped {
        set: set.clone(),
        rows: statistics.dropped_rows,
        of,
        sequence_length,
    });
    let too_long = (statistics.too_long_rows > 0).then(|| DataWarning::TooLong {
        set: set.clone(),
        rows: statistics.too_long_rows,
        of,
        sequence_length,
    });
    let cut = (statistics.cut_rows > 0).then_some(DataWarning::Cut {
        set,
        rows: statistics.cut_rows,
        of,
        tokens: statistics.cut_tokens,
        sequence_length,
    });
    [empty, untargeted, dropped, too_long, cut]
        .into_iter()
        .flatten()
        .collect()
}
