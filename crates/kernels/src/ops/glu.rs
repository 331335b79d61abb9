//! Gated linear unit: the element-wise middle of the decoder's MLP (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `gate`, `up` | (T, I) | the two projections; compute dtype |
//! | `y`, `dy` | (T, I) | result and its gradient |
//!
//! y = act(gate) up; d_gate = dy up act'(gate); d_up = dy act(gate).
//!
//! silu(g) = g s with s = 1 / (1 + exp(-g)), and silu'(g) = s (1 + g (1 - s)). gelu_tanh(g) = g (1 + t) / 2 with
//! t = tanh(u), u = sqrt(2/pi) (g + 0.044715 g^3), and gelu_tanh'(g) = (1 + t) / 2 + g (1 - t^2) u' / 2.

use super::cuda;
use super::element::{Element, with_element};
use super::exponential::logistic;
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// The function applied to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// g sigmoid(g) (llama, mistral, qwen, phi3).
    Silu,
    /// GELU in its tanh approximation (gemma).
    GeluTanh,
}

/// act(gate) up.
pub fn forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    shape::expect(up, gate.dims(), "glu: up")?;
    if gpu::takes(gate) {
        return cuda::elementwise::glu_forward(gate, up, activation);
    }
    if !is_fused(gate) {
        return reference::forward(gate, up, activation);
    }
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    with_element!(gate.dtype(), T => {
        let (gates, ups) = (Elements::<T>::new(&gate)?, Elements::<T>::new(&up)?);
        let (task, mut y) = (rows_per_task(1), Unwritten::<T>::new(gates.len()));
        thread_pool::for_chunks(&mut y.slots()[..gates.len()], task, |index, y| {
            let (gate, up) = (&gates[index * task..], &ups[index * task..]);
            match activation {
                Activation::Silu => forward_silu(gate, up, y),
                Activation::GeluTanh => forward_gelu(gate, up, y),
            }
        });
        // SAFETY: both forms write every element.
        unsafe { y.into_tensor(gate.dims()) }
    })
}

/// Gradients with respect to (gate, up). On a GPU they take the places of `gate` and `dy`, which no other tensor may read
/// again; on the CPU those of tensors that were released are faster, since they are in its caches.
pub fn backward(gate: Tensor, up: &Tensor, dy: Tensor, activation: Activation) -> Result<(Tensor, Tensor)> {
    shape::expect(up, gate.dims(), "glu: up")?;
    shape::expect(&dy, gate.dims(), "glu: dy")?;
    if !gpu::takes(&gate) && !is_fused(&gate) {
        return reference::backward(&gate, up, &dy, activation);
    }
    let (gate, up, dy) = (gate.contiguous()?, up.contiguous()?, dy.contiguous()?);
    if gpu::takes(&gate) {
        cuda::elementwise::glu_backward(&gate, &up, &dy, activation)?;
        return Ok((gate, dy));
    }
    with_element!(gate.dtype(), T => {
        let (gates, ups, dys) = (Elements::<T>::new(&gate)?, Elements::<T>::new(&up)?, Elements::<T>::new(&dy)?);
        let task = rows_per_task(1);
        let (mut d_gate, mut d_up) = (Unwritten::<T>::new(gates.len()), Unwritten::<T>::new(gates.len()));
        let len = gates.len();
        let outputs = ((&mut d_gate.slots()[..len], task), (&mut d_up.slots()[..len], task));
        thread_pool::for_chunks2(outputs.0, outputs.1, |index, d_gate, d_up| {
            let start = index * task;
            let (gate, up, dy) = (&gates[start..], &ups[start..], &dys[start..]);
            match activation {
                Activation::Silu => backward_silu(gate, up, dy, d_gate, d_up),
                Activation::GeluTanh => backward_gelu(gate, up, dy, d_gate, d_up),
            }
        });
        // SAFETY: both forms write every element of both.
        unsafe { Ok((d_gate.into_tensor(gate.dims())?, d_up.into_tensor(gate.dims())?)) }
    })
}

/// (silu(g), silu'(g)).
#[inline(always)]
fn silu<const FMA: bool>(g: f32) -> (f32, f32) {
    let (s, rest) = logistic::<FMA>(g);
    (g * s, s * (1.0 + g * rest))
}

/// (gelu_tanh(g), gelu_tanh'(g)). (1 + tanh(u)) / 2 is the logistic function of 2u, which does not cancel.
#[inline(always)]
fn gelu<const FMA: bool>(g: f32) -> (f32, f32) {
    const CUBIC: f32 = 0.044715;
    /// 2 sqrt(2/pi).
    const SCALE: f32 = 1.595_769_1;
    let square = g * g;
    let (s, rest) = logistic::<FMA>(SCALE * g * (1.0 + CUBIC * square));
    let inner = SCALE * (1.0 + 3.0 * CUBIC * square);
    (g * s, s + g * s * rest * inner)
}

/// The forward and backward loops for one activation.
macro_rules! loops {
    ($forward:ident, $backward:ident, $activation:ident) => {
        multiversion! {
            fn $forward<T: Element>(gate: &[T], up: &[T], y: &mut [MaybeUninit<T>]) {
                for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                    y.write(T::narrow($activation::<FMA>(gate.widen()).0 * up.widen()));
                }
            }
        }

        multiversion! {
            fn $backward<T: Element>(
                gate: &[T],
                up: &[T],
                dy: &[T],
                d_gate: &mut [MaybeUninit<T>],
                d_up: &mut [MaybeUninit<T>],
            ) {
                let inputs = gate.iter().zip(up).zip(dy);
                for ((d_gate, d_up), ((gate, up), dy)) in d_gate.iter_mut().zip(d_up).zip(inputs) {
                    let ((value, slope), dy) = ($activation::<FMA>(gate.widen()), dy.widen());
                    d_gate.write(T::narrow(dy * up.widen() * slope));
                    d_up.write(T::narrow(dy * value));
                }
            }
        }
    };
}

loops!(forward_silu, backward_silu, silu);
loops!(forward_gelu, backward_gelu, gelu);

/// The op in plain candle ops.
pub mod reference {
    use super::Activation;
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let (activated, _) = activate(&widen(gate)?, activation)?;
        (activated * widen(up)?)?.to_dtype(gate.dtype())
    }

    /// See [`super::backward`].
    pub fn backward(gate: &Tensor, up: &Tensor, dy: &Tensor, activation: Activation) -> Result<(Tensor, Tensor)> {
        let (activated, slope) = activate(&widen(gate)?, activation)?;
        let dy = widen(dy)?;
        let d_gate = ((&dy * widen(up)?)? * slope)?.to_dtype(gate.dtype())?;
        let d_up = (dy * activated)?.to_dtype(gate.dtype())?;
        Ok((d_gate, d_up))
    }

    /// (act(gate), act'(gate)).
    fn activate(gate: &Tensor, activation: Activation) -> Result<(Tensor, Tensor)> {
        match activation {
            Activation::Silu => {
                let sigmoid = (gate.neg()?.exp()? + 1.0)?.recip()?;
                let value = (gate * &sigmoid)?;
                let slope = (&sigmoid * ((gate * (1.0 - &sigmoid)?)? + 1.0)?)?;
                Ok((value, slope))
            }
            Activation::GeluTanh => {
                const CUBIC: f64 = 0.044715;
                let scale = (2.0 / std::f64::consts::PI).sqrt();
                let square = gate.sqr()?;
                let tanh = ((gate * ((&square * CUBIC)? + 1.0)?)? * scale)?.tanh()?;
                let half = ((&tanh + 1.0)? * 0.5)?;
                let inner = (((square * (3.0 * CUBIC))? + 1.0)? * scale)?;
                let slope = (&half + (((gate * (1.0 - tanh.sqr()?)?)? * inner)? * 0.5)?)?;
                Ok(((gate * half)?, slope))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::DType;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn fused_form_matches_f64(rows in 0usize..60, width in 1usize..700, gelu: bool, dtype in 0usize..3) {
            let activation = if gelu { Activation::GeluTanh } else { Activation::Silu };
            let dtype = [DType::F32, DType::BF16, DType::F16][dtype];
            let input = |seed| rounded(&(random(&[rows, width], seed) * 6.0).unwrap(), dtype);
            let ((gate, gate64), (up, up64), (dy, dy64)) = (input(1), input(2), input(3));
            let y64 = reference::forward(&gate64, &up64, activation).unwrap();
            assert_close(&forward(&gate, &up, activation).unwrap(), &y64, "y");
            let (d_gate, d_up) = backward(gate, &up, dy, activation).unwrap();
            let (d_gate64, d_up64) = reference::backward(&gate64, &up64, &dy64, activation).unwrap();
            assert_close(&d_gate, &d_gate64, "d_gate");
            assert_close(&d_up, &d_up64, "d_up");
        }
    }

    #[test]
    fn gradients_match_autograd() {
        let (gate, up, dy) = (random(&[5, 7], 1), random(&[5, 7], 2), random(&[5, 7], 3));
        let gate = (gate * 4.0).unwrap();
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let expected = autograd(&[&gate, &up], &dy, |inputs| {
                reference::forward(&inputs[0], &inputs[1], activation)
            });
            let (d_gate, d_up) = backward(gate.clone(), &up, dy.clone(), activation).unwrap();
            assert_close(&d_gate, &expected[0], "d_gate");
            assert_close(&d_up, &expected[1], "d_up");
        }
    }

    #[test]
    fn values_match_the_formulas() {
        let gates = [-9.0f64, -1.0, -0.1, 0.0, 0.3, 2.0, 12.0];
        let gate = Tensor::new(&gates, &candle_core::Device::Cpu).unwrap();
        let up = gate.ones_like().unwrap();
        for (activation, formula) in [
            (Activation::Silu, (|g: f64| g / (1.0 + (-g).exp())) as fn(f64) -> f64),
            (Activation::GeluTanh, |g| {
                0.5 * g * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh())
            }),
        ] {
            let expected = Tensor::new(&gates.map(formula), &candle_core::Device::Cpu).unwrap();
            assert_close(&forward(&gate, &up, activation).unwrap(), &expected, "y");
        }
    }
}
