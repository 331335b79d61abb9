//! RMS norm with a weight that may be trained.

use candle_core::{Result, Tensor};

use super::parameter::BaseParameter;
use super::traced::rms_norm;
use crate::span;
use crate::span::Module;

/// One RMS norm over the last dimension.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub weight: BaseParameter,
    pub epsilon: f64,
    /// Added to the weight: 1 for Gemma.
    pub offset: f32,
}

impl Norm {
    /// (y, rstd) of x (rows, features); rstd is (rows,) F32.
    pub(super) fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let _span = span::module(Module::Norm);
        rms_norm::forward(x, &self.weight.to_dtype(x.dtype())?, self.epsilon, self.offset)
    }

    /// dx; adds the weight's gradient where it is trained.
    pub(super) fn backward(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = span::module(Module::Norm);
        self.add_weight_gradient(x, rstd, dy)?;
        rms_norm::backward(x, &self.weight.to_dtype(x.dtype())?, rstd, dy, self.offset)
    }

    /// As [`Norm::backward`], plus `more`, the gradient that reaches x on the residual stream.
    pub(super) fn backward_onto(&self, more: &Tensor, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = span::module(Module::Norm);
        self.add_weight_gradient(x, rstd, dy)?;
        let weight = self.weight.to_dtype(x.dtype())?;
        rms_norm::backward_onto(x, &weight, rstd, dy, self.offset, Some(more))
    }

    /// Adds the weight's gradient alone, where nothing below needs dx.
    pub(super) fn add_weight_gradient(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<()> {
        match self.weight.trained() {
            Some(trained) => trained.add_gradient(&rms_norm::weight_gradient(x, rstd, dy)?),
            None => Ok(()),
        }
    }

    /// [`Norm::forward`] on every head of x (T, heads, d).
    pub(super) fn forward_heads(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (tokens, heads, head_dim) = x.dims3()?;
        let (y, rstd) = self.forward(&x.reshape((tokens * heads, head_dim))?)?;
        Ok((y.reshape((tokens, heads, head_dim))?, rstd))
    }

    /// [`Norm::backward`] on every head of x (T, heads, d).
    pub(super) fn backward_heads(&self, x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let (tokens, heads, head_dim) = x.dims3()?;
        let rows = (tokens * heads, head_dim);
        let dx = self.backward(&x.reshape(rows)?, rstd, &dy.reshape(rows)?)?;
        dx.reshape((tokens, heads, head_dim))
    }
}
