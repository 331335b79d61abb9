//! Clamped gated unit: the middle of gpt-oss' experts.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `gate`, `up` | (R, I) | the two projections; compute dtype |
//! | c | | the limit |
//!
//! With g = min(gate, c) and u = up clamped to [-c, c]: y = (u + 1) g s(a g), s the logistic function and a = 1.702.
//!
//! d_g = dy (u + 1) (s + a g s (1 - s)), d_u = dy g s; 0 where a value was clamped.

use super::cuda;
use super::element::{Element, with_element};
use super::shape;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// a, which makes g s(a g) close to GELU.
const SLOPE: f32 = 1.702;

/// y, (R, I).
///
/// # Errors
/// Shapes that differ.
pub fn forward(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
    shape::expect(up, gate.dims(), "clamped glu: up")?;
    if gpu::takes(gate) {
        return cuda::elementwise::clamped_glu_forward(gate, up, limit);
    }
    if !is_fused(gate) {
        return reference::forward(gate, up, limit);
    }
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    with_element!(gate.dtype(), T => {
        let (gates, ups) = (Elements::<T>::new(&gate)?, Elements::<T>::new(&up)?);
        let (task, len, mut y) = (rows_per_task(1), gates.len(), Unwritten::<T>::new(gates.len()));
        let (gates, ups) = (&*gates, &*ups);
        thread_pool::for_chunks(&mut y.slots()[..len], task, |index, y| {
            let inputs = gates[index * task..].iter().zip(&ups[index * task..]);
            for (y, (gate, up)) in y.iter_mut().zip(inputs) {
                let unit = Unit::new(gate.widen(), up.widen(), limit);
                y.write(T::narrow((unit.up + 1.0) * unit.gate * unit.logistic));
            }
        });
        // SAFETY: every element is written.
        unsafe { y.into_tensor(gate.dims()) }
    })
}

/// Gradients with respect to (gate, up).
///
/// # Errors
/// Shapes that differ.
pub fn backward(gate: &Tensor, up: &Tensor, dy: &Tensor, limit: f32) -> Result<(Tensor, Tensor)> {
    shape::expect(up, gate.dims(), "clamped glu: up")?;
    shape::expect(dy, gate.dims(), "clamped glu: dy")?;
    if gpu::takes(gate) {
        return cuda::elementwise::clamped_glu_backward(gate, up, dy, limit);
    }
    if !is_fused(gate) {
        return reference::backward(gate, up, dy, limit);
    }
    let (gate, up, dy) = (gate.contiguous()?, up.contiguous()?, dy.contiguous()?);
    with_element!(gate.dtype(), T => {
        let (gates, ups, dys) = (Elements::<T>::new(&gate)?, Elements::<T>::new(&up)?, Elements::<T>::new(&dy)?);
        let (task, len) = (rows_per_task(1), gates.len());
        let (gates, ups, dys) = (&*gates, &*ups, &*dys);
        let (mut d_gate, mut d_up) = (Unwritten::<T>::new(len), Unwritten::<T>::new(len));
        let outputs = ((&mut d_gate.slots()[..len], task), (&mut d_up.slots()[..len], task));
        thread_pool::for_chunks2(outputs.0, outputs.1, |index, d_gate, d_up| {
            let start = index * task;
            let inputs = gates[start..].iter().zip(&ups[start..]).zip(&dys[start..]);
            for ((d_gate, d_up), ((gate, up), dy)) in d_gate.iter_mut().zip(d_up).zip(inputs) {
                let (gate, up, dy) = (gate.widen(), up.widen(), dy.widen());
                let Unit { gate: g, up: u, logistic } = Unit::new(gate, up, limit);
                let slope = logistic + SLOPE * g * logistic * (1.0 - logistic);
                let open = |is_inside: bool, value: f32| if is_inside { value } else { 0.0 };
                d_gate.write(T::narrow(open(gate <= limit, dy * (u + 1.0) * slope)));
                d_up.write(T::narrow(open(up.abs() <= limit, dy * g * logistic)));
            }
        });
        // SAFETY: every element of both is written.
        unsafe { Ok((d_gate.into_tensor(gate.dims())?, d_up.into_tensor(gate.dims())?)) }
    })
}

/// One element, clamped.
struct Unit {
    gate: f32,
    up: f32,
    /// s(a g)
    logistic: f32,
}

impl Unit {
    #[inline(always)]
    fn new(gate: f32, up: f32, limit: f32) -> Self {
        // Not `min` and `clamp`: a value that is not a number has to stay one.
        let gate = if gate > limit { limit } else { gate };
        let up = if up > limit {
            limit
        } else if up < -limit {
            -limit
        } else {
            up
        };
        Self {
            gate,
            up,
            logistic: 1.0 / (1.0 + (-SLOPE * gate).exp()),
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use super::SLOPE;
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
        let (g, u) = clamped(gate, up, limit)?;
        (((u + 1.0)? * &g)? * logistic(&g)?)?.to_dtype(gate.dtype())
    }

    /// See [`super::backward`].
    pub fn backward(gate: &Tensor, up: &Tensor, dy: &Tensor, limit: f32) -> Result<(Tensor, Tensor)> {
        let ((g, u), dy, limit) = (clamped(gate, up, limit)?, widen(dy)?, f64::from(limit));
        let s = logistic(&g)?;
        let slope = (&s + ((&g * (&s * (1.0 - &s)?)?)? * f64::from(SLOPE))?)?;
        let inside = |values: &Tensor| values.le(limit)?.to_dtype(values.dtype());
        let d_gate = ((((u + 1.0)? * slope)? * &dy)? * inside(&widen(gate)?)?)?;
        let d_up = (((g * s)? * dy)? * inside(&widen(up)?.abs()?)?)?;
        Ok((d_gate.to_dtype(gate.dtype())?, d_up.to_dtype(gate.dtype())?))
    }

    fn clamped(gate: &Tensor, up: &Tensor, limit: f32) -> Result<(Tensor, Tensor)> {
        let limit = f64::from(limit);
        Ok((widen(gate)?.minimum(limit)?, widen(up)?.clamp(-limit, limit)?))
    }

    fn logistic(g: &Tensor) -> Result<Tensor> {
        ((g * -f64::from(SLOPE))?.exp()? + 1.0)?.recip()
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn fused_form_matches_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let input = |seed| rounded(&(random(&[30, 50], seed) * 3.0).unwrap(), dtype);
            let ((gate, gate64), (up, up64), (dy, dy64)) = (input(1), input(2), input(3));
            let y64 = reference::forward(&gate64, &up64, 1.5).unwrap();
            assert_close(&forward(&gate, &up, 1.5).unwrap(), &y64, "y");
            let (d_gate, d_up) = backward(&gate, &up, &dy, 1.5).unwrap();
            let (d_gate64, d_up64) = reference::backward(&gate64, &up64, &dy64, 1.5).unwrap();
            assert_close(&d_gate, &d_gate64, "d_gate");
            assert_close(&d_up, &d_up64, "d_up");
        }
    }

    #[test]
    fn gradients_match_autograd_inside_the_limit() {
        let (gate, up, dy) = (random(&[5, 7], 1), random(&[5, 7], 2), random(&[5, 7], 3));
        let plain = |inputs: &[Tensor]| {
            let s = ((&inputs[0] * -1.702)?.exp()? + 1.0)?.recip()?;
            ((&inputs[1] + 1.0)? * &inputs[0])? * s
        };
        let expected = autograd(&[&gate, &up], &dy, plain);
        let (d_gate, d_up) = reference::backward(&gate, &up, &dy, 2.0).unwrap();
        for (got, expected) in [(d_gate, &expected[0]), (d_up, &expected[1])] {
            // 1.702 is an F32 here.
            assert!(super::super::oracle::error(&got, expected) < 1e-6);
        }
    }
}
