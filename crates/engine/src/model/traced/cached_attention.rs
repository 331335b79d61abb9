//! Attention of single queries over a cache.

use std::ops::Range;

use candle_core::Result;

use super::attention::Settings;
use super::{Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_kernels::ops::cached_attention;

/// Returns o; see [`cached_attention::forward_with_sinks`].
pub(in crate::model) fn forward(
    (q, keys, values): (&Tensor, &candle_core::Tensor, &candle_core::Tensor),
    places: &[Range<usize>],
    settings: &Settings,
    sinks: Option<&candle_core::Tensor>,
) -> Result<Tensor> {
    let _span = op("cached_attention", || work(q, (keys, values), places));
    let o = cached_attention::forward_with_sinks((q.real()?, keys, values), places, settings, sinks)?;
    Ok(o.into())
}

fn work(q: &Tensor, (keys, values): (&candle_core::Tensor, &candle_core::Tensor), places: &[Range<usize>]) -> Work {
    let (Ok((tokens, heads, width)), Ok((_, key_heads, _)), Ok((_, _, value))) =
        (q.dims3(), keys.dims3(), values.dims3())
    else {
        return Work::default();
    };
    let rows: usize = places.iter().map(ExactSizeIterator::len).sum();
    let element = q.dtype().size_in_bytes();
    Work {
        flops: 2 * (rows * heads * (width + value)) as u64,
        bytes: bytes(q) + ((tokens * heads * value + rows * key_heads * (width + value)) * element) as u64,
        storage: storage(q.dtype()),
        shape: Shape::with_tokens(q.dims(), 0),
        ..Work::default()
    }
}
