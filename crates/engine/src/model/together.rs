//! Several trainings that go through the frozen weights of one base together, each with rows of its own.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x | (T, in) | the rows of all trainings, one range behind the other |
//! | x_i | (T_i, in) | those of training i |
//! | A_i, B_i, s_i | (r_i, in), (out, r_i) | its adapter on this layer, where it has one |
//!
//! y = x W^T, and for the rows of i + s_i (x_i A_i^T) B_i^T: W is packed, widened or dequantized once for all rows ([`matmul::nt_by_rows`]).
//! All that belongs to a training (its adapters' products, dropout, gradients) is computed on its rows alone, by the ops and in the
//! shapes that it would have by itself, so that its bits do not depend on the others. Norms, attention and activations take rows or
//! documents one by one anyway.

use candle_core::Result;

use super::adapted_group::AdaptedGroup;
use super::adapter_pass::{AdapterPass, RowPart};
use super::projection::{AdapterOutput, OutputGradients};
use super::traced::matmul::{self, MAX_TERMS, RowTerms, Term};
use super::traced::{bias, residual};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Projections of the base, and the adapters of several trainings on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedGroup<'a> {
    /// The frozen projections.
    pub base: &'a AdaptedGroup,
    /// Groups of the trainings on the same projections.
    pub members: &'a [AdaptedGroup],
}

/// Rows and adapters that one training has of a group in a pass.
struct OwnRows<'a> {
    group: &'a AdaptedGroup,
    part: &'a RowPart,
    /// xa of its adapters.
    xa: &'a [Tensor],
}

impl<'a> OwnRows<'a> {
    /// xa and the output side of the adapter on a projection.
    fn adapted(&self, projection: usize) -> Option<(&'a Tensor, &'a AdapterOutput)> {
        let adapter = self.group.projections[projection].adapter.as_ref()?;
        Some((&self.xa[adapter.input], adapter))
    }

    fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.narrow(0, self.part.rows.start, self.part.rows.len())
    }

    /// The gradient of its xa, where it has some; adds the gradients of its adapters.
    fn backward(&self, x: &Tensor, dys: &[Tensor]) -> Result<Vec<Tensor>> {
        if self.group.adapters.is_empty() {
            return Ok(Vec::new());
        }
        let (x, pass) = (self.of(x)?, &self.part.pass);
        let input = self.group.input(&x, pass);
        let dys = self.group.projections.iter().zip(dys);
        let dys = dys.map(|(projection, dy)| projection.backward(&input, self.xa, self.of(dy)?));
        let dys: Vec<OutputGradients> = dys.collect::<Result<_>>()?;
        let d_xa = self.group.adapter_gradients(&input, self.xa, &dys)?;
        self.group.add_adapter_gradients(&input, &d_xa)?;
        Ok(d_xa)
    }

    /// Terms that the training's adapters add to dx in the same pass over memory: without dropout.
    fn input_terms<'t>(&'t self, d_xa: &'t [Tensor]) -> Vec<Term<'t>> {
        if self.part.pass.dropout.is_some() {
            return Vec::new();
        }
        let inputs = match self.group.stacked(&self.part.pass) {
            Some(stacked) => vec![stacked],
            None => self.group.adapters.iter().map(|adapter| &adapter.a).collect(),
        };
        let both = inputs.into_iter().zip(d_xa);
        both.map(|(a, d_xa)| Term::of_adapter(d_xa, &a.factor, 1.0)).collect()
    }

    /// Adds to its rows of dx what its adapters give behind a dropout.
    fn add_dropped(&self, dx: &Tensor, d_xa: &[Tensor]) -> Result<()> {
        if self.part.pass.dropout.is_none() {
            return Ok(());
        }
        let _span = span::module(Module::Adapters);
        for (adapter, d_xa) in self.group.adapters.iter().zip(d_xa) {
            let product = matmul::nn(d_xa, &adapter.a.factor)?;
            self.add(dx, &adapter.drop(&product, &self.part.pass)?)?;
        }
        Ok(())
    }

    /// Adds to its rows of dx.
    fn add(&self, dx: &Tensor, more: &Tensor) -> Result<()> {
        let sum = residual::add(&self.of(dx)?, more)?;
        dx.slice_set(&sum, 0, self.part.rows.start)
    }
}

impl<'a> SharedGroup<'a> {
    /// xa of all adapters of all trainings, one training behind the other.
    pub(super) fn products(&self, x: &Tensor, pass: &AdapterPass) -> Result<Vec<Tensor>> {
        let mut all = Vec::new();
        for own in self.own_rows(x, None, pass)? {
            let rows = own.of(x)?;
            all.extend(own.group.adapter_products(&own.group.input(&rows, &own.part.pass))?);
        }
        Ok(all)
    }

    /// The outputs (T, out) of all projections from the trainings' xa; onto y where there is one.
    pub(super) fn outputs(
        &self,
        x: &Tensor,
        xa: &[Tensor],
        onto: Option<&Tensor>,
        pass: &AdapterPass,
    ) -> Result<Vec<Tensor>> {
        let owns = self.own_rows(x, Some(xa), pass)?;
        let mut outputs = Vec::with_capacity(self.base.projections.len());
        for (index, projection) in self.base.projections.iter().enumerate() {
            let adapted: Vec<_> = owns.iter().map(|own| own.adapted(index)).collect();
            let own = owns.iter().zip(&adapted).map(|(own, adapted)| RowTerms {
                rows: own.part.rows.clone(),
                terms: adapted.iter().map(|(xa, adapter)| adapter.update(xa)).collect(),
            });
            let shared = [projection.base(x)];
            let y = matmul::nt_by_rows(&shared, &own.collect::<Vec<_>>(), onto)?;
            for (own, adapted) in owns.iter().zip(&adapted) {
                if let Some((_, adapter)) = adapted
                    && let Some(of_adapter) = &adapter.bias
                {
                    bias::add(&own.of(&y)?, &of_adapter.value, adapter.scaling)?;
                }
            }
            outputs.push(projection.biased(y)?);
        }
        Ok(outputs)
    }

    /// [`AdaptedGroup::backward`] of all trainings.
    pub(super) fn backward(
        &self,
        x: Tensor,
        xa: &[Tensor],
        dys: Vec<Tensor>,
        pass: &AdapterPass,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let owns = self.own_rows(&x, Some(xa), pass)?;
        let d_xa = owns.iter().map(|own| own.backward(&x, &dys));
        let d_xa: Vec<Vec<Tensor>> = d_xa.collect::<Result<_>>()?;
        // dx may take its place.
        drop(x);
        wants_dx.then(|| self.input_gradient(&dys, &owns, &d_xa)).transpose()
    }

    /// dx: the sum over the frozen weights, and on each training's rows over its adapters. Four products at a time, as many as one
    /// training sums by itself.
    fn input_gradient(&self, dys: &[Tensor], owns: &[OwnRows<'_>], d_xa: &[Vec<Tensor>]) -> Result<Tensor> {
        let base = self.base.projections.iter().zip(dys);
        let base: Vec<Term<'_>> = base.map(|(projection, dy)| projection.base(dy)).collect();
        let own = owns.iter().zip(d_xa);
        let own: Vec<Vec<Term<'_>>> = own.map(|(own, d_xa)| own.input_terms(d_xa)).collect();
        let most = base.len() + own.iter().map(Vec::len).max().unwrap_or(0);
        let mut dx: Option<Tensor> = None;
        for first in (0..most).step_by(MAX_TERMS) {
            let window = first..first + MAX_TERMS;
            let shared = &base[window.start.min(base.len())..window.end.min(base.len())];
            let of_window = |terms: &[Term<'_>]| -> std::ops::Range<usize> {
                let place = |end: usize| end.saturating_sub(base.len()).min(terms.len());
                place(window.start)..place(window.end)
            };
            let mut parts = Vec::with_capacity(owns.len());
            for (own, terms) in owns.iter().zip(&own) {
                let terms = terms[of_window(terms)].to_vec();
                let rows = own.part.rows.clone();
                parts.push(RowTerms { rows, terms });
            }
            match (&dx, shared.is_empty()) {
                (None, _) => dx = Some(matmul::nn_by_rows(shared, &parts)?),
                (Some(sum), false) => dx = Some(residual::add(sum, &matmul::nn_by_rows(shared, &parts)?)?),
                (Some(sum), true) => {
                    let with_terms = owns.iter().zip(&parts).filter(|(_, part)| !part.terms.is_empty());
                    for (own, part) in with_terms {
                        own.add(sum, &matmul::nn_sum(&part.terms, 0)?)?;
                    }
                }
            }
        }
        let Some(dx) = dx else {
            candle_core::bail!("a linear group without projections has no gradient");
        };
        for (own, d_xa) in owns.iter().zip(d_xa) {
            own.add_dropped(&dx, d_xa)?;
        }
        Ok(dx)
    }

    /// The trainings that have rows in this pass. `xa` is that of all adapters, where it has been computed.
    fn own_rows(&self, x: &Tensor, mut xa: Option<&'a [Tensor]>, pass: &'a AdapterPass) -> Result<Vec<OwnRows<'a>>> {
        let (rows, end) = (x.dim(0)?, pass.parts.last().map(|part| part.rows.end));
        if pass.parts.len() != self.members.len() || end != Some(rows) {
            candle_core::bail!(
                "{rows} rows of {} trainings, of which {end:?} are theirs",
                self.members.len()
            );
        }
        let mut owns = Vec::with_capacity(self.members.len());
        for (group, part) in self.members.iter().zip(&pass.parts) {
            if part.rows.is_empty() {
                continue;
            }
            let mut own = OwnRows { group, part, xa: &[] };
            if let Some(all) = xa {
                let Some((first, rest)) = all.split_at_checked(group.adapters.len()) else {
                    candle_core::bail!("what was kept is of other trainings");
                };
                (own.xa, xa) = (first, Some(rest));
            }
            owns.push(own);
        }
        Ok(owns)
    }
}
