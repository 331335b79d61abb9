//! Matrix products of the linear layers, with F32 accumulation whatever the dtype.
//!
//! | op | operands | result | use |
//! |---|---|---|---|
//! | [`nt`] | x (T, K), w (N, K) | x w^T, (T, N) | forward of a linear layer |
//! | [`nn`] | x (T, N), w (N, K) | x w, (T, K) | its backward with respect to the input |
//! | [`tn_add`] | a (T, M), b (T, N) | into += alpha a^T b, (M, N) F32 | its backward with respect to a weight |
//! | [`nt_add`], [`nn_add`] | those of `nt`, `nn` | into += alpha times their result | an adapter's update |
//!
//! `x`, `a`, `b` and the result of the first two are in the compute dtype; `w` may be of any float dtype.

mod accumulate;
pub mod reference;

pub use accumulate::{nn_add, nt_add};

use super::shape;
use candle_core::{DType, Result, Tensor};

/// x (T, K) times the transpose of w (N, K), in the dtype of x.
pub fn nt(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    shape::expect(w, &[w.dims2()?.0, x.dims2()?.1], "matmul nt: w")?;
    reference::nt(x, w)
}

/// x (T, N) times w (N, K), in the dtype of x.
pub fn nn(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    shape::expect(w, &[x.dims2()?.1, w.dims2()?.1], "matmul nn: w")?;
    reference::nn(x, w)
}

/// Adds alpha times the transpose of a (T, M) times b (T, N) to `into` (M, N) F32, in place (`+=`). `into` may be a
/// contiguous view of a larger buffer; a and b may be of different float dtypes.
pub fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (tokens, rows) = a.dims2()?;
    let (_, columns) = b.dims2()?;
    shape::expect(b, &[tokens, columns], "matmul tn_add: b")?;
    shape::expect(into, &[rows, columns], "matmul tn_add: into")?;
    if into.dtype() != DType::F32 {
        candle_core::bail!("matmul tn_add: gradients are kept in F32, not {:?}", into.dtype());
    }
    reference::tn_add(a, b, alpha, into)
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::Device;

    #[test]
    fn products_match_f64() {
        let (x, w, a) = (random(&[13, 24], 1), random(&[9, 24], 2), random(&[13, 9], 3));
        for dtype in [DType::F32, DType::BF16] {
            let ((x, x64), (w, w64), (a, a64)) = (rounded(&x, dtype), rounded(&w, dtype), rounded(&a, dtype));
            let expected = x64.matmul(&w64.t().unwrap()).unwrap();
            assert_close(&nt(&x, &w).unwrap(), &expected, "nt");
            assert_close(&nn(&a, &w).unwrap(), &a64.matmul(&w64).unwrap(), "nn");
            let into = Tensor::ones((9, 24), DType::F32, &Device::Cpu).unwrap();
            tn_add(&a, &x, 0.5, &into).unwrap();
            let expected = ((a64.t().unwrap().matmul(&x64).unwrap() * 0.5).unwrap() + 1.0).unwrap();
            assert_close(&into, &expected, "tn_add");
        }
    }
}
