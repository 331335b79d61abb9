//! The norm before a block, where there is one.

use candle_core::Result;

use super::norm::Norm;
use super::traced::residual;
use crate::tensor::Tensor;

/// The norm before a block, where there is one: its output and what it keeps.
pub(super) fn forward_before(norm: Option<&Norm>, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    let Some(norm) = norm else { return Ok((x.clone(), None)) };
    let (normed, rstd) = norm.forward(x)?;
    Ok((normed, Some(rstd)))
}

/// The norm before a block in the backward pass.
pub(super) struct Before<'a> {
    pub norm: Option<&'a Norm>,
    pub x: &'a Tensor,
    pub rstd: Option<&'a Tensor>,
}

impl Before<'_> {
    /// The gradient of the block's input, where it is wanted: `past`, and what the norm makes of `d_normed`. Adds the norm's
    /// own.
    pub(super) fn backward(&self, past: &Tensor, d_normed: &Tensor, wants_dx: bool) -> Result<Option<Tensor>> {
        let (Some(norm), Some(rstd)) = (self.norm, self.rstd) else {
            return wants_dx.then(|| residual::add(past, d_normed)).transpose();
        };
        if !wants_dx {
            norm.add_weight_gradient(self.x, rstd, d_normed)?;
            return Ok(None);
        }
        norm.backward_onto(past, self.x, rstd, d_normed).map(Some)
    }
}
