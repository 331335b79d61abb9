//! The float types that weights are widened to.

use candle_core::WithDType;
use half::{bf16, f16};

mod sealed {
    /// Keeps [`Element`](super::Element) to the three types whose layout the inner loops know.
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// A float that a quantized weight can be widened to: F32, BF16 or F16.
pub trait Element: WithDType + Send + Sync + sealed::Sealed {
    /// Rounds to nearest, ties to even. `value` is finite.
    fn round(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        // `bf16::from_f32` without its branch for NaN: a loop over it becomes vector instructions.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        bf16::from_bits((rounded >> 16) as u16)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn round(value: f32) -> Self {
        f16::from_f32(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rounding_is_that_of_the_half_crate(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(<bf16 as Element>::round(value).to_bits(), bf16::from_f32(value).to_bits());
        }
    }
}
