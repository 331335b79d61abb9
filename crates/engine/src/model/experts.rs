//! The products of a mixture's experts, and the adapters on them.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x | (R, H) | rows sorted by expert: each token once for each of its experts |
//! | gate, up | (R, I) | of each row's own expert |
//! | A, B | (E r, in), (out, r E) | the adapter's factors of all experts, as PEFT keeps them, F32 |
//! | A_e, B_e | (r, in), (out, r) | rows e r to (e + 1) r of A; columns e, e + E, e + 2 E... of B |
//!
//! Gate and up share one A and have the first and the last I rows of B: to PEFT they are one parameter. B is split by expert before
//! its products, since the columns of one expert lie E values apart, and so is its gradient before it is added.

use candle_core::{DType, Result};

use super::matrix::Matrix;
use super::parameter::Trained;
use super::traced::expert_offsets::Offsets;
use super::traced::expert_parts;
use super::traced::grouped::{self, GroupFactors, GroupTerm};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// The projections of all experts of a layer.
#[derive(Debug)]
pub(super) struct Experts {
    /// (I, H) each
    pub gate: Vec<Matrix>,
    /// (I, H) each
    pub up: Vec<Matrix>,
    /// (H, I) each
    pub down: Vec<Matrix>,
    pub biases: Option<ExpertBiases>,
    /// Whether gate and up have the even and the odd rows of their adapter's B, and not its first and last ones.
    pub interleaved: bool,
    pub gate_up_adapter: Option<ExpertAdapter>,
    pub down_adapter: Option<ExpertAdapter>,
}

/// Biases that are added to the outputs of each expert.
#[derive(Debug)]
pub(super) struct ExpertBiases {
    /// (E, I)
    pub gate: candle_core::Tensor,
    /// (E, I)
    pub up: candle_core::Tensor,
    /// (E, H)
    pub down: candle_core::Tensor,
}

/// Part of an adapter's outputs.
#[derive(Clone, Copy, Debug)]
enum Outputs {
    All,
    /// Half of the outputs: the first (0) or the last (1).
    Half(usize),
    /// Outputs by turns: every second one, from the first (0) or the second (1) on.
    Second(usize),
}

/// The adapters of all experts on one projection, or on two that share their input.
#[derive(Debug)]
pub(super) struct ExpertAdapter {
    /// (E r, in)
    pub a: Trained,
    /// (out, r E)
    pub b: Trained,
    pub rank: usize,
    pub scaling: f64,
    /// Whether PEFT took inputs for outputs: `b` is (in, r E) then, and `a` (E r, out).
    pub swapped: bool,
}

/// Outputs of gate and up.
pub(super) struct GateUp {
    /// (R, I)
    pub gate: Tensor,
    /// (R, I)
    pub up: Tensor,
    /// (R, r), where there is an adapter.
    pub xa: Option<Tensor>,
}

impl ExpertAdapter {
    fn experts(&self) -> Result<usize> {
        Ok(self.a.value.dims2()?.0 / self.rank)
    }

    /// A of every expert, (E, r, in), for products of `x`; without a copy but where it is swapped.
    fn a(&self, x: &Tensor) -> Result<Tensor> {
        if self.swapped {
            let parts = expert_parts::split_experts(&self.b.factor_beside(x), self.experts()?)?;
            return parts.transposed();
        }
        let factor = self.a.factor_beside(x);
        factor.reshape((self.experts()?, self.rank, ()))
    }

    /// B of every expert for some of its outputs, (E, outputs, r), for products of `x`.
    fn b(&self, outputs: Outputs, x: &Tensor) -> Result<Tensor> {
        if self.swapped {
            let all = self.a.factor_beside(x).reshape((self.experts()?, self.rank, ()))?;
            return outputs.of_columns(&all)?.transposed();
        }
        expert_parts::split_experts(&outputs.of(&self.b.factor_beside(x))?, self.experts()?)
    }

    /// x A^T, (R, r)
    fn product(&self, x: &Tensor, offsets: &Offsets) -> Result<Tensor> {
        let a = self.a(x)?;
        grouped::nt(&[term(x, GroupFactors::Stacked(&a), 1.0)], offsets, 0)
    }

    /// dA += d_xa^T x
    fn add_a_gradient(&self, d_xa: &Tensor, x: &Tensor, offsets: &Offsets) -> Result<()> {
        if !self.swapped {
            return grouped::tn_add(d_xa, x, offsets, 1.0, &self.a.gradient_beside(x));
        }
        let (experts, width) = (self.experts()?, x.dims2()?.1);
        let parts = x.zeros((experts * width, self.rank), DType::F32)?;
        grouped::tn_add(x, d_xa, offsets, 1.0, &parts)?;
        let parts = parts.reshape((experts, width, self.rank))?;
        expert_parts::join_experts_add(&parts, &self.b.gradient_beside(x))
    }

    /// dB += s dy^T xa for some of the outputs.
    fn add_b_gradient(&self, dy: &Tensor, xa: &Tensor, offsets: &Offsets, outputs: Outputs) -> Result<()> {
        let (experts, width) = (self.experts()?, dy.dims2()?.1);
        if self.swapped {
            let parts = dy.zeros((experts * self.rank, width), DType::F32)?;
            grouped::tn_add(xa, dy, offsets, self.scaling, &parts)?;
            return outputs.add_columns(&parts, &self.a.gradient_beside(dy));
        }
        let parts = dy.zeros((experts * width, self.rank), DType::F32)?;
        grouped::tn_add(dy, xa, offsets, self.scaling, &parts)?;
        let (parts, gradient) = (parts.reshape((experts, width, self.rank))?, self.b.gradient_beside(dy));
        let Outputs::Second(place) = outputs else {
            return expert_parts::join_experts_add(&parts, &outputs.of(&gradient)?);
        };
        // Rows that do not lie side by side: added to a copy, which takes their place.
        let sum = outputs.of(&gradient)?.contiguous()?;
        expert_parts::join_experts_add(&parts, &sum)?;
        let pairs = gradient.reshape((width, 2, ()))?;
        pairs.slice_set(&sum.unsqueeze(1)?, 1, place)
    }
}

impl Outputs {
    /// Index of these columns' first among `all`, and their number.
    fn columns(self, all: usize) -> Result<(usize, usize)> {
        match self {
            Self::All => Ok((0, all)),
            Self::Half(place) => Ok((place * (all / 2), all / 2)),
            Self::Second(_) => candle_core::bail!("columns of an adapter by turns"),
        }
    }

    /// Cuts these columns from a tensor (E, r, out).
    fn of_columns(self, tensor: &Tensor) -> Result<Tensor> {
        let (first, count) = self.columns(tensor.dim(2)?)?;
        tensor.narrow(2, first, count)
    }

    /// Adds `parts` to these columns of `into`, in place.
    fn add_columns(self, parts: &Tensor, into: &Tensor) -> Result<()> {
        let (first, count) = self.columns(into.dim(1)?)?;
        let sum = into.narrow(1, first, count)?.plus(parts)?;
        into.slice_set(&sum, 1, first)
    }

    /// Cuts these rows from a tensor (out, n).
    fn of(self, tensor: &Tensor) -> Result<Tensor> {
        let (rows, columns) = tensor.dims2()?;
        match self {
            Self::All => Ok(tensor.clone()),
            Self::Half(place) => tensor.narrow(0, place * (rows / 2), rows / 2),
            Self::Second(place) => tensor.reshape((rows / 2, 2, columns))?.narrow(1, place, 1)?.squeeze(1),
        }
    }
}

fn term<'a>(x: &'a Tensor, w: GroupFactors<'a>, scale: f64) -> GroupTerm<'a> {
    GroupTerm { x, w, scale }
}

fn weights(of_experts: &[Matrix]) -> GroupFactors<'_> {
    GroupFactors::Each(of_experts.iter().map(Matrix::factor).collect())
}

impl Experts {
    /// Whether the experts' own weights train.
    fn weights_train(&self) -> bool {
        self.gate.iter().any(Matrix::is_trained)
    }

    /// Gate and up of every row of x (R, H).
    pub(super) fn gate_up(&self, x: &Tensor, offsets: &Offsets) -> Result<GateUp> {
        let _span = span::module(Module::GateUp);
        let adapter = self.gate_up_adapter.as_ref();
        let xa = adapter.map(|adapter| adapter.product(x, offsets)).transpose()?;
        let project = |of_experts: &[Matrix], outputs: Outputs| match (adapter, &xa) {
            (Some(adapter), Some(xa)) => {
                let b = adapter.b(outputs, x)?;
                let update = term(xa, GroupFactors::Stacked(&b), adapter.scaling);
                grouped::nt(&[term(x, weights(of_experts), 1.0), update], offsets, 1)
            }
            _ => grouped::nt(&[term(x, weights(of_experts), 1.0)], offsets, 1),
        };
        let [of_gate, of_up] = self.gate_up_outputs();
        let (gate, up) = (project(&self.gate, of_gate)?, project(&self.up, of_up)?);
        if let Some(biases) = &self.biases {
            expert_parts::add_of_experts(&gate, &biases.gate, offsets, None)?;
            expert_parts::add_of_experts(&up, &biases.up, offsets, None)?;
        }
        Ok(GateUp { gate, up, xa })
    }

    /// What [`Experts::down`] keeps: x A^T of its adapter, (R, r), from x (R, I).
    pub(super) fn down_xa(&self, x: &Tensor, offsets: &Offsets) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Down);
        let adapter = self.down_adapter.as_ref();
        adapter.map(|adapter| adapter.product(x, offsets)).transpose()
    }

    /// The outputs (R, H) of x (R, I), from the xa that [`Experts::down_xa`] made.
    pub(super) fn down(&self, x: &Tensor, xa: Option<&Tensor>, offsets: &Offsets) -> Result<Tensor> {
        let _span = span::module(Module::Down);
        let base = term(x, weights(&self.down), 1.0);
        match (&self.down_adapter, xa) {
            (Some(adapter), Some(xa)) => {
                let b = adapter.b(Outputs::All, x)?;
                grouped::nt(
                    &[base, term(xa, GroupFactors::Stacked(&b), adapter.scaling)],
                    offsets,
                    1,
                )
            }
            _ => grouped::nt(&[base], offsets, 1),
        }
    }

    /// The gradient of what down reads, (R, I), from that of its outputs, (R, H); and that of xa, (R, r). Adds the gradient of B.
    pub(super) fn down_backward(
        &self,
        dy: &Tensor,
        xa: Option<&Tensor>,
        offsets: &Offsets,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let _span = span::module(Module::Down);
        let base = term(dy, weights(&self.down), 1.0);
        let (Some(adapter), Some(xa)) = (&self.down_adapter, xa) else {
            return Ok((grouped::nn(&[base], offsets, 1)?, None));
        };
        let b = adapter.b(Outputs::All, dy)?;
        let d_xa = grouped::nn(&[term(dy, GroupFactors::Stacked(&b), adapter.scaling)], offsets, 0)?;
        drop(b);
        adapter.add_b_gradient(dy, xa, offsets, Outputs::All)?;
        let a = adapter.a(dy)?;
        let dx = grouped::nn(&[base, term(&d_xa, GroupFactors::Stacked(&a), 1.0)], offsets, 1)?;
        Ok((dx, Some(d_xa)))
    }

    /// Adds the gradients of A and of the weights of down, from x (R, I), what it read, and the gradients of outputs and xa.
    pub(super) fn add_down_gradients(
        &self,
        x: &Tensor,
        dy: &Tensor,
        d_xa: Option<&Tensor>,
        offsets: &Offsets,
    ) -> Result<()> {
        let _span = span::module(Module::Down);
        if let (Some(adapter), Some(d_xa)) = (&self.down_adapter, d_xa) {
            adapter.add_a_gradient(d_xa, x, offsets)?;
        }
        add_weight_gradients(&self.down, dy, x, offsets)
    }

    /// The gradient of x (R, H), from those of gate and up, (R, I) each. Adds all gradients of gate and up; `x` makes what they read
    /// again and is called only where it is needed.
    pub(super) fn gate_up_backward(
        &self,
        x: impl FnOnce() -> Result<Tensor>,
        [d_gate, d_up]: [&Tensor; 2],
        xa: Option<&Tensor>,
        offsets: &Offsets,
    ) -> Result<Tensor> {
        let _span = span::module(Module::GateUp);
        let mut terms = vec![
            term(d_gate, weights(&self.gate), 1.0),
            term(d_up, weights(&self.up), 1.0),
        ];
        let (Some(adapter), Some(xa)) = (&self.gate_up_adapter, xa) else {
            if self.weights_train() {
                self.add_gate_up_weight_gradients(&x()?, [d_gate, d_up], offsets)?;
            }
            return grouped::nn(&terms, offsets, 2);
        };
        let ([of_gate, of_up], scaling) = (self.gate_up_outputs(), adapter.scaling);
        let (b_gate, b_up) = (adapter.b(of_gate, d_gate)?, adapter.b(of_up, d_up)?);
        let updates = [
            term(d_gate, GroupFactors::Stacked(&b_gate), scaling),
            term(d_up, GroupFactors::Stacked(&b_up), scaling),
        ];
        let d_xa = grouped::nn(&updates, offsets, 0)?;
        drop(updates);
        drop((b_gate, b_up));
        adapter.add_b_gradient(d_gate, xa, offsets, of_gate)?;
        adapter.add_b_gradient(d_up, xa, offsets, of_up)?;
        let x = x()?;
        adapter.add_a_gradient(&d_xa, &x, offsets)?;
        self.add_gate_up_weight_gradients(&x, [d_gate, d_up], offsets)?;
        drop(x);
        let a = adapter.a(&d_xa)?;
        terms.push(term(&d_xa, GroupFactors::Stacked(&a), 1.0));
        grouped::nn(&terms, offsets, 2)
    }

    fn add_gate_up_weight_gradients(&self, x: &Tensor, [d_gate, d_up]: [&Tensor; 2], offsets: &Offsets) -> Result<()> {
        add_weight_gradients(&self.gate, d_gate, x, offsets)?;
        add_weight_gradients(&self.up, d_up, x, offsets)
    }

    /// Outputs of their adapter that gate and up are.
    fn gate_up_outputs(&self) -> [Outputs; 2] {
        match self.interleaved {
            true => [0, 1].map(Outputs::Second),
            false => [0, 1].map(Outputs::Half),
        }
    }

    /// Adds the experts' biases, each row's times its weight, to the outputs of down in place.
    pub(super) fn add_down_biases(&self, y: &Tensor, offsets: &Offsets, weights: &Tensor) -> Result<()> {
        match &self.biases {
            Some(biases) => expert_parts::add_of_experts(y, &biases.down, offsets, Some(weights)),
            None => Ok(()),
        }
    }

    /// Gradient of each row's weight that the biases of down add.
    pub(super) fn bias_weight_gradients(&self, dy: &Tensor, offsets: &Offsets) -> Result<Option<Tensor>> {
        let biases = self.biases.as_ref();
        biases
            .map(|biases| expert_parts::dot_of_experts(dy, &biases.down, offsets))
            .transpose()
    }
}

/// dW += dy^T x of every expert whose weight trains: one small copy a layer on a GPU.
fn add_weight_gradients(of_experts: &[Matrix], dy: &Tensor, x: &Tensor, offsets: &Offsets) -> Result<()> {
    if !of_experts.iter().any(Matrix::is_trained) {
        return Ok(());
    }
    let gradients = of_experts
        .iter()
        .map(|matrix| matrix.trained().map(|trained| &trained.gradient));
    grouped::tn_add_each(dy, x, offsets, &gradients.collect::<Vec<_>>())
}
