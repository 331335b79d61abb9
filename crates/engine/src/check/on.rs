//! Device and dtype that an op is checked on.

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_kernels::compare::pair;

/// Device and dtype that the op runs on.
pub(super) struct On<'a> {
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
}

impl On<'_> {
    pub(super) fn pair(&self, shape: &[usize], seed: u64) -> Result<(Tensor, Tensor)> {
        pair(shape, seed, 2.0, self.dtype, self.device)
    }
}
