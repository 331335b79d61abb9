//! Causal attention within documents, forward and backward, without the score matrix.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `q`, `o` | (T, Hq, d), (T, Hq, dv) | queries, result; compute dtype |
//! | `k`, `v` | (T, Hkv, d), (T, Hkv, dv) | keys and values; query head h reads key head h / (Hq / Hkv) |
//! | `lse` | (T, Hq) F32 | log of the sum of the exponentiated scores, saved for the backward |
//! | `offsets` | (documents + 1,) | start of each document in the stream |
//!
//! In a document, with i and j counted from its start: s_ij = cap(scale q_i . k_j), cap(s) = c tanh(s / c) with soft-cap
//! c (gemma2), else s; a query sees the keys j <= i with i - j < window. p = softmax of s over j, o_i = sum of p_ij v_j.
//!
//! Design note: dv may differ from d (latent attention, where it is 128 for a d of 192). Values that are filled up with zeros to d
//! would cost half as much again in the products with p and in what is kept of v and o; the blocks here have a width for each of the
//! two sides, and nothing is copied. The GPU's kernels take one width, and leave other shapes to plain tensor ops.
//!
//! In BF16, and where the processor multiplies it in pairs, the operands of each product are rounded to BF16 (as in
//! PyTorch); sums, softmax and everything kept between blocks are F32.
//!
//! Backward (Dao 2023, <https://arxiv.org/abs/2307.08691>): D_i = do_i . o_i, p_ij = exp(s_ij - lse_i),
//! dp_ij = do_i . v_j, ds_ij = p_ij (dp_ij - D_i) (1 - (s_ij / c)^2 with a soft-cap), dq_i = scale sum of ds_ij k_j,
//! dk_j = scale sum of ds_ij q_i, dv_j = sum of p_ij do_i.

mod backward;
mod block;
pub(in crate::ops) mod documents;
mod forward;
pub mod reference;
pub(in crate::ops) mod saved;
pub(in crate::ops) mod settings;
mod softmax;

#[cfg(test)]
mod tests;

pub(super) use block::{Rows, Shared, gather};
pub use documents::Documents;
pub use saved::Saved;
pub use settings::Settings;

pub use super::cuda::attention::{Form, Probe, ProbeError, backward_by, forward_by, probe_apart_by};

use super::cuda;
use super::element::with_element;
use super::storage::is_fused;
use crate::gpu;
use candle_core::{DType, Device, Result, Tensor};

/// Releases what this thread keeps from one call to the next.
pub(in crate::ops) fn forget() {
    forward::forget();
    backward::forget();
}

/// Chooses the kernels for heads of `head_dim` elements of `dtype` on `device`, which otherwise the first call does, in memory that
/// would count as its own.
pub fn prepare(head_dim: usize, dtype: DType, device: &Device) {
    if gpu::is_for(device, dtype) {
        cuda::attention::prepare(head_dim, dtype, device);
    }
}

/// Returns (o, lse).
pub fn forward<'a>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    documents: impl Into<Documents<'a>>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let documents @ Documents { offsets, .. } = documents.into();
    settings::check(q, k, v, offsets)?;
    if gpu::takes(q) && q.elem_count() > 0 && is_square(q, v)? && cuda::attention::takes(q.dim(2)?) {
        let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
        return cuda::attention::forward(&q, &k, &v, documents, settings);
    }
    if !is_fused(q) || q.elem_count() == 0 {
        // It uploads masks that follow from the documents.
        gpu::refuse_capture("attention in plain tensor ops")?;
        return reference::forward(q, k, v, offsets, settings);
    }
    let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
    with_element!(q.dtype(), T => forward::forward::<T>((&q, &k, &v), offsets, settings))
}

/// Whether values are as wide as queries.
fn is_square(q: &Tensor, v: &Tensor) -> Result<bool> {
    Ok(q.dim(2)? == v.dim(2)?)
}

/// Gradients with respect to (q, k, v), from the gradient `d_o` (T, Hq, dv) of the result.
pub fn backward<'a>(
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: impl Into<Documents<'a>>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let documents @ Documents { offsets, .. } = documents.into();
    settings::check(saved.q, saved.k, saved.v, offsets)?;
    let (tokens, heads, _) = saved.q.dims3()?;
    let result = [tokens, heads, saved.v.dim(2)?];
    super::shape::expect(saved.o, &result, "attention: o")?;
    super::shape::expect(d_o, &result, "attention: d_o")?;
    super::shape::expect(saved.lse, &[tokens, heads], "attention: lse")?;
    let on_gpu = gpu::takes(saved.q) && is_square(saved.q, saved.v)? && cuda::attention::takes(saved.q.dim(2)?);
    if (!on_gpu && !is_fused(saved.q)) || saved.q.elem_count() == 0 {
        return reference::backward(saved, d_o, offsets, settings);
    }
    let (q, k, v, o) = (
        saved.q.contiguous()?,
        saved.k.contiguous()?,
        saved.v.contiguous()?,
        saved.o.contiguous()?,
    );
    let (lse, d_o) = (saved.lse.contiguous()?, d_o.contiguous()?);
    let saved = Saved {
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        lse: &lse,
    };
    if on_gpu {
        return cuda::attention::backward(saved, &d_o, documents, settings);
    }
    with_element!(q.dtype(), T => backward::backward::<T>(saved, &d_o, offsets, settings))
}

/// Results and gradients of a layer, for checks: (o, lse, dq, dk, dv) of (q, k, v, d_o), in `form` or in the one that training takes.
pub fn both_passes(
    form: Option<Form>,
    [q, k, v, d_o]: [&Tensor; 4],
    offsets: &[u32],
    settings: &Settings,
) -> Result<[Tensor; 5]> {
    if let Some(form) = form {
        return cuda::attention::both_passes_by(form, [q, k, v, d_o], offsets, settings);
    }
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
