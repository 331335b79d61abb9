//! Matrices in F32 that lie anyhow, for small products.

#[cfg(target_arch = "x86_64")]
use super::operand::{self, Source};
#[cfg(target_arch = "x86_64")]
use super::order::Order;

/// A matrix in F32, with strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix; `values` may be longer than it needs.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert!(rows * columns <= values.len(), "a matrix lies within its values");
        Self {
            values,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// The transpose, without moving anything.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// The matrix as a right operand.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn source(&self) -> Source<'a, f32> {
        let (order, stride) = match self.column_stride {
            1 => (Order::Straight, self.row_stride),
            stride => (Order::Transposed, stride),
        };
        Source {
            values: self.values,
            order,
            columns: self.columns,
            depth: self.rows,
            stride,
            scale: 1.0,
        }
    }
}

/// Treatment of the values that a result has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    Overwrite,
    Add,
}

impl Old {
    /// A row-major result of `columns` columns.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn target(self, result: &mut [f32], columns: usize) -> operand::Result<f32> {
        operand::Result {
            start: result.as_mut_ptr(),
            stride: columns,
            old: match self {
                Self::Overwrite => operand::Old::Nothing,
                Self::Add => operand::Old::Itself(1.0),
            },
        }
    }
}
