//! Attention sinks: one more logit of each head in the softmax, whose weight goes nowhere (gpt-oss).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `o`, `lse` | (T, H, d), (T, H) F32 | result and log-sum-exp of attention without the sink |
//! | `sinks` z | (H,) | the logit of each head |
//!
//! lse' = log(exp(lse) + exp(z)) and o' = o exp(lse - lse'). A backward pass of attention that is given o' and lse' in the places of o
//! and lse gives the gradients of q, k and v with the sink: its weights are exp(s - lse'), and the sum that it takes from their gradients
//! is that of do' o'.

use super::cuda;
use super::element::Element;
use super::shape;
use super::storage::{InPlace, in_place, is_fused, small, update};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// Brings `o` and `lse` in place to what they are with the sinks. Both are contiguous.
///
/// # Errors
/// Shapes that do not go together.
pub fn apply(o: &Tensor, lse: &Tensor, sinks: &Tensor) -> Result<()> {
    let (tokens, heads, width) = o.dims3()?;
    shape::expect(lse, &[tokens, heads], "sinks: lse")?;
    shape::expect(sinks, &[heads], "sinks")?;
    if gpu::takes(o) {
        return cuda::rows::add_sinks(o, lse, sinks);
    }
    if !is_fused(o) {
        let with = joined(lse, &sinks.to_dtype(lse.dtype())?)?;
        let share = (lse - &with)?.exp()?.unsqueeze(2)?.to_dtype(o.dtype())?;
        o.slice_set(&o.broadcast_mul(&share)?, 0, 0)?;
        return lse.slice_set(&with, 0, 0);
    }
    let (before, sinks) = (small(lse)?, small(sinks)?);
    let with: Vec<f32> = before
        .iter()
        .enumerate()
        .map(|(place, lse)| add(*lse, sinks[place % heads]))
        .collect();
    let shares = before
        .iter()
        .zip(&with)
        .map(|(before, with)| (before - with).exp())
        .collect();
    in_place(o, &Scale { shares, width })?;
    update(lse, "sinks", |lse| {
        lse.copy_from_slice(&with);
        Ok(())
    })
}

/// log(exp(x) + exp(y))
fn add(x: f32, y: f32) -> f32 {
    let (high, low) = if x > y { (x, y) } else { (y, x) };
    high + (low - high).exp().ln_1p()
}

fn joined(lse: &Tensor, sinks: &Tensor) -> Result<Tensor> {
    let sinks = sinks.broadcast_as(lse.shape())?;
    let high = lse.maximum(&sinks)?;
    let sum = ((lse - &high)?.exp()? + (sinks - &high)?.exp()?)?;
    high + sum.log()?
}

struct Scale {
    shares: Vec<f32>,
    width: usize,
}

impl InPlace for Scale {
    const NAME: &'static str = "sinks";

    fn run<T: Element>(&self, o: &mut [T]) -> Result<()> {
        thread_pool::for_chunks(o, self.width, |head, o| {
            let share = self.shares[head];
            o.iter_mut().for_each(|value| *value = T::narrow(value.widen() * share));
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn a_sink_takes_its_share_of_the_weights() {
        for dtype in [DType::F32, DType::BF16] {
            let (o, o64) = rounded(&random(&[4, 3, 8], 1), dtype);
            let (lse, lse64) = rounded(&random(&[4, 3], 2), DType::F32);
            let (sinks, sinks64) = rounded(&random(&[3], 3), dtype);
            let total = (lse64.exp().unwrap().broadcast_add(&sinks64.exp().unwrap())).unwrap();
            let expected = o64.broadcast_mul(&(lse64.exp().unwrap() / &total).unwrap().unsqueeze(2).unwrap());
            apply(&o, &lse, &sinks).unwrap();
            assert_close(&o, &expected.unwrap(), "o");
            assert_close(&lse, &total.log().unwrap(), "lse");
        }
    }
}
