//! The tensor that a model computes with: real, or on paper, where it has a shape and bytes and no values.
//!
//! A model is written once over [`Tensor`] and run twice: on tensors of candle, and on paper. There an op says what its result is, and
//! what it takes besides; the [`Ledger`] gets the bytes of a tensor back when its last view is dropped. Weights and parameters are
//! candle's on paper too: one value that is broadcast to the shape of the weight, so that they have everything but memory.

mod activation;
mod ledger;
mod paper;

pub(crate) use activation::{Order, Tensor};
pub(crate) use ledger::Ledger;
pub(crate) use paper::PaperTensor;

use candle_core::{DType, Device, Result, Shape};

/// A weight or a parameter on paper: one zero that is broadcast to `shape`.
pub(crate) fn on_paper(shape: impl Into<Shape>, dtype: DType) -> Result<candle_core::Tensor> {
    candle_core::Tensor::zeros((), dtype, &Device::Cpu)?.broadcast_as(shape)
}
