//! RMS normalisation (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x`, `y`, `dy`, `dx` | (T, H) | rows to normalise, result, gradients; compute dtype |
//! | `w` | (H,) | weight; the factor is `offset + w` (offset 1 for Gemma, 0 elsewhere) |
//! | `rstd` | (T,) F32 | r = 1 / sqrt(mean(x^2) + eps), saved for the backward |
//!
//! y = x r (offset + w). With g = dy (offset + w) and n = x r: dx = r (g - n mean(g n)), dw = sum over rows of dy n.

use super::shape;
use candle_core::{Result, Tensor};

/// Normalises each row of `x` and returns (y, rstd).
pub fn forward(x: &Tensor, weight: &Tensor, eps: f64, offset: f32) -> Result<(Tensor, Tensor)> {
    shape::expect(weight, &[x.dims2()?.1], "rms_norm: weight")?;
    reference::forward(x, weight, eps, offset)
}

/// Gradient of the loss with respect to `x`.
pub fn backward(x: &Tensor, weight: &Tensor, rstd: &Tensor, dy: &Tensor, offset: f32) -> Result<Tensor> {
    check_backward(x, rstd, dy)?;
    shape::expect(weight, &[x.dims2()?.1], "rms_norm: weight")?;
    reference::backward(x, weight, rstd, dy, offset)
}

/// Gradient of the loss with respect to the weight, (H,) F32.
pub fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
    check_backward(x, rstd, dy)?;
    reference::weight_gradient(x, rstd, dy)
}

fn check_backward(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<()> {
    shape::expect(dy, x.dims(), "rms_norm: dy")?;
    shape::expect(rstd, &[x.dims2()?.0], "rms_norm: rstd")
}

/// The op in plain candle ops.
pub mod reference {
    use super::super::kernels::widen;
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
    use super::super::oracle::{assert_close, autograd, random};
    use super::*;

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
