//! Causal depthwise convolution: each channel of a token is a sum over itself and the few tokens before it in its document.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `x`, `y`, `dy` | (T, W) | stream of documents, result and its gradient; compute dtype |
//! | `b`, `c` | (T, W) | factors before and behind the convolution of LFM2 |
//! | `weight` | (W, 1, K) | the taps of each channel, the token's own last, as checkpoints have them |
//! | `before` | (documents, K - 1, W) | what is convolved of the tokens before each document, the oldest first; 0 where absent |
//!
//! With w_j the tap that is j tokens back and u_t = sum over j of w_j v_{t-j}, all within t's document:
//!
//! - [`forward`]: y = silu(u) of v = x (gated delta rule). dv_t = sum over j of w_j du_{t+j}, and du = dy silu'(u).
//! - [`gated_forward`]: y = c u of v = b x (LFM2). dc = dy u, du = dy c, db = dv x and dx = dv b.
//!
//! Nothing but the inputs is kept: u is made again. The taps do not train.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{Element, with_element};
use super::exponential::logistic;
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task, small};
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// Fewest rows of a task: the backward pass makes K - 1 rows behind them again.
const TASK_ROWS: usize = 32;

/// The taps, and the documents that they stay in.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// (W, 1, K)
    pub weight: &'a Tensor,
    /// (documents + 1,): start of each document; the last entry is the stream's length.
    pub offsets: &'a [u32],
}

/// silu(u), (T, W).
///
/// # Errors
/// Shapes that do not go together.
pub fn forward(x: &Tensor, of: Convolution<'_>, before: Option<&Tensor>) -> Result<Tensor> {
    let (tokens, width) = of.check(x, before)?;
    if !is_fused(x) {
        return reference::forward(x, of, before);
    }
    let (x, taps, before) = (x.contiguous()?, Taps::new(of)?, Before::new(before)?);
    with_element!(x.dtype(), T => {
        let (values, mut y) = (Elements::<T>::new(&x)?, Unwritten::<T>::new(tokens * width));
        let (values, task) = (&*values, taps.rows_per_task());
        thread_pool::for_chunks(&mut y.slots()[..tokens * width], task * width, |index, rows| {
            let mut sum = vec![0f32; width];
            for (row, y) in rows.chunks_exact_mut(width).enumerate() {
                taps.sum(Source::One(values), index * task + row, before.as_ref(), &mut sum);
                write_silu(&sum, y);
            }
        });
        // SAFETY: every row is written.
        unsafe { y.into_tensor(&[tokens, width]) }
    })
}

/// dx of [`forward`] without tokens before the documents.
///
/// # Errors
/// Shapes that do not go together.
pub fn backward(x: &Tensor, of: Convolution<'_>, dy: &Tensor) -> Result<Tensor> {
    let (tokens, width) = of.check(x, None)?;
    shape::expect(dy, x.dims(), "convolution: dy")?;
    if !is_fused(x) {
        return reference::backward(x, of, dy);
    }
    let (x, dy, taps) = (x.contiguous()?, dy.contiguous()?, Taps::new(of)?);
    with_element!(x.dtype(), T => {
        let (values, dys) = (Elements::<T>::new(&x)?, Elements::<T>::new(&dy)?);
        let (values, dys, task) = (&*values, &*dys, taps.rows_per_task());
        let mut dx = Unwritten::<T>::new(tokens * width);
        thread_pool::for_chunks(&mut dx.slots()[..tokens * width], task * width, |index, rows| {
            let (first, mut sum) = (index * task, vec![0f32; width]);
            // du of a token and of those behind it that read it.
            let mut ring = vec![0f32; taps.count * width];
            let end = (first + rows.len() / width + taps.count - 1).min(tokens);
            for token in (first..end).rev() {
                taps.sum(Source::One(values), token, None, &mut sum);
                let place = token % taps.count * width;
                slope_of_silu(&sum, &dys[token * width..][..width], &mut ring[place..][..width]);
                if let Some(dx) = rows.chunks_exact_mut(width).nth(token - first) {
                    taps.sum_back(token, &mut sum, |later, tap, sum| {
                        add_tap(&ring[later % taps.count * width..][..width], tap, sum);
                    });
                    narrow(&sum, dx);
                }
            }
        });
        // SAFETY: every row is written.
        unsafe { dx.into_tensor(&[tokens, width]) }
    })
}

/// c u of v = b x, (T, W).
///
/// # Errors
/// Shapes that do not go together.
pub fn gated_forward([b, c, x]: [&Tensor; 3], of: Convolution<'_>, before: Option<&Tensor>) -> Result<Tensor> {
    let (tokens, width) = of.check(x, before)?;
    shape::expect(b, x.dims(), "gated convolution: b")?;
    shape::expect(c, x.dims(), "gated convolution: c")?;
    if !is_fused(x) {
        return reference::gated_forward([b, c, x], of, before);
    }
    let (b, c, x) = (b.contiguous()?, c.contiguous()?, x.contiguous()?);
    let (taps, before) = (Taps::new(of)?, Before::new(before)?);
    with_element!(x.dtype(), T => {
        let (b, c, x) = (Elements::<T>::new(&b)?, Elements::<T>::new(&c)?, Elements::<T>::new(&x)?);
        let (b, c, x, task) = (&*b, &*c, &*x, taps.rows_per_task());
        let mut y = Unwritten::<T>::new(tokens * width);
        thread_pool::for_chunks(&mut y.slots()[..tokens * width], task * width, |index, rows| {
            let mut sum = vec![0f32; width];
            for (row, y) in rows.chunks_exact_mut(width).enumerate() {
                let token = index * task + row;
                taps.sum(Source::Product(b, x), token, before.as_ref(), &mut sum);
                write_product(&sum, &c[token * width..][..width], y);
            }
        });
        // SAFETY: every row is written.
        unsafe { y.into_tensor(&[tokens, width]) }
    })
}

/// (db, dc, dx) of [`gated_forward`] without tokens before the documents.
///
/// # Errors
/// Shapes that do not go together.
pub fn gated_backward([b, c, x]: [&Tensor; 3], of: Convolution<'_>, dy: &Tensor) -> Result<[Tensor; 3]> {
    shape::expect(dy, x.dims(), "gated convolution: dy")?;
    if !is_fused(x) {
        of.check(x, None)?;
        return reference::gated_backward([b, c, x], of, dy);
    }
    // dc = dy u.
    let d_c = gated_forward([b, dy, x], of, None)?;
    let (tokens, width) = x.dims2()?;
    let (b, c, x, dy) = (b.contiguous()?, c.contiguous()?, x.contiguous()?, dy.contiguous()?);
    let taps = Taps::new(of)?;
    with_element!(x.dtype(), T => {
        let (b, x) = (Elements::<T>::new(&b)?, Elements::<T>::new(&x)?);
        let (c, dy) = (Elements::<T>::new(&c)?, Elements::<T>::new(&dy)?);
        let (b, c, x, dy, task) = (&*b, &*c, &*x, &*dy, taps.rows_per_task());
        let (mut d_b, mut d_x) = (Unwritten::<T>::new(tokens * width), Unwritten::<T>::new(tokens * width));
        let outputs = (&mut d_b.slots()[..tokens * width], &mut d_x.slots()[..tokens * width]);
        thread_pool::for_chunks2((outputs.0, task * width), (outputs.1, task * width), |index, d_b, d_x| {
            let mut sum = vec![0f32; width];
            let rows = d_b.chunks_exact_mut(width).zip(d_x.chunks_exact_mut(width));
            for (row, (d_b, d_x)) in rows.enumerate() {
                let token = index * task + row;
                taps.sum_back(token, &mut sum, |later, tap, sum| {
                    let row = later * width..(later + 1) * width;
                    add_tap_of_product(&dy[row.clone()], &c[row], tap, sum);
                });
                let row = token * width..(token + 1) * width;
                write_product(&sum, &x[row.clone()], d_b);
                write_product(&sum, &b[row], d_x);
            }
        });
        // SAFETY: every row of both is written.
        unsafe { Ok([d_b.into_tensor(&[tokens, width])?, d_c, d_x.into_tensor(&[tokens, width])?]) }
    })
}

impl Convolution<'_> {
    /// (T, W), where all shapes go together.
    fn check(&self, x: &Tensor, before: Option<&Tensor>) -> Result<(usize, usize)> {
        let ((tokens, width), (_, _, taps)) = (x.dims2()?, self.weight.dims3()?);
        shape::expect(self.weight, &[width, 1, taps], "convolution: weight")?;
        let documents = self.offsets.len().saturating_sub(1);
        let is_whole = self.offsets.first() == Some(&0) && self.offsets.last() == Some(&(tokens as u32));
        if taps == 0 || !is_whole || self.offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            candle_core::bail!("convolution: {taps} taps, and documents that do not make up {tokens} tokens");
        }
        if let Some(before) = before {
            shape::expect(before, &[documents, taps - 1, width], "convolution: before")?;
        }
        Ok((tokens, width))
    }
}

/// Values that are convolved.
#[derive(Clone, Copy)]
enum Source<'a, T> {
    One(&'a [T]),
    Product(&'a [T], &'a [T]),
}

/// Values that were convolved before each document.
struct Before {
    values: Vec<f32>,
}

impl Before {
    fn new(before: Option<&Tensor>) -> Result<Option<Self>> {
        let values = before.map(small).transpose()?;
        Ok(values.map(|values| Self { values }))
    }
}

/// The taps by how many tokens they are back, (K, W), and the documents.
struct Taps<'a> {
    values: Vec<f32>,
    count: usize,
    width: usize,
    offsets: &'a [u32],
}

impl<'a> Taps<'a> {
    fn new(of: Convolution<'a>) -> Result<Self> {
        let (width, _, count) = of.weight.dims3()?;
        let stored = small(of.weight)?;
        let mut values = Vec::with_capacity(count * width);
        for back in 0..count {
            values.extend(stored.iter().skip(count - 1 - back).step_by(count));
        }
        Ok(Self {
            values,
            count,
            width,
            offsets: of.offsets,
        })
    }

    fn rows_per_task(&self) -> usize {
        rows_per_task(self.width).max(TASK_ROWS)
    }

    /// Number and tokens of the document that `token` is in.
    fn document(&self, token: usize) -> (usize, Range<usize>) {
        let number = self.offsets.partition_point(|start| *start as usize <= token) - 1;
        (number, self.offsets[number] as usize..self.offsets[number + 1] as usize)
    }

    fn tap(&self, back: usize) -> &[f32] {
        &self.values[back * self.width..][..self.width]
    }

    /// u of `token` into `sum`.
    fn sum<T: Element>(&self, source: Source<'_, T>, token: usize, before: Option<&Before>, sum: &mut [f32]) {
        let (number, document) = self.document(token);
        sum.fill(0.0);
        for back in 0..self.count {
            match (token.checked_sub(back).filter(|row| *row >= document.start), before) {
                (Some(row), _) => {
                    let row = row * self.width..(row + 1) * self.width;
                    match source {
                        Source::One(x) => add_tap(&x[row], self.tap(back), sum),
                        Source::Product(b, x) => add_tap_of_product(&b[row.clone()], &x[row], self.tap(back), sum),
                    }
                }
                (None, Some(before)) => {
                    let age = back - (token - document.start);
                    let row = number * (self.count - 1) + self.count - 1 - age;
                    add_tap(&before.values[row * self.width..][..self.width], self.tap(back), sum);
                }
                (None, None) => {}
            }
        }
    }

    /// The sum over the tokens that read `token`: `add` adds what one of them brings, times its tap.
    fn sum_back(&self, token: usize, sum: &mut [f32], add: impl Fn(usize, &[f32], &mut [f32])) {
        let (_, document) = self.document(token);
        sum.fill(0.0);
        for later in token..(token + self.count).min(document.end) {
            add(later, self.tap(later - token), sum);
        }
    }
}

multiversion! {
    fn add_tap<T: Element>(values: &[T], tap: &[f32], sum: &mut [f32]) {
        for ((sum, value), tap) in sum.iter_mut().zip(values).zip(tap) {
            *sum += tap * value.widen();
        }
    }
}

multiversion! {
    fn add_tap_of_product<T: Element>(a: &[T], b: &[T], tap: &[f32], sum: &mut [f32]) {
        for ((sum, (a, b)), tap) in sum.iter_mut().zip(a.iter().zip(b)).zip(tap) {
            *sum += tap * (a.widen() * b.widen());
        }
    }
}

multiversion! {
    fn narrow<T: Element>(sum: &[f32], y: &mut [MaybeUninit<T>]) {
        for (y, sum) in y.iter_mut().zip(sum) {
            y.write(T::narrow(*sum));
        }
    }
}

multiversion! {
    fn write_product<T: Element>(sum: &[f32], factor: &[T], y: &mut [MaybeUninit<T>]) {
        for ((y, sum), factor) in y.iter_mut().zip(sum).zip(factor) {
            y.write(T::narrow(sum * factor.widen()));
        }
    }
}

multiversion! {
    fn write_silu<T: Element>(sum: &[f32], y: &mut [MaybeUninit<T>]) {
        for (y, sum) in y.iter_mut().zip(sum) {
            y.write(T::narrow(sum * logistic::<FMA>(*sum).0));
        }
    }
}

multiversion! {
    /// du = dy silu'(u).
    fn slope_of_silu<T: Element>(sum: &[f32], dy: &[T], du: &mut [f32]) {
        for ((du, sum), dy) in du.iter_mut().zip(sum).zip(dy) {
            let (s, rest) = logistic::<FMA>(*sum);
            *du = dy.widen() * s * (1.0 + sum * rest);
        }
    }
}

/// The ops in plain candle ops.
pub mod reference {
    use super::Convolution;
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(x: &Tensor, of: Convolution<'_>, before: Option<&Tensor>) -> Result<Tensor> {
        let u = convolved(&widen(x)?, of, before)?;
        (&u * logistic(&u)?)?.to_dtype(x.dtype())
    }

    /// See [`super::backward`].
    pub fn backward(x: &Tensor, of: Convolution<'_>, dy: &Tensor) -> Result<Tensor> {
        let u = convolved(&widen(x)?, of, None)?;
        let s = logistic(&u)?;
        let slope = (&s * (((&s * -1.0)? + 1.0)? * u)?.affine(1.0, 1.0)?)?;
        gradient(&(widen(dy)? * slope)?, of)?.to_dtype(x.dtype())
    }

    /// See [`super::gated_forward`].
    pub fn gated_forward([b, c, x]: [&Tensor; 3], of: Convolution<'_>, before: Option<&Tensor>) -> Result<Tensor> {
        let u = convolved(&(widen(b)? * widen(x)?)?, of, before)?;
        (widen(c)? * u)?.to_dtype(x.dtype())
    }

    /// See [`super::gated_backward`].
    pub fn gated_backward([b, c, x]: [&Tensor; 3], of: Convolution<'_>, dy: &Tensor) -> Result<[Tensor; 3]> {
        let dtype = x.dtype();
        let (b, c, x, dy) = (widen(b)?, widen(c)?, widen(x)?, widen(dy)?);
        let d_c = (&dy * convolved(&(&b * &x)?, of, None)?)?;
        let d_v = gradient(&(dy * c)?, of)?;
        Ok([
            (&d_v * x)?.to_dtype(dtype)?,
            d_c.to_dtype(dtype)?,
            (d_v * b)?.to_dtype(dtype)?,
        ])
    }

    /// u of v.
    pub fn convolved(v: &Tensor, of: Convolution<'_>, before: Option<&Tensor>) -> Result<Tensor> {
        let (taps, count) = taps(v, of)?;
        let mut documents = Vec::new();
        for (number, pair) in of.offsets.windows(2).enumerate() {
            let (start, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
            if length == 0 {
                continue;
            }
            let rows = v.narrow(0, start, length)?;
            let older = match before {
                Some(before) => before.get(number)?.to_dtype(v.dtype())?,
                None => Tensor::zeros((count - 1, v.dim(1)?), v.dtype(), v.device())?,
            };
            let rows = if count > 1 {
                Tensor::cat(&[&older, &rows], 0)?
            } else {
                rows
            };
            let term = |tap: usize| rows.narrow(0, tap, length)?.broadcast_mul(&taps[tap]);
            documents.push((1..count).try_fold(term(0)?, |sum, tap| sum + term(tap)?)?);
        }
        joined(v, &documents)
    }

    /// dv of du.
    fn gradient(du: &Tensor, of: Convolution<'_>) -> Result<Tensor> {
        let (taps, count) = taps(du, of)?;
        let mut documents = Vec::new();
        for pair in of.offsets.windows(2) {
            let (start, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
            if length == 0 {
                continue;
            }
            let rows = du.narrow(0, start, length)?.pad_with_zeros(0, 0, count - 1)?;
            let term = |back: usize| rows.narrow(0, back, length)?.broadcast_mul(&taps[count - 1 - back]);
            documents.push((1..count).try_fold(term(0)?, |sum, back| sum + term(back)?)?);
        }
        joined(du, &documents)
    }

    /// The taps as checkpoints have them, (1, W) each.
    fn taps(like: &Tensor, of: Convolution<'_>) -> Result<(Vec<Tensor>, usize)> {
        let weight = of.weight.to_dtype(like.dtype())?.squeeze(1)?.t()?.contiguous()?;
        let count = weight.dim(0)?;
        Ok((
            (0..count).map(|tap| weight.narrow(0, tap, 1)).collect::<Result<_>>()?,
            count,
        ))
    }

    fn joined(like: &Tensor, documents: &[Tensor]) -> Result<Tensor> {
        match documents {
            [] => like.zeros_like(),
            documents => Tensor::cat(documents, 0),
        }
    }

    fn logistic(u: &Tensor) -> Result<Tensor> {
        (u.neg()?.exp()? + 1.0)?.recip()
    }
}

#[cfg(test)]
mod tests;
