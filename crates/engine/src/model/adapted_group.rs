//! Linear layers that read the same input, with the adapters that one training has on them.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x | (T, in) | the input that all projections of the group share |
//! | W, bias | (out, in), (out,) | a projection's weight, frozen or trained |
//! | A, B | (r, in), (out, r) | its adapter, F32 |
//! | xa | (T, r) | x A^T, saved for the gradient of B |
//! | s | | scaling |
//!
//! y = x W^T + bias + s·(xa B^T + bias_B). Backward: dB += s·dy^T xa, d_xa = s·dy B, dA += d_xa^T x, and
//! dx = dy W + d_xa A. With dropout, A sees drop(x); with DoRA see [`super::dora`], with quantized sums [`super::merged_weight`].
//!
//! q, k and v (or gate and up) are one group: x is read for all of them, and where their A lie side by side in the flat
//! buffer, they are one (sum of r, in) matrix and one product. A fused tensor (`qkv_proj`) is a group whose projections
//! are row ranges of it and share one A.

use candle_core::Result;

use super::adapter_pass::{AdapterPass, ColumnOwners};
use super::group_input::{AdapterInput, GroupInput};
use super::parameter::Trained;
use super::projection::{OutputGradients, Projection};
use super::traced::matmul::{self, Term};
use super::traced::residual;
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Projections of one input, and adapters on them.
#[derive(Clone, Debug)]
pub(super) struct AdaptedGroup {
    pub projections: Vec<Projection>,
    pub adapters: Vec<AdapterInput>,
    /// All A below each other, where they are neighbours in the flat buffer.
    pub stacked: Option<Trained>,
    /// Owners of all columns of xa, where several adapters lie side by side.
    pub owners: Option<ColumnOwners>,
}

impl AdaptedGroup {
    /// Computes what adapters need of the parameters as they are now; before each pass, on paper where `ids` are.
    pub(super) fn refresh(&self, ids: &Tensor) -> Result<()> {
        let mut projections = self.projections.iter();
        projections.try_for_each(|projection| projection.refresh(&self.adapters, ids))
    }

    /// The outputs (T, out) of all projections, and xa of all adapters.
    pub(super) fn forward(&self, x: &Tensor, pass: &AdapterPass) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let input = self.input(x, pass);
        let beside = self.products_at_once(&input)?;
        let xa = match &beside {
            Some(beside) => self.side_by_side(beside)?,
            None => self.adapter_products(&input)?,
        };
        if let Some(outputs) = beside
            .as_ref()
            .map(|xa| self.outputs_at_once(x, xa))
            .transpose()?
            .flatten()
        {
            return Ok((outputs, xa));
        }
        let outputs = self
            .projections
            .iter()
            .map(|projection| projection.forward(&input, &xa, None));
        Ok((outputs.collect::<Result<_>>()?, xa))
    }

    /// Whether backward needs the group's input: where something of it trains.
    pub(super) fn reads_input(&self) -> bool {
        let trains = |projection: &Projection| projection.weight.is_trained();
        !self.adapters.is_empty() || self.projections.iter().any(trains)
    }

    /// Adds the gradients of all that trains here and returns dx where `wants_dx`, from the input and xa of the forward pass and the
    /// gradients of its outputs.
    pub(super) fn backward(
        &self,
        x: Tensor,
        xa: &[Tensor],
        dys: Vec<Tensor>,
        pass: &AdapterPass,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let input = self.input(&x, pass);
        let dys = self.projections.iter().zip(dys);
        let dys = dys.map(|(projection, dy)| projection.backward(&input, xa, dy));
        let dys: Vec<OutputGradients> = dys.collect::<Result<_>>()?;
        let d_xa = self.adapter_gradients(&input, xa, &dys)?;
        self.add_adapter_gradients(&input, &d_xa)?;
        // dx may take its place.
        drop(x);
        wants_dx.then(|| self.input_gradient(&dys, &d_xa, pass)).transpose()
    }

    /// Gradient of x where nothing of the weights and adapters trains; adds those of trained biases.
    pub(super) fn backward_frozen(&self, dys: Vec<Tensor>, wants_dx: bool) -> Result<Option<Tensor>> {
        let mut terms = Vec::with_capacity(dys.len());
        for (projection, dy) in self.projections.iter().zip(&dys) {
            projection.add_bias_gradient(dy)?;
            terms.push(projection.base(dy));
        }
        wants_dx.then(|| matmul::nn_sum(&terms, terms.len())).transpose()
    }

    /// Adds the gradient of each B. Returns that of each adapter's xa, the sum over the projections that read it: side by side
    /// in one (T, sum of r) tensor where the A are stacked, else (T, r) each.
    pub(super) fn adapter_gradients(
        &self,
        input: &GroupInput<'_>,
        xa: &[Tensor],
        dys: &[OutputGradients],
    ) -> Result<Vec<Tensor>> {
        let _span = span::module(Module::Adapters);
        if let Some(beside) = self.gradients_at_once(xa, dys)? {
            return match self.stacked(input.pass) {
                Some(_) => Ok(vec![beside]),
                None => self.side_by_side(&beside),
            };
        }
        for (projection, dy) in self.projections.iter().zip(dys) {
            if let Some(adapter) = &projection.adapter {
                adapter.add_gradient(&xa[adapter.input], &dy.update)?;
            }
        }
        let terms = |index: usize| {
            let reads = |projection: &&Projection| projection.adapter.as_ref().is_some_and(|a| a.input == index);
            let both = self.projections.iter().zip(dys);
            let terms = both
                .filter(|(projection, _)| reads(projection))
                .filter_map(|(projection, dy)| {
                    let adapter = projection.adapter.as_ref()?;
                    Some(adapter.update_gradient(&dy.update))
                });
            terms.collect::<Vec<_>>()
        };
        let mut each = (0..self.adapters.len()).map(terms);
        match self.stacked(input.pass) {
            Some(_) => Ok(vec![matmul::nn_beside(&each.collect::<Vec<_>>())?]),
            None => each.by_ref().map(|terms| matmul::nn_sum(&terms, 0)).collect(),
        }
    }

    /// Adds the gradients of B and returns those of xa side by side, in the adapters' order, where each dy is read once for both.
    fn gradients_at_once(&self, xa: &[Tensor], dys: &[OutputGradients]) -> Result<Option<Tensor>> {
        let adapted = self.projections.iter().zip(dys);
        let adapted = adapted.filter_map(|(projection, dy)| Some((projection.adapter.as_ref()?, dy)));
        let (mut all, mut inputs) = (Vec::new(), Vec::new());
        for (adapter, dy) in adapted {
            inputs.push(adapter.input);
            all.push(adapter.gradients(&xa[adapter.input], &dy.update));
        }
        // One that several projections read has the sum of theirs.
        match inputs.into_iter().eq(0..self.adapters.len()) {
            true => matmul::adapter_gradients(&all),
            false => Ok(None),
        }
    }

    /// The columns of each adapter in a (T, sum of r) tensor.
    fn side_by_side(&self, all: &Tensor) -> Result<Vec<Tensor>> {
        let mut column = 0;
        let split = |adapter: &AdapterInput| {
            let rank = adapter.a.value.dims2()?.0;
            column += rank;
            all.narrow(1, column - rank, rank)
        };
        self.adapters.iter().map(split).collect()
    }

    /// dA += d_xa^T x of every adapter.
    pub(super) fn add_adapter_gradients(&self, input: &GroupInput<'_>, d_xa: &[Tensor]) -> Result<()> {
        let _span = span::module(Module::Adapters);
        if let (Some(stacked), [all]) = (self.stacked(input.pass), d_xa) {
            return matmul::tn_add(all, input.x, 1.0, &stacked.gradient);
        }
        for (index, (adapter, d_xa)) in self.adapters.iter().zip(d_xa).enumerate() {
            matmul::tn_add(d_xa, &input.dropped(index)?, 1.0, &adapter.a.gradient)?;
        }
        Ok(())
    }

    /// dx, the sum over all projections and adapters: one pass where there is no dropout.
    fn input_gradient(&self, dys: &[OutputGradients], d_xa: &[Tensor], pass: &AdapterPass) -> Result<Tensor> {
        let both = || self.projections.iter().zip(dys);
        let base = both().map(|(projection, dy)| projection.base(&dy.base));
        let mut terms: Vec<Term<'_>> = base.collect();
        let base = terms.len();
        if both().any(|(projection, _)| projection.merged.is_some()) {
            // The adapters' part of dx is in that of the weights.
            return sum_of(&terms, base);
        }
        if pass.dropout.is_none() {
            let inputs: Vec<&Trained> = match self.stacked(pass) {
                Some(stacked) => vec![stacked],
                None => self.adapters.iter().map(|adapter| &adapter.a).collect(),
            };
            if let ([dy], [a], [d_xa], true) = (dys, inputs.as_slice(), d_xa, self.projections.len() == 1) {
                let weight = self.projections[0].weight.factor();
                if let Some(dx) = matmul::nn_adapted(&dy.base, weight, d_xa, &a.factor)? {
                    return Ok(dx);
                }
            }
            let of_adapters = inputs.iter().zip(d_xa);
            terms.extend(of_adapters.map(|(a, d_xa)| Term::of_adapter(d_xa, &a.factor, 1.0)));
            return sum_of(&terms, base);
        }
        let mut dx = sum_of(&terms, base)?;
        for (projection, dy) in both() {
            if let (Some(dropped), Some(adapter)) = (&dy.dropped_base, &projection.adapter) {
                let product = matmul::nn_sum(&[projection.frozen(dropped)], 0)?;
                dx = residual::add(&dx, &self.adapters[adapter.input].drop(&product, pass)?)?;
            }
        }
        let _span = span::module(Module::Adapters);
        for (adapter, d_xa) in self.adapters.iter().zip(d_xa) {
            let product = matmul::nn(d_xa, &adapter.a.factor)?;
            dx = residual::add(&dx, &adapter.drop(&product, pass)?)?;
        }
        Ok(dx)
    }

    /// x A^T of every adapter, (T, r) each; columns of one tensor where the A are stacked.
    pub(super) fn adapter_products(&self, input: &GroupInput<'_>) -> Result<Vec<Tensor>> {
        if let Some(beside) = self.products_at_once(input)? {
            return self.side_by_side(&beside);
        }
        let _span = (!self.adapters.is_empty()).then(|| span::module(Module::Adapters));
        let mut column = 0;
        let product = |(index, adapter): (usize, &AdapterInput)| {
            let xa = matmul::nt(&input.dropped(index)?, &adapter.a.factor)?;
            let rank = xa.dim(1)?;
            column += rank;
            match &self.owners {
                Some(owners) => owners.narrow(column - rank, rank)?.keep_own(&xa, input.pass),
                None => Ok(xa),
            }
        };
        self.adapters.iter().enumerate().map(product).collect()
    }

    /// x A^T of every adapter side by side, (T, sum of r), where one product makes them.
    fn products_at_once(&self, input: &GroupInput<'_>) -> Result<Option<Tensor>> {
        let a = match (self.stacked(input.pass), self.adapters.as_slice()) {
            (Some(stacked), _) => stacked,
            (None, [adapter]) if input.pass.dropout.is_none() => &adapter.a,
            _ => return Ok(None),
        };
        let _span = span::module(Module::Adapters);
        let xa = matmul::nt(input.x, &a.factor)?;
        match &self.owners {
            Some(owners) => owners.keep_own(&xa, input.pass).map(Some),
            None => Ok(Some(xa)),
        }
    }

    /// The outputs where a GPU may make one product of each weight's and its adapter's; see [`matmul::nt_adapted`].
    fn outputs_at_once(&self, x: &Tensor, xa: &Tensor) -> Result<Option<Vec<Tensor>>> {
        let (mut columns, mut column) = (Vec::with_capacity(self.adapters.len()), 0);
        for adapter in &self.adapters {
            columns.push(column);
            column += adapter.a.value.dims2()?.0;
        }
        let adapted = self.projections.iter().map(|projection| projection.adapted(&columns));
        let Some(adapted) = adapted.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Some(outputs) = matmul::nt_adapted(x, xa, &adapted)? else {
            return Ok(None);
        };
        let outputs = self.projections.iter().zip(outputs);
        outputs
            .map(|(projection, y)| projection.with_biases(y))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// All A as one, where they are neighbours and read the same input.
    pub(super) fn stacked(&self, pass: &AdapterPass) -> Option<&Trained> {
        self.stacked.as_ref().filter(|_| pass.dropout.is_none())
    }

    /// `x` with what decides how the adapters see it.
    pub(super) fn input<'a>(&'a self, x: &'a Tensor, pass: &'a AdapterPass) -> GroupInput<'a> {
        GroupInput {
            x,
            adapters: &self.adapters,
            pass,
        }
    }
}

/// The sum of the products, in as few passes as can be; the terms behind the first `base` are adapters'.
fn sum_of(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let passes = terms.chunks(matmul::MAX_TERMS).enumerate();
    let mut passes = passes.map(|(pass, terms)| matmul::nn_sum(terms, base.saturating_sub(pass * matmul::MAX_TERMS)));
    let Some(first) = passes.next().transpose()? else {
        candle_core::bail!("a linear group without projections has no gradient");
    };
    passes.try_fold(first, |sum, pass| residual::add(&sum, &pass?))
}
