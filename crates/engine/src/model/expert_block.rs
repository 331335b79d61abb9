//! The mixture half of a decoder layer: norm, router, the experts of each token, the shared expert, residual.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | n | (T, H) | norm(x) |
//! | w, tokens, rows | (R,), (R,), (T, k) | a [`routing::Routing`]: weight and token of each row, rows of each token |
//! | z | (R, I) | w act(gate) up, what down reads |
//!
//! y = x + sum of each token's rows of down(z) + shared_down(σ(g n) act(shared_gate) shared_up). A weight is multiplied before down and not
//! behind it, which is the same but for the rounding: the gradient of w is then the sum over a row of dz act(gate) up, and outputs
//! of experts need not be kept.
//!
//! Llama 4 weights what an expert reads instead: z is then act(gate) up of gate and up of w n, and the gradient of w the sum over a
//! row of its gradient and n.
//!
//! The router is F32 whatever the rest is. Its rows may differ by less than a rounded logit tells apart.

use candle_core::{DType, Result};

use super::Stream;
use super::branches::Branches;
use super::experts::{Experts, GateUp};
use super::linear::{LinearGroup, expect_gradient, only};
use super::norm::Norm;
use super::saved::{ExpertsSaved, SharedSaved};
use super::traced::{clamped_glu, glu, residual, routing, rows, sigmoid};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// x + experts(norm(x)) + shared(norm(x))
#[derive(Debug)]
pub(super) struct ExpertBlock {
    pub norm: Norm,
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
    pub shared: Option<SharedExpert>,
    /// The shared expert and the others have norms of their own; `norm` is the shared one's then.
    pub branches: Option<Branches>,
}

/// The expert that every token goes through.
#[derive(Debug)]
pub(super) struct SharedExpert {
    /// Linear layer with one logit for each token.
    pub gate: Option<LinearGroup>,
    /// gate and up.
    pub projections: LinearGroup,
    pub down: LinearGroup,
}

impl ExpertBlock {
    /// Groups of linear layers in the block.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        let mut groups = vec![&self.router];
        if let Some(shared) = &self.shared {
            groups.extend(shared.gate.iter().chain([&shared.projections, &shared.down]));
        }
        groups
    }

    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, ExpertsSaved)> {
        let _span = span::module(Module::Mlp);
        if let (Some(branches), Some(shared)) = (&self.branches, &self.shared) {
            return self.forward_branches(x, branches, shared, stream);
        }
        let (mut saved, z, inner) = self.forward_inner(x, stream)?;
        let routing = &saved.routing;
        saved.down_xa = self.experts.down_xa(&z, &routing.offsets)?;
        let outputs = self.experts.down(&z, saved.down_xa.as_ref(), &routing.offsets)?;
        self.experts
            .add_down_biases(&outputs, &routing.offsets, &routing.weights)?;
        drop(z);
        let mut y = rows::sum(Some(x), &outputs, &routing.rows)?;
        drop(outputs);
        if let (Some(shared), Some(inner), Some(kept)) = (&self.shared, inner, &mut saved.shared) {
            (y, kept.down_xa) = shared.down.forward_onto(&y, &inner, &stream.pass)?;
        }
        Ok((y, saved))
    }

    /// What [`ExpertBlock::forward`] keeps, without the output.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>) -> Result<ExpertsSaved> {
        let _span = span::module(Module::Mlp);
        if self.branches.is_some() {
            // The norms behind read all outputs.
            return Ok(self.forward(x, stream)?.1);
        }
        let (mut saved, z, inner) = self.forward_inner(x, stream)?;
        saved.down_xa = self.experts.down_xa(&z, &saved.routing.offsets)?;
        drop(z);
        if let (Some(shared), Some(inner), Some(kept)) = (&self.shared, inner, &mut saved.shared) {
            kept.down_xa = shared.down.recompute(&inner, &stream.pass)?;
        }
        Ok(saved)
    }

    /// Tensors kept up to what the last products read, and these inputs: z (R, I), and the shared expert's (T, I_s).
    fn forward_inner(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(ExpertsSaved, Tensor, Option<Tensor>)> {
        let (normed, rstd) = self.norm.forward(x)?;
        let (logits, router_xa) = self.router.forward(&normed.to_dtype(DType::F32)?, &stream.pass)?;
        let routing = {
            let _span = span::module(Module::Router);
            routing::forward(only(&logits)?, self.correction.as_ref(), &self.settings)?
        };
        drop(logits);
        let of_rows = self.inputs(&normed, &routing)?;
        let GateUp { gate, up, xa } = self.experts.gate_up(&of_rows, &routing.offsets)?;
        drop(of_rows);
        let z = self.unit(&gate, &up)?;
        if !self.weighs_input {
            rows::scale(&z, &routing.weights)?;
        }
        let (shared, inner) = match &self.shared {
            Some(shared) => {
                let (saved, inner) = shared.forward(&normed, self.activation, stream)?;
                (Some(saved), Some(inner))
            }
            None => (None, None),
        };
        let saved = ExpertsSaved {
            x: Some(x.clone()),
            rstd,
            routing,
            router_xa,
            gate,
            up,
            gate_up_xa: xa,
            down_xa: None,
            shared,
            branches: None,
        };
        Ok((saved, z, inner))
    }

    /// The gradient with respect to the block's input; adds all gradients of the block. `input` makes that input again where it was
    /// not saved.
    pub(super) fn backward(
        &self,
        saved: ExpertsSaved,
        input: impl FnOnce() -> Result<Tensor>,
        dy: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let _span = span::module(Module::Mlp);
        if let (Some(branches), Some(shared)) = (&self.branches, &self.shared) {
            return self.backward_branches(saved, input, (dy, stream), (branches, shared));
        }
        let routing = &saved.routing;
        let (d_gate, d_up, d_weights) = self.backward_down(&saved, &dy)?;
        let (gate_up_xa, router_xa) = (saved.gate_up_xa, saved.router_xa);
        drop((saved.gate, saved.up, saved.down_xa));
        let x = saved.x.map_or_else(input, Ok)?;
        let normed = self.norm.forward(&x)?.0;
        let of_rows = || self.inputs(&normed, routing);
        let d_rows = self
            .experts
            .gate_up_backward(of_rows, [&d_gate, &d_up], gate_up_xa.as_ref(), &routing.offsets)?;
        drop((d_gate, d_up, gate_up_xa));
        let d_weights = match d_weights {
            Some(d_weights) => d_weights,
            None => {
                let d_weights = rows::dot(&d_rows, &rows::gather(&normed, &routing.tokens)?)?;
                rows::scale(&d_rows, &routing.weights)?;
                d_weights
            }
        };
        let mut d_normed = rows::sum(None, &d_rows, &routing.rows)?;
        drop(d_rows);
        let d_logits = {
            let _span = span::module(Module::Router);
            routing::backward(routing, &d_weights, &self.settings)?
        };
        drop(d_weights);
        let wide = || normed.to_dtype(DType::F32);
        let pass = &stream.pass;
        let d_routed = self.router.backward(wide, &router_xa, vec![d_logits], pass, true)?;
        d_normed = residual::add(&d_normed, &expect_gradient(d_routed)?.to_dtype(d_normed.dtype())?)?;
        if let (Some(shared), Some(saved)) = (&self.shared, saved.shared) {
            let d_shared = shared.backward(saved, &normed, &dy, self.activation, stream)?;
            d_normed = residual::add(&d_normed, &d_shared)?;
        }
        drop(normed);
        self.norm.backward_onto(&dy, &x, &saved.rstd, &d_normed)
    }

    /// Input of the experts, (R, H).
    pub(super) fn inputs(&self, normed: &Tensor, routing: &routing::Routing) -> Result<Tensor> {
        let of_rows = rows::gather(normed, &routing.tokens)?;
        if self.weighs_input {
            rows::scale(&of_rows, &routing.weights)?;
        }
        Ok(of_rows)
    }

    /// The weight of each row, with its expert's factor where experts have some.
    pub(super) fn row_weights(&self, routing: &routing::Routing) -> Result<Tensor> {
        match &self.branches {
            Some(branches) => branches.times_factors(&routing.weights, routing),
            None => Ok(routing.weights.clone()),
        }
    }

    /// Combines the outputs of gate and up.
    pub(super) fn unit(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self.limit {
            Some(limit) => clamped_glu::forward(gate, up, limit),
            None => glu::forward(gate, up, self.activation),
        }
    }

    /// The gradients of gate and up, (R, I) each, and of the weights, (R,) F32, where they are factors here; adds all gradients of
    /// down.
    pub(super) fn backward_down(&self, saved: &ExpertsSaved, dy: &Tensor) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let routing = &saved.routing;
        let weights = self.row_weights(routing)?;
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
