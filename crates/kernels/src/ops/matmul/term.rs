//! One product of a sum as an op.

use candle_core::Tensor;

use super::factor::Factor;
use crate::ops::storage::is_fused;

/// One product of a sum: `scale` times x times w.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// (T, K) for [`super::nt_sum`], (T, N) for [`super::nn_sum`]; the same dtype in all terms. Columns of a wider tensor are read in
    /// place.
    pub x: &'a Tensor,
    /// (N, K), any float dtype or codes.
    pub w: Factor<'a>,
    pub scale: f64,
}

impl<'a> Term<'a> {
    /// `scale` times x times w.
    pub fn new(x: &'a Tensor, w: impl Into<Factor<'a>>, scale: f64) -> Self {
        Self { x, w: w.into(), scale }
    }
}

impl Term<'_> {
    /// Whether the fused forms take it.
    pub(super) fn is_fused(&self) -> bool {
        is_fused(self.x) && self.w.is_fused()
    }
}
