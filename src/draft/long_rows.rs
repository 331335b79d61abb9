//! Rows that are longer than the sequence length which the file will have, and what is best done with them.

use std::fmt;

use super::token_lengths::TokenLengths;
use crate::report::grouped;

/// Rows that are longer than a sequence length, among those that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongerRows {
    longer: u64,
    rows: u64,
    /// Whether there are more rows, which were not looked at.
    is_sample: bool,
    pub sequence_length: usize,
}

impl LongerRows {
    /// Counts the rows that are longer. `None` where none is.
    pub(super) fn of(lengths: &TokenLengths, sequence_length: usize) -> Option<Self> {
        let found = Self {
            longer: lengths.longer_than(sequence_length),
            rows: lengths.rows,
            is_sample: lengths.is_sample,
            sequence_length,
        };
        (found.longer > 0).then_some(found)
    }

    /// Whether the longer rows are best left out: at most a tenth of the rows. An answer whose end is cut away teaches
    /// no place to stop, but where many rows are longer, more is lost without them.
    pub(super) fn are_few(&self) -> bool {
        self.longer * 10 <= self.rows
    }
}

/// `12 of 80 rows`.
impl fmt::Display for LongerRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (longer, rows) = (whole(self.longer), whole(self.rows));
        match self.is_sample {
            true => write!(f, "{longer} of the first {rows} rows"),
            false => write!(f, "{longer} of {rows} rows"),
        }
    }
}

/// A whole number as people read it, with thousands set apart.
pub(super) fn whole(number: u64) -> String {
    match number {
        small if small < 100 => small.to_string(),
        large => grouped(large as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_rows_are_few() {
        let of = |longer: usize, is_sample| {
            let lengths = TokenLengths {
                is_sample,
                ..TokenLengths::new([vec![300; longer], vec![20; 80 - longer]].concat())
            };
            LongerRows::of(&lengths, 256)
        };
        assert_eq!(of(0, false), None);
        let few = |longer| of(longer, false).unwrap().are_few();
        assert!(few(1) && few(8) && !few(9));
        assert_eq!(of(8, false).unwrap().to_string(), "8 of 80 rows");
        assert_eq!(of(8, true).unwrap().to_string(), "8 of the first 80 rows");
        assert_eq!((whole(99), whole(7473)), ("99".into(), "7,473".into()));
    }
}
