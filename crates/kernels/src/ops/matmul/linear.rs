//! The products as ops on tensors.

use super::engine;
use super::factor::Factor;
use super::operand::{Old, Product, Result as Target, Right, Side, Values};
use super::order::Order;
use super::quantized_source::QuantizedSource;
use super::reference;
use super::term::Term;
use crate::gpu;
use crate::ops::cuda;
use crate::ops::element::{Element, with_element};
use crate::ops::shape;
use crate::ops::storage::{Elements, Unwritten, is_fused, update};
use candle_core::{DType, Result, Tensor};
use half::{bf16, f16};
use peft_tune_core::plan::products::MAX_TERMS;

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
    sum(terms, Order::Transposed, None)
}

/// y (T, N) plus the sum of [`nt_sum`]; rounded once. y has the dtype of x.
pub fn nt_onto(y: &Tensor, terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Transposed, Some(y))
}

/// The sum of scale x w over the terms, (T, K): the input gradient of a linear layer with its adapter is
/// dy W + scaling du A in one pass, du = dy B. One to four terms; summed in F32 and rounded once.
pub fn nn_sum(terms: &[Term<'_>]) -> Result<Tensor> {
    sum(terms, Order::Straight, None)
}

/// The results of several [`nn_sum`]s over the same T side by side, (T, sum of K).
pub fn nn_beside(sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
    let Some(first) = sums.first().and_then(|terms| terms.first()) else {
        candle_core::bail!("matmul: a sum needs at least one product");
    };
    let (order, dtype, tokens) = (Order::Straight, first.x.dtype(), first.x.dims2()?.0);
    let mut widths = Vec::with_capacity(sums.len());
    for terms in sums {
        check(terms, order)?;
        shape::expect(terms[0].x, &[tokens, terms[0].x.dims2()?.1], "matmul: x")?;
        widths.push(size(&terms[0], order)?.1);
    }
    let mut all = sums.iter().flatten();
    let is_one_dtype = tokens > 0 && all.clone().all(|term| term.x.dtype() == dtype);
    if is_one_dtype && all.clone().all(|term| gpu::takes(term.x)) {
        return cuda::matmul::beside(sums, (tokens, &widths));
    }
    if !is_one_dtype || all.any(|term| !term.is_fused()) {
        let each = sums.iter().map(|terms| nn_sum(terms)).collect::<Result<Vec<_>>>()?;
        return Tensor::cat(&each, 1);
    }
    let width: usize = widths.iter().sum();
    with_element!(dtype, T => {
        let (mut result, mut column) = (Unwritten::<T>::new(tokens * width), 0);
        for terms in sums {
            // SAFETY: the column lies within the rows of the result.
            let start = unsafe { result.slots().as_mut_ptr().cast::<T>().add(column) };
            // SAFETY: the target has the rows and, from its start on, the columns.
            column += unsafe { sum_into(terms, order, Target::store(start, width))? };
        }
        // SAFETY: the sums have written all of their columns, which make up the width.
        unsafe { result.into_tensor(&[tokens, width]) }
    })
}

/// Adds alpha times the transpose of a (T, M) times b (T, N) to `into` (M, N) F32, in place (`+=`).
///
/// `into` may be a contiguous view of a larger buffer, which must not be the buffer of a or b; a and b may be of
/// different float dtypes, and columns of wider tensors.
pub fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (tokens, rows) = a.dims2()?;
    let (_, columns) = b.dims2()?;
    shape::expect(b, &[tokens, columns], "matmul tn_add: b")?;
    shape::expect(into, &[rows, columns], "matmul tn_add: into")?;
    if into.dtype() != DType::F32 {
        candle_core::bail!("matmul tn_add: gradients are kept in F32, not {:?}", into.dtype());
    }
    if gpu::takes(a) && gpu::takes(b) {
        return cuda::matmul::tn_add(a, b, alpha, into);
    }
    if !is_fused(a) || !is_fused(b) {
        return reference::tn_add(a, b, alpha, into);
    }
    let (a, b) = (rows_of(a)?, rows_of(b)?);
    let ((left, left_stride), (right, right_stride)) = (Guard::rows(&a)?, Guard::rows(&b)?);
    let product = Product {
        left: left.values(),
        side: Side::Transposed,
        stride: left_stride,
        right: right
            .values()
            .right(Order::Straight, (columns, tokens), right_stride, 1.0),
    };
    update(into, "matmul tn_add", |into| {
        let (a, b) = ((left.values(), left_stride), (right.values(), right_stride));
        if engine::multiply_thin(a, b, [tokens, rows, columns], alpha as f32, into) {
            return Ok(());
        }
        let target = Target {
            start: into.as_mut_ptr(),
            stride: columns,
            old: Old::Itself(alpha as f32),
        };
        // SAFETY: the target has (rows, columns).
        unsafe { engine::multiply(&[product], (rows, columns), target) };
        Ok(())
    })
}

fn sum(terms: &[Term<'_>], order: Order, onto: Option<&Tensor>) -> Result<Tensor> {
    let Some(first) = terms.first() else {
        candle_core::bail!("matmul: a sum needs at least one product");
    };
    check(terms, order)?;
    let (rows, columns) = size(first, order)?;
    if let Some(onto) = onto {
        shape::expect(onto, &[rows, columns], "matmul: y")?;
    }
    if terms.iter().all(|term| gpu::takes(term.x)) {
        return cuda::matmul::sum(terms, (rows, columns), order == Order::Transposed, onto);
    }
    let same = onto.is_none_or(|onto| onto.dtype() == first.x.dtype() && is_fused(onto));
    if !same || terms.iter().any(|term| !term.is_fused()) {
        let sum = reference::sum(terms, order)?;
        return onto.map_or(Ok(sum.clone()), |onto| onto + sum);
    }
    with_element!(first.x.dtype(), T => {
        // SAFETY: the sum writes every element of the target.
        unsafe { fresh::<T>([rows, columns], onto, |target| sum_into(terms, order, target).map(drop)) }
    })
}

/// A new tensor that `fill` writes, (rows, columns), onto another one of its shape and elements where there is one.
///
/// # Safety
/// `fill` writes every element of the target, which has (rows, columns), as has what it is added to.
pub(super) unsafe fn fresh<T: Element>(
    [rows, columns]: [usize; 2],
    onto: Option<&Tensor>,
    fill: impl FnOnce(Target<T>) -> Result<()>,
) -> Result<Tensor> {
    let onto = onto.map(Tensor::contiguous).transpose()?;
    let onto = onto.as_ref().map(Elements::<T>::new).transpose()?;
    let mut result = Unwritten::<T>::new(rows * columns);
    fill(Target {
        start: result.slots().as_mut_ptr().cast::<T>(),
        stride: columns,
        old: onto.as_ref().map_or(Old::Nothing, |onto| Old::Other(onto.as_ptr())),
    })?;
    // SAFETY: the caller's promise.
    unsafe { result.into_tensor(&[rows, columns]) }
}

pub(super) fn check(terms: &[Term<'_>], order: Order) -> Result<()> {
    let Some(first) = terms.first() else {
        candle_core::bail!("matmul: a sum needs at least one product");
    };
    let ((tokens, columns), dtype) = (size(first, order)?, first.x.dtype());
    for term in terms {
        let depth = term.x.dims2()?.1;
        let (expected, name) = match order {
            Order::Transposed => ([columns, depth], "matmul nt: w"),
            Order::Straight => ([depth, columns], "matmul nn: w"),
        };
        term.w.expect(&expected, name)?;
        shape::expect(term.x, &[tokens, depth], "matmul: x")?;
        if term.x.dtype() != dtype {
            candle_core::bail!(
                "matmul: a sum takes x of one dtype, got {dtype:?} and {:?}",
                term.x.dtype()
            );
        }
    }
    if terms.len() > MAX_TERMS {
        candle_core::bail!("matmul: a sum takes {MAX_TERMS} products at most, got {}", terms.len());
    }
    Ok(())
}

/// (rows, columns) of the result.
pub(super) fn size(term: &Term<'_>, order: Order) -> Result<(usize, usize)> {
    let ((tokens, _), (rows, columns)) = (term.x.dims2()?, term.w.dims2()?);
    Ok(match order {
        Order::Transposed => (tokens, rows),
        Order::Straight => (tokens, columns),
    })
}

/// Computes the sum into `target` and returns its columns.
///
/// # Safety
/// The terms were checked; the target is valid for the size of their sum.
unsafe fn sum_into<O: Element>(terms: &[Term<'_>], order: Order, target: Target<O>) -> Result<usize> {
    let size = size(&terms[0], order)?;
    let held = hold(terms)?;
    let guards = guards(&held)?;
    let products = products(&guards, terms, order)?;
    // SAFETY: the caller's promise.
    unsafe { engine::multiply(&products, size, target) };
    Ok(size.1)
}

/// The tensors of all terms.
pub(super) fn hold(terms: &[Term<'_>]) -> Result<Vec<Held>> {
    terms.iter().map(Held::new).collect()
}

/// Read access to the operands of all terms.
pub(super) fn guards(held: &[Held]) -> Result<Vec<Guards<'_>>> {
    held.iter().map(Held::guards).collect()
}

/// The products of all terms.
pub(super) fn products<'a>(guards: &'a [Guards<'a>], terms: &[Term<'a>], order: Order) -> Result<Vec<Product<'a>>> {
    let both = guards.iter().zip(terms);
    both.map(|(guards, term)| guards.product(term, order)).collect()
}

/// The tensors of a term as the engines read them.
pub(super) struct Held {
    x: Tensor,
    /// `None` for codes.
    w: Option<Tensor>,
}

/// Read access to the operands of a term.
pub(super) struct Guards<'a> {
    x: (Guard<'a>, usize),
    w: Option<Guard<'a>>,
}

impl Held {
    pub(super) fn new(term: &Term<'_>) -> Result<Self> {
        Ok(Self {
            x: rows_of(term.x)?,
            w: term.w.contiguous()?,
        })
    }

    pub(super) fn guards(&self) -> Result<Guards<'_>> {
        Ok(Guards {
            x: Guard::rows(&self.x)?,
            w: self.w.as_ref().map(Guard::new).transpose()?,
        })
    }
}

impl Guards<'_> {
    /// The term as an engine takes it.
    pub(super) fn product<'a>(&'a self, term: &Term<'a>, order: Order) -> Result<Product<'a>> {
        let ((_, columns), depth, scale) = (size(term, order)?, term.x.dims2()?.1, term.scale as f32);
        let right = match (&self.w, term.w) {
            (Some(w), _) => {
                let width = term.w.dims2()?.1;
                w.values().right(order, (columns, depth), width, scale)
            }
            (None, Factor::QuantizedMatrix(values)) => Right::QuantizedMatrix(QuantizedSource {
                values,
                order,
                columns,
                depth,
                scale,
            }),
            (None, Factor::Dense(_)) => candle_core::bail!("matmul: a dense operand is not held"),
        };
        Ok(Product {
            left: self.x.0.values(),
            side: Side::Straight,
            stride: self.x.1,
            right,
        })
    }
}

/// `tensor` itself where each of its rows is contiguous, else a copy.
pub(crate) fn rows_of(tensor: &Tensor) -> Result<Tensor> {
    let (_, columns) = tensor.dims2()?;
    match tensor.stride() {
        [stride, 1] if *stride >= columns => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    }
}

/// Read access to a tensor of any float dtype.
pub(crate) enum Guard<'a> {
    F32(Elements<'a, f32>),
    Bf16(Elements<'a, bf16>),
    F16(Elements<'a, f16>),
}

impl<'a> Guard<'a> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        Ok(match tensor.dtype() {
            DType::BF16 => Self::Bf16(Elements::new(tensor)?),
            DType::F16 => Self::F16(Elements::new(tensor)?),
            _ => Self::F32(Elements::new(tensor)?),
        })
    }

    /// A matrix whose rows are each contiguous, and the values from one row to the next.
    pub(super) fn rows(tensor: &'a Tensor) -> Result<(Self, usize)> {
        Ok(match tensor.dtype() {
            DType::BF16 => {
                let (elements, stride) = Elements::rows(tensor)?;
                (Self::Bf16(elements), stride)
            }
            DType::F16 => {
                let (elements, stride) = Elements::rows(tensor)?;
                (Self::F16(elements), stride)
            }
            _ => {
                let (elements, stride) = Elements::rows(tensor)?;
                (Self::F32(elements), stride)
            }
        })
    }

    pub(crate) fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::Bf16(values) => Values::Bf16(values),
            Self::F16(values) => Values::F16(values),
        }
    }
}
