//! Residual connection, and what else is a sum of two tensors or a multiple of one.

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

/// x + s y, of the same shape and dtype.
pub fn add_scaled(x: &Tensor, y: &Tensor, scale: f64) -> Result<Tensor> {
    shape::expect(y, x.dims(), "residual: y")?;
    if gpu::takes(x) {
        return cuda::elementwise::add_scaled(x, y, scale as f32);
    }
    if !is_fused(x) {
        return x + (y * scale)?;
    }
    let (x, y) = (x.contiguous()?, y.contiguous()?);
    with_element!(x.dtype(), T => {
        let (left, right) = (Elements::<T>::new(&x)?, Elements::<T>::new(&y)?);
        let (task, mut sum) = (rows_per_task(1), Unwritten::<T>::new(left.len()));
        thread_pool::for_chunks(&mut sum.slots()[..left.len()], task, |index, sum| {
            let start = index * task;
            add_scaled_block(&left[start..], &right[start..], scale as f32, sum);
        });
        // SAFETY: add_scaled_block writes every element.
        unsafe { sum.into_tensor(x.dims()) }
    })
}

/// s x, of x's dtype.
pub fn scale(x: &Tensor, scale: f64) -> Result<Tensor> {
    if gpu::takes(x) {
        return cuda::elementwise::scale(x, scale as f32);
    }
    if !is_fused(x) {
        return x * scale;
    }
    let x = x.contiguous()?;
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let (task, mut scaled) = (rows_per_task(1), Unwritten::<T>::new(values.len()));
        thread_pool::for_chunks(&mut scaled.slots()[..values.len()], task, |index, scaled| {
            scale_block(&values[index * task..], scale as f32, scaled);
        });
        // SAFETY: scale_block writes every element.
        unsafe { scaled.into_tensor(x.dims()) }
    })
}

multiversion! {
    fn add_scaled_block<T: Element>(x: &[T], y: &[T], scale: f32, sum: &mut [MaybeUninit<T>]) {
        for ((sum, x), y) in sum.iter_mut().zip(x).zip(y) {
            sum.write(T::narrow(x.widen() + scale * y.widen()));
        }
    }
}

multiversion! {
    fn scale_block<T: Element>(x: &[T], scale: f32, scaled: &mut [MaybeUninit<T>]) {
        for (scaled, x) in scaled.iter_mut().zip(x) {
            scaled.write(T::narrow(scale * x.widen()));
        }
    }
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
            assert_close(&add(&x, &y).unwrap(), &(&x64 + &y64).unwrap(), "sum");
            let scaled = (&y64 * 0.3).unwrap();
            assert_close(
                &add_scaled(&x, &y, 0.3).unwrap(),
                &(x64 + &scaled).unwrap(),
                "scaled sum",
            );
            assert_close(&scale(&y, 0.3).unwrap(), &scaled, "multiple");
        }
    }
}
