//! Operands of a matrix product on the GPU.

use candle_core::{DType, Result, Tensor};

/// alpha a b + beta c, in place of c; or beta times another matrix of its size.
#[derive(Clone, Copy, Debug)]
pub struct Gemm<'a> {
    pub a: Matrix<'a>,
    pub b: Matrix<'a>,
    pub alpha: f32,
    /// Factor on what c holds already; with 0 it is not read.
    pub beta: f32,
    /// Tensor that is read in place of what c holds: of the same size and dtype, and contiguous as c is then.
    pub onto: Option<&'a Tensor>,
}

/// An operand: a row-major matrix in memory, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub tensor: &'a Tensor,
    /// Rows and columns as they lie in memory.
    pub rows: usize,
    pub columns: usize,
    /// Elements from one row in memory to the next.
    pub stride: usize,
    pub transposed: bool,
    /// The elements as they are, or as pairs of BF16 in a tensor of another dtype.
    pub dtype: DType,
}

impl<'a> Matrix<'a> {
    /// A (rows, columns) tensor whose rows are each contiguous, such as columns of a wider one.
    pub fn new(tensor: &'a Tensor) -> Result<Self> {
        let (rows, columns) = tensor.dims2()?;
        let Some(stride) = row_stride(tensor)? else {
            candle_core::bail!("a product on the GPU needs tensors with contiguous rows");
        };
        Ok(Self {
            tensor,
            rows,
            columns,
            stride,
            transposed: false,
            dtype: tensor.dtype(),
        })
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    /// (rows, columns) as an operand.
    pub fn size(&self) -> (usize, usize) {
        match self.transposed {
            true => (self.columns, self.rows),
            false => (self.rows, self.columns),
        }
    }
}

/// Elements from one row of a matrix to the next, if each of its rows is contiguous.
pub(super) fn row_stride(tensor: &Tensor) -> Result<Option<usize>> {
    let (_, columns) = tensor.dims2()?;
    Ok(match tensor.stride() {
        _ if tensor.is_contiguous() => Some(columns),
        [stride, 1] if *stride >= columns => Some(*stride),
        _ => None,
    })
}

impl Gemm<'_> {
    /// a b.
    pub fn new<'a>(a: Matrix<'a>, b: Matrix<'a>) -> Gemm<'a> {
        Gemm {
            a,
            b,
            alpha: 1.0,
            beta: 0.0,
            onto: None,
        }
    }
}
