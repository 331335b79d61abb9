//! Gradients that the first half of a decoder layer gets in the backward pass.

use crate::tensor::Tensor;

/// Gradients by the two ways on which one reaches a block's input.
pub(super) struct BlockGradients {
    /// Gradient of what the block adds to the stream.
    pub branch: Tensor,
    /// Gradient that reaches the block's input past the block.
    pub past: Tensor,
}
