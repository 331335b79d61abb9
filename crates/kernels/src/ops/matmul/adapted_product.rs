//! Sums of a quantized weight's product and its adapter's, where a GPU may make one product of them.

use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::products::adapted_product;

use super::factor::Factor;
use super::order::Order;
use super::quantized_matrix::QuantizedMatrix;
use crate::gpu;
use crate::ops::cuda;
use crate::ops::shape;

/// One projection of [`nt_adapted`].
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'a> {
    /// (N, K)
    pub w: &'a dyn QuantizedMatrix,
    /// (N, r)
    pub b: &'a Tensor,
    /// Column of u at which the adapter's begin.
    pub column: usize,
    pub scale: f64,
}

/// Whether [`nt_adapted`] takes these: quantized weights on a GPU that multiply activations as they are, adapters in 16 bits, and several results for each value of x.
///
/// # Errors
/// Tensors that are no matrices.
pub fn takes_adapters(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<bool> {
    let ((tokens, depth), (_, ranks)) = (x.dims2()?, u.dims2()?);
    let columns = all.iter().map(|one| one.w.dims2().0).sum();
    let is_widened = |one: &Adapted<'_>| !Factor::QuantizedMatrix(one.w).rounds_left(Order::Transposed);
    let are_factors = all.iter().all(|one| is_factor(one.b, x) && is_widened(one));
    Ok(are_taken(&[x, u], [tokens, columns, depth], ranks) && are_factors)
}

/// x W^T + scale u B^T of several projections of x (T, K), with u (T, sum of r) of their adapters side by side; (T, N) each.
///
/// # Errors
/// Shapes that do not fit, what [`takes_adapters`] does not take, those of the launches.
pub fn nt_adapted(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Vec<Tensor>> {
    let ((tokens, depth), (_, ranks)) = (x.dims2()?, u.dims2()?);
    shape::expect(u, &[tokens, ranks], "matmul nt: xa")?;
    for one in all {
        let (rows, width) = one.w.dims2();
        let rank = one.b.dims2()?.1;
        shape::expect(one.b, &[rows, rank], "matmul nt: b")?;
        if width != depth || one.column + rank > ranks {
            candle_core::bail!("matmul nt: a weight of {width} columns for {depth}, or a rank beyond {ranks}");
        }
    }
    match takes_adapters(x, u, all)? {
        true => cuda::adapted_product::nt(x, u, all),
        false => candle_core::bail!("matmul nt: no kernel takes {:?} on {:?} so", x.dtype(), x.device()),
    }
}

/// Whether [`nn_adapted`] takes these; see [`takes_adapters`].
///
/// # Errors
/// Tensors that are no matrices.
pub fn takes_adapter(dy: &Tensor, w: &Factor<'_>, d_xa: &Tensor, a: &Tensor) -> Result<bool> {
    let ((tokens, depth), columns, ranks) = (dy.dims2()?, w.dims2()?.1, d_xa.dims2()?.1);
    let is_widened = matches!(w, Factor::QuantizedMatrix(_)) && !w.rounds_left(Order::Straight);
    Ok(is_widened && are_taken(&[dy, d_xa], [tokens, columns, depth], ranks) && is_factor(a, dy))
}

/// dy W + d_xa A for dy (T, N), W (N, K), d_xa (T, r) and A (r, K); (T, K).
///
/// # Errors
/// Shapes that do not fit, what [`takes_adapter`] does not take, those of the launches.
pub fn nn_adapted(dy: &Tensor, w: Factor<'_>, d_xa: &Tensor, a: &Tensor) -> Result<Tensor> {
    let (tokens, (rows, columns), ranks) = (dy.dims2()?.0, w.dims2()?, d_xa.dims2()?.1);
    shape::expect(dy, &[tokens, rows], "matmul nn: dy")?;
    shape::expect(d_xa, &[tokens, ranks], "matmul nn: d_xa")?;
    shape::expect(a, &[ranks, columns], "matmul nn: a")?;
    match w {
        Factor::QuantizedMatrix(of) if takes_adapter(dy, &w, d_xa, a)? => cuda::adapted_product::nn(dy, of, d_xa, a),
        _ => candle_core::bail!("matmul nn: no kernel takes {:?} on {:?} so", dy.dtype(), dy.device()),
    }
}

/// Whether kernels copy these rows, and it may pay.
fn are_taken(rows: &[&Tensor; 2], sizes: [usize; 3], ranks: usize) -> bool {
    let [x, u] = rows;
    let is_copied = |tensor: &Tensor| gpu::takes(tensor) && tensor.is_contiguous() && tensor.dtype() != DType::F32;
    let is_even = x.layout().start_offset().is_multiple_of(adapted_product::PACK) && x.dtype() == u.dtype();
    is_copied(x) && is_copied(u) && is_even && adapted_product::takes(sizes, ranks)
}

fn is_factor(factor: &Tensor, like: &Tensor) -> bool {
    factor.dtype() == like.dtype() && factor.is_contiguous()
}
