//! The products in plain candle ops.

use candle_core::{DType, Result, Tensor};

/// See [`super::nt`].
pub fn nt(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.matmul(&w.to_dtype(x.dtype())?.t()?)
}

/// See [`super::nn`].
pub fn nn(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.matmul(&w.to_dtype(x.dtype())?)
}

/// See [`super::tn_add`].
pub fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let product = a.to_dtype(DType::F32)?.t()?.matmul(&b.to_dtype(DType::F32)?)?;
    into.slice_set(&(into + (product * alpha)?)?, 0, 0)
}
