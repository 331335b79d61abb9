//! The products in plain candle ops.

use super::order::Order;
use super::term::Term;
use candle_core::{DType, Result, Tensor};

/// See [`super::nt`].
pub fn nt(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    sum(&[Term::new(x, w, 1.0)], Order::Transposed)
}

/// See [`super::nn`].
pub fn nn(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    sum(&[Term::new(x, w, 1.0)], Order::Straight)
}

/// See [`super::nt_sum`].
pub fn nt_sum(terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Transposed)
}

/// See [`super::nn_sum`].
pub fn nn_sum(terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Straight)
}

pub(super) fn sum(terms: &[Term<'_>], order: Order) -> Result<Tensor> {
    let product = |term: &Term<'_>| {
        let w = term.w.to_dtype(term.x.dtype())?;
        let x = match term.w.rounds_left(order) {
            true => in_eight_bits(term.x)?,
            false => term.x.contiguous()?,
        };
        let product = match order {
            Order::Transposed => x.matmul(&w.t()?)?,
            Order::Straight => x.matmul(&w)?,
        };
        if term.scale == 1.0 {
            Ok(product)
        } else {
            product * term.scale
        }
    };
    let products = terms.iter().map(product).collect::<Result<Vec<_>>>()?;
    products
        .iter()
        .skip(1)
        .try_fold(products[0].clone(), |sum, product| sum + product)
}

/// Each row rounded to 127ths of its largest absolute value.
fn in_eight_bits(x: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let scale = wide
        .abs()?
        .max_keepdim(1)?
        .maximum(1e-30f32)?
        .affine(1.0 / 127.0, 0.0)?;
    let codes = wide.broadcast_div(&scale)?.round()?;
    codes.broadcast_mul(&scale)?.to_dtype(x.dtype())
}

/// See [`super::tn_add`].
pub fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (a, b) = (
        a.to_dtype(DType::F32)?.contiguous()?,
        b.to_dtype(DType::F32)?.contiguous()?,
    );
    let product = a.t()?.matmul(&b)?;
    into.slice_set(&(into + (product * alpha)?)?, 0, 0)
}
