//! How many logits exist at a time.

use super::products::amx::KC;

/// Bytes of F32 logits that exist at a time in the loss head.
///
/// Each chunk of tokens packs the whole head twice: with half of this the head of the 135M model took a tenth longer.
const LOGIT_BYTES: usize = 64 << 20;

/// As [`LOGIT_BYTES`] where the head is not trained: the vocabulary passes by in groups.
const LOGIT_BYTES_STREAMED: usize = 8 << 20;

/// Most positions that groups of the vocabulary pass by at once.
pub const STREAMED_ROWS: usize = 2048;

/// As [`LOGIT_BYTES`] on any GPU, whose products need some hundred rows to be fast.
const LOGIT_BYTES_GPU: u64 = 256 << 20;

/// Rows of a GPU's tile of a product. 523 rows, which 256 MB of Llama's logits are, make as much work as 640.
const TILE_ROWS_GPU: u64 = 128;

/// Rows at which the gradient of hidden states, (rows, 4096), has a tile for each of an H100's 132 multiprocessors but four. With half of
/// them half of the multiprocessors do nothing, unless the sum is split.
const ENOUGH_ROWS_GPU: u64 = 1024;

/// Share of a GPU's memory that logits may take for so many rows.
const LOGIT_SHARE_GPU: u64 = 128;

/// GPUs of one size differ in what the driver tells: 79.1 GiB of 80, 44.5 of 48, 139.8 of 141.
const MEMORY_STEP_GPU: u64 = 8 << 30;

/// Most target positions whose logits over `vocabulary` tokens exist at a time in the loss head of a training on the CPU; at least 16.
pub fn chunk_tokens(vocabulary: usize, head_trains: bool) -> usize {
    let bytes = if head_trains { LOGIT_BYTES } else { LOGIT_BYTES_STREAMED };
    (bytes / (4 * vocabulary)).max(16)
}

/// Likewise on a GPU with so much memory, 0 where that is not known: whole tiles where there is room for one.
pub fn chunk_tokens_on_gpu(vocabulary: usize, device_bytes: u64) -> usize {
    let rows = |bytes: u64| match bytes / (4 * vocabulary as u64) {
        rows if rows >= TILE_ROWS_GPU => rows / TILE_ROWS_GPU * TILE_ROWS_GPU,
        rows => rows,
    };
    let share = device_bytes.next_multiple_of(MEMORY_STEP_GPU) / LOGIT_SHARE_GPU;
    let rows = rows(LOGIT_BYTES_GPU).max(rows(share).min(ENOUGH_ROWS_GPU));
    rows.max(16) as usize
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
        let rows = |vocabulary| chunk_tokens_on_gpu(vocabulary, 0);
        assert_eq!([32_000, 128_256, 151_936, 262_144].map(rows), [2048, 512, 384, 256]);
        assert_eq!(rows(1 << 20), 64);
        assert_eq!(rows(1 << 30), 16);
    }

    #[test]
    fn large_gpus_have_chunks_that_fill_them() {
        let gib = |tenths: u64| tenths * (1 << 30) / 10;
        let rows =
            |tenths: u64| [32_000, 128_256, 262_144].map(|vocabulary| chunk_tokens_on_gpu(vocabulary, gib(tenths)));
        assert_eq!(rows(240), [2048, 512, 256]);
        assert_eq!(rows(480), [2048, 768, 384]);
        assert_eq!(rows(800), [2048, 1024, 640]);
        assert_eq!(rows(1410), [2048, 1024, 1024]);
        // As the driver tells of the same.
        assert_eq!(
            [rows(235), rows(445), rows(791), rows(1398)],
            [rows(240), rows(480), rows(800), rows(1410)]
        );
    }
}
