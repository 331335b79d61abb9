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

use super::shape;
use candle_core::{Result, Tensor};

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
    reference::forward(gate, up, activation)
}

/// Gradients with respect to (gate, up).
pub fn backward(gate: &Tensor, up: &Tensor, dy: &Tensor, activation: Activation) -> Result<(Tensor, Tensor)> {
    shape::expect(up, gate.dims(), "glu: up")?;
    shape::expect(dy, gate.dims(), "glu: dy")?;
    reference::backward(gate, up, dy, activation)
}

/// The op in plain candle ops.
pub mod reference {
    use super::super::kernels::widen;
    use super::Activation;
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
    use super::super::oracle::{assert_close, autograd, random};
    use super::*;

    #[test]
    fn gradients_match_autograd() {
        let (gate, up, dy) = (random(&[5, 7], 1), random(&[5, 7], 2), random(&[5, 7], 3));
        let gate = (gate * 4.0).unwrap();
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let expected = autograd(&[&gate, &up], &dy, |inputs| {
                reference::forward(&inputs[0], &inputs[1], activation)
            });
            let (d_gate, d_up) = backward(&gate, &up, &dy, activation).unwrap();
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
