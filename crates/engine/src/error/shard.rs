//! Weights that are shared out among ranks.

/// Weights that are shared out among ranks and cannot be used so.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    #[error("`{tensor}` is shared out among devices and cannot be read as a whole; write `sharding: none`")]
    NotWhole { tensor: String },

    #[error(
        "the weights are those of rank {rank} of {ranks}, and this is rank {at} of {of}; load what its own rank has of the model"
    )]
    OtherRank {
        rank: usize,
        ranks: usize,
        at: usize,
        of: usize,
    },
}
