//! DoRA (arXiv:2402.09353): the update changes a row's direction, a trained magnitude its length.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | W | (out, in) | frozen weight |
//! | m | (out,) | magnitude |
//! | n | (out,) | n_j = norm of row j of W + s·B·A, a constant in the backward pass, as in PEFT |
//! | g | (out,) | m / n |
//!
//! y = g ⊙ (x W^T + s·(x A^T) B^T). n and g depend on parameters alone: they are computed once, before each pass. The row
//! norms come without the (out, in) sum:
//! n_j^2 = |W_j|^2 + 2 s B_j·(W A^T)_j + s^2 B_j (A A^T) B_j^T, which costs two products with r columns.

use candle_core::{DType, Result, Tensor};

use super::parameter::Trained;
use super::traced::matmul::{self, Factor, Term};
use super::traced::{NormParts, gain};
use crate::tensor;
use peft_tune_core::predict::Right;

/// The frozen weight W of a projection, as products take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrozenWeight<'a> {
    pub factor: Factor<'a>,
    /// Storage of W as prediction tells storages apart.
    pub right: Right,
}

/// The magnitude of one projection.
#[derive(Clone, Debug)]
pub(super) struct Dora {
    pub magnitude: Trained,
    /// (out,) F32, |W_j|^2.
    weight_norm_squared: Tensor,
    /// (out,) F32
    pub norm: Tensor,
    /// (out,) F32
    pub gain: Tensor,
}

impl Dora {
    /// Norm and gain hold nothing before [`Dora::refresh`].
    pub(super) fn new(magnitude: Trained, weight_norm_squared: Tensor) -> Result<Self> {
        Ok(Self {
            norm: magnitude.value.zeros_like()?,
            gain: magnitude.value.zeros_like()?,
            magnitude,
            weight_norm_squared,
        })
    }

    /// Computes norm and gain from the parameters as they are now, on paper where `ids` are.
    pub(super) fn refresh(
        &self,
        weight: FrozenWeight<'_>,
        (a, b): (&Trained, &Tensor),
        scaling: f64,
        ids: &tensor::Tensor,
    ) -> Result<()> {
        // A as products read it, or a GPU would widen all of W for this one.
        let [factor, value] = [&a.factor, &a.value].map(|a| ids.operand(a));
        let parts = NormParts {
            squared: &self.weight_norm_squared,
            projected: &projected(weight, &factor)?,
            gram: &matmul::nt(&value, &a.value)?,
            b,
            scaling,
        };
        gain::fill(parts, &self.magnitude.value, &self.norm, &self.gain)
    }
}

/// |W_j|^2 of each row of W (out, in), F32.
pub(super) fn squared_row_norms(weight: &Tensor) -> Result<Tensor> {
    weight.to_dtype(DType::F32)?.sqr()?.sum(1)
}

/// n_j = |(W + s·B·A)_j|, (out,) F32, from W (out, in) in any dtype, A (r, in) F32 and B (out, r) F32.
pub(crate) fn update_norm(weight: &Tensor, a: &Tensor, b: &Tensor, scaling: f64) -> Result<Tensor> {
    let left = tensor::Tensor::from(a.clone());
    let frozen = FrozenWeight {
        factor: weight.into(),
        right: Right::Weight,
    };
    gain::norm(NormParts {
        squared: &squared_row_norms(weight)?,
        projected: &projected(frozen, &left)?,
        gram: &matmul::nt(&left, a)?,
        b,
        scaling,
    })
}

/// A W^T (r, out), in A's dtype: rather than (out, r), since the result of a product has the dtype of its left side.
fn projected(weight: FrozenWeight<'_>, a: &tensor::Tensor) -> Result<tensor::Tensor> {
    matmul::nt_sum(&[Term::new(a, weight.factor, 1.0).stored(weight.right)], 0)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn norms_equal_those_of_the_summed_weight() {
        let random = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        let (weight, a, b) = (random((6, 5)), random((2, 5)), random((6, 2)));
        let norm = update_norm(&weight, &a, &b, 0.5).unwrap();
        let summed = (weight + (b.matmul(&a).unwrap() * 0.5).unwrap()).unwrap();
        let expected = squared_row_norms(&summed).unwrap().sqrt().unwrap();
        let difference = (norm - expected).unwrap().abs().unwrap().max(0).unwrap();
        assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
    }
}
