//! Small F32 products on one thread, for ops that are parallel already.

/// A matrix in F32, with strides.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix; `values` may be longer than it needs.
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
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
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// What happens to the values that a result has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    Overwrite,
    Add,
}

/// left times right, into `result` (row-major).
pub fn multiply(left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    assert_eq!(left.columns, right.rows, "the inner dimensions agree");
    assert!(left.rows * right.columns <= result.len(), "the result has room");
    // SAFETY: views lie within their values, and the result has room for (rows, columns).
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            result.as_mut_ptr(),
            1,
            right.columns as isize,
            old == Old::Add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
