//! The input of linear layers that share it, as their adapters see it.

use candle_core::Result;

use super::adapter_pass::AdapterPass;
use super::parameter::Trained;
use crate::tensor::Tensor;

/// The input side of an adapter.
#[derive(Clone, Debug)]
pub(super) struct AdapterInput {
    /// (r, in)
    pub a: Trained,
    /// Number of the adapter in the model; tells its dropout masks from the others'.
    pub number: u64,
}

/// The input of a group in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupInput<'a> {
    pub x: &'a Tensor,
    pub adapters: &'a [AdapterInput],
    pub pass: &'a AdapterPass,
}

impl GroupInput<'_> {
    /// Tensor that adapter `index` is multiplied with.
    pub(super) fn dropped(&self, index: usize) -> Result<Tensor> {
        self.adapters[index].drop(self.x, self.pass)
    }
}

impl AdapterInput {
    /// Dropout of this adapter, of its input or of a gradient with respect to it.
    pub(super) fn drop(&self, x: &Tensor, pass: &AdapterPass) -> Result<Tensor> {
        match &pass.dropout {
            Some(key) => key.apply(x, self.number),
            None => Ok(x.clone()),
        }
    }
}
