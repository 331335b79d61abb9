//! How many logits exist at a time: a rule that the engine follows and the prediction counts.

/// Bytes of F32 logits that exist at a time in the loss head.
///
/// Each chunk of tokens packs the whole head twice: with half of this the head of the 135M model took a tenth longer.
pub const LOGIT_BYTES: usize = 64 << 20;

/// As [`LOGIT_BYTES`] on a GPU, whose products need some hundred rows to be fast.
pub const LOGIT_BYTES_GPU: usize = 256 << 20;

/// Most target positions whose logits over `vocabulary` tokens fit into `logit_bytes`; at least 16.
pub fn most_chunk_tokens(vocabulary: usize, logit_bytes: usize) -> usize {
    (logit_bytes / (4 * vocabulary)).max(16)
}

/// Positions of a chunk: at most `most`, in chunks of about one size and of whole tiles where that is possible.
pub fn even_chunks(positions: usize, most: usize) -> usize {
    let most = most.clamp(1, positions.max(1));
    let even = positions.div_ceil(positions.div_ceil(most).max(1)).next_multiple_of(8);
    even.min(most).max(1)
}
