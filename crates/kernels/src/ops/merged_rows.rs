//! A weight with its adapter folded in.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `weight` | (out, in) | W, F32, BF16 or F16 |
//! | `a`, `b` | (r, in), (out, r) | the adapter, F32 |
//! | result | (out, in) | W + s·B·A, F32 |
//!
//! Each row is made by itself, rank after rank, whatever rows stand beside it: some rows of a weight have the bits that they have in
//! the whole one. So what quantizes rows while a model trains, and what merges it afterwards, come to the same codes.

use super::element::{Element, with_element};
use super::shape;
use super::simd::{multiply_add, multiversion};
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// W + s·B·A in F32.
///
/// # Errors
/// Shapes that do not fit each other; memory.
pub fn merge(weight: &Tensor, a: &Tensor, b: &Tensor, scaling: f64) -> Result<Tensor> {
    let ((outputs, inputs), rank) = (weight.dims2()?, a.dims2()?.0);
    shape::expect(a, &[rank, inputs], "merged rows: a")?;
    shape::expect(b, &[outputs, rank], "merged rows: b")?;
    if !is_fused(weight) || gpu::takes(weight) || outputs * inputs == 0 {
        return reference::merge(weight, a, b, scaling);
    }
    let (weight, a, b) = (weight.contiguous()?, a.contiguous()?, b.contiguous()?);
    let (a, b) = (Elements::<f32>::new(&a)?, Elements::<f32>::new(&b)?);
    let mut merged = Unwritten::<f32>::new(outputs * inputs);
    let factors = Factors {
        a: &a,
        b: &b,
        scaling: scaling as f32,
        rank,
    };
    with_element!(weight.dtype(), T => {
        let weight = Elements::<T>::new(&weight)?;
        let task = rows_per_task(inputs);
        thread_pool::for_chunks(&mut merged.slots()[..outputs * inputs], task * inputs, |index, merged| {
            let rows = merged.chunks_exact_mut(inputs).zip(weight.chunks_exact(inputs).skip(index * task));
            for (row, (merged, weight)) in rows.enumerate() {
                merge_row(weight, factors, index * task + row, merged);
            }
        });
        // SAFETY: merge_row writes every element of its row.
        unsafe { merged.into_tensor(&[outputs, inputs]) }
    })
}

/// An adapter.
#[derive(Clone, Copy)]
struct Factors<'a> {
    /// (rank, in)
    a: &'a [f32],
    /// (out, rank)
    b: &'a [f32],
    scaling: f32,
    rank: usize,
}

/// Columns whose sums are in registers.
const COLUMNS: usize = 64;

multiversion! {
    /// Row `row` of W + s·B·A from that of W.
    fn merge_row<T: Element>(weight: &[T], factors: Factors<'_>, row: usize, merged: &mut [MaybeUninit<f32>]) {
        let b = &factors.b[row * factors.rank..(row + 1) * factors.rank];
        let (tiles, inputs) = (weight.len().div_ceil(COLUMNS), weight.len());
        for tile in 0..tiles {
            let columns = tile * COLUMNS..((tile + 1) * COLUMNS).min(inputs);
            let mut sums = [0f32; COLUMNS];
            for (b, a) in b.iter().zip(factors.a.chunks_exact(inputs)) {
                match a[columns.clone()].as_array::<COLUMNS>() {
                    Some(a) => {
                        for (sum, a) in sums.iter_mut().zip(a) {
                            *sum = multiply_add::<FMA>(*b, *a, *sum);
                        }
                    }
                    None => {
                        for (sum, a) in sums.iter_mut().zip(&a[columns.clone()]) {
                            *sum = multiply_add::<FMA>(*b, *a, *sum);
                        }
                    }
                }
            }
            let values = merged[columns.clone()].iter_mut().zip(&weight[columns]).zip(&sums);
            for ((merged, weight), sum) in values {
                merged.write(weight.widen() + sum * factors.scaling);
            }
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::merge`].
    pub fn merge(weight: &Tensor, a: &Tensor, b: &Tensor, scaling: f64) -> Result<Tensor> {
        widen(weight)? + (b.matmul(a)? * scaling)?
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn rows_of_any_width_are_the_sum_in_f64() {
        for (outputs, inputs, rank) in [(1, 1, 1), (5, 64, 3), (70, 100, 16), (3, 1160, 8)] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let (weight, exact) = rounded(&random(&[outputs, inputs], 1), dtype);
                let (a, b) = (random(&[rank, inputs], 2), random(&[outputs, rank], 3));
                let expected = reference::merge(&exact, &a, &b, 0.75).unwrap();
                let [a, b] = [&a, &b].map(|factor| factor.to_dtype(DType::F32).unwrap());
                let merged = merge(&weight, &a, &b, 0.75).unwrap();
                assert_eq!(merged.dtype(), DType::F32);
                assert_close(&merged, &expected, "merged rows");
            }
        }
    }

    #[test]
    fn some_rows_have_the_bits_that_they_have_in_the_whole_weight() {
        let of = |shape: &[usize], seed| random(shape, seed).to_dtype(DType::F32).unwrap();
        let (weight, a, b) = (of(&[90, 130], 1), of(&[5, 130], 2), of(&[90, 5], 3));
        let whole = merge(&weight, &a, &b, 2.0).unwrap();
        for (start, rows) in [(0, 1), (7, 40), (64, 26)] {
            let part = |tensor: &Tensor| tensor.narrow(0, start, rows).unwrap();
            let some = merge(&part(&weight), &a, &part(&b), 2.0).unwrap();
            assert_eq!(some.to_vec2::<f32>().unwrap(), part(&whole).to_vec2::<f32>().unwrap());
        }
    }

    #[test]
    fn factors_of_other_shapes_are_refused() {
        let of = |shape: &[usize]| random(shape, 1).to_dtype(DType::F32).unwrap();
        assert!(merge(&of(&[4, 6]), &of(&[2, 5]), &of(&[4, 2]), 1.0).is_err());
        assert!(merge(&of(&[4, 6]), &of(&[2, 6]), &of(&[4, 3]), 1.0).is_err());
    }
}
