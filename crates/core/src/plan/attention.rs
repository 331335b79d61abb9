//! How the CPU's attention is cut into blocks, and what its threads keep: the engine's blocking.

use super::products::{self, Vectors};
use super::scratch::{Buffer, ThreadScratch};
use crate::architecture::{Architecture, LayerHeads};

/// Keys of a block.
pub const KEYS: usize = 128;
/// Rows of a block of queries, the heads of the group counted.
const ROWS: usize = 192;
/// Most queries of a task of the forward pass.
pub const SPAN_FORWARD: usize = 256;
/// Queries that a task of the backward pass has at most: longer spans leave threads idle, shorter ones add up more
/// shares of dk and dv.
pub const SPAN_BACKWARD: usize = 512;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub query: usize,
    pub key: usize,
    /// d, width of a query and of a key.
    pub width: usize,
    /// dv, width of a value and of a result.
    pub value: usize,
}

/// A pass of attention, as far as its scratch depends on it.
#[derive(Clone, Copy, Debug)]
pub struct AttentionCall {
    /// Tokens of the longest document.
    pub longest: usize,
    pub window: Option<usize>,
    pub backward: bool,
    /// Whether its products run on pairs of BF16.
    pub pairs: bool,
    pub vectors: Vectors,
}

/// First of the keys that the queries from `first` on see.
pub fn first_key(first: usize, window: Option<usize>) -> usize {
    (first + 1).saturating_sub(window.unwrap_or(usize::MAX))
}

/// Keys that each span of queries of a document sees.
fn seen(tokens: usize, span: usize, window: Option<usize>) -> impl Iterator<Item = usize> {
    let keys = move |first: usize| (first + span).min(tokens) - first_key(first, window);
    (0..tokens).step_by(span).map(keys)
}

impl Heads {
    /// Heads of a model's layer `index`.
    pub fn of(architecture: &Architecture, index: usize) -> Self {
        let LayerHeads { kv_heads, head_dim } = architecture.heads_of(index);
        Self {
            query: architecture.heads,
            key: kv_heads,
            width: head_dim,
            value: architecture.value_dim(index),
        }
    }

    /// FLOPs of all heads for a query and a key that it sees: q·k and p v; backward q·k once more, do·v, and the sums of dq, dk and
    /// dv.
    pub fn pair_flops(&self, backward: bool) -> f64 {
        let width = match backward {
            false => self.width + self.value,
            true => 3 * self.width + 2 * self.value,
        };
        (2 * self.query * width) as f64
    }

    /// Width of heads whose queries, keys and values are alike and cost as much.
    pub fn mean_width(&self, backward: bool) -> f64 {
        let products = if backward { 10 } else { 4 };
        self.pair_flops(backward) / (products * self.query) as f64
    }

    /// Width of all queries of a token, Hq·d.
    pub fn query_size(&self) -> usize {
        self.query * self.width
    }

    /// Width of all keys of a token, Hkv·d.
    pub fn key_size(&self) -> usize {
        self.key * self.width
    }

    /// Width of all values of a token, Hkv·dv.
    pub fn value_size(&self) -> usize {
        self.key * self.value
    }

    /// Width of what attention gives for a token, Hq·dv.
    pub fn attended_size(&self) -> usize {
        self.query * self.value
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.query / self.key
    }

    /// Queries of a block.
    pub fn block_queries(&self) -> usize {
        (ROWS / self.group()).clamp(8, 64)
    }

    /// Rows of a block of queries in a document of `tokens`.
    fn block_rows(&self, tokens: usize) -> usize {
        self.block_queries().min(tokens) * self.group()
    }

    /// Adds what a thread keeps after a pass over documents of at most `longest` tokens.
    pub fn keep(&self, kept: &mut ThreadScratch, attention: AttentionCall) {
        let AttentionCall {
            longest,
            window,
            pairs,
            vectors,
            ..
        } = attention;
        if vectors == Vectors::None {
            return;
        }
        let rows = self.block_rows(longest);
        let Self { width, value, .. } = *self;
        // Queries, results, scores and their statistics.
        let (span, buffers, block) = match attention.backward {
            false => (
                SPAN_FORWARD,
                [Buffer::ForwardKeys, Buffer::ForwardBlocks],
                rows * (width + value + KEYS + 3),
            ),
            true => (
                SPAN_BACKWARD,
                [Buffer::BackwardKeys, Buffer::BackwardBlocks],
                rows * (2 * width + 2 * value + 2 * KEYS + 2),
            ),
        };
        let keys = seen(longest, span, window).max().unwrap_or(0);
        kept.ask(buffers[0], 4 * keys * (width + value));
        kept.ask(buffers[1], 4 * block);
        // (depth, columns) of the block's products.
        let keys = longest.min(KEYS);
        let products: &[(usize, usize)] = match attention.backward {
            false => &[(width, keys), (keys, value)],
            // Scores, their gradients, dq, dk and dv.
            true => &[
                (width, keys),
                (value, keys),
                (keys, width),
                (rows, width),
                (rows, value),
            ],
        };
        for &(depth, columns) in products {
            products::keep_small(kept, [rows, depth, columns], pairs, vectors);
        }
    }

    /// Bytes that one thread's small products of a backward pass pack and free again, where they run through the `gemm` crate.
    ///
    /// The crate takes a row-major result for its transpose: it packs a right operand whose columns lie apart, or end within a
    /// vector, and a left operand whose depth lies apart where the result is wider than two of its tiles.
    pub fn packing(&self, longest: usize, pairs: bool, vectors: Vectors) -> u64 {
        let digits = vectors == Vectors::Amx && self.width.min(self.value).min(longest) >= products::amx::FEWEST_DIGITS;
        if pairs || digits {
            return 0;
        }
        let Some([lanes, mr, nr]) = vectors.small_tile() else {
            return 0;
        };
        let (rows, keys) = (self.block_rows(longest), longest.min(KEYS));
        let scores = self.width.max(self.value) * keys.next_multiple_of(mr);
        let sums = [self.width, self.value].map(|columns| {
            let ends_within = !columns.is_multiple_of(lanes);
            let right = usize::from(ends_within) * columns.next_multiple_of(mr);
            let left = usize::from(columns > 2 * mr) * keys.next_multiple_of(nr);
            // dk and dv; dq has the width of dk, and a left operand as it lies.
            (rows * (right + left)).max(keys * right)
        });
        4 * scores.max(sums[0]).max(sums[1]) as u64
    }

    /// Bytes that a backward pass takes on the CPU for a moment, beside its results and the shares of dk and dv.
    pub fn backward_room(&self, call: AttentionCall, threads: usize) -> u64 {
        let AttentionCall {
            longest,
            pairs,
            vectors,
            ..
        } = call;
        let totals = (4 * threads * longest * self.width.max(self.value)) as u64;
        totals.max(threads as u64 * self.packing(longest, pairs, vectors))
    }

    /// Bytes of all shares of dk and dv of one document: each span of queries has its own over the keys that it sees.
    pub fn shares(&self, tokens: usize, window: Option<usize>) -> u64 {
        let keys: usize = seen(tokens, SPAN_BACKWARD, window).sum();
        (4 * keys * (self.width + self.value) * self.key) as u64
    }
}
