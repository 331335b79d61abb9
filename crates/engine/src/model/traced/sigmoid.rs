//! 1 / (1 + exp(-x)) of small tensors, in plain tensor ops.

use candle_core::Result;

use super::{Tensor, bytes};
use peft_tune_core::predict::MemoryCategory;

/// y, (T,) F32.
pub(in crate::model) fn forward(x: &Tensor) -> Result<Tensor> {
    if let Some(paper) = x.paper() {
        let y = paper.alike();
        // Three results of four are there at once.
        paper.ledger().spike(MemoryCategory::Scratch, 2 * bytes(x));
        return Ok(y.into());
    }
    Ok((x.real()?.neg()?.exp()? + 1.0)?.recip()?.into())
}

/// The gradient of x, dy y (1 - y).
pub(in crate::model) fn backward(y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    if let Some(paper) = y.paper() {
        let dx = paper.alike();
        paper.ledger().spike(MemoryCategory::Scratch, bytes(y));
        return Ok(dx.into());
    }
    let y = y.real()?;
    Ok((dy.real()? * (y * (1.0 - y)?)?)?.into())
}
