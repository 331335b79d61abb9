//! The MLP half of a decoder layer: norm, gate and up, activation, down, residual.

use candle_core::{Result, Tensor};

use super::Stream;
use super::attention_block::{backward_behind, forward_out};
use super::linear::LinearGroup;
use super::norm::Norm;
use super::saved::MlpSaved;
use super::traced::glu;
use crate::span;
use crate::span::Module;

/// x + norm_behind(down(act(gate(norm(x))) * up(norm(x))))
#[derive(Debug)]
pub(super) struct MlpBlock {
    pub norm: Norm,
    /// gate and up.
    pub projections: LinearGroup,
    pub activation: glu::Activation,
    pub down: LinearGroup,
    pub norm_behind: Option<Norm>,
}

impl MlpBlock {
    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, MlpSaved)> {
        let _span = span::module(Module::Mlp);
        let (mut saved, inner) = self.forward_inner(x, stream)?;
        let (y, down_xa, behind) = forward_out(
            &self.down,
            self.norm_behind.as_ref(),
            x,
            &inner,
            stream.dropout.as_ref(),
        )?;
        (saved.down_xa, saved.behind) = (down_xa, behind);
        Ok((y, saved))
    }

    /// What [`MlpBlock::forward`] keeps, without the output: the product with down, a quarter of a layer's, is left out
    /// where no norm behind it needs its result.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>) -> Result<MlpSaved> {
        if self.norm_behind.is_some() {
            return Ok(self.forward(x, stream)?.1);
        }
        let _span = span::module(Module::Mlp);
        let (mut saved, inner) = self.forward_inner(x, stream)?;
        saved.down_xa = self.down.recompute(&inner, stream.dropout.as_ref())?;
        Ok(saved)
    }

    /// What is kept up to the activation's output, and that output (T, I).
    fn forward_inner(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(MlpSaved, Tensor)> {
        let (normed, rstd) = self.norm.forward(x)?;
        let (projected, input_xa) = self.projections.forward(&normed, stream.dropout.as_ref())?;
        drop(normed);
        let [gate, up] = <[Tensor; 2]>::try_from(projected)
            .map_err(|other| candle_core::Error::Msg(format!("mlp: {} projections instead of two", other.len())))?;
        let inner = glu::forward(&gate, &up, self.activation)?;
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

    /// The gradient with respect to the block's input; adds all gradients of the block. `input` makes that input again
    /// where it was not saved.
    pub(super) fn backward(
        &self,
        saved: MlpSaved,
        input: impl FnOnce() -> Result<Tensor>,
        dy: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let _span = span::module(Module::Mlp);
        let dropout = stream.dropout.as_ref();
        let d_down = backward_behind(self.norm_behind.as_ref(), saved.behind, &dy)?;
        let inner = || glu::forward(&saved.gate, &saved.up, self.activation);
        let d_inner = self.down.backward(inner, &saved.down_xa, vec![d_down], dropout, true)?;
        drop(saved.down_xa);
        let d_inner = expect_gradient(d_inner)?;
        let (d_gate, d_up) = glu::backward(saved.gate, &saved.up, d_inner, self.activation)?;
        drop(saved.up);
        let x = saved.x.map_or_else(input, Ok)?;
        let normed = || Ok(self.norm.forward(&x)?.0);
        let d_normed = self
            .projections
            .backward(normed, &saved.input_xa, vec![d_gate, d_up], dropout, true)?;
        self.norm
            .backward_onto(&dy, &x, &saved.rstd, &expect_gradient(d_normed)?)
    }
}

fn expect_gradient(dx: Option<Tensor>) -> Result<Tensor> {
    dx.ok_or_else(|| candle_core::Error::Msg("a linear group without projections has no gradient".into()))
}
