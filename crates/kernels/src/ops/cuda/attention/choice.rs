//! Attention in the form that is the fastest for its tensors, of those that are right on their device.

use candle_core::{DType, Device, Result, Tensor};

use super::first_use::is_right;
use super::forms::{Form, MAX_HEAD};
use super::launches::{backward_by, forward_by};
use crate::gpu::{has_warpgroups, pack_size};
use crate::ops::attention::documents::Documents;
use crate::ops::attention::saved::Saved;
use crate::ops::attention::settings::Settings;
use crate::{Kernels, kernels};

/// Whether the kernels take heads of `head_dim`.
pub(crate) fn takes(head_dim: usize) -> bool {
    head_dim <= MAX_HEAD
}

/// Chooses the kernels for heads of `head_dim` elements of `dtype`, which otherwise the first call does.
pub(crate) fn prepare(head_dim: usize, dtype: DType, device: &Device) {
    if dtype != DType::F32 && head_dim.is_multiple_of(8) {
        Form::on_tensor_cores(head_dim, dtype, device);
    }
}

impl Form {
    /// The form for these tensors, q first, where they are.
    fn of(tensors: &[&Tensor]) -> Result<Self> {
        let (q, head_dim) = (tensors[0], tensors[0].dim(2)?);
        Ok(match q.dtype() != DType::F32 && pack_size(head_dim, tensors) == 8 {
            true => Self::on_tensor_cores(head_dim, q.dtype(), q.device()),
            false => Self::Plain,
        })
    }

    /// The form on tensor cores for heads of `head_dim` elements. Where it is Hopper's, the first call tries it.
    fn on_tensor_cores(head_dim: usize, dtype: DType, device: &Device) -> Self {
        let is_wanted = kernels() != Kernels::Tiled && has_warpgroups(device);
        let hopper = Self::hopper(head_dim).filter(|form| is_wanted && is_right(*form, head_dim, dtype, device));
        hopper.or_else(|| Self::tiled(head_dim, device)).unwrap_or(Self::Plain)
    }
}

/// (o, lse); the tensors are contiguous and not empty.
pub(crate) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    forward_by(Form::of(&[q, k, v])?, [q, k, v], documents, settings)
}

/// Gradients with respect to (q, k, v); all tensors are contiguous and not empty.
pub(crate) fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    backward_by(
        Form::of(&[saved.q, saved.k, saved.v, d_o])?,
        saved,
        d_o,
        documents,
        settings,
    )
}
