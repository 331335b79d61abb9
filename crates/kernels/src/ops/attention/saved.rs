//! Tensors of a forward pass that its backward pass reads.

use candle_core::Tensor;

/// Tensors that the forward took and gave, for the backward pass.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    pub o: &'a Tensor,
    pub lse: &'a Tensor,
}
