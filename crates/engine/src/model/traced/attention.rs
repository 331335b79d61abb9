//! Attention, with the pairs of query and key that its mask leaves.

use candle_core::{Result, Tensor};

use super::{bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_kernels::ops::attention;
pub(in crate::model) use peft_tune_kernels::ops::attention::{Documents, Saved, Settings};

/// Returns (o, lse); see [`attention::forward`].
pub(in crate::model) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let _span = op("attention", || Work {
        // q·k and p·v.
        flops: 2 * (products(q, q, documents.offsets, settings) + products(q, v, documents.offsets, settings)),
        bytes: bytes(q) + result_bytes(q, v) + bytes(k) + bytes(v) + lse_bytes(q),
        ..described(q)
    });
    attention::forward(q, k, v, documents, settings)
}

/// Gradients with respect to (q, k, v); see [`attention::backward`].
pub(in crate::model) fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let _span = op("attention_backward", || {
        let products = |of: &Tensor| products(saved.q, of, documents.offsets, settings);
        Work {
            // q·k once more, do·v, and the sums for dv, dq and dk.
            flops: 6 * products(saved.q) + 4 * products(saved.v),
            recomputed_flops: 2 * products(saved.q),
            bytes: 2 * (bytes(saved.q) + bytes(saved.o) + bytes(saved.k) + bytes(saved.v)) + lse_bytes(saved.q),
            ..described(saved.q)
        }
    });
    attention::backward(saved, d_o, documents, settings)
}

/// Pairs of a query and a key that it sees, times heads and the width of `of`: of queries, or of values.
fn products(q: &Tensor, of: &Tensor, offsets: &[u32], settings: &Settings) -> u64 {
    let (Ok((_, heads, _)), Ok((_, _, width))) = (q.dims3(), of.dims3()) else {
        return 0;
    };
    (heads * width) as u64 * pairs(offsets, settings.window)
}

fn result_bytes(q: &Tensor, v: &Tensor) -> u64 {
    let (Ok((tokens, heads, _)), Ok((_, _, width))) = (q.dims3(), v.dims3()) else {
        return 0;
    };
    (tokens * heads * width * q.dtype().size_in_bytes()) as u64
}

/// Pairs of a query and a key that it sees: itself, and those before it in its document and window.
fn pairs(offsets: &[u32], window: Option<usize>) -> u64 {
    let in_document = |pair: &[u32]| {
        let length = u64::from(pair[1] - pair[0]);
        let window = window.map_or(length, |window| length.min(window as u64));
        // Queries within the window's first length see a triangle, those after it see a whole window each.
        window * (window + 1) / 2 + (length - window) * window
    };
    offsets.windows(2).map(in_document).sum()
}

fn described(q: &Tensor) -> Work {
    Work {
        storage: storage(q.dtype()),
        shape: Shape::with_tokens(q.dims(), 0),
        ..Work::default()
    }
}

fn lse_bytes(q: &Tensor) -> u64 {
    q.dims3().map_or(0, |(tokens, heads, _)| 4 * (tokens * heads) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_that_the_mask_leaves() {
        let counted = |length: u32, window: Option<usize>| {
            let visible =
                |query: u32| (0..=query).filter(move |key| window.is_none_or(|w| ((query - key) as usize) < w));
            (0..length).map(|query| visible(query).count() as u64).sum::<u64>()
        };
        for window in [None, Some(1), Some(3), Some(7), Some(100)] {
            let expected = counted(7, window) + counted(4, window);
            assert_eq!(pairs(&[0, 7, 11], window), expected, "{window:?}");
        }
    }
}
