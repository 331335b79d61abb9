//! The products as ops on tensors: which engine runs, and what it is given.

#[cfg(target_arch = "x86_64")]
use super::blocked;
use super::coded::{Coded, CodedSource, Factor};
use super::operand::{Left, Order, Result as Target, Right, Source, Term as Operands};
use super::{reference, widened};
use crate::train::ops::element::{Element, with_element};
use crate::train::ops::shape;
use crate::train::ops::storage::{Elements, Unwritten, is_fused, update};
use candle_core::{DType, Result, Tensor};
use half::{bf16, f16};

/// Products that one call can sum.
pub const MAX_TERMS: usize = 4;

/// One product of a sum: `scale` times x times w.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// (T, K) for [`nt_sum`], (T, N) for [`nn_sum`]; the same dtype in all terms.
    pub x: &'a Tensor,
    /// (N, K), any float dtype or codes.
    pub w: Factor<'a>,
    pub scale: f64,
}

impl<'a> Term<'a> {
    /// `scale` times x times w.
    pub fn new(x: &'a Tensor, w: impl Into<Factor<'a>>, scale: f64) -> Self {
        Self { x, w: w.into(), scale }
    }
}

/// x (T, K) times the transpose of w (N, K), in the dtype of x.
pub fn nt(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    nt_sum(&[Term::new(x, w, 1.0)])
}

/// x (T, N) times w (N, K), in the dtype of x.
pub fn nn(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    nn_sum(&[Term::new(x, w, 1.0)])
}

/// The sum of scale x w^T over the terms, (T, N): a linear layer with its adapter is x W^T + scaling u B^T in one pass,
/// u = x A^T. One to four terms; summed in F32 and rounded once.
pub fn nt_sum(terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Transposed)
}

/// The sum of scale x w over the terms, (T, K): the input gradient of a linear layer with its adapter is
/// dy W + scaling du A in one pass, du = dy B. One to four terms; summed in F32 and rounded once.
pub fn nn_sum(terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Straight)
}

/// Adds alpha times the transpose of a (T, M) times b (T, N) to `into` (M, N) F32, in place (`+=`).
///
/// `into` may be a contiguous view of a larger buffer, which must not be the buffer of a or b; a and b may be of
/// different float dtypes.
pub fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (tokens, rows) = a.dims2()?;
    let (_, columns) = b.dims2()?;
    shape::expect(b, &[tokens, columns], "matmul tn_add: b")?;
    shape::expect(into, &[rows, columns], "matmul tn_add: into")?;
    if into.dtype() != DType::F32 {
        candle_core::bail!("matmul tn_add: gradients are kept in F32, not {:?}", into.dtype());
    }
    if !is_fused(a) || !is_fused(b) {
        return reference::tn_add(a, b, alpha, into);
    }
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let (left, right) = (Values::new(&a)?, Values::new(&b)?);
    update(into, "matmul tn_add", |into| {
        let target = Target::<f32>::Add(into.as_mut_ptr(), alpha as f32);
        let right = right.right(Order::Straight, columns, tokens, 1.0);
        // SAFETY: the target has (rows, columns).
        unsafe { run(&[(&left, right)], Side::Transposed, (rows, columns), target) };
        Ok(())
    })
}

/// Product of x (T, K) with the rows of w (V, K) into F32, whatever the dtype of x: (T, V).
pub(in crate::train::ops) fn nt_f32(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let terms = [Term::new(x, w, 1.0)];
    if is_fused(x) && is_fused(w) {
        return sum_into::<f32>(&terms, Order::Transposed);
    }
    reference::sum(
        &[Term {
            x: &x.to_dtype(DType::F32)?,
            ..terms[0]
        }],
        Order::Transposed,
    )
}

fn sum(terms: &[Term<'_>], order: Order) -> Result<Tensor> {
    let Some(first) = terms.first() else {
        candle_core::bail!("matmul: a sum needs at least one product");
    };
    check(terms, order)?;
    if terms.iter().any(|term| !is_fused(term.x) || !term.w.is_fused()) {
        return reference::sum(terms, order);
    }
    with_element!(first.x.dtype(), T => sum_into::<T>(terms, order))
}

fn check(terms: &[Term<'_>], order: Order) -> Result<()> {
    let (tokens, columns) = size(&terms[0], order)?;
    for term in terms {
        let (rows_of_w, columns_of_w) = term.w.dims2()?;
        let (depth, name) = match order {
            Order::Transposed => (columns_of_w, "matmul nt: w"),
            Order::Straight => (rows_of_w, "matmul nn: w"),
        };
        let expected = match order {
            Order::Transposed => [columns, term.x.dims2()?.1],
            Order::Straight => [term.x.dims2()?.1, columns],
        };
        if [rows_of_w, columns_of_w] != expected {
            candle_core::bail!(
                "{name}: expected shape {expected:?}, got {:?}",
                [rows_of_w, columns_of_w]
            );
        }
        shape::expect(term.x, &[tokens, depth], "matmul: x")?;
        if term.x.dtype() != terms[0].x.dtype() {
            candle_core::bail!(
                "matmul: a sum takes x of one dtype, got {:?} and {:?}",
                terms[0].x.dtype(),
                term.x.dtype()
            );
        }
    }
    if terms.len() > MAX_TERMS {
        candle_core::bail!(
            "matmul: a sum takes {} products at most, got {}",
            MAX_TERMS,
            terms.len()
        );
    }
    Ok(())
}

/// (rows, columns) of the result.
fn size(term: &Term<'_>, order: Order) -> Result<(usize, usize)> {
    let ((tokens, _), (rows, columns)) = (term.x.dims2()?, term.w.dims2()?);
    Ok(match order {
        Order::Transposed => (tokens, rows),
        Order::Straight => (tokens, columns),
    })
}

fn sum_into<O: Element>(terms: &[Term<'_>], order: Order) -> Result<Tensor> {
    let (rows, columns) = size(&terms[0], order)?;
    let whole = |tensor: &Tensor| tensor.contiguous();
    let tensors: Vec<(Tensor, Option<Tensor>)> = terms
        .iter()
        .map(|term| match term.w {
            Factor::Dense(w) => Ok((whole(term.x)?, Some(whole(w)?))),
            Factor::Coded(_) => Ok((whole(term.x)?, None)),
        })
        .collect::<Result<_>>()?;
    let values: Vec<(Values<'_>, Weight<'_>)> = tensors
        .iter()
        .zip(terms)
        .map(|((x, w), term)| Ok((Values::new(x)?, Weight::new(w.as_ref(), term.w)?)))
        .collect::<Result<_>>()?;
    let operands: Vec<(&Values<'_>, Right<'_>)> = values
        .iter()
        .zip(terms)
        .map(|((x, w), term)| (x, w.right(order, columns, x.len() / rows.max(1), term.scale as f32)))
        .collect();
    let mut result = Unwritten::<O>::new(rows * columns);
    let target = Target::Store(result.slots().as_mut_ptr().cast::<O>());
    // SAFETY: the target has (rows, columns), and every element of it is written.
    unsafe {
        run(&operands, Side::Straight, (rows, columns), target);
        result.into_tensor(&[rows, columns])
    }
}

/// Read access to an operand of any float dtype.
enum Values<'a> {
    F32(Elements<'a, f32>),
    Bf16(Elements<'a, bf16>),
    F16(Elements<'a, f16>),
}

impl<'a> Values<'a> {
    fn new(tensor: &'a Tensor) -> Result<Self> {
        Ok(match tensor.dtype() {
            DType::BF16 => Self::Bf16(Elements::new(tensor)?),
            DType::F16 => Self::F16(Elements::new(tensor)?),
            _ => Self::F32(Elements::new(tensor)?),
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    fn right(&self, order: Order, columns: usize, depth: usize, scale: f32) -> Right<'_> {
        match self {
            Self::F32(values) => Right::F32(Source {
                values,
                order,
                columns,
                depth,
                scale,
            }),
            Self::Bf16(values) => Right::Bf16(Source {
                values,
                order,
                columns,
                depth,
                scale,
            }),
            Self::F16(values) => Right::F16(Source {
                values,
                order,
                columns,
                depth,
                scale,
            }),
        }
    }

    /// The values in F32.
    fn widened(&self) -> Vec<f32> {
        let mut wide = vec![0.0; self.len()];
        match self {
            Self::F32(values) => wide.copy_from_slice(values),
            Self::Bf16(values) => widened::widen_slice(values, &mut wide),
            Self::F16(values) => widened::widen_slice(values, &mut wide),
        }
        wide
    }
}

/// Read access to a right operand.
enum Weight<'a> {
    Dense(Values<'a>),
    Coded(&'a dyn Coded),
}

impl<'a> Weight<'a> {
    /// `whole` is the contiguous form of a dense factor.
    fn new(whole: Option<&'a Tensor>, factor: Factor<'a>) -> Result<Self> {
        Ok(match (whole, factor) {
            (Some(tensor), _) | (None, Factor::Dense(tensor)) => Self::Dense(Values::new(tensor)?),
            (None, Factor::Coded(values)) => Self::Coded(values),
        })
    }

    fn right(&self, order: Order, columns: usize, depth: usize, scale: f32) -> Right<'_> {
        match self {
            Self::Dense(values) => values.right(order, columns, depth, scale),
            Self::Coded(values) => Right::Coded(CodedSource {
                values: *values,
                order,
                columns,
                depth,
                scale,
            }),
        }
    }
}

/// Which way the left operands lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Straight,
    Transposed,
}

impl Side {
    fn left<T>(self, values: &[T]) -> Left<'_, T> {
        match self {
            Self::Straight => Left::Straight(values),
            Self::Transposed => Left::Transposed(values),
        }
    }
}

/// Runs the best engine for this processor and these dtypes.
///
/// # Safety
/// `target` is valid for `size` (rows, columns).
unsafe fn run<O: Element>(
    operands: &[(&Values<'_>, Right<'_>)],
    side: Side,
    (rows, columns): (usize, usize),
    target: Target<O>,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(terms) = pairs(operands, side) {
        // SAFETY: `pairs` checked the processor; the target is the caller's promise.
        return unsafe { blocked::multiply(&terms, rows, columns, target) };
    }
    let wide: Vec<std::borrow::Cow<'_, [f32]>> = operands
        .iter()
        .map(|(values, _)| match values {
            Values::F32(values) => (&**values).into(),
            other => other.widened().into(),
        })
        .collect();
    let terms: Vec<Operands<'_, f32>> = wide
        .iter()
        .zip(operands)
        .map(|(left, (_, right))| Operands {
            left: side.left(left),
            right: *right,
        })
        .collect();
    // For F32 with both operands across the summed dimension, the gemm crate is ahead: 105 against 85 GFLOP/s.
    #[cfg(target_arch = "x86_64")]
    if side == Side::Straight && crate::train::ops::simd::level() == crate::train::ops::simd::Level::Avx512 {
        // SAFETY: the level was checked; the target is the caller's promise.
        return unsafe { blocked::multiply(&terms, rows, columns, target) };
    }
    // SAFETY: the caller's promise.
    unsafe { widened::multiply(&terms, rows, columns, target) }
}

/// The terms as products of pairs, where all left operands are BF16 with rows of whole pairs and the processor multiplies
/// them.
#[cfg(target_arch = "x86_64")]
fn pairs<'a>(operands: &'a [(&'a Values<'a>, Right<'a>)], side: Side) -> Option<Vec<Operands<'a, bf16>>> {
    use crate::train::ops::simd::{Level, level};
    if level() != Level::Avx512 || !is_x86_feature_detected!("avx512bf16") {
        return None;
    }
    let term = |(values, right): &'a (&'a Values<'a>, Right<'a>)| match values {
        Values::Bf16(values) if side == Side::Transposed || right.depth() % 2 == 0 => Some(Operands {
            left: side.left(values),
            right: *right,
        }),
        _ => None,
    };
    operands.iter().map(term).collect()
}
