//! Row by row, the cross-entropy of a chunk of logits and its gradient in place.

use crate::ops::element::Element;
use crate::ops::exponential::{exp, tanh};
use crate::ops::simd::{LANES, multiversion};
use half::bf16;

/// Logits whose exponentials are summed in F32 before F64 takes over.
const BLOCK: usize = 4096;

/// Loss of one row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowLoss {
    pub loss: f64,
    pub lse: f32,
    /// Whether no logit is larger than the target's.
    pub correct: bool,
}

multiversion! {
    /// Soft-caps the logits of one row in place (`cap` infinite for none) and returns its loss.
    pub(super) fn loss(logits: &mut [f32], target: usize, cap: f32) -> RowLoss {
        soft_cap::<FMA>(logits, cap);
        let max = largest(logits);
        let mut total = 0.0;
        for block in logits.chunks(BLOCK) {
            total += f64::from(sum_of_exp::<FMA>(block, max));
        }
        let lse = f64::from(max) + total.ln();
        RowLoss {
            loss: lse - f64::from(logits[target]),
            lse: lse as f32,
            correct: logits[target] >= max,
        }
    }
}

multiversion! {
    /// Turns the soft-capped logits of one row into the gradient of `scale` times the loss before the soft-cap.
    pub(super) fn gradient(logits: &mut [f32], target: usize, lse: f32, cap: f32, scale: f32) {
        let at_target = logits[target];
        // With an infinite cap the slope is one.
        let slope = |logit: f32| 1.0 - (logit / cap) * (logit / cap);
        for logit in logits.iter_mut() {
            *logit = scale * exp::<FMA>(*logit - lse) * slope(*logit);
        }
        // The other terms of the softmax keep their precision; here one is subtracted from it.
        logits[target] = scale * (exp::<FMA>(at_target - lse) - 1.0) * slope(at_target);
    }
}

multiversion! {
    /// Rounds a row to BF16 in place: the result lies in the first half of the row's memory, two values in each place.
    pub(super) fn narrow_in_place(row: &mut [f32]) {
        let pair = |low: f32, high: f32| {
            let bits = |value| u32::from(<bf16 as Element>::narrow(value).to_bits());
            f32::from_bits(bits(low) | bits(high) << 16)
        };
        let whole = row.len() / (2 * LANES);
        for block in 0..whole {
            let start = block * 2 * LANES;
            let Some(values) = row.get(start..).and_then(|rest| rest.first_chunk::<{ 2 * LANES }>()).copied() else {
                break;
            };
            let Some(places) = row.get_mut(start / 2..).and_then(|rest| rest.first_chunk_mut::<LANES>()) else {
                break;
            };
            for (place, values) in places.iter_mut().zip(values.as_chunks::<2>().0) {
                *place = pair(values[0], values[1]);
            }
        }
        for index in (whole * 2 * LANES..row.len()).step_by(2) {
            let high = row.get(index + 1).copied().unwrap_or(0.0);
            row[index / 2] = pair(row[index], high);
        }
    }
}

/// State of one row behind the groups of logits that have passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The largest logit.
    max: f32,
    /// The sum of exp(logit - max).
    sum: f64,
    at_target: f32,
    /// Factor on the sums over the groups before the last one, since the largest logit changed.
    pub factor: f32,
}

impl Row {
    /// State behind no logits.
    pub(super) const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
        at_target: f32::NEG_INFINITY,
        factor: 1.0,
    };

    pub(super) fn loss(&self) -> f64 {
        f64::from(self.max) + self.sum.ln() - f64::from(self.at_target)
    }

    /// Whether no logit is larger than the target's.
    pub(super) fn is_correct(&self) -> bool {
        self.at_target >= self.max
    }

    /// Factors of the sum over exp(logit - max) times weights, and of the target's weight, in the gradient.
    pub(super) fn factors(&self, cap: f32) -> [f32; 2] {
        let at_target = f64::from(self.at_target - self.max).exp() / self.sum;
        let slope = 1.0 - (self.at_target / cap) * (self.at_target / cap);
        [self.sum.recip() as f32, (at_target - 1.0) as f32 * slope]
    }
}

multiversion! {
    /// Soft-caps a group of logits of one row in place (`cap` infinite for none) and takes them into its state. They become the
    /// exponentials of their distance from the largest one so far times the slope of the soft-cap, and zero at the target.
    pub(super) fn pass(logits: &mut [f32], target: Option<usize>, cap: f32, row: &mut Row) {
        soft_cap::<FMA>(logits, cap);
        let largest = largest(logits);
        let max = if largest > row.max { largest } else { row.max };
        row.factor = (row.max - max).exp();
        (row.max, row.sum) = (max, row.sum * f64::from(row.factor));
        if let Some(target) = target {
            row.at_target = logits[target];
        }
        for block in logits.chunks_mut(BLOCK) {
            row.sum += f64::from(exponentials::<FMA>(block, max, cap));
        }
        if let Some(target) = target {
            logits[target] = 0.0;
        }
    }
}

#[inline(always)]
fn soft_cap<const FMA: bool>(logits: &mut [f32], cap: f32) {
    if cap < f32::INFINITY {
        for logit in logits {
            *logit = cap * tanh::<FMA>(*logit / cap);
        }
    }
}

/// Turns logits into exp(logit - max) times the slope of the soft-cap, and returns the sum without it.
#[inline(always)]
fn exponentials<const FMA: bool>(logits: &mut [f32], max: f32, cap: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let one = |logit: &mut f32, lane: &mut f32| {
        let power = exp::<FMA>(*logit - max);
        *lane += power;
        // With an infinite cap the slope is one.
        *logit = power * (1.0 - (*logit / cap) * (*logit / cap));
    };
    let (chunks, rest) = logits.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            one(logit, lane);
        }
    }
    for (lane, logit) in lanes.iter_mut().zip(rest) {
        one(logit, lane);
    }
    lanes.iter().sum()
}

/// Sum of exp(logit - max).
#[inline(always)]
fn sum_of_exp<const FMA: bool>(logits: &[f32], max: f32) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [0f32; LANES];
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane += exp::<FMA>(*logit - max);
        }
    }
    for (lane, logit) in lanes.iter_mut().zip(rest) {
        *lane += exp::<FMA>(*logit - max);
    }
    lanes.iter().sum()
}

#[inline(always)]
fn largest(logits: &[f32]) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    let larger = |max, logit: &f32| if *logit > max { *logit } else { max };
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_narrows_within_its_own_memory() {
        for len in [1, 2, 31, 32, 33, 100] {
            let values: Vec<f32> = (0..len).map(|i| 1.0 + i as f32 / 3.0).collect();
            let mut row = values.clone();
            narrow_in_place(&mut row);
            let narrow: Vec<u16> = row
                .iter()
                .flat_map(|pair| [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16])
                .collect();
            let expected: Vec<u16> = values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect();
            assert_eq!(narrow[..len], expected);
        }
    }

    #[test]
    fn gradients_sum_to_zero() {
        let mut logits: Vec<f32> = (0..10_000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
        let row = loss(&mut logits, 77, f32::INFINITY);
        gradient(&mut logits, 77, row.lse, f32::INFINITY, 2.0);
        let total: f64 = logits.iter().map(|value| f64::from(*value)).sum();
        assert!(total.abs() < 1e-5, "{total}");
    }
}
