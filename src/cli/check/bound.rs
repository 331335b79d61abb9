//! Bounds within which two engines train alike, from what their precisions round.
//!
//! A loss is a mean over target tokens of numbers that both engines round in another order. With u the unit roundoff of the
//! precision that they compute in, each rounds the logits of a token by u of their size, so that two means that agree are
//! within 2u of each other. In fp32 sums of thousands of terms round more than single numbers: 1e-5 is 168 u, and what was
//! measured lies a hundred times below it. Weights in codes are rounded once more, in another way by each engine. A gradient
//! is the product of what both passes rounded, and its norm may be ten times as far off.

use serde::Serialize;

use peft_tune_core::recipe::Precision;

/// Unit roundoffs: half the distance from 1 to the next number.
const BF16: f64 = 1.0 / 256.0;
const FP16: f64 = 1.0 / 2048.0;
/// Multiple of the losses' bound within which norms of gradients lie.
const OF_GRADIENTS: f64 = 10.0;

/// Relative difference of the highest rate within which learning rates lie: both engines compute them in 64 bits.
pub(super) const RATES: f64 = 1e-9;

/// Largest relative differences between engines that train alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Bound {
    /// Difference of losses.
    pub losses: f64,
    /// Difference of norms of gradients.
    pub gradients: f64,
    /// Roundings that the bound comes from.
    pub why: &'static str,
}

impl Bound {
    /// The bound of a precision on the processor, or on a GPU.
    pub(super) fn of(precision: Precision, is_gpu: bool) -> Self {
        let (losses, why) = match precision {
            Precision::Fp32 if is_gpu => (
                1e-4,
                "sums of fp32 numbers in other orders, and what a GPU approximates of exponentials",
            ),
            Precision::Fp32 => (1e-5, "sums of fp32 numbers in other orders"),
            Precision::Bf16 => (2.0 * BF16, "each engine rounds logits to the 8 bits of bf16"),
            Precision::Fp16 => (2.0 * FP16, "each engine rounds logits to the 11 bits of fp16"),
            Precision::Nf4 | Precision::Nf4Double => (
                4.0 * BF16,
                "each engine rounds logits, and the weights that it makes of the codes, to the 8 bits of bf16",
            ),
            Precision::Int8 => (
                8.0 * BF16,
                "bf16, and weights in 8 bits by blocks here and by rows in bitsandbytes, which rounds activations so too",
            ),
        };
        Self {
            losses,
            gradients: OF_GRADIENTS * losses,
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_grow_with_what_is_rounded() {
        let losses = |precision, is_gpu| Bound::of(precision, is_gpu).losses;
        assert_eq!(losses(Precision::Fp32, false), 1e-5);
        let rising = [
            losses(Precision::Fp32, false),
            losses(Precision::Fp32, true),
            losses(Precision::Fp16, true),
            losses(Precision::Bf16, true),
            losses(Precision::Nf4, true),
            losses(Precision::Int8, true),
        ];
        assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
        assert_eq!(losses(Precision::Bf16, false), losses(Precision::Bf16, true));
        assert_eq!(Bound::of(Precision::Fp32, false).gradients, 1e-4);
    }
}
