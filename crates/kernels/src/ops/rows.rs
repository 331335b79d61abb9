//! Rows of tokens on their way to experts and back.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `index` | (R,) U32 | a row of the source for each row of the result |
//! | `rows` | (T, k) U32 | the rows that belong to each token |
//! | `weights` | (R,) F32 | a factor for each row |

use super::element::{Element, with_element};
use super::routing::expect_rows;
use super::shape;
use super::storage::{Elements, InPlace, Unwritten, in_place, is_fused, rows_per_task, small, update};
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};
use std::mem::MaybeUninit;

/// Rows `index` of x (T, H), as (R, H).
///
/// # Errors
/// An index outside x.
pub fn gather(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let ((tokens, width), count) = (x.dims2()?, index.dims1()?);
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

/// Adds to each row of y (R, N) the bias of its expert, times the row's weight where there are weights, in place: `biases` is (E, N), and
/// expert e has the rows from `offsets[e]` to the next. y is contiguous.
///
/// # Errors
/// Shapes that do not fit.
pub fn add_of_experts(y: &Tensor, biases: &Tensor, offsets: &[usize], weights: Option<&Tensor>) -> Result<()> {
    let (count, width) = y.dims2()?;
    expect_experts(biases, offsets, [count, width])?;
    if let Some(weights) = weights {
        expect_rows(weights, count, "biases of experts: weights")?;
    }
    if !is_fused(y) {
        let mut more = biases
            .index_select(&Tensor::new(experts_of(offsets), y.device())?, 0)?
            .to_dtype(y.dtype())?;
        if let Some(weights) = weights {
            more = more.broadcast_mul(&weights.to_dtype(y.dtype())?.unsqueeze(1)?)?;
        }
        return y.slice_set(&(y + more)?, 0, 0);
    }
    in_place(
        y,
        &AddOfExperts {
            biases: small(biases)?,
            experts: experts_of(offsets),
            weights: weights.map(small).transpose()?,
            width,
        },
    )
}

/// The sum over each row of dy (R, N) times the bias of its expert, as (R,) F32; else as [`add_of_experts`].
///
/// # Errors
/// Shapes that do not fit.
pub fn dot_of_experts(dy: &Tensor, biases: &Tensor, offsets: &[usize]) -> Result<Tensor> {
    let (count, width) = dy.dims2()?;
    expect_experts(biases, offsets, [count, width])?;
    let experts = experts_of(offsets);
    if !is_fused(dy) {
        return dot(
            dy,
            &biases
                .index_select(&Tensor::new(experts, dy.device())?, 0)?
                .to_dtype(dy.dtype())?,
        );
    }
    let (dy, biases) = (dy.contiguous()?, small(biases)?);
    with_element!(dy.dtype(), T => {
        let values = Elements::<T>::new(&dy)?;
        let (values, task) = (&*values, rows_per_task(width));
        let mut sums = vec![0f32; count];
        thread_pool::for_chunks(&mut sums, task, |number, sums| {
            for (index, sum) in sums.iter_mut().enumerate() {
                let row = number * task + index;
                let bias = &biases[experts[row] as usize * width..][..width];
                *sum = values[row * width..][..width].iter().zip(bias).map(|(dy, bias)| dy.widen() * bias).sum();
            }
        });
        Tensor::from_vec(sums, count, &candle_core::Device::Cpu)
    })
}

fn expect_experts(biases: &Tensor, offsets: &[usize], [rows, width]: [usize; 2]) -> Result<()> {
    let experts = offsets.len().saturating_sub(1);
    shape::expect(biases, &[experts, width], "biases of experts")?;
    if offsets.last() != Some(&rows) || !offsets.is_sorted() {
        candle_core::bail!("biases of experts: the offsets {offsets:?} do not divide {rows} rows");
    }
    Ok(())
}

/// The expert of each row.
fn experts_of(offsets: &[usize]) -> Vec<u32> {
    let rows = offsets.windows(2).enumerate();
    rows.flat_map(|(expert, part)| std::iter::repeat_n(expert as u32, part[1] - part[0]))
        .collect()
}

struct AddOfExperts {
    /// (E, N)
    biases: Vec<f32>,
    experts: Vec<u32>,
    weights: Option<Vec<f32>>,
    width: usize,
}

impl InPlace for AddOfExperts {
    const NAME: &'static str = "biases of experts";

    fn run<T: Element>(&self, y: &mut [T]) -> Result<()> {
        let (task, width) = (rows_per_task(self.width), self.width);
        thread_pool::for_chunks(y, task * width, |number, y| {
            for (index, y) in y.chunks_exact_mut(width).enumerate() {
                let row = number * task + index;
                let weight = self.weights.as_ref().map_or(1.0, |weights| weights[row]);
                let bias = &self.biases[self.experts[row] as usize * width..][..width];
                y.iter_mut()
                    .zip(bias)
                    .for_each(|(y, bias)| *y = T::narrow(y.widen() + weight * bias));
            }
        });
        Ok(())
    }
}

/// The sum over each row of a (R, N) times b (R, N), as (R,) F32.
///
/// # Errors
/// Shapes and dtypes that do not fit.
pub fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (count, width) = a.dims2()?;
    shape::expect(b, &[count, width], "dot of rows: b")?;
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

/// In sixteen sums, which the compiler keeps in a vector.
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

/// Rows and columns of a block that is transposed at once.
const BLOCK: usize = 32;

/// The factors b (N, r E) of all experts one after the other, (E, N, r): in memory the columns of one rank lie beside each other, a
/// different expert's each.
///
/// # Errors
/// A tensor that is not contiguous F32, columns that E does not divide.
pub fn split_experts(b: &Tensor, experts: usize) -> Result<Tensor> {
    let (outputs, columns) = b.dims2()?;
    if experts == 0 || !columns.is_multiple_of(experts) {
        candle_core::bail!("split of experts: {columns} columns for {experts} experts");
    }
    let rank = columns / experts;
    let shape = (experts, outputs, rank);
    if !is_fused(b) || b.dtype() != DType::F32 {
        return b.reshape((outputs * rank, experts))?.t()?.contiguous()?.reshape(shape);
    }
    let b = b.contiguous()?;
    let values = Elements::<f32>::new(&b)?;
    let (values, length) = (&*values, outputs * rank);
    let mut split = vec![0f32; experts * length];
    thread_pool::for_chunks(&mut split, length, |expert, split| {
        for (to, from) in split.iter_mut().zip(values[expert..].iter().step_by(experts)) {
            *to = *from;
        }
    });
    Tensor::from_vec(split, shape, &candle_core::Device::Cpu)
}

/// Adds the experts' own parts (E, N, r) F32 to `into` (N, r E) F32, in place (`+=`): the inverse of [`split_experts`].
///
/// # Errors
/// Shapes that do not fit.
pub fn join_experts_add(parts: &Tensor, into: &Tensor) -> Result<()> {
    let (experts, outputs, rank) = parts.dims3()?;
    shape::expect(into, &[outputs, rank * experts], "join of experts: into")?;
    let length = outputs * rank;
    if !is_fused(parts) {
        let joined = parts
            .reshape((experts, length))?
            .t()?
            .contiguous()?
            .reshape((outputs, rank * experts))?;
        return into.slice_set(&(into + joined)?, 0, 0);
    }
    let parts = parts.contiguous()?;
    let parts = Elements::<f32>::new(&parts)?;
    let parts = &*parts;
    update(into, "join of experts", |into| {
        thread_pool::for_chunks(into, BLOCK * experts, |block, into| {
            for expert in 0..experts {
                let part = &parts[expert * length + block * BLOCK..];
                for (to, from) in into[expert..].iter_mut().step_by(experts).zip(part) {
                    *to += *from;
                }
            }
        });
        Ok(())
    })
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
    fn biases_are_those_of_each_row_s_expert() {
        for dtype in [DType::F32, DType::BF16] {
            let ((y, y64), (b, b64)) = (
                rounded(&random(&[5, 20], 1), dtype),
                rounded(&random(&[3, 20], 2), dtype),
            );
            let (w, w64) = rounded(&random(&[5], 3), DType::F32);
            // The second expert has no rows.
            let offsets = [0, 2, 2, 5];
            let of_rows = b64.index_select(&indices(&[0, 0, 2, 2, 2], &[5]), 0).unwrap();
            let dots = (&y64 * &of_rows).unwrap().sum(1).unwrap();
            assert_close(&dot_of_experts(&y, &b, &offsets).unwrap(), &dots, "dot");
            add_of_experts(&y, &b, &offsets, Some(&w)).unwrap();
            let more = of_rows.broadcast_mul(&w64.unsqueeze(1).unwrap()).unwrap();
            assert_close(&y, &(y64 + more).unwrap(), "sum");
            assert!(add_of_experts(&y, &b, &[0, 2, 5], None).is_err());
        }
    }

    #[test]
    fn factors_are_split_by_expert_and_joined_again() {
        let b = random(&[45, 12], 1).to_dtype(DType::F32).unwrap();
        let split = split_experts(&b, 4).unwrap();
        let (values, parts): (Vec<Vec<f32>>, Vec<Vec<Vec<f32>>>) = (b.to_vec2().unwrap(), split.to_vec3().unwrap());
        for (expert, part) in parts.iter().enumerate() {
            for (row, part) in part.iter().enumerate() {
                for (rank, value) in part.iter().enumerate() {
                    assert_eq!(*value, values[row][rank * 4 + expert]);
                }
            }
        }
        let into = Tensor::zeros((45, 12), DType::F32, &Device::Cpu).unwrap();
        join_experts_add(&split, &into).unwrap();
        assert_close(&into, &b, "joined");
        assert!(split_experts(&b, 5).is_err());
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let x = random(&[3, 4], 1).to_dtype(DType::F32).unwrap();
        assert!(gather(&x, &indices(&[3], &[1])).is_err());
        assert!(sum(None, &x, &indices(&[0, 3], &[1, 2])).is_err());
        assert!(scale(&x, &random(&[2], 1).to_dtype(DType::F32).unwrap()).is_err());
    }
}
