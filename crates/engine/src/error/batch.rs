//! Micro-batches that a model cannot take.

/// A micro-batch that a model cannot take.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error(
        "the {micro_batches} micro-batch(es) of this step hold {tokens} tokens and not one target; raise \
         `sequence_length`, set `loss_on: all`, or check the labels of the data"
    )]
    NoTargets { micro_batches: usize, tokens: usize },

    #[error("token {token} is outside the model's vocabulary of {vocabulary}; the tokenizer belongs to another model")]
    UnknownToken { token: i64, vocabulary: usize },

    #[error(
        "a document of {tokens} tokens is longer than the {max_positions} positions of this model; lower \
         `sequence_length`"
    )]
    TooLong { tokens: usize, max_positions: usize },
}
