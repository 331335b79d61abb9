//! Rows of tokens on their way to experts and back.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `index` | (R,) U32 | a row of the source for each row of the result |
//! | `rows` | (T, k) U32 | the rows that belong to each token |
//! | `weights` | (R,) F32 | a factor for each row |

use super::cuda;
use super::element::{Element, with_element};
use super::routing::expect_rows;
use super::shape;
use super::storage::{Elements, InPlace, Unwritten, in_place, is_fused, rows_per_task, small};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};
use std::mem::MaybeUninit;

/// Rows `index` of x (T, H), as (R, H).
///
/// # Errors
/// An index outside x.
pub fn gather(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let ((tokens, width), count) = (x.dims2()?, index.dims1()?);
    if gpu::takes(x) {
        return cuda::rows::gather(x, index);
    }
    if !is_fused(x) {
        return x.index_select(index, 0);
    }
    let x = x.contiguous()?;
    let index = Elements::<u32>::new(index)?;
    if index.iter().any(|row| *row as usize >= tokens) {
        candle_core::bail!("gather: an index is outside of {tokens} rows");
    }
    let index = &*index;
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let values = &*values;
        let (task, mut y) = (rows_per_task(width), Unwritten::<T>::new(count * width));
        thread_pool::for_chunks(&mut y.slots()[..count * width], task * width, |number, rows| {
            for (row, index) in rows.chunks_exact_mut(width).zip(&index[number * task..]) {
                let from = &values[*index as usize * width..][..width];
                row.iter_mut().zip(from).for_each(|(to, from)| { to.write(*from); });
            }
        });
        // SAFETY: every row is written.
        unsafe { y.into_tensor(&[count, width]) }
    })
}

/// The sum of each token's rows of y (R, H), and of `onto` (T, H) where there is one: (T, H), summed in F32 in the order of `rows` and
/// rounded once.
///
/// # Errors
/// A row outside y, shapes and dtypes that do not fit.
pub fn sum(onto: Option<&Tensor>, y: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let ((tokens, chosen), (count, width)) = (rows.dims2()?, y.dims2()?);
    if let Some(onto) = onto {
        shape::expect(onto, &[tokens, width], "sum of rows: onto")?;
    }
    if gpu::takes(y) {
        return cuda::rows::sum(onto, y, rows);
    }
    if !is_fused(y) || onto.is_some_and(|onto| onto.dtype() != y.dtype()) {
        let of_tokens = y
            .index_select(&rows.flatten_all()?, 0)?
            .reshape((tokens, chosen, width))?;
        let sum = of_tokens.sum(1)?;
        return onto.map_or(Ok(sum.clone()), |onto| onto + sum);
    }
    let (y, onto) = (y.contiguous()?, onto.map(Tensor::contiguous).transpose()?);
    let rows = Elements::<u32>::new(rows)?;
    if rows.iter().any(|row| *row as usize >= count) {
        candle_core::bail!("sum of rows: a row is outside of {count}");
    }
    let rows = &*rows;
    with_element!(y.dtype(), T => {
        let (values, onto) = (Elements::<T>::new(&y)?, onto.as_ref().map(Elements::<T>::new).transpose()?);
        let (values, onto) = (&*values, onto.as_deref());
        let (task, mut result) = (rows_per_task(width * chosen), Unwritten::<T>::new(tokens * width));
        thread_pool::for_chunks(&mut result.slots()[..tokens * width], task * width, |number, result| {
            let mut sums = vec![0f32; width];
            for (index, result) in result.chunks_exact_mut(width).enumerate() {
                let token = number * task + index;
                match onto {
                    Some(onto) => widen(&onto[token * width..][..width], &mut sums),
                    None => sums.fill(0.0),
                }
                for row in &rows[token * chosen..][..chosen] {
                    add(&values[*row as usize * width..][..width], &mut sums);
                }
                narrow(&sums, result);
            }
        });
        // SAFETY: every row is written.
        unsafe { result.into_tensor(&[tokens, width]) }
    })
}

super::simd::multiversion! {
    fn widen<T: Element>(values: &[T], sums: &mut [f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.widen();
        }
    }
}

super::simd::multiversion! {
    fn add<T: Element>(values: &[T], sums: &mut [f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value.widen();
        }
    }
}

super::simd::multiversion! {
    fn narrow<T: Element>(sums: &[f32], result: &mut [MaybeUninit<T>]) {
        for (result, sum) in result.iter_mut().zip(sums) {
            result.write(T::narrow(*sum));
        }
    }
}

/// Multiplies each row of y (R, N) by its weight, in place. y is contiguous.
///
/// # Errors
/// Shapes that do not fit.
pub fn scale(y: &Tensor, weights: &Tensor) -> Result<()> {
    let (count, width) = y.dims2()?;
    expect_rows(weights, count, "scaled rows: weights")?;
    if gpu::takes(y) {
        return cuda::rows::scale(y, weights);
    }
    if !is_fused(y) {
        let weights = weights.to_dtype(y.dtype())?.unsqueeze(1)?;
        return y.slice_set(&y.broadcast_mul(&weights)?, 0, 0);
    }
    in_place(
        y,
        &Scale {
            weights: small(weights)?,
            width,
        },
    )
}

struct Scale {
    weights: Vec<f32>,
    width: usize,
}

impl InPlace for Scale {
    const NAME: &'static str = "scaled rows";

    fn run<T: Element>(&self, y: &mut [T]) -> Result<()> {
        let rows = rows_per_task(self.width);
        thread_pool::for_chunks(y, rows * self.width, |task, y| {
            for (row, weight) in y.chunks_exact_mut(self.width).zip(&self.weights[task * rows..]) {
                scale_row(row, *weight);
            }
        });
        Ok(())
    }
}

super::simd::multiversion! {
    fn scale_row<T: Element>(row: &mut [T], weight: f32) {
        for value in row {
            *value = T::narrow(value.widen() * weight);
        }
    }
}

/// The sum over each row of a (R, N) times b (R, N), as (R,) F32.
///
/// # Errors
/// Shapes and dtypes that do not fit.
pub fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (count, width) = a.dims2()?;
    shape::expect(b, &[count, width], "dot of rows: b")?;
    if gpu::takes(a) {
        return cuda::rows::dot(a, b);
    }
    if !is_fused(a) || a.dtype() != b.dtype() {
        let dtype = if a.dtype() == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        return (a.to_dtype(dtype)? * b.to_dtype(dtype)?)?.sum(1);
    }
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    with_element!(a.dtype(), T => {
        let (a, b) = (Elements::<T>::new(&a)?, Elements::<T>::new(&b)?);
        let (a, b, task) = (&*a, &*b, rows_per_task(width));
        let mut sums = vec![0f32; count];
        thread_pool::for_chunks(&mut sums, task, |number, sums| {
            let start = number * task * width;
            let rows = a[start..].chunks_exact(width).zip(b[start..].chunks_exact(width));
            sums.iter_mut().zip(rows).for_each(|(sum, (a, b))| *sum = dot_row(a, b));
        });
        Tensor::from_vec(sums, count, &candle_core::Device::Cpu)
    })
}

/// Dot product of two rows in sixteen sums, which the compiler keeps in a vector.
fn dot_row<T: Element>(a: &[T], b: &[T]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a.widen() * b.widen();
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a.widen() * b.widen()).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::Device;

    fn indices(values: &[u32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_come_back_to_their_tokens() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (x, x64) = rounded(&random(&[3, 70], 1), dtype);
            let (y, y64) = rounded(&random(&[6, 70], 2), dtype);
            let (index, rows) = (
                indices(&[2, 0, 1, 1, 0, 2], &[6]),
                indices(&[1, 4, 2, 3, 0, 5], &[3, 2]),
            );
            assert_close(&gather(&x, &index).unwrap(), &gather(&x64, &index).unwrap(), "gather");
            assert_close(&sum(None, &y, &rows).unwrap(), &sum(None, &y64, &rows).unwrap(), "sum");
            let onto = sum(Some(&x), &y, &rows).unwrap();
            assert_close(&onto, &sum(Some(&x64), &y64, &rows).unwrap(), "sum onto");
            let of_rows = gather(&x64, &index).unwrap();
            assert_close(
                &sum(None, &of_rows, &rows).unwrap(),
                &(x64 * 2.0).unwrap(),
                "there and back",
            );
        }
    }

    #[test]
    fn rows_are_scaled_and_multiplied() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let ((a, a64), (b, b64)) = (
                rounded(&random(&[5, 43], 1), dtype),
                rounded(&random(&[5, 43], 2), dtype),
            );
            let (w, w64) = rounded(&random(&[5], 3), DType::F32);
            assert_close(&dot(&a, &b).unwrap(), &dot(&a64, &b64).unwrap(), "dot");
            scale(&a, &w).unwrap();
            assert_close(&a, &a64.broadcast_mul(&w64.unsqueeze(1).unwrap()).unwrap(), "scale");
        }
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let x = random(&[3, 4], 1).to_dtype(DType::F32).unwrap();
        assert!(gather(&x, &indices(&[3], &[1])).is_err());
        assert!(sum(None, &x, &indices(&[0, 3], &[1, 2])).is_err());
        assert!(scale(&x, &random(&[2], 1).to_dtype(DType::F32).unwrap()).is_err());
    }
}
