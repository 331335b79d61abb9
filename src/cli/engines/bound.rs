//! Bounds within which two engines train alike, from what their precisions round.
//!
//! A loss is a mean over target tokens of numbers that both engines round in another order. With u the unit roundoff of the
//! precision that they compute in, each rounds the logits of a token by u of their size, so that two means that agree are
//! within 2u of each other. In fp32 sums of thousands of terms round more than single numbers: 1e-5 is 168 u, and what was
//! measured lies a hundred times below it. A compiled model multiplies in TF32 on a GPU, whose factors have the bits of fp16.
//! Weights in codes are rounded once more, in another way by each engine. A gradient is the product of what both passes
//! rounded, and its norm may be ten times as far off.

use serde::Serialize;

use peft_tune_core::recipe::{Precision, TorchSettings};

/// Unit roundoffs: half the distance from 1 to the next number.
const BF16: f64 = 1.0 / 256.0;
const FP16: f64 = 1.0 / 2048.0;
const TF32: f64 = 1.0 / 2048.0;
/// Multiple of the losses' bound within which norms of gradients lie.
const OF_GRADIENTS: f64 = 10.0;

/// Relative difference of the highest rate within which learning rates lie: both engines compute them in 64 bits.
pub(in crate::cli) const RATES: f64 = 1e-9;

/// Arithmetic of products of fp32 where both engines compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Products {
    /// Products of the processor.
    Cpu,
    /// Products of a GPU, in fp32.
    Gpu,
    /// Products of a GPU whose factors PyTorch rounds to TF32: transformers asks for that where it compiles the model.
    GpuInTf32,
}

impl Products {
    /// The products of a device, with what TRL is told to choose in PyTorch.
    pub(in crate::cli) fn of(device: &str, torch: &TorchSettings) -> Self {
        match device {
            "cpu" => Self::Cpu,
            _ if torch.torch_compile => Self::GpuInTf32,
            _ => Self::Gpu,
        }
    }
}

/// Largest relative differences between engines that train alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::cli) struct Bound {
    /// Difference of losses.
    pub losses: f64,
    /// Difference of norms of gradients.
    pub gradients: f64,
    /// Roundings that the bound comes from.
    pub why: &'static str,
}

impl Bound {
    /// The bound of a precision, where fp32 is multiplied so.
    pub(in crate::cli) fn of(precision: Precision, products: Products) -> Self {
        let (losses, why) = match precision {
            Precision::Fp32 => match products {
                Products::Cpu => (1e-5, "sums of fp32 numbers in other orders"),
                Products::Gpu => (
                    1e-4,
                    "sums of fp32 numbers in other orders, and what a GPU approximates of exponentials",
                ),
                Products::GpuInTf32 => (
                    2.0 * TF32,
                    "a model that PyTorch compiles multiplies in TF32 on a GPU, which rounds fp32 to 11 bits",
                ),
            },
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
        let losses = |precision, products| Bound::of(precision, products).losses;
        assert_eq!(losses(Precision::Fp32, Products::Cpu), 1e-5);
        let rising = [
            losses(Precision::Fp32, Products::Cpu),
            losses(Precision::Fp32, Products::Gpu),
            losses(Precision::Fp16, Products::Gpu),
            losses(Precision::Bf16, Products::Gpu),
            losses(Precision::Nf4, Products::Gpu),
            losses(Precision::Int8, Products::Gpu),
        ];
        assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
        assert_eq!(
            losses(Precision::Bf16, Products::Cpu),
            losses(Precision::Bf16, Products::Gpu)
        );
        assert_eq!(Bound::of(Precision::Fp32, Products::Cpu).gradients, 1e-4);
    }

    #[test]
    fn what_is_compiled_on_a_gpu_may_differ_as_tf32_does() {
        let compiled = TorchSettings {
            torch_compile: true,
            ..TorchSettings::default()
        };
        let bound = |device: &str, torch: &TorchSettings| {
            let products = Products::of(device, torch);
            Bound::of(Precision::Fp32, products)
        };
        assert_eq!(bound("cpu", &compiled), bound("cpu", &TorchSettings::default()));
        let (compiled, plain) = (bound("cuda:0", &compiled), bound("cuda:0", &TorchSettings::default()));
        assert!(
            compiled.losses > plain.losses && compiled.why.contains("TF32"),
            "{compiled:?}"
        );
        assert_eq!(compiled.losses, Bound::of(Precision::Fp16, Products::Gpu).losses);
    }
}
