//! RMS normalisation (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x`, `y`, `dy`, `dx` | (T, H) | rows to normalise, result, gradients; compute dtype |
//! | `w` | (H,) | weight; the factor is `offset + w` (offset 1 for Gemma, 0 elsewhere) |
//! | `rstd` | (T,) F32 | r = 1 / sqrt(mean(x^2) + eps), saved for the backward |
//!
//! y = x r (offset + w). With g = dy (offset + w) and n = x r: dx = r (g - n mean(g n)), dw = sum over rows of dy n.

use super::cuda;
use super::element::{Element, with_element};
use super::shape;
use super::simd::{multiversion, sum, sum3};
use super::storage::{Elements, Unwritten, is_fused, rows_per_task, small};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// Normalises each row of `x` and returns (y, rstd).
pub fn forward(x: &Tensor, weight: &Tensor, eps: f64, offset: f32) -> Result<(Tensor, Tensor)> {
    let (rows, width) = x.dims2()?;
    shape::expect(weight, &[width], "rms_norm: weight")?;
    if gpu::takes(x) && width > 0 {
        return cuda::rms_norm::forward(x, weight, eps, offset);
    }
    if !is_fused(x) || width == 0 {
        return reference::forward(x, weight, eps, offset);
    }
    let (x, factor) = (x.contiguous()?, factor(weight, offset)?);
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let (mut y, mut rstd) = (Unwritten::<T>::new(rows * width), Unwritten::<f32>::new(rows));
        let task = rows_per_task(width);
        let outputs = (&mut y.slots()[..rows * width], &mut rstd.slots()[..rows]);
        thread_pool::for_chunks2((outputs.0, task * width), (outputs.1, task), |index, y, rstd| {
            forward_rows(&values[index * task * width..], &factor, eps as f32, y, rstd);
        });
        // SAFETY: forward_rows writes every element of its rows.
        unsafe { Ok((y.into_tensor(&[rows, width])?, rstd.into_tensor(&[rows])?)) }
    })
}

/// Gradient of the loss with respect to `x`.
pub fn backward(x: &Tensor, weight: &Tensor, rstd: &Tensor, dy: &Tensor, offset: f32) -> Result<Tensor> {
    backward_onto(x, weight, rstd, dy, offset, None)
}

/// Gradient of [`backward`] plus `more` (T, H): the gradient that reaches `x` past the norm, on the residual stream.
pub fn backward_onto(
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    dy: &Tensor,
    offset: f32,
    more: Option<&Tensor>,
) -> Result<Tensor> {
    check_backward(x, rstd, dy)?;
    let (rows, width) = x.dims2()?;
    shape::expect(weight, &[width], "rms_norm: weight")?;
    if let Some(more) = more {
        shape::expect(more, x.dims(), "rms_norm: more")?;
    }
    if gpu::takes(x) && width > 0 {
        return cuda::rms_norm::backward(x, weight, rstd, dy, offset, more);
    }
    if !is_fused(x) || width == 0 {
        let dx = reference::backward(x, weight, rstd, dy, offset)?;
        return match more {
            Some(more) => more + dx,
            None => Ok(dx),
        };
    }
    let more = more.map(Tensor::contiguous).transpose()?;
    let (x, dy, factor, rstd) = (x.contiguous()?, dy.contiguous()?, factor(weight, offset)?, small(rstd)?);
    with_element!(x.dtype(), T => {
        let (x, dy) = (Elements::<T>::new(&x)?, Elements::<T>::new(&dy)?);
        let more = more.as_ref().map(Elements::<T>::new).transpose()?;
        let mut dx = Unwritten::<T>::new(rows * width);
        let task = rows_per_task(width);
        thread_pool::for_chunks(&mut dx.slots()[..rows * width], task * width, |index, dx| {
            let start = index * task * width;
            let more = more.as_ref().map(|more| &more[start..]);
            backward_rows(&x[start..], &dy[start..], &rstd[index * task..], &factor, more, dx);
        });
        // SAFETY: backward_rows writes every element of its rows.
        unsafe { dx.into_tensor(&[rows, width]) }
    })
}

/// Gradient of the loss with respect to the weight, (H,) F32.
pub fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
    check_backward(x, rstd, dy)?;
    let (_, width) = x.dims2()?;
    if gpu::takes(x) && width > 0 {
        return cuda::rms_norm::weight_gradient(x, rstd, dy);
    }
    if !is_fused(x) || width == 0 {
        return reference::weight_gradient(x, rstd, dy);
    }
    let (x, dy, rstd) = (x.contiguous()?, dy.contiguous()?, small(rstd)?);
    with_element!(x.dtype(), T => {
        let (x, dy) = (Elements::<T>::new(&x)?, Elements::<T>::new(&dy)?);
        let task = rows_per_task(width);
        let mut partial = vec![Vec::new(); rstd.len().div_ceil(task)];
        thread_pool::for_chunks(&mut partial, 1, |index, partial| {
            let (rows, mut total) = (index * task..((index + 1) * task).min(rstd.len()), vec![0.0; width]);
            let values = rows.start * width..rows.end * width;
            weight_gradient_rows(&x[values.clone()], &dy[values], &rstd[rows], &mut total);
            partial.fill(total);
        });
        // In the order of the blocks, so that the sum is the same for any number of threads.
        let mut total = vec![0f32; width];
        for block in &partial {
            total.iter_mut().zip(block).for_each(|(total, part)| *total += part);
        }
        Tensor::from_vec(total, width, &candle_core::Device::Cpu)
    })
}

/// offset + w in F32.
fn factor(weight: &Tensor, offset: f32) -> Result<Vec<f32>> {
    Ok(small(weight)?.into_iter().map(|weight| weight + offset).collect())
}

multiversion! {
    fn forward_rows<T: Element>(
        x: &[T],
        factor: &[f32],
        eps: f32,
        y: &mut [MaybeUninit<T>],
        rstd: &mut [MaybeUninit<f32>],
    ) {
        let width = factor.len();
        for ((x, y), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rstd) {
            let squares = sum(x, |x| x.widen() * x.widen());
            let r = 1.0 / (squares / width as f32 + eps).sqrt();
            rstd.write(r);
            for ((y, x), factor) in y.iter_mut().zip(x).zip(factor) {
                y.write(T::narrow(x.widen() * r * factor));
            }
        }
    }
}

multiversion! {
    /// `more` is added to each element.
    fn backward_rows<T: Element>(
        x: &[T],
        dy: &[T],
        rstd: &[f32],
        factor: &[f32],
        more: Option<&[T]>,
        dx: &mut [MaybeUninit<T>],
    ) {
        let width = factor.len();
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(rstd);
        for (row, (dx, ((x, dy), r))) in dx.chunks_exact_mut(width).zip(rows).enumerate() {
            let along = sum3(dy, factor, x, |dy, factor, x| dy.widen() * factor * x.widen());
            // n mean(g n) = x r^2 (g . x) / width.
            let scale = along / width as f32 * r * r;
            let values = dx.iter_mut().zip(x).zip(dy).zip(factor);
            match more {
                Some(more) => {
                    for ((((dx, x), dy), factor), more) in values.zip(&more[row * width..]) {
                        dx.write(T::narrow(more.widen() + r * (dy.widen() * factor - x.widen() * scale)));
                    }
                }
                None => {
                    for (((dx, x), dy), factor) in values {
                        dx.write(T::narrow(r * (dy.widen() * factor - x.widen() * scale)));
                    }
                }
            }
        }
    }
}

multiversion! {
    /// Adds to `total`.
    fn weight_gradient_rows<T: Element>(x: &[T], dy: &[T], rstd: &[f32], total: &mut [f32]) {
        let width = total.len();
        for ((x, dy), r) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(rstd) {
            for ((total, x), dy) in total.iter_mut().zip(x).zip(dy) {
                *total += dy.widen() * (x.widen() * r);
            }
        }
    }
}

fn check_backward(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<()> {
    shape::expect(dy, x.dims(), "rms_norm: dy")?;
    shape::expect(rstd, &[x.dims2()?.0], "rms_norm: rstd")
}

/// The op in plain candle ops.
pub mod reference {
    use crate::kernel_form::widen;
    use candle_core::{D, Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(x: &Tensor, weight: &Tensor, eps: f64, offset: f32) -> Result<(Tensor, Tensor)> {
        let wide = widen(x)?;
        let rstd = (wide.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
        let y = wide
            .broadcast_mul(&rstd)?
            .broadcast_mul(&factor(weight, &wide, offset)?)?;
        Ok((y.to_dtype(x.dtype())?, rstd.squeeze(D::Minus1)?))
    }

    /// See [`super::backward`].
    pub fn backward(x: &Tensor, weight: &Tensor, rstd: &Tensor, dy: &Tensor, offset: f32) -> Result<Tensor> {
        let (wide, rstd) = (widen(x)?, rstd.unsqueeze(1)?);
        let normed = wide.broadcast_mul(&rstd)?;
        let g = widen(dy)?.broadcast_mul(&factor(weight, &wide, offset)?)?;
        let along = (&g * &normed)?.mean_keepdim(D::Minus1)?;
        let dx = (g - normed.broadcast_mul(&along)?)?.broadcast_mul(&rstd)?;
        dx.to_dtype(x.dtype())
    }

    /// See [`super::weight_gradient`].
    pub fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let normed = widen(x)?.broadcast_mul(&rstd.unsqueeze(1)?)?;
        (widen(dy)? * normed)?.sum(0)
    }

    fn factor(weight: &Tensor, wide: &Tensor, offset: f32) -> Result<Tensor> {
        weight.to_dtype(wide.dtype())? + f64::from(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::DType;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        // From 16: in a row of one or two elements dx all but cancels, and its relative error means nothing.
        fn fused_form_matches_f64(rows in 1usize..40, width in 16usize..90, offset in 0u8..2, dtype in 0usize..3) {
            let dtype = [DType::F32, DType::BF16, DType::F16][dtype];
            let ((x, x64), (dy, dy64)) = (rounded(&random(&[rows, width], 1), dtype), rounded(&random(&[rows, width], 2), dtype));
            let ((weight, weight64), offset) = (rounded(&random(&[width], 3), dtype), f32::from(offset));
            let (y, rstd) = forward(&x, &weight, 1e-5, offset).unwrap();
            let (y64, rstd64) = reference::forward(&x64, &weight64, 1e-5, offset).unwrap();
            assert_close(&y, &y64, "y");
            assert_close(&rstd, &rstd64, "rstd");
            let dx = backward(&x, &weight, &rstd, &dy, offset).unwrap();
            assert_close(&dx, &reference::backward(&x64, &weight64, &rstd64, &dy64, offset).unwrap(), "dx");
            let dw = weight_gradient(&x, &rstd, &dy).unwrap();
            assert_close(&dw, &reference::weight_gradient(&x64, &rstd64, &dy64).unwrap(), "dw");
        }
    }

    #[test]
    fn gradients_match_autograd() {
        let (x, weight, dy) = (random(&[5, 24], 1), random(&[24], 2), random(&[5, 24], 3));
        for offset in [0.0, 1.0] {
            let (_, rstd) = forward(&x, &weight, 1e-6, offset).unwrap();
            let expected = autograd(&[&x, &weight], &dy, |inputs| {
                Ok(reference::forward(&inputs[0], &inputs[1], 1e-6, offset)?.0)
            });
            assert_close(&backward(&x, &weight, &rstd, &dy, offset).unwrap(), &expected[0], "dx");
            assert_close(&weight_gradient(&x, &rstd, &dy).unwrap(), &expected[1], "dw");
        }
    }

    #[test]
    fn a_weight_of_the_wrong_width_is_refused() {
        let error = forward(&random(&[2, 4], 1), &random(&[5], 2), 1e-6, 0.0).unwrap_err();
        assert!(error.to_string().contains("rms_norm: weight"), "{error}");
    }
}
