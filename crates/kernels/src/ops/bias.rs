//! Bias of a linear layer, added in place.

use candle_core::{DType, Result, Tensor};

use super::cuda;
use super::element::Element;
use super::shape;
use super::simd::multiversion;
use super::storage::{InPlace, in_place, is_fused, rows_per_task, small};
use crate::gpu;
use crate::thread_pool;

/// Adds `scale` times bias (N,), of any float dtype, to every row of y (T, N), in place (`+=`). y is contiguous.
pub fn add(y: &Tensor, bias: &Tensor, scale: f64) -> Result<()> {
    let (_, columns) = y.dims2()?;
    shape::expect(bias, &[columns], "bias")?;
    if gpu::takes(y) {
        return cuda::elementwise::add_bias(y, bias, scale as f32);
    }
    if !is_fused(y) {
        let wide = if y.dtype() == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        let sum = y.to_dtype(wide)?.broadcast_add(&(bias.to_dtype(wide)? * scale)?)?;
        return y.slice_set(&sum.to_dtype(y.dtype())?, 0, 0);
    }
    let bias = small(bias)?.into_iter().map(|value| value * scale as f32).collect();
    in_place(y, &AddBias(bias))
}

/// The scaled bias.
struct AddBias(Vec<f32>);

impl InPlace for AddBias {
    const NAME: &'static str = "bias";

    fn run<T: Element>(&self, y: &mut [T]) -> Result<()> {
        let rows = rows_per_task(self.0.len()) * self.0.len();
        thread_pool::for_chunks(y, rows, |_, rows| add_rows(rows, &self.0));
        Ok(())
    }
}

multiversion! {
    fn add_rows<T: Element>(rows: &mut [T], bias: &[f32]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            for (value, bias) in row.iter_mut().zip(bias) {
                *value = T::narrow(value.widen() + bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;

    #[test]
    fn every_row_gets_the_scaled_bias() {
        let bias = random(&[1000], 2);
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let (y, y64) = rounded(&random(&[37, 1000], 1), dtype);
            let (bias, bias64) = rounded(&bias, dtype);
            let sum = y.copy().unwrap();
            add(&sum, &bias, 0.5).unwrap();
            let expected = y64.broadcast_add(&(bias64 * 0.5).unwrap()).unwrap();
            assert_close(&sum, &expected, "bias");
        }
    }
}
