//! The MLP half of a decoder layer: norm, gate and up, activation, down, residual.

use candle_core::Result;

use super::Stream;
use super::activation::Activation;
use super::block_end::BlockEnd;
use super::linear::{LinearGroup, expect_gradient};
use super::norm::Norm;
use super::norm_before::{Before, forward_before};
use super::saved::MlpSaved;
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// onto + end(act(gate(norm(x))) * up(norm(x)))
#[derive(Debug)]
pub(super) struct MlpBlock {
    /// Norm before the block; absent where it stands behind the block only.
    pub norm: Option<Norm>,
    /// gate, where there is one, and up.
    pub projections: LinearGroup,
    pub activation: Activation,
    pub end: BlockEnd,
}

impl MlpBlock {
    /// The stream behind the block, (T, H): `onto` and what the block makes of `x`; and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, onto: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, MlpSaved)> {
        let _span = span::module(Module::Mlp);
        let (mut saved, inner) = self.forward_inner(x, stream)?;
        let (y, down_xa, behind) = self.end.forward(onto, &inner, &stream.pass)?;
        (saved.down_xa, saved.behind) = (down_xa, behind);
        Ok((y, saved))
    }

    /// What [`MlpBlock::forward`] keeps, without the output: the product with down, a quarter of a layer's, is left out
    /// where no norm behind it needs its result.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>) -> Result<MlpSaved> {
        if self.end.norm.is_some() {
            return Ok(self.forward(x, x, stream)?.1);
        }
        let _span = span::module(Module::Mlp);
        let (mut saved, inner) = self.forward_inner(x, stream)?;
        saved.down_xa = self.end.out.recompute(&inner, &stream.pass)?;
        Ok(saved)
    }

    /// Tensors kept up to the activation's output, and that output (T, I).
    fn forward_inner(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(MlpSaved, Tensor)> {
        let (normed, rstd) = forward_before(self.norm.as_ref(), x)?;
        let (projected, input_xa) = self.projections.forward(&normed, &stream.pass)?;
        drop(normed);
        let (gate, up) = self.activation.split(projected)?;
        let inner = self.activation.forward(gate.as_ref(), &up)?;
        let saved = MlpSaved {
            x: Some(x.clone()),
            rstd,
            gate,
            up,
            input_xa,
            down_xa: Vec::new(),
            behind: None,
        };
        Ok((saved, inner))
    }

    /// The sum of dy and the gradient with respect to the block's input; adds all gradients of the block. `input` makes
    /// that input again where it was not saved.
    pub(super) fn backward(
        &self,
        saved: MlpSaved,
        input: impl FnOnce() -> Result<Tensor>,
        dy: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let _span = span::module(Module::Mlp);
        let pass = &stream.pass;
        let d_down = self.end.backward(saved.behind, &dy)?;
        let inner = || self.activation.forward(saved.gate.as_ref(), &saved.up);
        let out = &self.end.out;
        let d_inner = out.backward(inner, &saved.down_xa, vec![d_down], pass, true)?;
        drop(saved.down_xa);
        let d_inner = expect_gradient(d_inner)?;
        let d_projected = self.activation.backward(saved.gate, &saved.up, d_inner)?;
        drop(saved.up);
        let x = saved.x.map_or_else(input, Ok)?;
        let normed = || Ok(forward_before(self.norm.as_ref(), &x)?.0);
        let d_normed = self
            .projections
            .backward(normed, &saved.input_xa, d_projected, pass, true)?;
        let before = Before {
            norm: self.norm.as_ref(),
            x: &x,
            rstd: saved.rstd.as_ref(),
        };
        expect_gradient(before.backward(&dy, &expect_gradient(d_normed)?, true)?)
    }
}
