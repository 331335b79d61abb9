//! The products of the linear layers.

use candle_core::{DType, Result, Tensor};

use super::byte_products;
use crate::gpu::{Gemm, Matrix, empty, scratch};
use crate::ops::matmul::{Factor, RowTerms, Term, rows_of};

/// The sum of scale x w over the terms, with the transpose of w where `transposed`, plus `onto` where it is there; shapes have
/// been checked.
///
/// The sum is rounded to the dtype of x after each term. The terms with the shortest sums come first: those of adapters,
/// which write their small result once, and the product with the weight reads it while it is busy multiplying. The other
/// way round the adapter's product would read and write the whole result, and round the large part twice.
pub(crate) fn sum(
    terms: &[Term<'_>],
    (rows, columns): (usize, usize),
    transposed: bool,
    onto: Option<&Tensor>,
) -> Result<Tensor> {
    let (dtype, device) = (terms[0].x.dtype(), terms[0].x.device());
    let onto = onto.map(|y| y.to_dtype(dtype)?.contiguous()).transpose()?;
    let result = empty((rows, columns), dtype, device)?;
    sum_into(terms, transposed, onto.as_ref(), &result)?;
    Ok(result)
}

/// Sums as [`sum`] does, where ranges of rows have terms of their own. The shared operands are widened once.
pub(crate) fn sum_by_rows(
    shared: &[Term<'_>],
    own: &[RowTerms<'_>],
    (rows, columns): (usize, usize),
    transposed: bool,
    onto: Option<&Tensor>,
) -> Result<Tensor> {
    let (dtype, device) = (shared[0].x.dtype(), shared[0].x.device());
    let result = match onto {
        Some(onto) => onto.to_dtype(dtype)?.copy()?,
        None => Tensor::zeros((rows, columns), dtype, device)?,
    };
    // Those of adapters come first, as in a sum of one training.
    for part in own {
        let rows = result.narrow(0, part.rows.start, part.rows.len())?;
        part.terms
            .iter()
            .try_for_each(|term| add_into(term, transposed, &rows))?;
    }
    shared.iter().try_for_each(|term| add_into(term, transposed, &result))?;
    Ok(result)
}

/// Adds one product to what the result has.
fn add_into(term: &Term<'_>, transposed: bool, result: &Tensor) -> Result<()> {
    let (x, w) = (rows_of(term.x)?, widened(&term.w, result)?);
    let w = Matrix::new(&w)?;
    let product = Gemm {
        alpha: term.scale as f32,
        beta: 1.0,
        ..Gemm::new(Matrix::new(&x)?, if transposed { w.t() } else { w })
    };
    product.run(result)
}

/// Sums without transposes, side by side in one tensor (T, sum of their columns).
pub(crate) fn beside(sums: &[Vec<Term<'_>>], (rows, widths): (usize, &[usize])) -> Result<Tensor> {
    let first = sums[0][0].x;
    let result = empty((rows, widths.iter().sum::<usize>()), first.dtype(), first.device())?;
    let mut column = 0;
    for (terms, width) in sums.iter().zip(widths) {
        sum_into(terms, false, None, &result.narrow(1, column, *width)?)?;
        column += width;
    }
    Ok(result)
}

/// See [`sum`]; the result has contiguous rows.
pub(super) fn sum_into(terms: &[Term<'_>], transposed: bool, onto: Option<&Tensor>, result: &Tensor) -> Result<()> {
    let mut order: Vec<&Term<'_>> = terms.iter().collect();
    order.sort_by_key(|term| term.x.elem_count());
    for (index, term) in order.into_iter().enumerate() {
        let onto = onto.filter(|_| index == 0);
        if let Some(codes) = term.w.in_bytes(transposed) {
            let old = onto.or((index > 0).then_some(result));
            byte_products::multiply((term.x, term.scale), (codes, transposed), old, result)?;
            continue;
        }
        let (x, w) = (rows_of(term.x)?, widened(&term.w, result)?);
        let w = Matrix::new(&w)?;
        let product = Gemm {
            alpha: term.scale as f32,
            beta: if index == 0 && onto.is_none() { 0.0 } else { 1.0 },
            onto,
            ..Gemm::new(Matrix::new(&x)?, if transposed { w.t() } else { w })
        };
        product.run(result)?;
    }
    Ok(())
}

/// into (M, N) F32 += alpha a^T b.
pub(crate) fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    // One dtype for both; a gradient in F32 against activations in BF16 does not occur in training.
    let dtype = if a.dtype() == b.dtype() { a.dtype() } else { DType::F32 };
    let (a, b) = (rows_of(&a.to_dtype(dtype)?)?, rows_of(&b.to_dtype(dtype)?)?);
    let product = Gemm {
        alpha: alpha as f32,
        beta: 1.0,
        ..Gemm::new(Matrix::new(&a)?.t(), Matrix::new(&b)?)
    };
    product.run(into)
}

/// The right operand in the dtype of `like`; codes are widened into memory that every product reuses.
fn widened(w: &Factor<'_>, like: &Tensor) -> Result<Tensor> {
    let dtype = like.dtype();
    match w {
        Factor::Dense(tensor) => rows_of(&tensor.to_dtype(dtype)?),
        Factor::QuantizedMatrix(quantized) => {
            let (rows, columns) = quantized.dims2();
            let place = scratch(rows * columns, dtype, like.device())?.reshape((rows, columns))?;
            quantized.fill(&place)?;
            Ok(place)
        }
    }
}
