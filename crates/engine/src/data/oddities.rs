//! Oddities that another tool has to know of rows before it can read their files by itself.

use super::PreparedData;
use super::notes::SetNotes;
use peft_tune_core::recipe::RowOddities;

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
