//! Attention of single queries over keys and values of earlier tokens: the decode step of generation.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `q`, `o` | (T, Hq, d), (T, Hq, dv) | queries, result; compute dtype |
//! | `keys`, `values` | (rows, Hkv, d), (rows, Hkv, dv) | all that is kept, of all sequences |
//! | `places` | (T,) | which rows each query sees |
//!
//! With the rows j of its place: s_j = cap(scale q . k_j), p = softmax of s, o = sum of p_j v_j; query head h reads key
//! head h / (Hq / Hkv). The window of a layer is the caller's to apply to the places. There is no backward.

use std::ops::Range;

use super::attention::Settings;
use super::cuda;
use super::element::{Element, with_element};
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, small};
use crate::gpu;
use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

/// Returns o.
///
/// # Errors
/// Shapes that do not go together, a place outside the rows or without any; those of candle.
pub fn forward(
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    places: &[Range<usize>],
    settings: &Settings,
) -> Result<Tensor> {
    forward_with_sinks((q, keys, values), places, settings, None)
}

/// Attends as [`forward`] does, with one more logit (Hq,) for each head in its softmax, whose weight goes nowhere.
///
/// # Errors
/// Errors of [`forward`].
pub fn forward_with_sinks(
    (q, keys, values): (&Tensor, &Tensor, &Tensor),
    places: &[Range<usize>],
    settings: &Settings,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let (tokens, heads, width) = q.dims3()?;
    let (rows, key_heads, _) = keys.dims3()?;
    super::shape::expect(keys, &[rows, key_heads, width], "cached attention: keys")?;
    super::shape::expect(values, &[rows, key_heads, values.dim(2)?], "cached attention: values")?;
    if places.len() != tokens || key_heads == 0 || !heads.is_multiple_of(key_heads) {
        candle_core::bail!(
            "cached attention: {tokens} queries of {heads} heads with {} places and {key_heads} key heads",
            places.len()
        );
    }
    if let Some(place) = places.iter().find(|place| place.is_empty() || place.end > rows) {
        candle_core::bail!("cached attention: rows {place:?} of {rows}");
    }
    if let Some(sinks) = sinks {
        super::shape::expect(sinks, &[heads], "cached attention: sinks")?;
    }
    let is_square = values.dim(2)? == width;
    if is_square && gpu::takes(q) && cuda::cached_attention::takes(width) && tokens > 0 {
        return cuda::cached_attention::forward((q, keys, values), places, settings, sinks);
    }
    if !is_fused(q) || q.elem_count() == 0 {
        return reference::forward((q, keys, values), places, settings, sinks);
    }
    let sinks = match sinks {
        Some(sinks) => small(sinks)?,
        None => vec![f32::NEG_INFINITY; heads],
    };
    let (q, keys, values) = (q.contiguous()?, keys.contiguous()?, values.contiguous()?);
    with_element!(q.dtype(), T => fused::<T>((&q, &keys, &values), places, settings, &sinks))
}

fn fused<T: Element>(
    (q, keys, values): (&Tensor, &Tensor, &Tensor),
    places: &[Range<usize>],
    settings: &Settings,
    sinks: &[f32],
) -> Result<Tensor> {
    let (tokens, heads, width) = q.dims3()?;
    let (_, key_heads, value_width) = values.dims3()?;
    let group = heads / key_heads;
    let (queries, keys, values) = (
        Elements::<T>::new(q)?,
        Elements::<T>::new(keys)?,
        Elements::<T>::new(values)?,
    );
    let (queries, keys, values): (&[T], &[T], &[T]) = (&queries, &keys, &values);
    let scale = settings.scale as f32;
    let cap = settings.soft_cap.unwrap_or(0.0) as f32;
    let mut result = Unwritten::<T>::new(tokens * heads * value_width);
    let heads_of_tokens = result.slots().par_chunks_mut(value_width).enumerate();
    heads_of_tokens.for_each_init(Vec::new, |scores: &mut Vec<f32>, (number, o)| {
        let (token, head) = (number / heads, number % heads);
        let place = &places[token];
        let query = &queries[number * width..(number + 1) * width];
        let first = place.start * key_heads + head / group;
        let kept = VisibleRows {
            keys: &keys[first * width..],
            values: &values[first * value_width..],
            heads: key_heads,
        };
        scores.clear();
        scores.resize(place.len() + value_width, 0.0);
        let (scores, sum) = scores.split_at_mut(place.len());
        one_head(
            query,
            kept.keys,
            kept.values,
            kept.heads,
            scale,
            cap,
            sinks[head],
            scores,
            sum,
        );
        for (slot, value) in o.iter_mut().zip(sum) {
            slot.write(T::narrow(*value));
        }
    });
    // SAFETY: every head of every token has been written.
    unsafe { result.into_tensor(&[tokens, heads, value_width]) }
}

/// Keys and values of one head, from its first visible row on.
struct VisibleRows<'a, T> {
    keys: &'a [T],
    values: &'a [T],
    /// Heads of a row.
    heads: usize,
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "the macro takes plain slices and numbers only")]
    fn one_head<T: Element>(
        query: &[T],
        keys: &[T],
        values: &[T],
        heads: usize,
        scale: f32,
        cap: f32,
        sink: f32,
        scores: &mut [f32],
        sum: &mut [f32],
    ) {
        let (width, value_width) = (query.len(), sum.len());
        let (stride, value_stride) = (heads * width, heads * value_width);
        let mut highest = sink;
        for (row, score) in scores.iter_mut().enumerate() {
            let key = &keys[row * stride..row * stride + width];
            let mut lanes = [0f32; 16];
            for (query, key) in query.chunks(16).zip(key.chunks(16)) {
                for ((lane, query), key) in lanes.iter_mut().zip(query).zip(key) {
                    *lane += query.widen() * key.widen();
                }
            }
            let mut dot = 0.0;
            for lane in lanes {
                dot += lane;
            }
            let dot = scale * dot;
            *score = if cap > 0.0 { cap * (dot / cap).tanh() } else { dot };
            highest = highest.max(*score);
        }
        // 0 without a sink.
        let mut total = (sink - highest).exp();
        for score in scores.iter_mut() {
            *score = (*score - highest).exp();
            total += *score;
        }
        for (row, score) in scores.iter().enumerate() {
            let weight = *score / total;
            for (sum, value) in sum.iter_mut().zip(&values[row * value_stride..row * value_stride + value_width]) {
                *sum += weight * value.widen();
            }
        }
    }
}

/// Attention to a cache in plain candle ops, for any device.
pub mod reference {
    use super::{DType, Range, Result, Settings, Tensor};

    /// See [`super::forward_with_sinks`].
    pub fn forward(
        (q, keys, values): (&Tensor, &Tensor, &Tensor),
        places: &[Range<usize>],
        settings: &Settings,
        sinks: Option<&Tensor>,
    ) -> Result<Tensor> {
        let wide = if q.dtype() == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        let (_, heads, width) = q.dims3()?;
        let key_heads = keys.dims3()?.1;
        let mut results = Vec::with_capacity(places.len());
        for (token, place) in places.iter().enumerate() {
            let rows = |tensor: &Tensor| {
                let rows = tensor.narrow(0, place.start, place.len())?;
                rows.transpose(0, 1)?.contiguous()?.to_dtype(wide)
            };
            // (Hkv, group, d) x (Hkv, d, rows)
            let query = q.narrow(0, token, 1)?.reshape((key_heads, heads / key_heads, width))?;
            let scores = query.to_dtype(wide)?.matmul(&rows(keys)?.transpose(1, 2)?)?;
            let scores = (scores * settings.scale)?;
            let scores = match settings.soft_cap {
                Some(cap) => ((scores / cap)?.tanh()? * cap)?,
                None => scores,
            };
            let highest = scores.max_keepdim(2)?;
            let weights = scores.broadcast_sub(&highest)?.exp()?;
            let mut total = weights.sum_keepdim(2)?;
            if let Some(sinks) = sinks {
                let sinks = sinks.to_dtype(wide)?.reshape((key_heads, heads / key_heads, 1))?;
                total = (total + (sinks - highest)?.exp()?)?;
            }
            let weights = weights.broadcast_div(&total)?;
            let o = weights.matmul(&rows(values)?)?;
            results.push(o.reshape((1, heads, ()))?.to_dtype(q.dtype())?);
        }
        Tensor::cat(&results, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;

    #[test]
    fn every_dtype_matches_f64() {
        // Two sequences in 40 rows, heads in groups of 3, one place inside a window.
        let places = [0..7, 20..40, 25..40];
        for (dtype, soft_cap) in [
            (DType::F32, None),
            (DType::F32, Some(2.0)),
            (DType::BF16, None),
            (DType::F16, None),
        ] {
            let (q, q64) = rounded(&random(&[3, 6, 20], 1), dtype);
            let (k, k64) = rounded(&random(&[40, 2, 20], 2), dtype);
            let (v, v64) = rounded(&random(&[40, 2, 13], 3), dtype);
            let settings = Settings {
                scale: 0.3,
                window: None,
                soft_cap,
            };
            let (sinks, sinks64) = rounded(&random(&[6], 4), dtype);
            for sinks in [None, Some((&sinks, &sinks64))] {
                let o = forward_with_sinks((&q, &k, &v), &places, &settings, sinks.map(|both| both.0)).unwrap();
                let wide = (&q64, &k64, &v64);
                let expected = reference::forward(wide, &places, &settings, sinks.map(|both| both.1)).unwrap();
                assert_close(&o, &expected, "o");
            }
        }
    }

    #[test]
    fn the_last_query_of_a_document_is_that_of_the_training_op() {
        let (q, k, v) = (random(&[9, 4, 8], 1), random(&[9, 2, 8], 2), random(&[9, 2, 6], 3));
        let settings = Settings {
            scale: 0.5,
            window: Some(4),
            soft_cap: None,
        };
        let (expected, _) = super::super::attention::forward(&q, &k, &v, &[0, 9], &settings).unwrap();
        let last = q.narrow(0, 8, 1).unwrap();
        let o = forward(&last, &k, &v, std::slice::from_ref(&(5..9)), &settings).unwrap();
        assert_close(&o, &expected.narrow(0, 8, 1).unwrap(), "o");
        // And with sinks.
        let (expected, lse) = super::super::attention::forward(&q, &k, &v, &[0, 9], &settings).unwrap();
        let sinks = random(&[4], 4);
        super::super::sinks::apply(&expected, &lse, &sinks).unwrap();
        let place = std::slice::from_ref(&(5..9));
        let o = forward_with_sinks((&last, &k, &v), place, &settings, Some(&sinks)).unwrap();
        assert_close(&o, &expected.narrow(0, 8, 1).unwrap(), "o");
    }

    #[test]
    fn a_place_outside_the_rows_is_refused() {
        let (q, k) = (random(&[1, 2, 4], 1), random(&[3, 1, 4], 2));
        let settings = Settings {
            scale: 1.0,
            window: None,
            soft_cap: None,
        };
        for place in [2..4, 1..1] {
            assert!(
                forward(&q, &k, &k, std::slice::from_ref(&place), &settings).is_err(),
                "{place:?}"
            );
        }
    }
}
