//! A factor for each column of a projection's output, as DoRA has it, and what it is computed from.

use std::cell::RefCell;

use super::cuda;
use super::element::Element;
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, InPlace, in_place, is_fused, rows_per_task, small, update};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::passes::GAIN_ROWS as ROWS;

/// Multiplies every row of y (T, N) by `gain` (N,) F32 plus `shift`, in place. y is contiguous.
pub fn scale(y: &Tensor, gain: &Tensor, shift: f32) -> Result<()> {
    let (_, columns) = y.dims2()?;
    shape::expect(gain, &[columns], "gain")?;
    if gpu::takes(y) {
        return cuda::gain::scale(y, gain, shift);
    }
    if !is_fused(y) {
        let gain = (gain + f64::from(shift))?.to_dtype(y.dtype())?;
        return y.slice_set(&y.broadcast_mul(&gain)?, 0, 0);
    }
    let gain = small(gain)?.into_iter().map(|value| value + shift).collect();
    in_place(y, &Scale(gain))
}

/// The backward pass of z = gain ⊙ y, from dz and y (T, N): adds the sum over the rows of dz ⊙ y / `norm` to `d_magnitude`, for a gain that
/// is magnitude / norm, and puts dz ⊙ gain in the place of y. All that is (N,) is F32; y is contiguous.
pub fn backward(dz: &Tensor, y: &Tensor, gain: &Tensor, norm: &Tensor, d_magnitude: &Tensor) -> Result<()> {
    let (_, columns) = y.dims2()?;
    shape::expect(dz, y.dims(), "gain: dz")?;
    for vector in [gain, norm, d_magnitude] {
        shape::expect(vector, &[columns], "gain")?;
    }
    let dz = dz.to_dtype(y.dtype())?.contiguous()?;
    if gpu::takes(y) {
        return cuda::gain::backward(&dz, y, gain, norm, d_magnitude);
    }
    if !is_fused(y) {
        return reference_backward(&dz, y, gain, norm, d_magnitude);
    }
    let op = Backward {
        dz: &dz,
        gain: small(gain)?,
        sums: RefCell::default(),
    };
    in_place(y, &op)?;
    let (sums, norm) = (op.sums.into_inner(), small(norm)?);
    update(d_magnitude, "gain", |gradient| {
        for ((gradient, sum), norm) in gradient.iter_mut().zip(&sums).zip(&norm) {
            *gradient += sum / norm;
        }
        Ok(())
    })
}

fn reference_backward(dz: &Tensor, y: &Tensor, gain: &Tensor, norm: &Tensor, d_magnitude: &Tensor) -> Result<()> {
    let sums = (dz * y)?.to_dtype(DType::F32)?.sum(0)?;
    d_magnitude.slice_set(&(d_magnitude + (sums / norm)?)?, 0, 0)?;
    y.slice_set(&dz.broadcast_mul(&gain.to_dtype(y.dtype())?)?, 0, 0)
}

/// The shifted gain.
struct Scale(Vec<f32>);

impl InPlace for Scale {
    const NAME: &'static str = "gain";

    fn run<T: Element>(&self, y: &mut [T]) -> Result<()> {
        let rows = rows_per_task(self.0.len()) * self.0.len();
        thread_pool::for_chunks(y, rows, |_, rows| scale_rows(rows, &self.0));
        Ok(())
    }
}

struct Backward<'a> {
    dz: &'a Tensor,
    gain: Vec<f32>,
    /// Sums over the rows of dz ⊙ y.
    sums: RefCell<Vec<f32>>,
}

/// Rows of y, and the sums over them.
struct RowSums<'a, T> {
    y: &'a mut [T],
    sums: &'a mut [f32],
}

impl InPlace for Backward<'_> {
    const NAME: &'static str = "gain_backward";

    fn run<T: Element>(&self, y: &mut [T]) -> Result<()> {
        let (dz, gain, columns) = (Elements::<T>::new(self.dz)?, &self.gain, self.gain.len());
        let mut sums = vec![0.0; y.len().div_ceil(ROWS * columns.max(1)) * columns];
        let parts = y.chunks_mut(ROWS * columns.max(1)).zip(sums.chunks_mut(columns.max(1)));
        let mut parts: Vec<RowSums<'_, T>> = parts.map(|(y, sums)| RowSums { y, sums }).collect();
        thread_pool::for_chunks(&mut parts, 1, |index, parts| {
            for part in parts {
                let dz = &dz[index * ROWS * columns..][..part.y.len()];
                backward_rows(dz, part.y, gain, part.sums);
            }
        });
        let mut all = vec![0.0; columns];
        for sums in sums.chunks(columns.max(1)) {
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        self.sums.replace(all);
        Ok(())
    }
}

multiversion! {
    fn scale_rows<T: Element>(rows: &mut [T], gain: &[f32]) {
        for row in rows.chunks_exact_mut(gain.len()) {
            for (value, gain) in row.iter_mut().zip(gain) {
                *value = T::narrow(value.widen() * gain);
            }
        }
    }
}

multiversion! {
    fn backward_rows<T: Element>(dz: &[T], y: &mut [T], gain: &[f32], sums: &mut [f32]) {
        let columns = gain.len();
        let sums = &mut sums[..columns];
        for (dz, y) in dz.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
            for (((dz, y), gain), sum) in dz.iter().zip(y).zip(gain).zip(sums.iter_mut()) {
                let gradient = dz.widen();
                *sum += gradient * y.widen();
                *y = T::narrow(gradient * gain);
            }
        }
    }
}

/// Terms of DoRA's row norms: n_j^2 = |W_j|^2 + 2 s B_j·(A W^T)_j + s^2 B_j (A A^T) B_j^T.
#[derive(Clone, Copy, Debug)]
pub struct NormParts<'a> {
    /// |W_j|^2, (N,) F32.
    pub squared: &'a Tensor,
    /// A W^T, (r, N) F32 or in 16 bits.
    pub projected: &'a Tensor,
    /// A A^T, (r, r) F32.
    pub gram: &'a Tensor,
    /// (N, r) F32.
    pub b: &'a Tensor,
    pub scaling: f64,
}

/// n, (N,) F32, in plain ops.
pub fn norm(parts: NormParts<'_>) -> Result<Tensor> {
    let NormParts {
        squared,
        projected,
        gram,
        b,
        scaling,
    } = parts;
    let along = (b * projected.to_dtype(DType::F32)?.t()?)?.sum(1)?;
    let own = (super::matmul::nn(b, gram)? * b)?.sum(1)?;
    let squared = ((squared + (along * (2.0 * scaling))?)? + (own * scaling.powi(2))?)?;
    squared.sqrt()
}

/// Puts n into `norm` and `magnitude` / n into `gain`, (N,) F32 each.
pub fn fill(parts: NormParts<'_>, magnitude: &Tensor, norm: &Tensor, gain: &Tensor) -> Result<()> {
    if gpu::takes(parts.projected) {
        return cuda::gain::fill(&parts, magnitude, norm, gain);
    }
    let found = self::norm(parts)?;
    gain.slice_set(&(magnitude / &found)?, 0, 0)?;
    norm.slice_set(&found, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn every_column_is_scaled_by_its_gain() {
        let gain = random(&[1000], 2);
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let (y, y64) = rounded(&random(&[37, 1000], 1), dtype);
            let y = y.copy().unwrap();
            let gain32 = gain.to_dtype(DType::F32).unwrap();
            scale(&y, &gain32, -1.0).unwrap();
            let gain64 = (gain32.to_dtype(DType::F64).unwrap() - 1.0).unwrap();
            // Plain ops round the gain first.
            let expected = match dtype {
                DType::F64 => y64.broadcast_mul(&(&gain32 - 1.0).unwrap().to_dtype(DType::F64).unwrap()),
                _ => y64.broadcast_mul(&gain64),
            };
            assert_close(&y, &expected.unwrap(), "scaled");
        }
    }

    #[test]
    fn gradients_of_many_rows_match_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (rows, columns) in [(1, 3), (100, 96), (33, 1000)] {
                let ((dz, dz64), (y, y64)) = (
                    rounded(&random(&[rows, columns], 1), dtype),
                    rounded(&random(&[rows, columns], 2), dtype),
                );
                let vector = |seed| rounded(&random(&[columns], seed), DType::F32);
                let ((gain, gain64), (norm, norm64)) = (vector(3), vector(4));
                let (norm, norm64) = (
                    (norm.sqr().unwrap() + 1.0).unwrap(),
                    (norm64.sqr().unwrap() + 1.0).unwrap(),
                );
                let (y, gradient) = (
                    y.copy().unwrap(),
                    Tensor::ones(columns, DType::F32, &Device::Cpu).unwrap(),
                );
                backward(&dz, &y, &gain, &norm, &gradient).unwrap();
                assert_close(&y, &dz64.broadcast_mul(&gain64).unwrap(), "dy");
                let sums = (dz64 * y64).unwrap().sum(0).unwrap();
                assert_close(&gradient, &((sums / norm64).unwrap() + 1.0).unwrap(), "d_magnitude");
            }
        }
    }
}
