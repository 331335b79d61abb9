//! Oddities that another tool has to know of rows before it can read their files by itself.

use super::PreparedData;
use super::notes::SetNotes;

/// Oddities of the training and held-out rows that a tool would learn otherwise which reads their texts and nothing
/// else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowOddities {
    /// Rows that hold more than the texts of their format (tools, calls, reasoning, marks of what is learnt, a column `system`), or
    /// whose prompt and completion share a token.
    pub beyond_texts: u64,
    /// Answers whose end is a token that the chat template does not write there, or none.
    pub chosen_stops: u64,
    /// Rows that are left out.
    pub left_out: u64,
    /// Rows that lose their end.
    pub cut: u64,
    /// Documents beyond the first of a row: long texts are split.
    pub split: u64,
    /// Columns that nothing reads.
    pub unread_columns: usize,
}

impl PreparedData {
    /// Oddities that a tool would have to know that reads the files of these rows by itself.
    pub fn oddities(&self) -> RowOddities {
        let mut all = RowOddities::default();
        for set in [self.train(), self.held_out()] {
            let known = set.statistics();
            let left_out = known.left_out_rows();
            all.left_out += left_out;
            all.cut += known.cut_rows;
            all.split += known.documents.saturating_sub(known.rows - left_out);
        }
        for notes in self.notes() {
            let of_sets = |count: fn(&SetNotes) -> u64| count(&notes.train) + count(&notes.held_out);
            all.beyond_texts += of_sets(SetNotes::beyond_texts);
            all.chosen_stops += of_sets(SetNotes::chosen_stops);
            all.unread_columns += notes.unread.len();
        }
        all
    }
}
