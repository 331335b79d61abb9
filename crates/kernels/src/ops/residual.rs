//! Residual connection.

use super::cuda;
use super::element::{Element, with_element};
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// x + y, of the same shape and dtype.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    shape::expect(y, x.dims(), "residual: y")?;
    if gpu::takes(x) {
        return cuda::elementwise::add(x, y);
    }
    if !is_fused(x) {
        return x + y;
    }
    let (x, y) = (x.contiguous()?, y.contiguous()?);
    with_element!(x.dtype(), T => {
        let (left, right) = (Elements::<T>::new(&x)?, Elements::<T>::new(&y)?);
        let (task, mut sum) = (rows_per_task(1), Unwritten::<T>::new(left.len()));
        thread_pool::for_chunks(&mut sum.slots()[..left.len()], task, |index, sum| {
            let start = index * task;
            add_block(&left[start..], &right[start..], sum);
        });
        // SAFETY: add_block writes every element.
        unsafe { sum.into_tensor(x.dims()) }
    })
}

multiversion! {
    fn add_block<T: Element>(x: &[T], y: &[T], sum: &mut [MaybeUninit<T>]) {
        for ((sum, x), y) in sum.iter_mut().zip(x).zip(y) {
            sum.write(T::narrow(x.widen() + y.widen()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn a_sum_of_many_blocks_matches_f64() {
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let ((x, x64), (y, y64)) = (
                rounded(&random(&[37, 1000], 1), dtype),
                rounded(&random(&[37, 1000], 2), dtype),
            );
            assert_close(&add(&x, &y).unwrap(), &(x64 + y64).unwrap(), "sum");
        }
    }
}
