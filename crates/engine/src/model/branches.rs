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
use super::experts::GateUp;
use super::linear::expect_gradient;
use super::norm::Norm;
use super::routed_experts::RoutedExperts;
use super::saved::{BranchesSaved, ExpertsSaved, NormSaved};
use super::shared_expert::SharedExpert;
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

/// A mixture of experts whose shared expert and others are branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchedBlock<'a> {
    /// Norm of what the shared expert reads.
    pub norm: &'a Norm,
    pub branches: &'a Branches,
    pub shared: &'a SharedExpert,
    pub routed: &'a RoutedExperts,
}

impl Branches {
    /// `values` (R,), each times the factor of its row's expert.
    fn times_factors(&self, values: &Tensor, routing: &routing::Routing) -> Result<Tensor> {
        let product = values.zeros((values.dims1()?, 1), DType::F32)?;
        expert_parts::add_of_experts(&product, &self.factors, &routing.offsets, Some(values))?;
        product.flatten_all()
    }

    /// The weight of each row, times the factor of its expert.
    fn row_weights(&self, routing: &routing::Routing) -> Result<Tensor> {
        self.times_factors(&routing.weights, routing)
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

impl BranchedBlock<'_> {
    /// The stream behind both branches, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, ExpertsSaved)> {
        let Self {
            norm,
            branches,
            shared,
            routed,
        } = *self;
        let pass = &stream.pass;
        let (normed, rstd) = norm.forward(x)?;
        let (mut of_shared, inner) = shared.forward(&normed, routed.activation, stream)?;
        drop(normed);
        let (mut outputs, down_xa) = shared.down.forward(&inner, pass)?;
        drop(inner);
        of_shared.down_xa = down_xa;
        let (first, behind_shared) = behind(&branches.behind[0], outputs.remove(0))?;
        let (logits, router_xa) = routed.router.forward(&branches.routed(x)?, pass)?;
        let routing = routed.route(&logits)?;
        drop(logits);
        let offsets = &routing.offsets;
        let normed = branches.before_experts.forward(x)?.0;
        let of_rows = routed.inputs(&normed, &routing)?;
        drop(normed);
        let GateUp { gate, up, xa } = routed.experts.gate_up(&of_rows, offsets)?;
        drop(of_rows);
        let z = routed.unit(&gate, &up)?;
        rows::scale(&z, &branches.row_weights(&routing)?)?;
        let expert_xa = routed.experts.down_xa(&z, offsets)?;
        let outputs = routed.experts.down(&z, expert_xa.as_ref(), offsets)?;
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

    /// The gradient with respect to the block's input; adds all gradients of the block. `input` makes that input again where it was
    /// not saved.
    pub(super) fn backward(
        &self,
        mut saved: ExpertsSaved,
        input: impl FnOnce() -> Result<Tensor>,
        dy: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let Self {
            norm,
            branches,
            shared,
            routed,
        } = *self;
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
        let normed = norm.forward(&x)?.0;
        let d_normed = shared.backward(of_shared, &normed, &d_first, routed.activation, stream)?;
        drop((normed, d_first));
        let dx = norm.backward_onto(&dy, &x, &saved.rstd, &d_normed)?;
        drop((dy, d_normed));
        let d_second = branches.behind[1].backward(&behind_experts.x, &behind_experts.rstd, &d_both)?;
        drop((behind_experts, d_both));
        self.backward_experts(saved, &x, dx, d_second, stream)
    }

    /// The sum of dx and the gradients of x by way of the experts and the router, from that of the experts' sum.
    fn backward_experts(
        &self,
        saved: ExpertsSaved,
        x: &Tensor,
        dx: Tensor,
        d_sum: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        let Self { branches, routed, .. } = *self;
        let weights = branches.row_weights(&saved.routing)?;
        let (d_gate, d_up, d_weights) = routed.backward_down(&saved, &d_sum, weights)?;
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
        let of_rows = || routed.inputs(&normed, &routing);
        let d_rows =
            routed
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
            routing::backward(&routing, &d_weights, &routed.settings)?
        };
        let read = || branches.routed(x);
        let d_routed = routed
            .router
            .backward(read, &router_xa, vec![d_logits], &stream.pass, true)?;
        residual::add(&dx, &branches.routed_backward(x, &rstd, expect_gradient(d_routed)?)?)
    }
}
