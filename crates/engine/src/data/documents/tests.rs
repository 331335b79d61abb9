//! Rows cut into documents.

use super::super::token_writer::{Set, TokenWriter};
use super::super::tokens::{TokenRow, Width};
use super::*;
use peft_tune_core::recipe::LongRows;

fn set(rows: &[(usize, usize, RowKind)], tokens: usize, long_rows: LongRows) -> DocumentSet {
    let mut writer = TokenWriter::in_memory(Width::Two);
    for (tokens, prompt, kind) in rows {
        let ids: Vec<u32> = (0..*tokens as u32).collect();
        let labels = ids
            .iter()
            .map(|id| if (*id as usize) < *prompt { NO_TARGET } else { *id });
        let row = TokenRow {
            labels: labels.collect(),
            ids: ids.clone(),
            kind: *kind,
        };
        writer.push(Set::Train, Some(row)).unwrap();
    }
    writer.push(Set::Train, None).unwrap();
    let tables = writer.into_tables().unwrap();
    DocumentSet::cut(&tables.train, LengthLimit { tokens, long_rows })
}

#[test]
fn rows_are_cut_and_those_without_targets_dropped() {
    // The last one has no target at any length.
    let rows = [(3, 1), (9, 2), (9, 4), (5, 5)].map(|(tokens, prompt)| (tokens, prompt, RowKind::Whole));
    let set = set(&rows, 4, LongRows::Cut);
    let expected = Statistics {
        rows: 5,
        empty_rows: 1,
        untargeted_rows: 1,
        dropped_rows: 1,
        too_long_rows: 0,
        cut_rows: 1,
        cut_tokens: 5,
        documents: 2,
        tokens: 7,
        target_tokens: 4,
        longest: 4,
    };
    assert_eq!(set.statistics(), expected);
    assert_eq!(set.document(1).input_ids, [0, 1, 2, 3]);
    assert_eq!(set.document(1).labels().collect::<Vec<_>>(), [IGNORE, IGNORE, 2, 3]);
}

#[test]
fn long_rows_are_left_out_whole_where_they_are_to_be() {
    // One fits, two are longer, of one of which nothing would be left to learn, and one has no target.
    let rows = [(4, 1), (5, 1), (9, 8), (9, 9)].map(|(tokens, prompt)| (tokens, prompt, RowKind::Whole));
    let set = set(&rows, 4, LongRows::Drop);
    let expected = Statistics {
        rows: 5,
        empty_rows: 1,
        untargeted_rows: 1,
        dropped_rows: 0,
        too_long_rows: 2,
        cut_rows: 0,
        cut_tokens: 0,
        documents: 1,
        tokens: 4,
        target_tokens: 3,
        longest: 4,
    };
    assert_eq!(set.statistics(), expected);
    assert_eq!(set.document(0).input_ids, [0, 1, 2, 3]);
}

#[test]
fn running_text_is_split_without_loss() {
    for long_rows in [LongRows::Cut, LongRows::Drop] {
        let rows = [(10, 0, RowKind::Running), (9, 0, RowKind::Running)];
        let set = set(&rows, 4, long_rows);
        let lengths: Vec<usize> = (0..set.len()).map(|index| set.tokens(index)).collect();
        // The last token of the second row has nothing before it in its document and teaches nothing.
        assert_eq!(lengths, [4, 4, 2, 4, 4]);
        assert_eq!(set.document(2).input_ids, [8, 9]);
        assert_eq!((set.statistics().dropped_rows, set.statistics().too_long_rows), (0, 0));
    }
}

/// Pairs of sequences, each with tokens before its answer and in all.
fn pairs(rows: &[[(usize, usize); 2]], tokens: usize, long_rows: LongRows) -> DocumentSet {
    let mut writer = TokenWriter::in_memory(Width::Two);
    for sequences in rows {
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for (prompt, tokens) in sequences {
            ids.extend(0..*tokens as u32);
            labels.extend((0..*tokens as u32).map(|id| if (id as usize) < *prompt { NO_TARGET } else { id }));
        }
        let kind = RowKind::Pair;
        writer.push(Set::Train, Some(TokenRow { ids, labels, kind })).unwrap();
    }
    let tables = writer.into_tables().unwrap();
    DocumentSet::cut(&tables.train, LengthLimit { tokens, long_rows })
}

#[test]
fn sequences_of_a_pair_are_cut_apart_and_stay_together() {
    // Of the second pair, one answer lies behind the length; of the third, both fit.
    let rows = [[(2, 6), (2, 4)], [(5, 6), (2, 4)], [(1, 3), (1, 4)]];
    let cut = pairs(&rows, 4, LongRows::Cut);
    let found = cut.statistics();
    assert_eq!((found.documents, found.dropped_rows, found.too_long_rows), (2, 1, 0));
    assert_eq!((found.cut_rows, found.cut_tokens, found.longest), (1, 2, 4));
    assert_eq!((found.tokens, found.target_tokens), (8 + 7, 4 + 5));
    assert_eq!((cut.tokens(0), cut.target_tokens(0)), (8, 4));
    let first = cut.document(0);
    assert_eq!(first.input_ids, [0, 1, 2, 3, 0, 1, 2, 3]);
    let labels: Vec<i64> = first.labels().collect();
    assert_eq!(labels, [IGNORE, IGNORE, 2, 3, IGNORE, IGNORE, 2, 3]);
    let whole = pairs(&rows, 4, LongRows::Drop);
    assert_eq!((whole.len(), whole.statistics().too_long_rows), (1, 2));
    assert_eq!(whole.document(0).input_ids, [0, 1, 2, 0, 1, 2, 3]);
}
