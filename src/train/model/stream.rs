//! A micro-batch on the device.

use candle_core::{Device, Result, Tensor};

use super::DropoutKey;
use crate::train::data::MicroBatch;

/// What all layers need beside the activations.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    pub batch: &'a MicroBatch,
    /// (T,) U32
    pub ids: Tensor,
    /// (T,) U32
    pub positions: Tensor,
    /// Absent in evaluation, and where the dropout is 0.
    pub dropout: Option<DropoutKey>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(batch: &'a MicroBatch, dropout: Option<DropoutKey>, device: &Device) -> Result<Self> {
        let tokens = batch.tokens();
        Ok(Self {
            batch,
            ids: Tensor::from_slice(&batch.input_ids, tokens, device)?,
            positions: Tensor::from_slice(&batch.positions, tokens, device)?,
            dropout,
        })
    }
}
