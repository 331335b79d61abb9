//! The products as ops on tensors.

use super::coded::{CodedSource, Factor};
use super::engine::{self, MAX_TERMS};
use super::operand::{Order, Product, Result as Target, Right, Side, Values};
use super::reference;
use crate::train::gpu;
use crate::train::ops::cuda;
use crate::train::ops::element::{Element, with_element};
use crate::train::ops::shape;
use crate::train::ops::storage::{Elements, Unwritten, is_fused, update};
use candle_core::{DType, Result, Tensor};
use half::{bf16, f16};

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
    if gpu::takes(a) && gpu::takes(b) {
        return cuda::matmul::tn_add(a, b, alpha, into);
    }
    if !is_fused(a) || !is_fused(b) {
        return reference::tn_add(a, b, alpha, into);
    }
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let (left, right) = (Guard::new(&a)?, Guard::new(&b)?);
    let product = Product {
        left: left.values(),
        side: Side::Transposed,
        stride: rows,
        right: right.values().right(Order::Straight, columns, tokens, 1.0),
    };
    update(into, "matmul tn_add", |into| {
        let target = Target::<f32>::Add(into.as_mut_ptr(), alpha as f32);
        // SAFETY: the target has (rows, columns).
        unsafe { engine::multiply(&[product], (rows, columns), target) };
        Ok(())
    })
}

fn sum(terms: &[Term<'_>], order: Order) -> Result<Tensor> {
    let Some(first) = terms.first() else {
        candle_core::bail!("matmul: a sum needs at least one product");
    };
    check(terms, order)?;
    if terms.iter().all(|term| gpu::takes(term.x)) {
        return cuda::matmul::sum(terms, size(first, order)?, order == Order::Transposed);
    }
    if terms.iter().any(|term| !is_fused(term.x) || !term.w.is_fused()) {
        return reference::sum(terms, order);
    }
    with_element!(first.x.dtype(), T => sum_into::<T>(terms, order))
}

fn check(terms: &[Term<'_>], order: Order) -> Result<()> {
    let ((tokens, columns), dtype) = (size(&terms[0], order)?, terms[0].x.dtype());
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
fn size(term: &Term<'_>, order: Order) -> Result<(usize, usize)> {
    let ((tokens, _), (rows, columns)) = (term.x.dims2()?, term.w.dims2()?);
    Ok(match order {
        Order::Transposed => (tokens, rows),
        Order::Straight => (tokens, columns),
    })
}

fn sum_into<O: Element>(terms: &[Term<'_>], order: Order) -> Result<Tensor> {
    let (rows, columns) = size(&terms[0], order)?;
    let contiguous = |term: &Term<'_>| Ok((term.x.contiguous()?, term.w.contiguous()?));
    let tensors: Vec<(Tensor, Option<Tensor>)> = terms.iter().map(contiguous).collect::<Result<_>>()?;
    let mut guards = Vec::with_capacity(terms.len());
    for (x, w) in &tensors {
        guards.push((Guard::new(x)?, w.as_ref().map(Guard::new).transpose()?));
    }
    let mut products = Vec::with_capacity(terms.len());
    for ((x, w), term) in guards.iter().zip(terms) {
        let (depth, scale) = (term.x.dims2()?.1, term.scale as f32);
        let right = match (w, term.w) {
            (Some(w), _) => w.values().right(order, columns, depth, scale),
            (None, Factor::Coded(values)) => Right::Coded(CodedSource {
                values,
                order,
                columns,
                depth,
                scale,
            }),
            (None, Factor::Dense(_)) => candle_core::bail!("matmul: a dense operand is not held"),
        };
        products.push(Product {
            left: x.values(),
            side: Side::Straight,
            stride: depth,
            right,
        });
    }
    let mut result = Unwritten::<O>::new(rows * columns);
    let target = Target::Store(result.slots().as_mut_ptr().cast::<O>());
    // SAFETY: the target has (rows, columns), and every element of it is written.
    unsafe {
        engine::multiply(&products, (rows, columns), target);
        result.into_tensor(&[rows, columns])
    }
}

/// Read access to a tensor of any float dtype.
pub enum Guard<'a> {
    F32(Elements<'a, f32>),
    Bf16(Elements<'a, bf16>),
    F16(Elements<'a, f16>),
}

impl<'a> Guard<'a> {
    pub fn new(tensor: &'a Tensor) -> Result<Self> {
        Ok(match tensor.dtype() {
            DType::BF16 => Self::Bf16(Elements::new(tensor)?),
            DType::F16 => Self::F16(Elements::new(tensor)?),
            _ => Self::F32(Elements::new(tensor)?),
        })
    }

    pub fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::Bf16(values) => Values::Bf16(values),
            Self::F16(values) => Values::F16(values),
        }
    }
}
