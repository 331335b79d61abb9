//! A tensor on paper: shape, dtype and whose bytes it shows.

use std::rc::Rc;

use candle_core::{DType, Result, Shape};

use super::Ledger;
use peft_tune_core::predict::{MemoryCategory, Pass, Work};

/// A tensor without values. Views share what holds their bytes; the ledger gets them back when the last of them is dropped.
#[derive(Clone, Debug)]
pub(crate) struct PaperTensor {
    shape: Shape,
    dtype: DType,
    /// Elements from one row of the first dimension to the next.
    stride: usize,
    held: Rc<Held>,
}

/// Bytes that some tensors show.
#[derive(Debug)]
pub(super) struct Held {
    ledger: Ledger,
    /// Number of the bytes in the ledger; `None` where it has nothing to do with them.
    entry: Option<usize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.ledger.free(entry);
        }
    }
}

impl Ledger {
    /// A tensor in the scratch.
    pub(crate) fn tensor(&self, shape: impl Into<Shape>, dtype: DType) -> PaperTensor {
        let shape = shape.into();
        let bytes = (shape.elem_count() * dtype.size_in_bytes()) as u64;
        let entry = self.hold(MemoryCategory::Scratch, bytes);
        PaperTensor::new(shape, dtype, self.clone(), Some(entry))
    }

    /// A tensor whose bytes are counted elsewhere.
    pub(crate) fn uncounted(&self, shape: impl Into<Shape>, dtype: DType) -> PaperTensor {
        PaperTensor::new(shape.into(), dtype, self.clone(), None)
    }

    /// Calls a tensor scratch from now on: what was kept in its place is no longer needed.
    pub(crate) fn let_go(&self, tensor: &PaperTensor) {
        if let Some(entry) = tensor.entry() {
            self.let_go_entry(entry);
        }
    }
}

impl PaperTensor {
    /// A contiguous tensor whose bytes are those of `entry`.
    pub(super) fn new(shape: Shape, dtype: DType, ledger: Ledger, entry: Option<usize>) -> Self {
        Self {
            stride: row_elements(shape.dims()),
            shape,
            dtype,
            held: Rc::new(Held { ledger, entry }),
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Ledger that has the tensor's bytes.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.held.ledger
    }

    pub(super) fn entry(&self) -> Option<usize> {
        self.held.entry
    }

    /// Elements from one row to the next beyond those of a row: what lies beside columns of a wider tensor.
    pub(crate) fn beside(&self) -> usize {
        self.stride.saturating_sub(row_elements(self.shape.dims()))
    }

    /// Makes another tensor of the same ledger.
    pub(crate) fn fresh(&self, shape: impl Into<Shape>, dtype: DType) -> Self {
        self.held.ledger.tensor(shape, dtype)
    }

    /// Result of a plain tensor op on all elements.
    pub(super) fn passed(&self, shape: impl Into<Shape>, dtype: DType) -> Self {
        self.run_copy();
        self.fresh(shape, dtype)
    }

    /// Tells the ledger that a plain tensor op passes over all elements.
    pub(super) fn run_copy(&self) {
        let copy = Work::Pass {
            pass: Pass::Copy,
            elements: self.shape.elem_count() as f64,
        };
        self.held.ledger.run(copy, 1.0);
    }

    /// Makes another tensor of the same ledger, shape and dtype.
    pub(crate) fn alike(&self) -> Self {
        self.fresh(self.shape.clone(), self.dtype)
    }

    /// The tensor in another shape: a view, or a copy of some columns.
    pub(super) fn reshaped(&self, shape: Shape) -> Self {
        let source = self.contiguous();
        Self {
            stride: row_elements(shape.dims()),
            shape,
            ..source
        }
    }

    /// A copy in rows without gaps, where there are gaps.
    pub(crate) fn contiguous(&self) -> Self {
        match self.beside() {
            0 => self.clone(),
            _ => self.passed(self.shape.clone(), self.dtype),
        }
    }

    /// Takes dimension `dim` away, which is behind the first one and of size 1.
    pub(super) fn squeeze(&self, dim: usize) -> Result<Self> {
        let mut dims = self.shape.dims().to_vec();
        if dim == 0 || dims.get(dim) != Some(&1) {
            candle_core::bail!("on paper: dimension {dim} of {:?} stays", self.shape);
        }
        dims.remove(dim);
        Ok(Self {
            shape: Shape::from(dims),
            ..self.clone()
        })
    }

    /// (.., columns, rows) of (.., rows, columns): a copy, but where a row or column alone lies the same way.
    pub(super) fn transposed(&self) -> Result<Self> {
        let mut dims = self.shape.dims().to_vec();
        let [.., rows, columns] = dims.as_mut_slice() else {
            candle_core::bail!("the transpose of {:?}", self.shape);
        };
        std::mem::swap(rows, columns);
        let (rows, columns) = (*rows, *columns);
        let shape = Shape::from(dims);
        Ok(match rows.min(columns) {
            1 => Self { shape, ..self.clone() }.contiguous(),
            _ => self.fresh(shape, self.dtype),
        })
    }

    /// `length` of dimension `dim`, without a copy.
    pub(super) fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        let mut dims = self.shape.dims().to_vec();
        match dims.get_mut(dim) {
            Some(size) if start + length <= *size => *size = length,
            _ => candle_core::bail!(
                "on paper: {start} and {length} more of dimension {dim} of {:?}",
                self.shape
            ),
        }
        Ok(Self {
            shape: Shape::from(dims),
            ..self.clone()
        })
    }
}

/// Elements of a row of the first dimension.
fn row_elements(dims: &[usize]) -> usize {
    dims.iter().skip(1).product()
}
