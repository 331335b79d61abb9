//! The router of a mixture and the experts of each token, between what they read and the sum of their rows.

use candle_core::Result;

use super::experts::Experts;
use super::linear::{LinearGroup, only};
use super::saved::ExpertsSaved;
use super::traced::{clamped_glu, glu, routing, rows};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Router and experts.
#[derive(Debug)]
pub(super) struct RoutedExperts {
    pub router: LinearGroup,
    /// (E,) F32, added to the scores to choose by.
    pub correction: Option<candle_core::Tensor>,
    pub settings: routing::Settings,
    pub experts: Experts,
    pub activation: glu::Activation,
    /// The experts' own unit clamps gate and up here, and takes the place of the activation.
    pub limit: Option<f32>,
    /// Whether weights are factors on what experts read, and not on what down reads.
    pub weighs_input: bool,
}

impl RoutedExperts {
    /// The experts of each token, by the router's only output.
    pub(super) fn route(&self, logits: &[Tensor]) -> Result<routing::Routing> {
        let _span = span::module(Module::Router);
        routing::forward(only(logits)?, self.correction.as_ref(), &self.settings)
    }

    /// Input of the experts, (R, H).
    pub(super) fn inputs(&self, normed: &Tensor, routing: &routing::Routing) -> Result<Tensor> {
        let of_rows = rows::gather(normed, &routing.tokens)?;
        if self.weighs_input {
            rows::scale(&of_rows, &routing.weights)?;
        }
        Ok(of_rows)
    }

    /// Combines the outputs of gate and up.
    pub(super) fn unit(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self.limit {
            Some(limit) => clamped_glu::forward(gate, up, limit),
            None => glu::forward(gate, up, self.activation),
        }
    }

    /// The gradients of gate and up, (R, I) each, and of the weights, (R,) F32, where they are factors here; adds all gradients of
    /// down. `weights` are the factors of the forward pass.
    pub(super) fn backward_down(
        &self,
        saved: &ExpertsSaved,
        dy: &Tensor,
        weights: Tensor,
    ) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let routing = &saved.routing;
        let dy = rows::gather(dy, &routing.tokens)?;
        let (dz, d_xa) = self
            .experts
            .down_backward(&dy, saved.down_xa.as_ref(), &routing.offsets)?;
        let z = self.unit(&saved.gate, &saved.up)?;
        let mut d_weights = None;
        if !self.weighs_input {
            let mut of_rows = rows::dot(&dz, &z)?;
            if let Some(more) = self.experts.bias_weight_gradients(&dy, &routing.offsets)? {
                of_rows = of_rows.plus(&more)?;
            }
            d_weights = Some(of_rows);
            rows::scale(&z, &weights)?;
        }
        self.experts
            .add_down_gradients(&z, &dy, d_xa.as_ref(), &routing.offsets)?;
        drop((z, dy, d_xa));
        if !self.weighs_input {
            rows::scale(&dz, &weights)?;
        }
        let (d_gate, d_up) = match self.limit {
            Some(limit) => clamped_glu::backward(&saved.gate, &saved.up, &dz, limit)?,
            None => glu::backward(saved.gate.clone(), &saved.up, dz, self.activation)?,
        };
        Ok((d_gate, d_up, d_weights))
    }
}
