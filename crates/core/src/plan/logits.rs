//! How many logits exist at a time.

use super::Memory;
use super::products::amx::KC;

/// Bytes of F32 logits that exist at a time in the loss head.
///
/// Each chunk of tokens packs the whole head twice: with half of this the head of the 135M model took a tenth longer.
const LOGIT_BYTES: usize = 64 << 20;

/// As [`LOGIT_BYTES`] where the head is not trained: the vocabulary passes by in groups.
const LOGIT_BYTES_STREAMED: usize = 8 << 20;

/// Most positions that groups of the vocabulary pass by at once.
pub const STREAMED_ROWS: usize = 2048;

/// As [`LOGIT_BYTES`] on a GPU, whose products need some hundred rows to be fast.
const LOGIT_BYTES_GPU: usize = 256 << 20;

/// Rows of a GPU's tile of a product. 523 rows, which 256 MB of Llama's logits are, make as much work as 640.
const TILE_ROWS_GPU: usize = 128;

/// Most target positions whose logits over `vocabulary` tokens exist at a time in the loss head of a training; at least 16, and on a GPU
/// whole tiles where there is room for one.
pub fn chunk_tokens(vocabulary: usize, memory: Memory, head_trains: bool) -> usize {
    let bytes = match (memory, head_trains) {
        (Memory::Device, _) => LOGIT_BYTES_GPU,
        (Memory::Host, true) => LOGIT_BYTES,
        (Memory::Host, false) => LOGIT_BYTES_STREAMED,
    };
    let rows = bytes / (4 * vocabulary);
    let rows = match memory {
        Memory::Device if rows >= TILE_ROWS_GPU => rows / TILE_ROWS_GPU * TILE_ROWS_GPU,
        _ => rows,
    };
    rows.max(16)
}

/// Tokens of a group of the vocabulary, where as many logits exist at a time as `chunk_tokens` whole rows have: whole KC blocks of a
/// product where that is possible.
pub fn streamed_columns(rows: usize, chunk_tokens: usize, vocabulary: usize) -> usize {
    let most = (chunk_tokens * vocabulary / rows.max(1)).max(2);
    let whole = if most < KC { most / 2 * 2 } else { most / KC * KC };
    whole.min(vocabulary).max(1)
}

/// Positions of a chunk: at most `most`, in chunks of about one size and of whole tiles where that is possible.
pub fn even_chunks(positions: usize, most: usize) -> usize {
    let most = most.clamp(1, positions.max(1));
    let even = positions.div_ceil(positions.div_ceil(most).max(1)).next_multiple_of(8);
    even.min(most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_gpu_are_whole_tiles() {
        let rows = |vocabulary| chunk_tokens(vocabulary, Memory::Device, false);
        assert_eq!([32_000, 128_256, 151_936, 262_144].map(rows), [2048, 512, 384, 256]);
        assert_eq!(rows(1 << 20), 64);
        assert_eq!(rows(1 << 30), 16);
    }
}
