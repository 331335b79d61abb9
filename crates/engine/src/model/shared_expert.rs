//! The expert of a mixture that every token goes through.
//!
//! down(σ(g n) act(gate) up), where g is the linear layer with one logit for each token.

use candle_core::{DType, Result};

use super::Stream;
use super::linear::{LinearGroup, expect_gradient, only};
use super::saved::SharedSaved;
use super::traced::{glu, residual, rows, sigmoid};
use crate::tensor::Tensor;

/// The expert that every token goes through.
#[derive(Debug)]
pub(super) struct SharedExpert {
    /// Linear layer with one logit for each token.
    pub gate: Option<LinearGroup>,
    /// gate and up.
    pub projections: LinearGroup,
    pub down: LinearGroup,
}

impl SharedExpert {
    /// Tensors that are kept, and the input of down, (T, I_s).
    pub(super) fn forward(
        &self,
        normed: &Tensor,
        activation: glu::Activation,
        stream: &Stream<'_>,
    ) -> Result<(SharedSaved, Tensor)> {
        let pass = &stream.pass;
        let (projected, input_xa) = self.projections.forward(normed, pass)?;
        let [gate, up] = <[Tensor; 2]>::try_from(projected).map_err(|other| {
            candle_core::Error::Msg(format!("shared expert: {} projections instead of two", other.len()))
        })?;
        let inner = glu::forward(&gate, &up, activation)?;
        let (mut scale, mut scale_xa) = (None, Vec::new());
        if let Some(group) = &self.gate {
            let (logits, xa) = group.forward(normed, pass)?;
            let value = sigmoid::forward(&only(&logits)?.flatten_all()?.to_dtype(DType::F32)?)?;
            rows::scale(&inner, &value)?;
            (scale, scale_xa) = (Some(value), xa);
        }
        let saved = SharedSaved {
            gate,
            up,
            input_xa,
            scale,
            scale_xa,
            down_xa: Vec::new(),
        };
        Ok((saved, inner))
    }

    /// The gradient of the normed input, (T, H); adds all gradients of the expert.
    pub(super) fn backward(
        &self,
        saved: SharedSaved,
        normed: &Tensor,
        dy: &Tensor,
        activation: glu::Activation,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let pass = &stream.pass;
        let inner = || {
            let inner = glu::forward(&saved.gate, &saved.up, activation)?;
            if let Some(scale) = &saved.scale {
                rows::scale(&inner, scale)?;
            }
            Ok(inner)
        };
        let d_inner = self
            .down
            .backward(inner, &saved.down_xa, vec![dy.clone()], pass, true)?;
        let d_inner = expect_gradient(d_inner)?;
        let d_scale = match &saved.scale {
            Some(scale) => {
                let d_scale = rows::dot(&d_inner, &glu::forward(&saved.gate, &saved.up, activation)?)?;
                rows::scale(&d_inner, scale)?;
                Some(sigmoid::backward(scale, &d_scale)?)
            }
            None => None,
        };
        let (d_gate, d_up) = glu::backward(saved.gate, &saved.up, d_inner, activation)?;
        let input = || Ok(normed.clone());
        let d_normed = self
            .projections
            .backward(input, &saved.input_xa, vec![d_gate, d_up], pass, true)?;
        let d_normed = expect_gradient(d_normed)?;
        let (Some(group), Some(d_scale)) = (&self.gate, d_scale) else {
            return Ok(d_normed);
        };
        let d_logit = d_scale.to_dtype(normed.dtype())?.unsqueeze(1)?;
        let more = group.backward(input, &saved.scale_xa, vec![d_logit], pass, true)?;
        residual::add(&d_normed, &expect_gradient(more)?)
    }
}
