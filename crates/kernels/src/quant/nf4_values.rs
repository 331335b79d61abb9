//! The sixteen values of NF4, and the codes that blocks get of them.

use peft_tune_core::plan::BLOCK;

use super::blocks::absmax;
use super::expand::Nf4Table;

/// The sixteen values: quantiles of a normal distribution with a zero, scaled to [-1, 1] (QLoRA, appendix E).
pub(super) const VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

pub(super) static TABLE: Nf4Table = Nf4Table::new(VALUES);

/// Packs one block and returns its constant. The arithmetic is bitsandbytes': a whole block is multiplied by the
/// reciprocal of its constant, a cut one divided by it.
pub(super) fn quantize_block(block: &[f32], packed: &mut [u8]) -> f32 {
    let constant = absmax(block);
    let divisor = constant.max(1e-38);
    let is_whole = block.len() == BLOCK;
    // Missing elements of a cut block stay zero; the last of them may be packed.
    let mut scaled = [0f32; BLOCK];
    if is_whole {
        let inverse = 1.0 / divisor;
        scaled
            .iter_mut()
            .zip(block)
            .for_each(|(scaled, value)| *scaled = value * inverse);
    } else {
        scaled
            .iter_mut()
            .zip(block)
            .for_each(|(scaled, value)| *scaled = value / divisor);
    }
    let codes = codes(&scaled);
    for (byte, [high, low]) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = high << 4 | low;
    }
    if is_whole { constant } else { divisor }
}

/// The number of bounds between neighbouring values that lie below each fraction.
fn codes(fractions: &[f32; BLOCK]) -> [u8; BLOCK] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the feature that the function is compiled for.
        return unsafe { codes_avx512(fractions) };
    }
    count_bounds(fractions)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn codes_avx512(fractions: &[f32; BLOCK]) -> [u8; BLOCK] {
    count_bounds(fractions)
}

#[inline(always)]
fn count_bounds(fractions: &[f32; BLOCK]) -> [u8; BLOCK] {
    let mut codes = [0u8; BLOCK];
    let lanes = fractions.as_chunks::<16>().0.iter();
    for (codes, fractions) in codes.as_chunks_mut::<16>().0.iter_mut().zip(lanes) {
        // Sixteen counters stay in registers over all bounds.
        let mut counts = [0u32; 16];
        for pair in VALUES.windows(2) {
            let bound = (pair[0] + pair[1]) / 2.0;
            for (count, fraction) in counts.iter_mut().zip(fractions) {
                *count += u32::from(*fraction > bound);
            }
        }
        *codes = counts.map(|count| count as u8);
    }
    codes
}
