//! The most tokens that a row is trained on with, and what becomes of a row that has more.

use super::tokens::RowKind;
use peft_tune_core::recipe::LongRows;

/// The sequence length, and what becomes of rows that are longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LengthLimit {
    pub tokens: usize,
    pub long_rows: LongRows,
}

impl LengthLimit {
    /// Absence of a limit: every row stays whole.
    pub(super) const NONE: Self = Self::cutting(usize::MAX);

    /// The limit at which the end of longer rows is cut away.
    pub(super) const fn cutting(tokens: usize) -> Self {
        Self {
            tokens,
            long_rows: LongRows::Cut,
        }
    }

    /// Whether a row with a sequence of so many tokens is left out for its length. Running text never is: it is split.
    pub(super) fn leaves_out(self, kind: RowKind, tokens: usize) -> bool {
        self.long_rows == LongRows::Drop && kind != RowKind::Running && tokens > self.tokens
    }

    /// Tokens that are left of a sequence: the first ones, or none.
    pub(super) fn kept(self, kind: RowKind, tokens: usize) -> usize {
        match kind {
            RowKind::Running => tokens,
            RowKind::Whole | RowKind::Pair if self.leaves_out(kind, tokens) => 0,
            RowKind::Whole | RowKind::Pair => tokens.min(self.tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_row_is_cut_or_left_out_and_running_text_is_neither() {
        let of = |long_rows, kind, tokens| LengthLimit { tokens: 4, long_rows }.kept(kind, tokens);
        assert_eq!(of(LongRows::Cut, RowKind::Whole, 9), 4);
        assert_eq!(of(LongRows::Drop, RowKind::Whole, 9), 0);
        for long_rows in [LongRows::Cut, LongRows::Drop] {
            assert_eq!(of(long_rows, RowKind::Whole, 4), 4);
            assert_eq!(of(long_rows, RowKind::Running, 9), 9);
        }
        assert_eq!(LengthLimit::NONE.kept(RowKind::Whole, 9), 9);
    }
}
