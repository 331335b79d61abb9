//! Schedule-Free AdamW (Defazio et al. 2024, arXiv:2405.15682) as `AdamWScheduleFree` of the package `schedulefree`.
//!
//! | symbol | meaning |
//! |---|---|
//! | x | running average of all z: the values between steps, which are evaluated and saved |
//! | y | where gradients are taken: the values while the passes of a step run |
//! | z | where plain AdamW without a mean of gradients would be |
//! | w | z - x, which is kept in place of z: it starts at zero, wherever the values start |
//! | v | running mean of g^2 |
//! | lr, d, e | learning rate, weight decay, epsilon |
//! | c | share of the new z in x: the square of the largest lr so far, over the sum of these squares |
//!
//! y = x + (1 - b1) w;  v = b2 v + (1 - b2) g^2;  u = g / (sqrt(v / (1 - b2^t)) + e) + d y;
//! z = z - lr u;  x = (1 - c) x + c z
//!
//! With w: from s = w - lr u follow x = x + c s and w = (1 - c) s.

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_core::recipe::OptimizerSettings;
use peft_tune_kernels::flat::{CHUNK, with_f32, with_f32_mut};
use peft_tune_kernels::gpu::{self, Argument, Launch};
use peft_tune_kernels::thread_pool;

use super::cuda::{GroupFactors, Kernel};
use super::group::Group;
use super::rule::{ElementRule, Step};

/// Blocks of threads that move values.
const MOST_BLOCKS: usize = 2048;

/// The constants of Schedule-Free AdamW.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduleFree {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

/// The factors of one update of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduleFreeFactors {
    rate: f32,
    weight_decay: f32,
    /// 1 - b1
    ahead: f32,
    beta2: f32,
    /// 1 - b2
    take2: f32,
    /// sqrt(1 - b2^t)
    correction: f32,
    epsilon: f32,
    /// c
    share: f32,
}

impl ScheduleFree {
    pub(super) fn new(settings: &OptimizerSettings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2.unwrap_or(0.999),
            epsilon: settings.epsilon,
        }
    }
}

impl ElementRule<2> for ScheduleFree {
    type Factors = ScheduleFreeFactors;

    const STATES: [&'static str; 2] = ["offset", "square"];
    const SIGNED: [bool; 2] = [true, false];

    const KERNEL: &'static str = "schedule_free";

    fn factors(&self, group: &Group, step: Step) -> ScheduleFreeFactors {
        ScheduleFreeFactors {
            rate: step.rate(group) as f32,
            weight_decay: group.weight_decay as f32,
            ahead: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            take2: (1.0 - self.beta2) as f32,
            correction: (1.0 - self.beta2.powf(step.number as f64)).sqrt() as f32,
            epsilon: self.epsilon as f32,
            share: step.share as f32,
        }
    }

    fn for_kernel(factors: &ScheduleFreeFactors) -> GroupFactors {
        let f = factors;
        [
            f.rate,
            f.weight_decay,
            f.ahead,
            f.beta2,
            f.take2,
            f.correction,
            f.epsilon,
            f.share,
        ]
    }

    fn look_ahead(&self) -> Option<f32> {
        Some((1.0 - self.beta1) as f32)
    }

    #[inline(always)]
    fn apply(factors: &ScheduleFreeFactors, value: &mut f32, gradient: f32, [offset, square]: [f32; 2]) -> [f32; 2] {
        let square = factors.beta2 * square + factors.take2 * gradient * gradient;
        let denominator = square.sqrt() / factors.correction + factors.epsilon;
        let change = gradient / denominator + factors.weight_decay * *value;
        let moved = offset - factors.rate * change;
        *value = *value - factors.ahead * offset + factors.share * moved;
        [(1.0 - factors.share) * moved, square]
    }

    fn apply_plain(
        factors: &ScheduleFreeFactors,
        value: &Tensor,
        gradient: &Tensor,
        [offset, square]: &[Tensor; 2],
    ) -> Result<(Tensor, [Tensor; 2])> {
        let square = (square * f64::from(factors.beta2))?;
        let square = (square + (gradient.sqr()? * f64::from(factors.take2))?)?;
        let root = square.sqrt()?;
        let denominator = root.affine(1.0 / f64::from(factors.correction), f64::from(factors.epsilon))?;
        let change = ((gradient / denominator)? + (value * f64::from(factors.weight_decay))?)?;
        let moved = (offset - (change * f64::from(factors.rate))?)?;
        let average = (value - (offset * f64::from(factors.ahead))?)?;
        let value = (average + (&moved * f64::from(factors.share))?)?;
        Ok((value, [(moved * f64::from(1.0 - factors.share))?, square]))
    }
}

/// Adds `factor` times `offsets` to `values`, both flat F32 and of the same length.
pub(super) fn shift(values: &Tensor, offsets: &Tensor, factor: f32) -> Result<()> {
    let device = values.device();
    if gpu::takes(values) {
        let kernel = Kernel::new("shift", 256);
        let count = values.elem_count();
        let launch = Launch {
            source: kernel.source,
            kernel: kernel.name,
            blocks: [count.div_ceil(kernel.threads).min(MOST_BLOCKS), 1, 1],
            threads: [kernel.threads, 1, 1],
            shared_bytes: kernel.shared_bytes,
        };
        let (values, offsets) = (Argument::Tensor(values), Argument::Tensor(offsets));
        return launch.run(
            device,
            &[values, offsets, Argument::F32(factor), Argument::U64(count as u64)],
        );
    }
    if !device.is_cpu() {
        return values.slice_set(&(values + (offsets * f64::from(factor))?)?, 0, 0);
    }
    shift_on_host(values, offsets, factor)
}

/// [`shift`] of tensors in the host's memory.
pub(super) fn shift_on_host(values: &Tensor, offsets: &Tensor, factor: f32) -> Result<()> {
    with_f32(offsets, |offsets| {
        with_f32_mut(values, |values| {
            thread_pool::for_chunks(values, CHUNK, |index, values| {
                for (value, offset) in values.iter_mut().zip(&offsets[index * CHUNK..]) {
                    *value += factor * offset;
                }
            });
            Ok(())
        })
    })
}

/// How much each step counts in an average of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    largest_rate: f64,
    /// Sum of the squares of the largest rate at each step.
    sum: f64,
}

impl Shares {
    /// Shares behind one more step, with `rate`.
    pub(super) fn with(self, rate: f64) -> Self {
        let largest_rate = self.largest_rate.max(rate);
        Self {
            largest_rate,
            sum: self.sum + largest_rate.powi(2),
        }
    }

    /// Share of the last step in the average; 0 while no step had a rate.
    pub(super) fn last(self) -> f64 {
        if self.sum > 0.0 {
            self.largest_rate.powi(2) / self.sum
        } else {
            0.0
        }
    }

    /// (2,) F64, for a checkpoint.
    pub(super) fn to_tensor(self) -> Result<Tensor> {
        Tensor::new(&[self.largest_rate, self.sum], &Device::Cpu)
    }

    /// Reads what [`to_tensor`](Self::to_tensor) made.
    pub(super) fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let numbers = tensor.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let [largest_rate, sum] = numbers[..] else {
            candle_core::bail!("{} numbers in place of 2", numbers.len());
        };
        Ok(Self { largest_rate, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_equal_rates_make_a_plain_mean() {
        let mut shares = Shares::default();
        assert_eq!(shares.last(), 0.0);
        for step in 1..=5 {
            shares = shares.with(0.1);
            assert!((shares.last() - 1.0 / f64::from(step)).abs() < 1e-12);
        }
    }

    #[test]
    fn a_warm_up_counts_by_the_square_of_its_rates() {
        let shares = [0.5, 1.0, 1.0].into_iter().fold(Shares::default(), Shares::with);
        assert!((shares.last() - 1.0 / 2.25).abs() < 1e-12);
        // A rate that falls counts as the largest one before it.
        assert!((shares.with(0.1).last() - 1.0 / 3.25).abs() < 1e-12);
    }
}
