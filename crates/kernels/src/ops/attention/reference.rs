//! Attention in plain candle ops: one full score matrix for each document.

use super::{Saved, Settings};
use crate::kernel_form::widen;
use candle_core::{D, Result, Tensor};

/// See [`super::forward`].
pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[u32], settings: &Settings) -> Result<(Tensor, Tensor)> {
    let group = q.dim(1)? / k.dim(1)?;
    let (mut results, mut sums) = (Vec::new(), Vec::new());
    for (start, length) in documents(offsets) {
        let keys = repeat(&rows(k, start, length)?, group)?;
        let values = repeat(&rows(v, start, length)?, group)?;
        let scores = Scores::new(&rows(q, start, length)?, &keys, settings)?.masked;
        let max = scores.max_keepdim(D::Minus1)?;
        let weights = scores.broadcast_sub(&max)?.exp()?;
        let sum = weights.sum_keepdim(D::Minus1)?;
        let o = weights.broadcast_div(&sum)?.matmul(&values)?;
        results.push(o.transpose(0, 1)?.to_dtype(q.dtype())?);
        sums.push((sum.log()? + max)?.squeeze(D::Minus1)?.t()?);
    }
    if results.is_empty() {
        let lse = q.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?;
        return Ok((v.repeat((1, group, 1))?, widen(&lse)?));
    }
    Ok((
        Tensor::cat(&results, 0)?.contiguous()?,
        Tensor::cat(&sums, 0)?.contiguous()?,
    ))
}

/// See [`super::backward`].
pub fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    offsets: &[u32],
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let group = saved.q.dim(1)? / saved.k.dim(1)?;
    let (mut dq, mut dk, mut dv) = (Vec::new(), Vec::new(), Vec::new());
    for (start, length) in documents(offsets) {
        let queries = rows(saved.q, start, length)?;
        let keys = repeat(&rows(saved.k, start, length)?, group)?;
        let values = repeat(&rows(saved.v, start, length)?, group)?;
        let d_result = rows(d_o, start, length)?;
        let dot = (&d_result * rows(saved.o, start, length)?)?.sum_keepdim(D::Minus1)?;
        let lse = saved.lse.narrow(0, start, length)?.t()?.unsqueeze(2)?;
        let scores = Scores::new(&queries, &keys, settings)?;
        let p = scores.masked.broadcast_sub(&lse)?.exp()?;
        let dp = d_result.matmul(&values.t()?)?;
        let mut ds = (&p * dp.broadcast_sub(&dot)?)?;
        if let Some(cap) = settings.soft_cap {
            ds = (ds * (1.0 - (scores.capped / cap)?.sqr()?)?)?;
        }
        dq.push((ds.matmul(&keys)? * settings.scale)?.transpose(0, 1)?);
        dk.push((sum_groups(&ds.t()?.matmul(&queries)?, group)? * settings.scale)?.transpose(0, 1)?);
        dv.push(sum_groups(&p.t()?.matmul(&d_result)?, group)?.transpose(0, 1)?);
    }
    if dq.is_empty() {
        return Ok((saved.q.clone(), saved.k.clone(), saved.v.clone()));
    }
    let join = |parts: &[Tensor]| Tensor::cat(parts, 0)?.to_dtype(saved.q.dtype())?.contiguous();
    Ok((join(&dq)?, join(&dk)?, join(&dv)?))
}

/// See [`super::both_passes`].
pub fn both_passes([q, k, v, d_o]: [&Tensor; 4], offsets: &[u32], settings: &Settings) -> Result<[Tensor; 5]> {
    let (o, lse) = forward(q, k, v, offsets, settings)?;
    let saved = Saved {
        q,
        k,
        v,
        o: &o,
        lse: &lse,
    };
    let (dq, dk, dv) = backward(saved, d_o, offsets, settings)?;
    Ok([o, lse, dq, dk, dv])
}

/// Scores of one document, (Hq, n, n).
struct Scores {
    /// Scores with the soft-cap applied.
    capped: Tensor,
    /// Scores with the soft-cap applied, -infinity where the query does not see the key.
    masked: Tensor,
}

impl Scores {
    fn new(queries: &Tensor, keys: &Tensor, settings: &Settings) -> Result<Self> {
        let length = queries.dim(1)?;
        let mut capped = (queries.matmul(&keys.t()?)? * settings.scale)?;
        if let Some(cap) = settings.soft_cap {
            capped = ((capped / cap)?.tanh()? * cap)?;
        }
        let window = settings.window.unwrap_or(usize::MAX);
        let sees = |i: usize, j: usize| j <= i && i - j < window;
        let mask: Vec<f32> = (0..length * length)
            .map(|index| {
                if sees(index / length, index % length) {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
            .collect();
        let mask = Tensor::from_vec(mask, (length, length), queries.device())?.to_dtype(queries.dtype())?;
        let masked = capped.broadcast_add(&mask)?;
        Ok(Self { capped, masked })
    }
}

/// (start, length) of each document that is not empty.
fn documents(offsets: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    offsets
        .windows(2)
        .map(|pair| (pair[0] as usize, (pair[1] - pair[0]) as usize))
        .filter(|(_, length)| *length > 0)
}

/// (heads, length, d) of one document, widened and contiguous.
fn rows(x: &Tensor, start: usize, length: usize) -> Result<Tensor> {
    widen(&x.narrow(0, start, length)?.transpose(0, 1)?.contiguous()?)
}

/// (Hkv, n, d) -> (Hkv * group, n, d), each head `group` times in a row.
fn repeat(x: &Tensor, group: usize) -> Result<Tensor> {
    let (heads, length, head_dim) = x.dims3()?;
    x.unsqueeze(1)?
        .broadcast_as((heads, group, length, head_dim))?
        .reshape((heads * group, length, head_dim))
}

/// (Hkv * group, n, d) -> (Hkv, n, d), the sum of each group.
fn sum_groups(x: &Tensor, group: usize) -> Result<Tensor> {
    let (heads, length, head_dim) = x.dims3()?;
    x.reshape((heads / group, group, length, head_dim))?.sum(1)
}
