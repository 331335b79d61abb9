//! Operands of attention, and what is kept of what they were made from.

use candle_core::Result;

use super::saved::LatentSaved;
use crate::tensor::Tensor;

/// Queries, keys and values as attention reads them, and what is kept of what they were made from.
pub(super) struct Attended {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// Queries, or the input of their norm.
    pub kept_q: Tensor,
    /// Keys, or the input of their norm; `None` where they are another layer's.
    pub kept_k: Option<Tensor>,
    /// Values, or the input of their norm; `None` where that is the input of the keys' norm, too.
    pub kept_v: Option<Tensor>,
    /// Reciprocal standard deviations in the norms of queries, keys and values.
    pub rstd: [Option<Tensor>; 3],
    pub latent: Option<LatentSaved>,
}

/// (T, heads, d) to (T, heads·d), without a copy.
pub(super) fn flat(x: &Tensor) -> Result<Tensor> {
    x.flatten_from(1)
}
