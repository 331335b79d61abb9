//! [`RowOddities`]: what another tool has to know of rows before it can read their files by itself.

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
