//! Size of the data that a training goes over.

/// Rows of one pass through the training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainedRows {
    pub rows: u64,
    /// Tokens in all of them.
    pub tokens: u64,
}
