//! RMS norm with a weight that may be trained, and LayerNorm: an RMS norm of rows without their mean.

use candle_core::Result;

use super::parameter::BaseParameter;
use super::traced::{centre, residual, rms_norm};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// One norm over the last dimension.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub weight: BaseParameter,
    pub epsilon: f64,
    /// Offset of the weight: 1 for Gemma.
    pub offset: f32,
    /// Whether rows lose their mean first.
    pub centred: bool,
}

impl Norm {
    /// (y, rstd) of x (rows, features); rstd is (rows,) F32.
    pub(super) fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let _span = span::module(Module::Norms);
        if self.centred {
            let x = centre::rows(x)?;
            return rms_norm::forward(&x, &self.weight.to_dtype(x.dtype())?, self.epsilon, self.offset);
        }
        rms_norm::forward(x, &self.weight.to_dtype(x.dtype())?, self.epsilon, self.offset)
    }

    /// dx; adds the weight's gradient where it is trained.
    pub(super) fn backward(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = span::module(Module::Norms);
        if self.centred {
            return self.backward_centred(x, rstd, dy);
        }
        self.add_weight_gradient(x, rstd, dy)?;
        rms_norm::backward(x, &self.weight.to_dtype(x.dtype())?, rstd, dy, self.offset)
    }

    /// Gradient of [`Norm::backward`] plus `more`, the gradient that reaches x on the residual stream.
    pub(super) fn backward_onto(&self, more: &Tensor, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = span::module(Module::Norms);
        if self.centred {
            return residual::add(more, &self.backward_centred(x, rstd, dy)?);
        }
        self.add_weight_gradient(x, rstd, dy)?;
        let weight = self.weight.to_dtype(x.dtype())?;
        rms_norm::backward_onto(x, &weight, rstd, dy, self.offset, Some(more))
    }

    /// The mean is taken from the gradient as it was from x.
    fn backward_centred(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        self.add_weight_gradient(x, rstd, dy)?;
        let (centred, weight) = (centre::rows(x)?, self.weight.to_dtype(x.dtype())?);
        let dx = rms_norm::backward(&centred, &weight, rstd, dy, self.offset)?;
        drop(centred);
        centre::rows(&dx)
    }

    /// Adds the weight's gradient alone, where nothing below needs dx.
    pub(super) fn add_weight_gradient(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<()> {
        match self.weight.trained() {
            Some(trained) if self.centred => {
                trained.add_gradient(&rms_norm::weight_gradient(&centre::rows(x)?, rstd, dy)?)
            }
            Some(trained) => trained.add_gradient(&rms_norm::weight_gradient(x, rstd, dy)?),
            None => Ok(()),
        }
    }

    /// [`Norm::forward`] on every head of x (T, heads, d), or on all of a token at once where the weight is as wide.
    pub(super) fn forward_heads(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, rstd) = self.forward(&x.reshape(((), self.width()?))?)?;
        Ok((y.reshape(x.shape())?, rstd))
    }

    /// [`Norm::backward`] of [`Norm::forward_heads`].
    pub(super) fn backward_heads(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let rows = ((), self.width()?);
        let dx = self.backward(&x.reshape(rows)?, rstd, &dy.reshape(rows)?)?;
        dx.reshape(x.shape())
    }

    fn width(&self) -> Result<usize> {
        self.weight.value().dims1()
    }
}
