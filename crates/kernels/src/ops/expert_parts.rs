//! Parts that experts have of their own beside their weights: factors of adapters, and biases.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | b | (N, r E) | PEFT's lora_b of all experts: the columns of one rank lie beside each other, a different expert's each |
//! | `biases` | (E, N) | |
//! | `offsets` | (E + 1,) | first row of each expert, and the number of rows R |

use super::cuda;
use super::element::{Element, with_element};
use super::offsets::Offsets;
use super::routing::expect_rows;
use super::rows::dot;
use super::shape;
use super::storage::{Elements, InPlace, in_place, is_fused, rows_per_task, small, update};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};

/// Rows and columns of a block that is transposed at once.
const BLOCK: usize = 32;

/// The factors b (N, r E) of all experts one after the other, (E, N, r).
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
    if gpu::takes(b) {
        return cuda::rows::split_experts(b, experts);
    }
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
    if gpu::takes(parts) && parts.dtype() == DType::F32 && into.dtype() == DType::F32 {
        return cuda::rows::join_experts_add(parts, into);
    }
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

/// Adds to each row of y (R, N) the bias of its expert, times the row's weight where there are weights, in place: `biases` is (E, N), and
/// expert e has the rows from `offsets[e]` to the next. y is contiguous.
///
/// # Errors
/// Shapes that do not fit.
pub fn add_of_experts(y: &Tensor, biases: &Tensor, offsets: &Offsets, weights: Option<&Tensor>) -> Result<()> {
    let (count, width) = y.dims2()?;
    expect_experts(biases, offsets, [count, width])?;
    if let Some(weights) = weights {
        expect_rows(weights, count, "biases of experts: weights")?;
    }
    if gpu::takes(y) {
        let weights = weights
            .map(|weights| weights.to_dtype(DType::F32)?.contiguous())
            .transpose()?;
        return cuda::rows::add_of_experts(y, biases, offsets, weights.as_ref());
    }
    let offsets = offsets.host()?;
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
pub fn dot_of_experts(dy: &Tensor, biases: &Tensor, offsets: &Offsets) -> Result<Tensor> {
    let (count, width) = dy.dims2()?;
    expect_experts(biases, offsets, [count, width])?;
    if gpu::takes(dy) {
        return cuda::rows::dot_of_experts(dy, biases, offsets);
    }
    let experts = experts_of(offsets.host()?);
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

fn expect_experts(biases: &Tensor, offsets: &Offsets, [rows, width]: [usize; 2]) -> Result<()> {
    shape::expect(biases, &[offsets.groups(), width], "biases of experts")?;
    if offsets.rows() != rows {
        candle_core::bail!(
            "biases of experts: the offsets are those of {} rows, not of {rows}",
            offsets.rows()
        );
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

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::Device;

    fn indices(values: &[u32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
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
            let offsets = Offsets::new(vec![0, 2, 2, 5]);
            let of_rows = b64.index_select(&indices(&[0, 0, 2, 2, 2], &[5]), 0).unwrap();
            let dots = (&y64 * &of_rows).unwrap().sum(1).unwrap();
            assert_close(&dot_of_experts(&y, &b, &offsets).unwrap(), &dots, "dot");
            add_of_experts(&y, &b, &offsets, Some(&w)).unwrap();
            let more = of_rows.broadcast_mul(&w64.unsqueeze(1).unwrap()).unwrap();
            assert_close(&y, &(y64 + more).unwrap(), "sum");
            assert!(add_of_experts(&y, &b, &vec![0, 2, 5].into(), None).is_err());
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
}
