//! How many logits exist at a time, and what the loss head takes for them.

use super::products::amx::KC;
use super::products::{Call, Vectors};
use super::{Form, Memory};

/// Bytes of F32 logits that exist at a time in the loss head.
///
/// Each chunk of tokens packs the whole head twice: with half of this the head of the 135M model took a tenth longer.
const LOGIT_BYTES: usize = 64 << 20;

/// Bytes of logits where the head is not trained: the vocabulary passes by in groups.
const LOGIT_BYTES_STREAMED: usize = 8 << 20;

/// Most positions that groups of the vocabulary pass by at once.
pub const STREAMED_ROWS: usize = 2048;

/// Bytes of logits on any GPU, whose products need some hundred rows to be fast.
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

/// Rows of a chunk on a GPU with so much memory, 0 where that is not known: whole tiles where there is room for one.
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

/// A pass of the loss head, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct HeadCall {
    pub tokens: usize,
    /// Positions that have a target; at least 1.
    pub targets: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    /// Bytes of an element of the hidden states.
    pub element_bytes: u64,
    /// Whether two bytes of it are BF16.
    pub bf16: bool,
    /// Whether the head's weight trains.
    pub head_trains: bool,
    pub vectors: Vectors,
    /// Bytes of a GPU's memory.
    pub device_bytes: u64,
}

/// Logits that exist at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logits {
    pub rows: usize,
    pub columns: usize,
    /// Bytes of the buffers.
    pub bytes: u64,
    /// Bytes that are there for a moment.
    pub growing: u64,
}

impl HeadCall {
    fn memory(&self) -> Memory {
        match self.vectors {
            Vectors::None => Memory::Device,
            _ => Memory::Host,
        }
    }

    /// The logits that exist at a time.
    pub fn logits(&self) -> Logits {
        match self.memory() {
            Memory::Device => self.on_gpu(),
            Memory::Host if self.head_trains => self.in_chunks(),
            Memory::Host => self.streamed(),
        }
    }

    fn row(&self) -> u64 {
        self.hidden as u64 * self.element_bytes
    }

    fn in_chunks(&self) -> Logits {
        let rows = even_chunks(self.targets, chunk_tokens(self.vocabulary, true));
        let inputs = rows.next_power_of_two() as u64 * self.row();
        let logits = 4 * (self.targets.next_power_of_two() + rows * self.vocabulary) as u64;
        Logits {
            rows,
            columns: self.vocabulary,
            bytes: logits + rows as u64 * self.row() + inputs,
            // The inputs' buffer doubles as the first chunk is gathered: for a moment its last two sizes exist.
            growing: inputs / 2,
        }
    }

    /// Logits where the head is not trained: beside a group's logits there are inputs and F32 sums, and of each target its
    /// position, its token and the state of its row.
    fn streamed(&self) -> Logits {
        let rows = even_chunks(self.targets, STREAMED_ROWS);
        let columns = streamed_columns(rows, chunk_tokens(self.vocabulary, false), self.vocabulary);
        let of_rows = rows as u64 * (self.hidden as u64 * (4 + self.element_bytes) + 8 + 24);
        let positions = 4 * self.targets.next_power_of_two() as u64;
        Logits {
            rows,
            columns,
            bytes: 4 * (rows * columns) as u64 + of_rows + positions,
            growing: 0,
        }
    }

    /// Logits on a GPU, with the rows of a chunk twice where not every position is a target.
    fn on_gpu(&self) -> Logits {
        let rows = chunk_tokens_on_gpu(self.vocabulary, self.device_bytes).min(self.targets);
        let gathered = match self.targets < self.tokens {
            true => 2 * rows as u64 * self.row(),
            false => 0,
        };
        Logits {
            rows,
            columns: self.vocabulary,
            bytes: 4 * (rows * self.vocabulary) as u64,
            growing: gathered,
        }
    }

    /// The blocks that the logits of all targets are made of: rows of a block, and how many there are.
    pub fn blocks(&self, logits: &Logits) -> impl Iterator<Item = (usize, usize)> {
        let (most, targets) = (logits.rows, self.targets);
        let blocks = [(most, targets / most), (targets % most, 1)];
        blocks.into_iter().filter(|(rows, blocks)| *rows > 0 && *blocks > 0)
    }

    /// The products of a block of logits: the logits, the gradient of the hidden states and, where it trains, that of the head.
    pub fn products(&self, rows: usize, columns: usize) -> Vec<Call> {
        let call = |form, sizes, left_bytes, f32_result| Call {
            f32_result,
            ..Call::dense(form, sizes, left_bytes, self.bf16)
        };
        // Gradients of logits are F32, or pairs of BF16 in the same place.
        let is_pairs = self.bf16 && columns.is_multiple_of(2) && self.vectors.multiplies_pairs();
        let left = if is_pairs { 2 } else { 4 };
        let is_streamed = self.memory() == Memory::Host && !self.head_trains;
        let is_f32 = self.element_bytes == 4 || is_streamed;
        let mut products = vec![
            call(Form::Nt, [rows, columns, self.hidden], self.element_bytes, true),
            call(Form::Nn, [rows, self.hidden, columns], left, is_f32),
        ];
        if self.head_trains {
            products.push(call(Form::Tn, [columns, self.hidden, rows], left, true));
        }
        products
    }
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
