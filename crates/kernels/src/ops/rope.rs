//! Rotary position embedding (Su et al. 2021, <https://arxiv.org/abs/2104.09864>), in both orders of dimensions that
//! transformers has.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x`, `y` | (T, heads, d) | queries or keys before and after |
//! | `cos`, `sin` | (positions, r/2) F32 | of position times inverse frequency, r = rotary dimensions, r <= d |
//! | `positions` | (T,) U32 | row of the table for each token |
//!
//! Latent attention rotates the last dimensions of a head and not the first: `plain` of them pass unchanged before those that turn.
//!
//! With x1 = x[.., ..r/2] and x2 = x[.., r/2..r], or x1 = x[.., 0, 2, ..] and x2 = x[.., 1, 3, ..] of the first r: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; the dimensions from r on
//! pass unchanged. The backward is the inverse rotation, that is the same with -sin.

use super::cuda;
use super::element::{Element, with_element};
use super::rms_norm;
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Device, Result, Tensor};
use std::mem::MaybeUninit;

/// Cosines and sines for every position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// (positions, rotary dimensions / 2) F32.
    pub cos: Tensor,
    /// (positions, rotary dimensions / 2) F32.
    pub sin: Tensor,
    pub order: PairOrder,
    /// Dimensions of a head before the rotated ones.
    pub plain: usize,
}

/// Pairs of dimensions of a head that turn together, among the first r.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairOrder {
    /// i and i + r/2 (`rotate_half`).
    #[default]
    Halves,
    /// 2i and 2i + 1.
    Neighbours,
}

impl RopeTable {
    /// Table of `positions` rows from the inverse frequencies (one for each pair of dimensions). `scale` multiplies
    /// cosines and sines (the attention factor of yarn and longrope; 1 elsewhere).
    ///
    /// The angle is rounded to F32 before its cosine is taken, as transformers does.
    pub fn new(inverse_frequencies: &[f32], scale: f64, positions: usize, device: &Device) -> Result<Self> {
        let angles = (0..positions)
            .flat_map(|position| inverse_frequencies.iter().map(move |inverse| position as f32 * inverse));
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                ((cos * scale) as f32, (sin * scale) as f32)
            })
            .unzip();
        let shape = (positions, inverse_frequencies.len());
        Ok(Self {
            cos: Tensor::from_vec(cos, shape, device)?,
            sin: Tensor::from_vec(sin, shape, device)?,
            order: PairOrder::Halves,
            plain: 0,
        })
    }

    /// Returns the table for another order of dimensions.
    pub fn in_order(self, order: PairOrder) -> Self {
        Self { order, ..self }
    }

    /// Returns the table for heads with so many dimensions before those that turn.
    pub fn behind(self, plain: usize) -> Self {
        Self { plain, ..self }
    }

    /// The table with the row of each position times a factor: a rotation that stretches too.
    pub fn stretched(&self, factor: impl Fn(usize) -> f64) -> Result<Self> {
        let factors: Vec<f32> = (0..self.positions()).map(|position| factor(position) as f32).collect();
        let factors = Tensor::from_vec(factors, (self.positions(), 1), self.cos.device())?;
        Ok(Self {
            cos: self.cos.broadcast_mul(&factors)?,
            sin: self.sin.broadcast_mul(&factors)?,
            order: self.order,
            plain: self.plain,
        })
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.dims().first().copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Inverse,
}

impl Direction {
    /// Factor on the angles.
    fn sign(self) -> f32 {
        match self {
            Self::Forward => 1.0,
            Self::Inverse => -1.0,
        }
    }
}

/// Rotates `x` by the angles of its positions.
pub fn forward(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
    rotate(x, table, positions, Direction::Forward)
}

/// Gradient with respect to `x`: the inverse rotation of `dy`.
pub fn backward(dy: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
    rotate(dy, table, positions, Direction::Inverse)
}

/// Rotates queries and keys of the same tokens. On a GPU they are rotated where they lie, in one launch: nobody else may hold them.
pub fn forward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> Result<[Tensor; 2]> {
    rotate_both(both, table, positions, Direction::Forward)
}

/// RMS norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// (d,) each, of queries and of keys.
    pub weights: [&'a Tensor; 2],
    pub epsilon: f64,
    /// Offset of the weights.
    pub offset: f32,
}

/// Rotates as [`forward_both`] does, with the norms of queries and keys, which stay as they are; with each comes rstd
/// (T heads,) F32. On a GPU it is one launch, with the bits of the norms and the rotation one behind the other.
pub fn forward_normed(
    both: [Tensor; 2],
    norms: &HeadNorms<'_>,
    table: &RopeTable,
    positions: &Tensor,
) -> Result<[(Tensor, Tensor); 2]> {
    let [q, k] = both.each_ref();
    for (x, weight) in [q, k].into_iter().zip(norms.weights) {
        check(x, table, positions)?;
        shape::expect(weight, &[x.dim(2)?], "rope: weight of a head norm")?;
    }
    if are_on_gpu([q, k], table, positions)? && table.order == PairOrder::Halves {
        return cuda::rope::rotate_normed([q, k], norms, table, positions);
    }
    let normed = |x: &Tensor, weight: &Tensor| -> Result<(Tensor, Tensor)> {
        let (tokens, heads, head_dim) = x.dims3()?;
        let rows = x.reshape((tokens * heads, head_dim))?;
        let (y, rstd) = rms_norm::forward(&rows, weight, norms.epsilon, norms.offset)?;
        Ok((y.reshape((tokens, heads, head_dim))?, rstd))
    };
    let [(q, query_rstd), (k, key_rstd)] = [normed(q, norms.weights[0])?, normed(k, norms.weights[1])?];
    let [q, k] = forward_both([q, k], table, positions)?;
    Ok([(q, query_rstd), (k, key_rstd)])
}

/// Gradients with respect to queries and keys, as [`forward_both`].
pub fn backward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> Result<[Tensor; 2]> {
    rotate_both(both, table, positions, Direction::Inverse)
}

fn rotate(x: &Tensor, table: &RopeTable, positions: &Tensor, direction: Direction) -> Result<Tensor> {
    check(x, table, positions)?;
    if runs_on_gpu(x, table, positions) {
        let x = x.copy()?.contiguous()?;
        cuda::rope::rotate(&x, None, table, positions, direction.sign())?;
        return Ok(x);
    }
    if !is_fused(x) || positions.dtype() != DType::U32 || table.cos.dtype() != DType::F32 {
        return reference::rotate(x, table, positions, direction);
    }
    rotate_fused(&x.contiguous()?, table, positions, direction)
}

fn rotate_both(
    [q, k]: [Tensor; 2],
    table: &RopeTable,
    positions: &Tensor,
    direction: Direction,
) -> Result<[Tensor; 2]> {
    check(&q, table, positions)?;
    check(&k, table, positions)?;
    if are_on_gpu([&q, &k], table, positions)? {
        let both = [q.contiguous()?, k.contiguous()?];
        cuda::rope::rotate(&both[0], Some(&both[1]), table, positions, direction.sign())?;
        return Ok(both);
    }
    // By value: what was rotated is released before the next is.
    let rotated = |x: Tensor| rotate(&x, table, positions, direction);
    Ok([rotated(q)?, rotated(k)?])
}

fn check(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<()> {
    let (tokens, _, head_dim) = x.dims3()?;
    let (rows, half) = table.cos.dims2()?;
    shape::expect(&table.sin, &[rows, half], "rope: sin")?;
    shape::expect(positions, &[tokens], "rope: positions")?;
    if table.plain + 2 * half > head_dim {
        candle_core::bail!(
            "rope: {} rotary dimensions behind {} others do not fit into a head of {head_dim}",
            2 * half,
            table.plain
        );
    }
    Ok(())
}

/// Whether one launch takes both.
fn are_on_gpu([q, k]: [&Tensor; 2], table: &RopeTable, positions: &Tensor) -> Result<bool> {
    let alike = (q.dtype(), q.dim(2)?) == (k.dtype(), k.dim(2)?);
    Ok(alike && runs_on_gpu(q, table, positions) && runs_on_gpu(k, table, positions))
}

fn runs_on_gpu(x: &Tensor, table: &RopeTable, positions: &Tensor) -> bool {
    table.plain == 0 && gpu::takes(x) && positions.dtype() == DType::U32 && table.cos.dtype() == DType::F32
}

fn rotate_fused(x: &Tensor, table: &RopeTable, positions: &Tensor, direction: Direction) -> Result<Tensor> {
    let (_, heads, head_dim) = x.dims3()?;
    let (rows, half) = table.cos.dims2()?;
    let (cos, sin) = (Elements::<f32>::new(&table.cos)?, Elements::<f32>::new(&table.sin)?);
    let positions = Elements::<u32>::new(positions)?;
    if let Some(position) = positions.iter().find(|position| **position as usize >= rows) {
        candle_core::bail!("rope: position {position} is beyond the table of {rows} positions");
    }
    let sign = direction.sign();
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(x)?;
        let (width, mut y) = (heads * head_dim, Unwritten::<T>::new(values.len()));
        let task = rows_per_task(width);
        thread_pool::for_chunks(&mut y.slots()[..values.len()], task * width, |index, y| {
            let (x, positions) = (&values[index * task * width..], &positions[index * task..]);
            for ((y, x), position) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(positions) {
                let row = *position as usize * half..(*position as usize + 1) * half;
                match table.order {
                    PairOrder::Halves => {
                        rotate_token(x, [head_dim, table.plain], &cos[row.clone()], &sin[row], sign, y)
                    }
                    PairOrder::Neighbours => {
                        rotate_neighbours(x, [head_dim, table.plain], &cos[row.clone()], &sin[row], sign, y)
                    }
                }
            }
        });
        // SAFETY: both write every element of their token.
        unsafe { y.into_tensor(x.dims()) }
    })
}

multiversion! {
    /// Rotates all heads of one token; `head` is the width of one, and how much of it stands before the rotated dimensions.
    fn rotate_token<T: Element>(
        x: &[T],
        head: [usize; 2],
        cos: &[f32],
        sin: &[f32],
        sign: f32,
        y: &mut [MaybeUninit<T>],
    ) {
        let ([head_dim, plain], half) = (head, cos.len());
        for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
            let (x, y) = pass(x, y, plain);
            let ((x1, rest), (y1, y_rest)) = (x.split_at(half), y.split_at_mut(half));
            let ((x2, x_pass), (y2, y_pass)) = (rest.split_at(half), y_rest.split_at_mut(half));
            let inputs = x1.iter().zip(x2).zip(cos.iter().zip(sin));
            for ((y1, y2), ((x1, x2), (c, s))) in y1.iter_mut().zip(y2).zip(inputs) {
                let (a, b, s) = (x1.widen(), x2.widen(), s * sign);
                y1.write(T::narrow(a * c - b * s));
                y2.write(T::narrow(b * c + a * s));
            }
            for (y, x) in y_pass.iter_mut().zip(x_pass) {
                y.write(*x);
            }
        }
    }
}

multiversion! {
    /// Rotates as [`rotate_token`] does, with neighbouring dimensions.
    fn rotate_neighbours<T: Element>(
        x: &[T],
        head: [usize; 2],
        cos: &[f32],
        sin: &[f32],
        sign: f32,
        y: &mut [MaybeUninit<T>],
    ) {
        let ([head_dim, plain], rotated) = (head, 2 * cos.len());
        for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
            let (x, y) = pass(x, y, plain);
            let ((x, x_pass), (y, y_pass)) = (x.split_at(rotated), y.split_at_mut(rotated));
            let pairs = x.chunks_exact(2).zip(cos.iter().zip(sin));
            for (y, (x, (c, s))) in y.chunks_exact_mut(2).zip(pairs) {
                let (a, b, s) = (x[0].widen(), x[1].widen(), s * sign);
                y[0].write(T::narrow(a * c - b * s));
                y[1].write(T::narrow(b * c + a * s));
            }
            for (y, x) in y_pass.iter_mut().zip(x_pass) {
                y.write(*x);
            }
        }
    }
}

/// Copies the first `plain` values of a head, and returns what is behind them.
#[inline(always)]
fn pass<'a, T: Element>(x: &'a [T], y: &'a mut [MaybeUninit<T>], plain: usize) -> (&'a [T], &'a mut [MaybeUninit<T>]) {
    let ((x_pass, x), (y_pass, y)) = (x.split_at(plain), y.split_at_mut(plain));
    for (y, x) in y_pass.iter_mut().zip(x_pass) {
        y.write(*x);
    }
    (x, y)
}

/// The op in plain candle ops.
pub mod reference {
    use super::{Direction, PairOrder, RopeTable};
    use crate::kernel_form::widen;
    use candle_core::{D, Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
        rotate(x, table, positions, Direction::Forward)
    }

    /// See [`super::backward`].
    pub fn backward(dy: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
        rotate(dy, table, positions, Direction::Inverse)
    }

    pub(super) fn rotate(x: &Tensor, table: &RopeTable, positions: &Tensor, direction: Direction) -> Result<Tensor> {
        let half = table.cos.dim(1)?;
        let head_dim = x.dim(D::Minus1)?;
        let wide = widen(x)?;
        let rows = |values: &Tensor| values.index_select(positions, 0)?.to_dtype(wide.dtype())?.unsqueeze(1);
        let cos = rows(&table.cos)?;
        let sin = match direction {
            Direction::Forward => rows(&table.sin)?,
            Direction::Inverse => rows(&table.sin)?.neg()?,
        };
        let turned = wide.narrow(D::Minus1, table.plain, 2 * half)?;
        let [x1, x2] = parts(&turned, table.order)?;
        let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
        let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
        let turned = match table.order {
            PairOrder::Halves => Tensor::cat(&[y1, y2], D::Minus1)?,
            PairOrder::Neighbours => Tensor::stack(&[y1, y2], 3)?.flatten_from(2)?,
        };
        let behind = table.plain + 2 * half;
        let mut parts = vec![turned];
        if table.plain > 0 {
            parts.insert(0, wide.narrow(D::Minus1, 0, table.plain)?);
        }
        if behind < head_dim {
            parts.push(wide.narrow(D::Minus1, behind, head_dim - behind)?);
        }
        let whole = match parts.as_slice() {
            [turned] => turned.clone(),
            parts => Tensor::cat(parts, D::Minus1)?,
        };
        whole.to_dtype(x.dtype())
    }

    /// x1 and x2 of (T, heads, r).
    fn parts(turned: &Tensor, order: PairOrder) -> Result<[Tensor; 2]> {
        let (tokens, heads, rotated) = turned.dims3()?;
        let half = rotated / 2;
        let of = match order {
            PairOrder::Halves => turned.reshape((tokens, heads, 2, half))?.transpose(2, 3)?,
            PairOrder::Neighbours => turned.reshape((tokens, heads, half, 2))?,
        };
        Ok([of.narrow(3, 0, 1)?.squeeze(3)?, of.narrow(3, 1, 1)?.squeeze(3)?])
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;

    #[test]
    fn fused_form_matches_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (heads, head_dim, half) in [(1, 16, 8), (3, 24, 12), (2, 64, 32), (5, 96, 24), (1, 256, 128)] {
                for (order, plain) in [
                    (PairOrder::Halves, 0),
                    (PairOrder::Neighbours, 0),
                    (PairOrder::Halves, head_dim - 2 * half),
                    (PairOrder::Neighbours, (head_dim - 2 * half) / 2),
                ] {
                    let (x, x64) = rounded(&random(&[13, heads, head_dim], 1), dtype);
                    let (table, positions) = (table(half).in_order(order).behind(plain), positions(13));
                    let y64 = reference::forward(&x64, &table, &positions).unwrap();
                    assert_close(&forward(&x, &table, &positions).unwrap(), &y64, "y");
                    let dx64 = reference::backward(&x64, &table, &positions).unwrap();
                    assert_close(&backward(&x, &table, &positions).unwrap(), &dx64, "dx");
                }
            }
        }
    }

    #[test]
    fn a_position_beyond_the_table_is_refused() {
        let x = random(&[1, 1, 16], 1).to_dtype(DType::F32).unwrap();
        let error = forward(&x, &table(8), &Tensor::new(&[64u32], &Device::Cpu).unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("position 64 is beyond the table of 64"),
            "{error}"
        );
    }

    fn table(half: usize) -> RopeTable {
        let inverse: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        RopeTable::new(&inverse, 1.0, 64, &Device::Cpu).unwrap()
    }

    fn positions(count: u32) -> Tensor {
        Tensor::from_vec(
            (0..count).map(|i| i * 7 % 64).collect::<Vec<u32>>(),
            count as usize,
            &Device::Cpu,
        )
        .unwrap()
    }

    #[test]
    fn backward_undoes_forward_since_a_rotation_is_orthogonal() {
        for (head_dim, half) in [(16, 8), (24, 12), (96, 24)] {
            let x = random(&[9, 3, head_dim], 1).to_dtype(DType::F32).unwrap();
            let y = forward(&x, &table(half), &positions(9)).unwrap();
            let back = backward(&y, &table(half), &positions(9)).unwrap();
            assert_close(&back, &x.to_dtype(DType::F64).unwrap(), "inverse");
        }
    }

    #[test]
    fn values_match_the_formula() {
        let (x, table) = (random(&[3, 1, 6], 1), table(2));
        let y = forward(&x, &table, &positions(3)).unwrap().to_vec3::<f64>().unwrap();
        let (x, cos, sin) = (
            x.to_vec3::<f64>().unwrap(),
            table.cos.to_vec2::<f32>().unwrap(),
            table.sin.to_vec2::<f32>().unwrap(),
        );
        for token in 0..3 {
            let (row, x, y) = (token * 7, &x[token][0], &y[token][0]);
            for pair in 0..2 {
                let (cos, sin) = (f64::from(cos[row][pair]), f64::from(sin[row][pair]));
                assert!((y[pair] - (x[pair] * cos - x[pair + 2] * sin)).abs() < 1e-12);
                assert!((y[pair + 2] - (x[pair + 2] * cos + x[pair] * sin)).abs() < 1e-12);
            }
            assert_eq!(y[4..], x[4..]);
        }
    }

    #[test]
    fn a_stretched_rotation_has_its_transpose_as_backward() {
        let table = table(4).stretched(|position| 1.0 + position as f64 / 10.0).unwrap();
        let (x, dy, positions) = (random(&[5, 2, 8], 1), random(&[5, 2, 8], 2), positions(5));
        let sum = |a: &Tensor, b: &Tensor| (a * b).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
        let y = forward(&x, &table, &positions).unwrap();
        let dx = backward(&dy, &table, &positions).unwrap();
        assert!((sum(&y, &dy) - sum(&x, &dx)).abs() < 1e-12);
        let plain = forward(&x, &self::table(4), &positions).unwrap();
        let third = |tensor: &Tensor| tensor.get(2).unwrap();
        // Position 14 of the third token; tables are F32.
        let single = third(&y).to_dtype(DType::F32).unwrap();
        assert_close(&single, &(third(&plain) * 2.4).unwrap(), "y");
    }

    #[test]
    fn neighbours_turn_as_the_halves_of_a_head_in_another_order() {
        let x = random(&[5, 2, 6], 1);
        let (halves, positions) = (table(2), positions(5));
        let order =
            |places: [u32; 6], x: &Tensor| x.index_select(&Tensor::new(&places, &Device::Cpu).unwrap(), 2).unwrap();
        // Dimensions 0, 2 | 1, 3 of the neighbours are the two halves; 4 and 5 stay.
        let split = order([0, 2, 1, 3, 4, 5], &x);
        let expected = forward(&split, &halves, &positions).unwrap();
        let got = forward(&x, &halves.in_order(PairOrder::Neighbours), &positions).unwrap();
        assert_close(&order([0, 2, 1, 3, 4, 5], &got), &expected, "y");
    }
}
