//! Products, with the part of each that belongs to an adapter.

use candle_core::Result;

use super::product_call::{Order, plain_call};
use super::product_work::{add, both_gradients, by_rows, sum, weight_gradient};
use super::products_on_paper::{
    adapted_on_paper, beside_on_paper, by_rows_on_paper, gradient_on_paper, of_terms, run_on_paper, sum_on_paper,
    take_on_paper,
};
use super::terms::{kernels, own_kernels};
use super::{Parameter, Tensor, bytes};
use crate::span::{Work, op};
use peft_tune_core::plan::Form;
use peft_tune_core::predict::Right;
use peft_tune_kernels::ops::matmul;

pub(in crate::model) use super::terms::{AdapterGradients, RowTerms, Term};
pub(in crate::model) use peft_tune_kernels::ops::matmul::{Adapted, Factor, MAX_TERMS};

/// x w^T of a factor of an adapter; see [`matmul::nt`].
pub(in crate::model) fn nt(x: &Tensor, w: &Parameter) -> Result<Tensor> {
    nt_sum(&[Term::of_adapter(x, w, 1.0)], usize::MAX)
}

/// x w of a factor of an adapter; see [`matmul::nn`].
pub(in crate::model) fn nn(x: &Tensor, w: &Parameter) -> Result<Tensor> {
    nn_sum(&[Term::of_adapter(x, w, 1.0)], usize::MAX)
}

/// The sum of x w^T; the terms behind the first `base` are an adapter's. See [`matmul::nt_sum`].
pub(in crate::model) fn nt_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || sum(terms, Order::Transposed, base));
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Transposed, base);
    }
    Ok(matmul::nt_sum(&kernels(terms)?)?.into())
}

/// The sum of x w; the terms behind the first `base` are an adapter's. See [`matmul::nn_sum`].
pub(in crate::model) fn nn_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nn", || sum(terms, Order::Straight, base));
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Straight, base);
    }
    Ok(matmul::nn_sum(&kernels(terms)?)?.into())
}

/// y plus the sum of x w^T; see [`nt_sum`] and [`matmul::nt_onto`].
pub(in crate::model) fn nt_onto(y: &Tensor, terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || Work {
        bytes: bytes(y) + sum(terms, Order::Transposed, base).bytes,
        ..sum(terms, Order::Transposed, base)
    });
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Transposed, base);
    }
    Ok(matmul::nt_onto(y.real()?, &kernels(terms)?)?.into())
}

/// Sum like [`nt_sum`]'s of `shared` products of the base and, for each range of rows, those of an adapter; see
/// [`matmul::nt_by_rows`].
pub(in crate::model) fn nt_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], onto: Option<&Tensor>) -> Result<Tensor> {
    let _span = op("matmul_nt", || by_rows(shared, own, Order::Transposed));
    if let Some(paper) = of_terms(shared) {
        return by_rows_on_paper(paper, shared, own, Order::Transposed);
    }
    let onto = onto.map(Tensor::real).transpose()?;
    Ok(matmul::nt_by_rows(&kernels(shared)?, &own_kernels(own)?, onto)?.into())
}

/// Sum like [`nn_sum`]'s of `shared` products of the base and, for each range of rows, those of an adapter.
pub(in crate::model) fn nn_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || by_rows(shared, own, Order::Straight));
    if let Some(paper) = of_terms(shared) {
        return by_rows_on_paper(paper, shared, own, Order::Straight);
    }
    Ok(matmul::nn_by_rows(&kernels(shared)?, &own_kernels(own)?)?.into())
}

/// The outputs of projections with their adapters, where one product may make each; see [`matmul::nt_adapted`].
pub(in crate::model) fn nt_adapted(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Option<Vec<Tensor>>> {
    if let Some(paper) = x.paper() {
        return adapted_on_paper(paper, u, all);
    }
    let (of_x, of_u) = (x.real()?, u.real()?);
    if !matmul::takes_adapters(of_x, of_u, all)? {
        return Ok(None);
    }
    let _span = op("matmul_nt", || {
        let each = all.iter().filter_map(|one| {
            let u = u.narrow(1, one.column, one.b.dims2().ok()?.1).ok()?;
            let terms = [
                Term::new(x, Factor::QuantizedMatrix(one.w), 1.0),
                Term::of_adapter(&u, one.b, one.scale),
            ];
            Some(sum(&terms, Order::Transposed, 1))
        });
        each.reduce(add).unwrap_or_default()
    });
    let outputs = matmul::nt_adapted(of_x, of_u, all)?;
    Ok(Some(outputs.into_iter().map(Tensor::from).collect()))
}

/// dx of a projection with its adapter, where one product may make it; see [`matmul::nn_adapted`].
pub(in crate::model) fn nn_adapted(dy: &Tensor, w: Factor<'_>, d_xa: &Tensor, a: &Parameter) -> Result<Option<Tensor>> {
    if let Some(paper) = dy.paper() {
        return gradient_on_paper(paper, w, d_xa);
    }
    let (of_dy, of_d_xa) = (dy.real()?, d_xa.real()?);
    if !matmul::takes_adapter(of_dy, &w, of_d_xa, a)? {
        return Ok(None);
    }
    let _span = op("matmul_nn", || {
        let terms = [Term::new(dy, w, 1.0), Term::of_adapter(d_xa, a, 1.0)];
        sum(&terms, Order::Straight, 1)
    });
    Ok(Some(matmul::nn_adapted(of_dy, w, of_d_xa, a)?.into()))
}

/// The sums of x w side by side, all of adapters; see [`matmul::nn_beside`].
pub(in crate::model) fn nn_beside(sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || {
        let each = sums.iter().map(|terms| sum(terms, Order::Straight, 0));
        each.reduce(add).unwrap_or_default()
    });
    if let Some(paper) = sums.first().and_then(|terms| of_terms(terms)) {
        return beside_on_paper(paper, sums);
    }
    let each: Vec<Vec<_>> = sums.iter().map(|terms| kernels(terms)).collect::<Result<_>>()?;
    Ok(matmul::nn_beside(&each)?.into())
}

/// into += alpha a^T b; see [`matmul::tn_add`].
pub(in crate::model) fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Parameter) -> Result<()> {
    let _span = op("matmul_tn", || weight_gradient(a, b, into));
    if let Some(paper) = a.paper() {
        let ((tokens, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
        let call = plain_call(a, Form::Tn, [rows, columns, tokens]);
        take_on_paper(paper.ledger(), &call);
        return run_on_paper(paper.ledger(), &call, Right::Dense);
    }
    matmul::tn_add(a.real()?, b.real()?, alpha, into)
}

/// Gradients of adapters' output sides, of B and of xa, from one reading of each dy, where that is better than two
/// products; see [`matmul::adapter_gradients`].
pub(in crate::model) fn adapter_gradients(all: &[AdapterGradients<'_>]) -> Result<Option<Tensor>> {
    // A GPU that makes both at once takes the same memory.
    if all.iter().any(|one| one.dy.paper().is_some()) {
        return Ok(None);
    }
    let of_kernels: Vec<_> = all.iter().map(AdapterGradients::kernel).collect::<Result<_>>()?;
    if !matmul::reads_once(&of_kernels)? {
        return Ok(None);
    }
    let _span = op("adapter_gradients", || {
        let each = all.iter().map(both_gradients);
        each.reduce(add).unwrap_or_default()
    });
    Ok(Some(matmul::adapter_gradients(&of_kernels)?.into()))
}
