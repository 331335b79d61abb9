//! xIELU, an activation without a gate (Huang and Schlag 2024, <https://arxiv.org/abs/2411.13010>), as Apertus has it.
//!
//! | name | meaning |
//! |---|---|
//! | `x`, `y`, `dx`, `dy` | (T, I), compute dtype |
//! | p, n | `positive`, `negative`: the curvatures of both sides, above 0 |
//! | b, e | `beta`, the slope at 0; `epsilon`, a small negative number below which expm1 is taken |
//!
//! y = p x^2 + b x for x > 0, else n (expm1(min(x, e)) - x) + b x. dx = dy (2 p x + b) for x > 0, else
//! dy (n (s - 1) + b) with s = exp(x) for x < e, half of that at e, and 0 above it, as PyTorch's `min` has it.

use super::cuda;
use super::element::{Element, with_element};
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// The numbers of one layer's function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    pub positive: f32,
    pub negative: f32,
    pub beta: f32,
    pub epsilon: f32,
}

impl Curve {
    /// (y, dy/dx) at x.
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        if x > 0.0 {
            let value = self.positive * x * x + self.beta * x;
            return (value, 2.0 * self.positive * x + self.beta);
        }
        let inner = x.min(self.epsilon);
        let slope = match x < self.epsilon {
            true => x.exp(),
            false if x > self.epsilon => 0.0,
            false => 0.5 * x.exp(),
        };
        (
            (inner.exp_m1() - x) * self.negative + self.beta * x,
            (slope - 1.0) * self.negative + self.beta,
        )
    }
}

/// The activation of each element.
pub fn forward(x: &Tensor, curve: Curve) -> Result<Tensor> {
    if gpu::takes(x) {
        return cuda::elementwise::xielu_forward(x, curve);
    }
    if !is_fused(x) {
        return reference::forward(x, curve);
    }
    let x = x.contiguous()?;
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let (task, mut y) = (rows_per_task(1), Unwritten::<T>::new(values.len()));
        thread_pool::for_chunks(&mut y.slots()[..values.len()], task, |index, y| {
            forward_block(&values[index * task..], curve, y);
        });
        // SAFETY: forward_block writes every element.
        unsafe { y.into_tensor(x.dims()) }
    })
}

/// Gradient with respect to `x`.
pub fn backward(x: &Tensor, dy: &Tensor, curve: Curve) -> Result<Tensor> {
    shape::expect(dy, x.dims(), "xielu: dy")?;
    if gpu::takes(x) {
        return cuda::elementwise::xielu_backward(x, dy, curve);
    }
    if !is_fused(x) {
        return reference::backward(x, dy, curve);
    }
    let (x, dy) = (x.contiguous()?, dy.contiguous()?);
    with_element!(x.dtype(), T => {
        let (values, dys) = (Elements::<T>::new(&x)?, Elements::<T>::new(&dy)?);
        let (task, mut dx) = (rows_per_task(1), Unwritten::<T>::new(values.len()));
        thread_pool::for_chunks(&mut dx.slots()[..values.len()], task, |index, dx| {
            backward_block(&values[index * task..], &dys[index * task..], curve, dx);
        });
        // SAFETY: backward_block writes every element.
        unsafe { dx.into_tensor(x.dims()) }
    })
}

multiversion! {
    fn forward_block<T: Element>(x: &[T], curve: Curve, y: &mut [MaybeUninit<T>]) {
        for (y, x) in y.iter_mut().zip(x) {
            y.write(T::narrow(curve.at(x.widen()).0));
        }
    }
}

multiversion! {
    fn backward_block<T: Element>(x: &[T], dy: &[T], curve: Curve, dx: &mut [MaybeUninit<T>]) {
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            dx.write(T::narrow(dy.widen() * curve.at(x.widen()).1));
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use super::Curve;
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(x: &Tensor, curve: Curve) -> Result<Tensor> {
        let wide = widen(x)?;
        let [positive, negative, beta] = [curve.positive, curve.negative, curve.beta].map(f64::from);
        let above = ((wide.sqr()? * positive)? + (&wide * beta)?)?;
        let inner = wide.minimum(f64::from(curve.epsilon))?;
        // exp(x) - 1 loses what is next to 0; the series does not.
        let series = (&inner + ((inner.sqr()? * 0.5)? + (inner.powf(3.0)? / 6.0)?)?)?;
        let direct = (inner.exp()? - 1.0)?;
        let expm1 = inner.abs()?.lt(1e-4)?.where_cond(&series, &direct)?;
        let below = (((expm1 - &wide)? * negative)? + (&wide * beta)?)?;
        wide.gt(0.0)?.where_cond(&above, &below)?.to_dtype(x.dtype())
    }

    /// See [`super::backward`].
    pub fn backward(x: &Tensor, dy: &Tensor, curve: Curve) -> Result<Tensor> {
        let (wide, dy_wide) = (widen(x)?, widen(dy)?);
        let [positive, negative, beta] = [curve.positive, curve.negative, curve.beta].map(f64::from);
        let epsilon = f64::from(curve.epsilon);
        let above = ((&wide * (2.0 * positive))? + beta)?;
        let exp = wide.exp()?;
        let slope = wide.lt(epsilon)?.where_cond(&exp, &exp.zeros_like()?)?;
        let slope = wide.eq(epsilon)?.where_cond(&(exp * 0.5)?, &slope)?;
        let below = (((slope - 1.0)? * negative)? + beta)?;
        let slope = wide.gt(0.0)?.where_cond(&above, &below)?;
        (slope * dy_wide)?.to_dtype(x.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::{DType, Device};

    const CURVE: Curve = Curve {
        positive: 0.9,
        negative: 1.4,
        beta: 0.5,
        epsilon: -1e-6,
    };

    #[test]
    fn both_sides_match_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (x, x64) = rounded(&(random(&[37, 100], 1) * 4.0).unwrap(), dtype);
            let (dy, dy64) = rounded(&random(&[37, 100], 2), dtype);
            assert_close(
                &forward(&x, CURVE).unwrap(),
                &reference::forward(&x64, CURVE).unwrap(),
                "y",
            );
            let dx = backward(&x, &dy, CURVE).unwrap();
            assert_close(&dx, &reference::backward(&x64, &dy64, CURVE).unwrap(), "dx");
        }
    }

    #[test]
    fn the_gradient_is_that_of_the_function() {
        let (x, dy) = ((random(&[5, 40], 3) * 3.0).unwrap(), random(&[5, 40], 4));
        let expected = autograd(&[&x], &dy, |inputs| reference::forward(&inputs[0], CURVE));
        assert_close(&reference::backward(&x, &dy, CURVE).unwrap(), &expected[0], "dx");
    }

    #[test]
    fn values_are_those_of_the_formula() {
        let x = Tensor::new(&[[-3f32, -0.5, -1e-7, 0.0, 1e-3, 2.0]], &Device::Cpu).unwrap();
        let y = forward(&x, CURVE).unwrap().to_vec2::<f32>().unwrap();
        let formula = |x: f64| match x > 0.0 {
            true => 0.9 * x * x + 0.5 * x,
            false => (x.min(-1e-6).exp_m1() - x) * 1.4 + 0.5 * x,
        };
        for (got, x) in y[0].iter().zip([-3.0, -0.5, -1e-7, 0.0, 1e-3, 2.0]) {
            assert!((f64::from(*got) - formula(x)).abs() < 1e-6, "{got} at {x}");
        }
    }
}
