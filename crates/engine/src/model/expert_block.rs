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
use super::branches::{BranchedBlock, Branches};
use super::experts::GateUp;
use super::linear::{LinearGroup, expect_gradient};
use super::norm::Norm;
use super::routed_experts::RoutedExperts;
use super::saved::ExpertsSaved;
use super::shared_expert::SharedExpert;
use super::traced::{residual, routing, rows};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// x + experts(norm(x)) + shared(norm(x))
#[derive(Debug)]
pub(super) struct ExpertBlock {
    pub norm: Norm,
    pub routed: RoutedExperts,
    pub shared: Option<SharedExpert>,
    /// The shared expert and the others have norms of their own; `norm` is the shared one's then.
    pub branches: Option<Branches>,
}

impl ExpertBlock {
    /// Groups of linear layers in the block.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        let mut groups = vec![&self.routed.router];
        if let Some(shared) = &self.shared {
            groups.extend(shared.gate.iter().chain([&shared.projections, &shared.down]));
        }
        groups
    }

    /// The block as branches, where it has them.
    fn branched(&self) -> Option<BranchedBlock<'_>> {
        Some(BranchedBlock {
            norm: &self.norm,
            branches: self.branches.as_ref()?,
            shared: self.shared.as_ref()?,
            routed: &self.routed,
        })
    }

    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, ExpertsSaved)> {
        let _span = span::module(Module::Mlp);
        if let Some(branched) = self.branched() {
            return branched.forward(x, stream);
        }
        let (mut saved, z, inner) = self.forward_inner(x, stream)?;
        let routing = &saved.routing;
        saved.down_xa = self.routed.experts.down_xa(&z, &routing.offsets)?;
        let outputs = self.routed.experts.down(&z, saved.down_xa.as_ref(), &routing.offsets)?;
        self.routed
            .experts
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
        saved.down_xa = self.routed.experts.down_xa(&z, &saved.routing.offsets)?;
        drop(z);
        if let (Some(shared), Some(inner), Some(kept)) = (&self.shared, inner, &mut saved.shared) {
            kept.down_xa = shared.down.recompute(&inner, &stream.pass)?;
        }
        Ok(saved)
    }

    /// Tensors kept up to what the last products read, and these inputs: z (R, I), and the shared expert's (T, I_s).
    fn forward_inner(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(ExpertsSaved, Tensor, Option<Tensor>)> {
        let (normed, rstd) = self.norm.forward(x)?;
        let (logits, router_xa) = self
            .routed
            .router
            .forward(&normed.to_dtype(DType::F32)?, &stream.pass)?;
        let routing = self.routed.route(&logits)?;
        drop(logits);
        let of_rows = self.routed.inputs(&normed, &routing)?;
        let GateUp { gate, up, xa } = self.routed.experts.gate_up(&of_rows, &routing.offsets)?;
        drop(of_rows);
        let z = self.routed.unit(&gate, &up)?;
        if !self.routed.weighs_input {
            rows::scale(&z, &routing.weights)?;
        }
        let (shared, inner) = match &self.shared {
            Some(shared) => {
                let (saved, inner) = shared.forward(&normed, self.routed.activation, stream)?;
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
        if let Some(branched) = self.branched() {
            return branched.backward(saved, input, dy, stream);
        }
        let routing = &saved.routing;
        let (d_gate, d_up, d_weights) = self.routed.backward_down(&saved, &dy, routing.weights.clone())?;
        let (gate_up_xa, router_xa) = (saved.gate_up_xa, saved.router_xa);
        drop((saved.gate, saved.up, saved.down_xa));
        let x = saved.x.map_or_else(input, Ok)?;
        let normed = self.norm.forward(&x)?.0;
        let of_rows = || self.routed.inputs(&normed, routing);
        let d_rows =
            self.routed
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
            routing::backward(routing, &d_weights, &self.routed.settings)?
        };
        drop(d_weights);
        let wide = || normed.to_dtype(DType::F32);
        let pass = &stream.pass;
        let d_routed = self
            .routed
            .router
            .backward(wide, &router_xa, vec![d_logits], pass, true)?;
        d_normed = residual::add(&d_normed, &expect_gradient(d_routed)?.to_dtype(d_normed.dtype())?)?;
        if let (Some(shared), Some(saved)) = (&self.shared, saved.shared) {
            let d_shared = shared.backward(saved, &normed, &dy, self.routed.activation, stream)?;
            d_normed = residual::add(&d_normed, &d_shared)?;
        }
        drop(normed);
        self.norm.backward_onto(&dy, &x, &saved.rstd, &d_normed)
    }
}
