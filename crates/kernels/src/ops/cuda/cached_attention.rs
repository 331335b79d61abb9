//! Attention of single queries over what is kept of earlier tokens.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Source, arguments, element_name, empty, source};
use crate::ops::attention::Settings;

static SOURCE: Source = source!("cached_attention");

/// Sizes of heads that there are kernels for: the smallest that fits is taken.
const SIZES: [usize; 3] = [64, 128, 256];
/// Threads of a block.
const THREADS: usize = 256;

/// Whether there is a kernel for heads of `width`.
pub(crate) fn takes(width: usize) -> bool {
    (1..=SIZES[SIZES.len() - 1]).contains(&width)
}

/// o (T, Hq, d), of shapes and places that have been checked; `sinks` (Hq,) where the heads have some.
pub(crate) fn forward(
    (q, keys, values): (&Tensor, &Tensor, &Tensor),
    places: &[Range<usize>],
    settings: &Settings,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let ((tokens, heads, width), device) = (q.dims3()?, q.device());
    let key_heads = keys.dim(1)?;
    let (q, keys, values) = (q.contiguous()?, keys.contiguous()?, values.contiguous()?);
    let bounds: Vec<u32> = places
        .iter()
        .flat_map(|place| [place.start as u32, place.end as u32])
        .collect();
    let bounds = Tensor::from_vec(bounds, (tokens, 2), device)?;
    let sinks = sinks
        .map(|sinks| sinks.to_dtype(DType::F32)?.contiguous())
        .transpose()?;
    let o = empty(q.shape(), q.dtype(), device)?;
    let size = SIZES.into_iter().find(|size| width <= *size).unwrap_or(width);
    let name = format!(
        "cached_attention_{}_{size}",
        element_name(q.dtype()).unwrap_or_default()
    );
    let launch = SOURCE.launch(&name, [heads, tokens, 1], [THREADS, 1, 1]);
    let arguments = arguments! {
        &q, &keys, &values, &bounds, &o, sinks.as_ref(), heads as u32, key_heads as u32, width as u32,
        settings.scale as f32, settings.soft_cap.unwrap_or(0.0) as f32,
    };
    launch.run(device, &arguments)?;
    Ok(o)
}
