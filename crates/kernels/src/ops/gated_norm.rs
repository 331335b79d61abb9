//! An RMS norm of each head whose result is multiplied with a gate: what stands behind a gated delta rule.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x`, `z`, `y`, `dy` | (R, N) | rows to normalise, gates, result and its gradient; compute dtype |
//! | `w` | (N,) | weight |
//!
//! With r = 1 / sqrt(mean(x^2) + eps) and n = x r: y = w n silu(z). With g = dy w silu(z): dx = r (g - n mean(g n)),
//! dz = dy w n silu'(z), dw = sum over rows of dy n silu(z). r is made again in the backward pass.

use std::mem::MaybeUninit;

use super::element::{Element, with_element};
use super::exponential::logistic;
use super::shape;
use super::simd::{multiversion, sum};
use super::storage::{Elements, Unwritten, is_fused, rows_per_task, small};
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// y, (R, N).
///
/// # Errors
/// Shapes that differ.
pub fn forward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let (rows, width) = check(x, z, weight)?;
    if !is_fused(x) || width == 0 {
        return reference::forward(x, z, weight, epsilon);
    }
    let (x, z, weight) = (x.contiguous()?, z.contiguous()?, small(weight)?);
    with_element!(x.dtype(), T => {
        let (x, z) = (Elements::<T>::new(&x)?, Elements::<T>::new(&z)?);
        let (x, z, task) = (&*x, &*z, rows_per_task(width) * width);
        let mut y = Unwritten::<T>::new(rows * width);
        thread_pool::for_chunks(&mut y.slots()[..rows * width], task, |index, y| {
            forward_rows(&x[index * task..], &z[index * task..], &weight, epsilon as f32, y);
        });
        // SAFETY: every row is written.
        unsafe { y.into_tensor(&[rows, width]) }
    })
}

/// Gradients with respect to (x, z).
///
/// # Errors
/// Shapes that differ.
pub fn backward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64, dy: &Tensor) -> Result<(Tensor, Tensor)> {
    let (rows, width) = check(x, z, weight)?;
    shape::expect(dy, x.dims(), "gated norm: dy")?;
    if !is_fused(x) || width == 0 {
        let [d_x, d_z, _] = reference::backward(x, z, weight, epsilon, dy)?;
        return Ok((d_x, d_z));
    }
    let (x, z, dy, weight) = (x.contiguous()?, z.contiguous()?, dy.contiguous()?, small(weight)?);
    with_element!(x.dtype(), T => {
        let (x, z, dy) = (Elements::<T>::new(&x)?, Elements::<T>::new(&z)?, Elements::<T>::new(&dy)?);
        let (x, z, dy, task) = (&*x, &*z, &*dy, rows_per_task(width) * width);
        let (mut d_x, mut d_z) = (Unwritten::<T>::new(rows * width), Unwritten::<T>::new(rows * width));
        let outputs = (&mut d_x.slots()[..rows * width], &mut d_z.slots()[..rows * width]);
        thread_pool::for_chunks2((outputs.0, task), (outputs.1, task), |index, d_x, d_z| {
            let first = index * task;
            backward_rows((&x[first..], &z[first..], &dy[first..]), &weight, epsilon as f32, d_x, d_z);
        });
        // SAFETY: every row of both is written.
        unsafe { Ok((d_x.into_tensor(&[rows, width])?, d_z.into_tensor(&[rows, width])?)) }
    })
}

/// Gradient with respect to the weight, (N,) F32.
///
/// # Errors
/// Shapes that differ.
pub fn weight_gradient(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64, dy: &Tensor) -> Result<Tensor> {
    check(x, z, weight)?;
    shape::expect(dy, x.dims(), "gated norm: dy")?;
    let [_, _, d_weight] = reference::backward(x, z, weight, epsilon, dy)?;
    Ok(d_weight)
}

fn check(x: &Tensor, z: &Tensor, weight: &Tensor) -> Result<(usize, usize)> {
    let (rows, width) = x.dims2()?;
    shape::expect(z, x.dims(), "gated norm: z")?;
    shape::expect(weight, &[width], "gated norm: weight")?;
    Ok((rows, width))
}

/// r of a row.
#[inline(always)]
fn rstd<T: Element>(row: &[T], epsilon: f32) -> f32 {
    let squares = sum(row, |value: T| value.widen() * value.widen());
    1.0 / (squares / row.len() as f32 + epsilon).sqrt()
}

multiversion! {
    fn forward_rows<T: Element>(x: &[T], z: &[T], weight: &[f32], epsilon: f32, y: &mut [MaybeUninit<T>]) {
        let width = weight.len();
        for ((y, x), z) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(z.chunks_exact(width)) {
            let r = rstd(x, epsilon);
            for ((y, (x, z)), weight) in y.iter_mut().zip(x.iter().zip(z)).zip(weight) {
                let z = z.widen();
                y.write(T::narrow(weight * (x.widen() * r) * (z * logistic::<FMA>(z).0)));
            }
        }
    }
}

multiversion! {
    fn backward_rows<T: Element>(
        inputs: (&[T], &[T], &[T]),
        weight: &[f32],
        epsilon: f32,
        d_x: &mut [MaybeUninit<T>],
        d_z: &mut [MaybeUninit<T>],
    ) {
        let (width, (x, z, dy)) = (weight.len(), inputs);
        let mut gradient = vec![0f32; width];
        let rows = x.chunks_exact(width).zip(z.chunks_exact(width)).zip(dy.chunks_exact(width));
        let outputs = d_x.chunks_exact_mut(width).zip(d_z.chunks_exact_mut(width));
        for ((d_x, d_z), ((x, z), dy)) in outputs.zip(rows) {
            let r = rstd(x, epsilon);
            let mut along = 0f32;
            for index in 0..width {
                let (z, n) = (z[index].widen(), x[index].widen() * r);
                let (s, rest) = logistic::<FMA>(z);
                let scaled = dy[index].widen() * weight[index];
                gradient[index] = scaled * z * s;
                along += gradient[index] * n;
                d_z[index].write(T::narrow(scaled * n * s * (1.0 + z * rest)));
            }
            let mean = along / width as f32;
            for ((d_x, gradient), x) in d_x.iter_mut().zip(&gradient).zip(x) {
                d_x.write(T::narrow(r * (gradient - x.widen() * r * mean)));
            }
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use crate::kernel_form::widen;
    use candle_core::{D, Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
        let (wide, z) = (widen(x)?, widen(z)?);
        let normed = wide.broadcast_mul(&rstd(&wide, epsilon)?)?;
        let gated = (normed * (&z * logistic(&z)?)?)?;
        gated
            .broadcast_mul(&weight.to_dtype(wide.dtype())?)?
            .to_dtype(x.dtype())
    }

    /// Gradients with respect to x, z and the weight.
    pub fn backward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64, dy: &Tensor) -> Result<[Tensor; 3]> {
        let (dtype, wide, z, dy) = (x.dtype(), widen(x)?, widen(z)?, widen(dy)?);
        let (r, s) = (rstd(&wide, epsilon)?, logistic(&z)?);
        let normed = wide.broadcast_mul(&r)?;
        let (silu, scaled) = ((&z * &s)?, dy.broadcast_mul(&weight.to_dtype(wide.dtype())?)?);
        let slope = (&s * ((&z * (1.0 - &s)?)? + 1.0)?)?;
        let d_z = ((&scaled * &normed)? * slope)?;
        let gradient = (scaled * &silu)?;
        let along = (&gradient * &normed)?.mean_keepdim(D::Minus1)?;
        let d_x = (gradient - normed.broadcast_mul(&along)?)?.broadcast_mul(&r)?;
        let d_weight = ((dy * normed)? * silu)?.sum(0)?;
        Ok([d_x.to_dtype(dtype)?, d_z.to_dtype(dtype)?, d_weight])
    }

    fn rstd(x: &Tensor, epsilon: f64) -> Result<Tensor> {
        (x.sqr()?.mean_keepdim(D::Minus1)? + epsilon)?.sqrt()?.recip()
    }

    fn logistic(z: &Tensor) -> Result<Tensor> {
        (z.neg()?.exp()? + 1.0)?.recip()
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, error, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn fused_form_matches_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let input = |seed| rounded(&(random(&[50, 37], seed) * 3.0).unwrap(), dtype);
            let ((x, x64), (z, z64), (dy, dy64)) = (input(1), input(2), input(3));
            let (w, w64) = rounded(&random(&[37], 4), dtype);
            let expected = reference::forward(&x64, &z64, &w64, 1e-6).unwrap();
            assert_close(&forward(&x, &z, &w, 1e-6).unwrap(), &expected, "y");
            let (d_x, d_z) = backward(&x, &z, &w, 1e-6, &dy).unwrap();
            let [d_x64, d_z64, _] = reference::backward(&x64, &z64, &w64, 1e-6, &dy64).unwrap();
            assert_close(&d_x, &d_x64, "dx");
            assert_close(&d_z, &d_z64, "dz");
        }
    }

    #[test]
    fn gradients_match_autograd() {
        let (x, z, w, dy) = (
            random(&[6, 7], 1),
            random(&[6, 7], 2),
            random(&[7], 3),
            random(&[6, 7], 4),
        );
        let expected = autograd(&[&x, &z, &w], &dy, |inputs| {
            let r = (inputs[0].sqr()?.mean_keepdim(1)? + 1e-2)?.sqrt()?.recip()?;
            let silu = (&inputs[1] * (inputs[1].neg()?.exp()? + 1.0)?.recip()?)?;
            (inputs[0].broadcast_mul(&r)? * silu)?.broadcast_mul(&inputs[2])
        });
        let got = reference::backward(&x, &z, &w, 1e-2, &dy).unwrap();
        for (got, expected) in got.iter().zip(&expected) {
            assert!(error(got, expected) < 1e-12);
        }
    }
}
