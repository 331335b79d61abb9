//! The end of a block: what its last layer gives, through a norm or times a factor, onto the residual stream.

use candle_core::Result;

use super::AdapterPass;
use super::linear::LinearGroup;
use super::norm::Norm;
use super::saved::NormSaved;
use super::traced::residual;
use crate::tensor::Tensor;

/// x + s norm(out(inner)), with the norm and the factor s where there are any.
#[derive(Debug)]
pub(super) struct BlockEnd {
    pub out: LinearGroup,
    pub norm: Option<Norm>,
    pub scale: Option<f64>,
}

impl BlockEnd {
    /// The stream behind the block; with xa of the layer and what the norm keeps.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        inner: &Tensor,
        pass: &AdapterPass,
    ) -> Result<(Tensor, Vec<Tensor>, Option<NormSaved>)> {
        if self.norm.is_none() && self.scale.is_none() {
            let (y, xa) = self.out.forward_onto(x, inner, pass)?;
            return Ok((y, xa, None));
        }
        let (mut outputs, xa) = self.out.forward(inner, pass)?;
        let output = outputs.remove(0);
        let Some(norm) = &self.norm else {
            return Ok((self.sum(x, &output)?, xa, None));
        };
        let (normed, rstd) = norm.forward(&output)?;
        let behind = NormSaved { x: output, rstd };
        Ok((self.sum(x, &normed)?, xa, Some(behind)))
    }

    /// The stream behind the block, made again to the same bits from what [`BlockEnd::forward`] kept.
    pub(super) fn recompute(
        &self,
        x: &Tensor,
        inner: impl FnOnce() -> Result<Tensor>,
        xa: &[Tensor],
        behind: Option<&NormSaved>,
        pass: &AdapterPass,
    ) -> Result<Tensor> {
        if let (Some(norm), Some(behind)) = (&self.norm, behind) {
            return self.sum(x, &norm.forward(&behind.x)?.0);
        }
        match self.scale {
            None => self.out.recompute_output(Some(x), &inner()?, xa, pass),
            Some(_) => self.sum(x, &self.out.recompute_output(None, &inner()?, xa, pass)?),
        }
    }

    /// The gradient of the last layer's output.
    pub(super) fn backward(&self, saved: Option<NormSaved>, dy: &Tensor) -> Result<Tensor> {
        let scaled = match self.scale {
            Some(scale) => residual::scale(dy, scale)?,
            None => dy.clone(),
        };
        match (&self.norm, saved) {
            (Some(norm), Some(saved)) => norm.backward(&saved.x, &saved.rstd, &scaled),
            _ => Ok(scaled),
        }
    }

    fn sum(&self, x: &Tensor, branch: &Tensor) -> Result<Tensor> {
        match self.scale {
            Some(scale) => residual::add_scaled(x, branch, scale),
            None => residual::add(x, branch),
        }
    }
}
