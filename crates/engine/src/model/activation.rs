//! The activation of the MLP: of a gate that is multiplied with up, or of up alone.

use candle_core::Result;

use super::traced::{glu, xielu};
use crate::tensor::Tensor;

/// Function between an MLP's first layers and its last.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activation {
    /// act(gate) up
    Gated(glu::Activation),
    /// xielu(up), with the numbers of the layer.
    Xielu(xielu::Curve),
}

impl Activation {
    /// The gate, where there is one, and up.
    pub(super) fn split(&self, projected: Vec<Tensor>) -> Result<(Option<Tensor>, Tensor)> {
        let mut projected = projected.into_iter();
        match (self, projected.next(), projected.next()) {
            (Self::Gated(_), Some(gate), Some(up)) => Ok((Some(gate), up)),
            (Self::Xielu(_), Some(up), None) => Ok((None, up)),
            _ => candle_core::bail!("mlp: the activation does not fit the number of projections"),
        }
    }

    /// (T, I), which down reads.
    pub(super) fn forward(&self, gate: Option<&Tensor>, up: &Tensor) -> Result<Tensor> {
        match (self, gate) {
            (Self::Gated(activation), Some(gate)) => glu::forward(gate, up, *activation),
            (Self::Gated(_), None) => candle_core::bail!("mlp: no gate"),
            (Self::Xielu(curve), _) => xielu::forward(up, *curve),
        }
    }

    /// The gradients of the gate, where there is one, and of up.
    pub(super) fn backward(&self, gate: Option<Tensor>, up: &Tensor, dy: Tensor) -> Result<Vec<Tensor>> {
        match (self, gate) {
            (Self::Gated(activation), Some(gate)) => {
                let (d_gate, d_up) = glu::backward(gate, up, dy, *activation)?;
                Ok(vec![d_gate, d_up])
            }
            (Self::Gated(_), None) => candle_core::bail!("mlp: no gate"),
            (Self::Xielu(curve), _) => Ok(vec![xielu::backward(up, &dy, *curve)?]),
        }
    }
}
