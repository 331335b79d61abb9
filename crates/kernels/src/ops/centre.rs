//! Rows without their mean: with an RMS norm behind it, this is LayerNorm (Ba et al. 2016,
//! <https://arxiv.org/abs/1607.06450>) without a bias.
//!
//! y = x - mean(x) by row of x (T, H). It is a projection, so that its backward is the op itself:
//! dx = dy - mean(dy).

use super::cuda;
use super::element::{Element, with_element};
use super::simd::{multiversion, sum};
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// Each row of `x` (T, H) without its mean; the same for a gradient.
pub fn rows(x: &Tensor) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    if gpu::takes(x) && width > 0 {
        return cuda::rms_norm::centre(x);
    }
    if !is_fused(x) || width == 0 {
        return reference::rows(x);
    }
    let x = x.contiguous()?;
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let mut y = Unwritten::<T>::new(rows * width);
        let task = rows_per_task(width);
        thread_pool::for_chunks(&mut y.slots()[..rows * width], task * width, |index, y| {
            centre_rows(&values[index * task * width..], width, y);
        });
        // SAFETY: centre_rows writes every element of its rows.
        unsafe { y.into_tensor(&[rows, width]) }
    })
}

multiversion! {
    fn centre_rows<T: Element>(x: &[T], width: usize, y: &mut [MaybeUninit<T>]) {
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let mean = sum(x, |x| x.widen()) / width as f32;
            for (y, x) in y.iter_mut().zip(x) {
                y.write(T::narrow(x.widen() - mean));
            }
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use crate::kernel_form::widen;
    use candle_core::{D, Result, Tensor};

    /// See [`super::rows`].
    pub fn rows(x: &Tensor) -> Result<Tensor> {
        let wide = widen(x)?;
        wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?.to_dtype(x.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn rows_lose_their_mean_and_gradients_theirs() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (count, width) in [(1, 16), (37, 100), (3, 1160)] {
                let (x, x64) = rounded(&(random(&[count, width], 1) + 3.0).unwrap(), dtype);
                assert_close(&rows(&x).unwrap(), &reference::rows(&x64).unwrap(), "y");
                let dy = random(&[count, width], 2);
                let expected = autograd(&[&x64], &dy, |inputs| reference::rows(&inputs[0]));
                let (dy, dy64) = rounded(&dy, dtype);
                assert_close(&rows(&dy).unwrap(), &reference::rows(&dy64).unwrap(), "dx");
                assert_close(
                    &rows(&dy.to_dtype(DType::F64).unwrap()).unwrap(),
                    &reference::rows(&dy64).unwrap(),
                    "dx",
                );
                if dtype == DType::F32 {
                    assert_close(&rows(&dy).unwrap(), &expected[0], "dx");
                }
            }
        }
    }
}
