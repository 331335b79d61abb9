//! Experts beside the MLP of a layer, as branches with norms of their own: Gemma 4.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | n, n' | (T, H) | what the MLP reads, and what the experts read: two norms of x |
//! | a, b | (T, H) | what the MLP gives, and the sum of each token's experts |
//! | f | (E,) | factors on the weights of experts |
//!
//! y = x + norm(norm_1(a) + norm_2(b)). The router reads x in F32 through a third norm, whose weight is `router.scale` / sqrt(H). The
//! three norms of x divide by the same root, which is kept once. A row's weight is f w, with w as the router gave it.

use candle_core::{DType, Result};

use super::Stream;
use super::expert_block::{ExpertBlock, SharedExpert};
use super::experts::GateUp;
use super::linear::{expect_gradient, only};
use super::norm::Norm;
use super::saved::{BranchesSaved, ExpertsSaved, NormSaved};
use super::traced::{expert_parts, residual, routing, rows};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Norms and factors that branches have beside their products.
#[derive(Debug)]
pub(super) struct Branches {
    /// Norm of the router's input, in F32.
    pub router: Norm,
    /// f, (E, 1) F32
    pub factors: candle_core::Tensor,
    pub before_experts: Norm,
    /// Norms behind the MLP and behind the experts.
    pub behind: [Norm; 2],
    pub end: Norm,
}

impl Branches {
    /// `values` (R,), each times the factor of its row's expert.
    pub(super) fn times_factors(&self, values: &Tensor, routing: &routing::Routing) -> Result<Tensor> {
        let product = values.zeros((values.dims1()?, 1), DType::F32)?;
        expert_parts::add_of_experts(&product, &self.factors, &routing.offsets, Some(values))?;
        product.flatten_all()
    }

    /// Input of the router.
    fn routed(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.router.forward(&x.to_dtype(DType::F32)?)?.0)
    }

    /// The gradient of x, in its dtype, from that of what the router read.
    fn routed_backward(&self, x: &Tensor, rstd: &Tensor, d_routed: Tensor) -> Result<Tensor> {
        let wide = x.to_dtype(DType::F32)?;
        let dx = self.router.backward(&wide, rstd, &d_routed)?;
        drop((wide, d_routed));
        dx.to_dtype(x.dtype())
    }
}

/// Norms the output of a branch.
fn behind(norm: &Norm, x: Tensor) -> Result<(Tensor, NormSaved)> {
    let (normed, rstd) = norm.forward(&x)?;
    Ok((normed, NormSaved { x, rstd }))
}

impl ExpertBlock {
    /// The stream behind both branches, (T, H), and what backward needs.
    pub(super) fn forward_branches(
        &self,
        x: &Tensor,
        branches: &Branches,
        shared: &SharedExpert,
        stream: &Stream<'_>,
    ) -> Result<(Tensor, ExpertsSaved)> {
        let pass = &stream.pass;
        let (normed, rstd) = self.norm.forward(x)?;
        let (mut of_shared, inner) = shared.forward(&normed, self.activation, stream)?;
        drop(normed);
        let (mut outputs, down_xa) = shared.down.forward(&inner, pass)?;
        drop(inner);
        of_shared.down_xa = down_xa;
        let (first, behind_shared) = behind(&branches.behind[0], outputs.remove(0))?;
        let (logits, router_xa) = self.router.forward(&branches.routed(x)?, pass)?;
        let routing = {
            let _span = span::module(Module::Router);
            routing::forward(only(&logits)?, self.correction.as_ref(), &self.settings)?
        };
        drop(logits);
        let offsets = &routing.offsets;
        let normed = branches.before_experts.forward(x)?.0;
        let of_rows = self.inputs(&normed, &routing)?;
        drop(normed);
        let GateUp { gate, up, xa } = self.experts.gate_up(&of_rows, offsets)?;
        drop(of_rows);
        let z = self.unit(&gate, &up)?;
        rows::scale(&z, &self.row_weights(&routing)?)?;
        let expert_xa = self.experts.down_xa(&z, offsets)?;
        let outputs = self.experts.down(&z, expert_xa.as_ref(), offsets)?;
        drop(z);
        let sum = rows::sum(None, &outputs, &routing.rows)?;
        drop(outputs);
        let (second, behind_experts) = behind(&branches.behind[1], sum)?;
        let both = residual::add(&first, &second)?;
        drop((first, second));
        let (normed, end) = behind(&branches.end, both)?;
        let y = residual::add(x, &normed)?;
        let saved = ExpertsSaved {
            x: Some(x.clone()),
            rstd,
            routing,
            router_xa,
            gate,
            up,
            gate_up_xa: xa,
            down_xa: expert_xa,
            shared: Some(of_shared),
            branches: Some(BranchesSaved {
                behind: [behind_shared, behind_experts],
                end,
            }),
        };
        Ok((y, saved))
    }

    /// [`ExpertBlock::backward`] of branches.
    pub(super) fn backward_branches(
        &self,
        mut saved: ExpertsSaved,
        input: impl FnOnce() -> Result<Tensor>,
        (dy, stream): (Tensor, &Stream<'_>),
        (branches, shared): (&Branches, &SharedExpert),
    ) -> Result<Tensor> {
        let (Some(of_shared), Some(of_norms)) = (saved.shared.take(), saved.branches.take()) else {
            candle_core::bail!("what was saved belongs to a layer without branches");
        };
        let x = saved.x.take().map_or_else(input, Ok)?;
        let BranchesSaved { behind, end } = of_norms;
        let [behind_shared, behind_experts] = behind;
        let d_both = branches.end.backward(&end.x, &end.rstd, &dy)?;
        drop(end);
        let d_first = branches.behind[0].backward(&behind_shared.x, &behind_shared.rstd, &d_both)?;
        drop(behind_shared);
        let normed = self.norm.forward(&x)?.0;
        let d_normed = shared.backward(of_shared, &normed, &d_first, self.activation, stream)?;
        drop((normed, d_first));
        let dx = self.norm.backward_onto(&dy, &x, &saved.rstd, &d_normed)?;
        drop((dy, d_normed));
        let d_second = branches.behind[1].backward(&behind_experts.x, &behind_experts.rstd, &d_both)?;
        drop((behind_experts, d_both));
        self.backward_experts(saved, (&x, dx), d_second, (branches, stream))
    }

    /// The sum of dx and the gradients of x by way of the experts and the router, from that of the experts' sum.
    fn backward_experts(
        &self,
        saved: ExpertsSaved,
        (x, dx): (&Tensor, Tensor),
        d_sum: Tensor,
        (branches, stream): (&Branches, &Stream<'_>),
    ) -> Result<Tensor> {
        let (d_gate, d_up, d_weights) = self.backward_down(&saved, &d_sum)?;
        drop(d_sum);
        let ExpertsSaved {
            rstd,
            routing,
            router_xa,
            gate_up_xa,
            gate,
            up,
            down_xa,
            ..
        } = saved;
        drop((gate, up, down_xa));
        let normed = branches.before_experts.forward(x)?.0;
        let of_rows = || self.inputs(&normed, &routing);
        let d_rows = self
            .experts
            .gate_up_backward(of_rows, [&d_gate, &d_up], gate_up_xa.as_ref(), &routing.offsets)?;
        drop((d_gate, d_up, gate_up_xa, normed));
        let d_normed = rows::sum(None, &d_rows, &routing.rows)?;
        drop(d_rows);
        let dx = {
            let sum = branches.before_experts.backward_onto(&dx, x, &rstd, &d_normed)?;
            drop((dx, d_normed));
            sum
        };
        let d_logits = {
            let _span = span::module(Module::Router);
            let d_weights = branches.times_factors(&expect_gradient(d_weights)?, &routing)?;
            routing::backward(&routing, &d_weights, &self.settings)?
        };
        let read = || branches.routed(x);
        let d_routed = self
            .router
            .backward(read, &router_xa, vec![d_logits], &stream.pass, true)?;
        residual::add(&dx, &branches.routed_backward(x, &rstd, expect_gradient(d_routed)?)?)
    }
}
