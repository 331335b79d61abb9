//! Rows that keep the columns of their owner: several adapters side by side, each seen by its own tokens alone.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x` | (T, r) | F32, BF16 or F16 |
//! | `rows`, `columns` | (T, 1), (1, r) U32 | the owner of each row and of each column |
//!
//! y_tj = x_tj where rows_t = columns_j, else 0. The gradient is the op itself.

use super::element::{Element, with_element};
use super::shape;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};
use std::mem::MaybeUninit;

/// `x` with zeros where a column is not of the row's owner.
///
/// # Errors
/// Owners in another number than rows and columns; memory.
pub fn keep(x: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
    let (tokens, width) = x.dims2()?;
    shape::expect(rows, &[tokens, 1], "own columns: rows")?;
    shape::expect(columns, &[1, width], "own columns: columns")?;
    let has_owners = rows.dtype() == DType::U32 && columns.dtype() == DType::U32;
    if !is_fused(x) || gpu::takes(x) || !has_owners || tokens * width == 0 {
        return reference::keep(x, rows, columns);
    }
    let (rows, columns) = (rows.contiguous()?, columns.contiguous()?);
    let (rows, columns) = (Elements::<u32>::new(&rows)?, Elements::<u32>::new(&columns)?);
    with_element!(x.dtype(), T => {
        let (x, stride) = Elements::<T>::rows(x)?;
        let mut y = Unwritten::<T>::new(tokens * width);
        let task = rows_per_task(width);
        thread_pool::for_chunks(&mut y.slots()[..tokens * width], task * width, |index, y| {
            for (row, y) in y.chunks_exact_mut(width).enumerate() {
                let row = index * task + row;
                keep_row(&x[row * stride..][..width], rows[row], &columns, y);
            }
        });
        // SAFETY: keep_row writes every element of its row.
        unsafe { y.into_tensor(&[tokens, width]) }
    })
}

fn keep_row<T: Element>(x: &[T], owner: u32, columns: &[u32], y: &mut [MaybeUninit<T>]) {
    for ((y, x), column) in y.iter_mut().zip(x).zip(columns) {
        y.write(if *column == owner { *x } else { T::narrow(0.0) });
    }
}

/// The op in plain candle ops.
pub mod reference {
    use candle_core::{Result, Tensor};

    /// See [`super::keep`].
    pub fn keep(x: &Tensor, rows: &Tensor, columns: &Tensor) -> Result<Tensor> {
        let own = rows.broadcast_eq(columns)?;
        own.where_cond(&x.contiguous()?, &x.zeros_like()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::random;
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_fused_form_keeps_what_the_plain_one_keeps() {
        for (tokens, width) in [(1, 1), (700, 24), (33, 100)] {
            let owners = |count: usize, of: usize| (0..count).map(|at| (at / 3 % of) as u32).collect::<Vec<_>>();
            let rows = Tensor::from_vec(owners(tokens, 5), (tokens, 1), &Device::Cpu).unwrap();
            let columns = Tensor::from_vec(owners(width, 7), (1, width), &Device::Cpu).unwrap();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                // Columns of a wider tensor.
                let x = random(&[tokens, width + 5], 1).to_dtype(dtype).unwrap();
                let x = x.narrow(1, 2, width).unwrap();
                let [fused, plain] = [keep, reference::keep].map(|form| {
                    let kept = form(&x, &rows, &columns).unwrap().to_dtype(DType::F32).unwrap();
                    kept.to_vec2::<f32>().unwrap()
                });
                assert_eq!(fused, plain);
            }
        }
        let x = random(&[4, 6], 1);
        let owners = Tensor::zeros((1, 6), DType::U32, &Device::Cpu).unwrap();
        assert!(keep(&x, &owners, &owners).is_err());
    }
}
