//! The element types of the fused forms, and their conversion to and from F32.
//!
//! The conversions are branch-free integer arithmetic, so that the compiler vectorises loops over them on every
//! instruction set. Rounding is to nearest, ties to even.

use candle_core::{DType, WithDType};
use half::{bf16, f16};

/// A value that the fused ops read and write; arithmetic is in F32.
pub(super) trait Element: WithDType {
    /// Widens to the same value in F32.
    fn widen(self) -> f32;
    /// Rounds to the nearest value of this type.
    fn narrow(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1))) >> 16;
        let quiet = (bits >> 16) | 0x40;
        Self::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }
}

/// Branch-free forms after F. Giesen, <https://gist.github.com/rygorous/2156668>.
impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        // Exponent and mantissa in F32's places; the product moves the bias and normalises what was subnormal.
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits((254 - 15) << 23);
        let special = if magnitude >= 65536.0 { 255 << 23 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7FFF_FFFF);
        // Above the largest finite value: infinity, or a quiet NaN.
        let special = if magnitude > 255 << 23 { 0x7E00 } else { 0x7C00 };
        // Subnormal: adding one half of the last place lets the addition round.
        let magic = f32::from_bits(((127 - 15) + (23 - 10) + 1) << 23);
        let subnormal = (f32::from_bits(magnitude) + magic)
            .to_bits()
            .wrapping_sub(magic.to_bits());
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_add(((15u32.wrapping_sub(127)) << 23).wrapping_add(0xFFF) + odd) >> 13;
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        let half = if magnitude >= (127 + 16) << 23 { special } else { finite };
        Self::from_bits((half | sign) as u16)
    }
}

/// Whether the fused forms take elements of `dtype`.
pub(super) fn is_element(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// Evaluates an expression with the type name `$t` bound to the element type of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $t = f32;
                $body
            }
            candle_core::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            candle_core::DType::F16 => {
                type $t = half::f16;
                $body
            }
            other => candle_core::bail!("the fused ops take no elements of dtype {other:?}"),
        }
    };
}
pub(super) use with_element;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_half_value_widens_exactly() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in [
                (f16::from_bits(bits).widen(), f16::from_bits(bits).to_f32()),
                (bf16::from_bits(bits).widen(), bf16::from_bits(bits).to_f32()),
            ] {
                assert!(
                    ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                    "{bits:04x}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn narrowing_rounds_as_the_half_crate_does(bits: u32) {
            let value = f32::from_bits(bits);
            let (half, brain) = (<f16 as Element>::narrow(value), <bf16 as Element>::narrow(value));
            prop_assert!(half == f16::from_f32(value) || (half.is_nan() && value.is_nan()));
            prop_assert!(brain == bf16::from_f32(value) || (brain.is_nan() && value.is_nan()));
        }

        #[test]
        fn narrowing_around_the_subnormals_rounds_as_the_half_crate_does(value in -1e-4f32..1e-4) {
            prop_assert_eq!(<f16 as Element>::narrow(value), f16::from_f32(value));
        }
    }
}
