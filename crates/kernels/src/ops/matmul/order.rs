//! Order of a right operand's values in memory.

/// How a right operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// (columns of the result, summed): each column of the result is a row in memory.
    Transposed,
    /// (summed, columns of the result).
    Straight,
}
